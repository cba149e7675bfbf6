package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

func (f *fake) GetRegionsByKeys(_ context.Context, req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
	return f.batch(req)
}

// RouteStream notes a request of one key as a GetRegionByKey and answers it the
// same, unless batch is set. A refusal is an answer.
func (f *fake) RouteStream(s grpc.BidiStreamingServer[coordinatorv1.GetRegionsByKeysRequest, coordinatorv1.GetRegionsByKeysResponse]) error {
	if f.deaf {
		<-s.Context().Done()
		return nil
	}
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		var reply *coordinatorv1.GetRegionsByKeysResponse
		if f.batch != nil {
			reply, err = f.batch(req)
		} else {
			reply, err = f.oneByOne(s.Context(), req)
		}
		if reason.From(err) != nil {
			reply = &coordinatorv1.GetRegionsByKeysResponse{Error: reason.From(err)}
		} else if err != nil {
			return err
		}
		reply = proto.CloneOf(reply)
		reply.RequestId = req.GetRequestId()
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

// oneByOne answers as GetRegionByKey does for each key.
func (f *fake) oneByOne(ctx context.Context, req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
	out := &coordinatorv1.GetRegionsByKeysResponse{}
	for i, key := range req.GetKeys() {
		one, err := f.GetRegionByKey(ctx, &coordinatorv1.GetRegionByKeyRequest{Key: key, Keyspace: req.GetKeyspace(), Read: req.GetRead()})
		if err != nil {
			return nil, err
		}
		out.Regions, out.RegionOfKey = append(out.Regions, one.GetRegion()), append(out.RegionOfKey, uint32(i+1))
		out.Owners, out.Disclosure = append(out.Owners, one.GetOwners()...), one.GetDisclosure()
	}
	return out, nil
}

// The stream's own decoder and protobuf's give the same routes.
func TestStreamedRoutesAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		var reply *coordinatorv1.GetRegionsByKeysResponse
		f.batch = func(*coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			return reply, nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		r := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			keys := make([][]byte, 1+r.IntN(20))
			for i := range keys {
				keys[i] = []byte{byte(i)}
			}
			reply = randomReply(r, len(keys))
			streamed, err := c.GetRegionsByKeys(t.Context(), keys)
			must(t, err)
			unary, err := c.GetRegionsByKeys(t.Context(), keys, client.Strong())
			must(t, err)
			for i := range keys {
				a, b := streamed[i], unary[i]
				if !reflect.DeepEqual(a.Region, b.Region) || a.At != b.At || a.Address() != b.Address() || !reflect.DeepEqual(a.Members(), b.Members()) {
					t.Fatalf("key %d: streamed\n%+v\n%+v\nunary\n%+v\n%+v", i, a.Region, a.Members(), b.Region, b.Members())
				}
			}
		}
	})
}

func randomReply(r *rand.Rand, keys int) *coordinatorv1.GetRegionsByKeysResponse {
	reply := &coordinatorv1.GetRegionsByKeysResponse{Disclosure: &coordinatorv1.Disclosure{ClusterId: 7, ServedRootToken: at(r.Uint64N(100))}}
	for range r.IntN(10) {
		p := region(r.Uint64(), fmt.Sprint(r.Int()), "", r.Uint64())
		p.Owners = nil
		for range r.IntN(4) {
			p.Owners = append(p.Owners, &rootv1.Owner{MemberId: fmt.Sprint("m", r.IntN(5)), PeerId: r.Uint64N(3), Incarnation: r.Uint64N(3), Role: rootv1.OwnerRole(r.IntN(3))})
		}
		if r.IntN(2) == 0 {
			p.EndKey, p.Frontier = []byte("z"), []byte{1, 2}
		}
		p.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 5))
		reply.Regions = append(reply.Regions, p)
	}
	for i := range 5 {
		reply.Owners = append(reply.Owners, &coordinatorv1.OwnerAddress{MemberId: fmt.Sprint("m", i), Address: fmt.Sprint("host:", i), State: rootv1.MemberState(r.IntN(4)), Incarnation: r.Uint64N(9)})
	}
	for range keys {
		reply.RegionOfKey = append(reply.RegionOfKey, uint32(r.IntN(len(reply.Regions)+1)))
	}
	return reply
}

func TestStreamedRefusalsAndNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		w.start("a", f)
		c, end := w.client(client.Config{DefaultTimeout: 100 * time.Millisecond}, "a")
		defer end()
		f.batch = func(*coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "no such keyspace")
		}
		_, err := c.GetRegionsByKeys(t.Context(), [][]byte{{1}})
		wantIs(t, err, client.ErrNotFound)
		for _, positions := range [][]uint32{nil, {0, 0}, {9}} {
			f.batch = func(*coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
				return &coordinatorv1.GetRegionsByKeysResponse{RegionOfKey: positions, Disclosure: f.disclosure()}, nil
			}
			for _, opt := range []client.ReadOption{client.BestEffort(), client.Strong()} {
				if routes, err := c.GetRegionsByKeys(t.Context(), [][]byte{{1}}, opt); err == nil {
					t.Errorf("positions %v gave %v", positions, routes)
				}
			}
		}
	})
}

func TestScanGoesThroughAllPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		for limit, want := range map[int]int{0: 10, 4: 4, 3: 3} {
			n := 0
			for r, err := range c.ScanRegions(t.Context(), nil, nil, client.Limit(limit)) {
				must(t, err)
				if n++; uint64(r.Region.ID) != uint64(n) {
					t.Errorf("region %d in place %d", r.Region.ID, n)
				}
			}
			if n != want {
				t.Errorf("limit %d: %d regions, want %d", limit, n, want)
			}
		}
	})
}

// ScanRegions has 10 regions, and pages of 3.
func (f *fake) ScanRegions(_ context.Context, req *coordinatorv1.ScanRegionsRequest) (*coordinatorv1.ScanRegionsResponse, error) {
	reply := &coordinatorv1.ScanRegionsResponse{Disclosure: f.disclosure()}
	from := 0
	if k := req.GetStartKey(); len(k) > 0 {
		from = int(k[0])
	}
	to := min(from+min(3, int(req.GetLimit())), 10)
	for i := from; i < to; i++ {
		reply.Regions = append(reply.Regions, region(uint64(i+1), string([]byte{byte(i)}), "", 1))
	}
	if to < 10 {
		reply.NextStartKey = []byte{byte(to)}
	}
	return reply, nil
}
