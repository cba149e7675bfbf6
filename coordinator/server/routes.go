package server

import (
	"context"
	"math"
	"sync"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// regionByKey serves GetRegionByKey.
func (s *Server) regionByKey(ctx context.Context, req *keyRequest) (*packet, error) {
	if err := checkKey("key", req.key); err != nil {
		return nil, err
	}
	if err := checkKeyspace(req.keyspace); err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.read)
	if err != nil {
		return nil, err
	}
	region, err := v.find(ctx, req.read, func() (*state.Region, error) {
		r, _, err := catalog.Lookup(v.state, req.keyspace, req.key)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	p := newPacket()
	p.data = appendRegion(p.data, 1, region)
	p.data = appendUint(p.data, 2, region.Revision)
	for i := range region.Owners {
		id := region.Owners[i].Member
		p.data = appendOwner(p.data, 3, id, v.state.Member(id))
	}
	p.data = appendString(p.data, 4, s.cfg.Soft.Leader(region, v.now))
	p.data = appendDisclosure(p.data, 5, v.disclosure())
	return p, nil
}

// regionsByKeys serves GetRegionsByKeys.
func (s *Server) regionsByKeys(ctx context.Context, req *keysRequest) (*packet, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.read)
	if err != nil {
		return nil, err
	}
	return v.lookUp(ctx, req)
}

// routeStream serves RouteStream. Requests that waited together and want a
// strong read share one, for which the root is asked after all of them came.
func (s *Server) routeStream(stream grpc.ServerStream) error {
	return s.run(stream.Context(), s.routeStreams, func(l *live) error {
		recv := func() (*keysRequest, int, error) {
			req := keysRequests.Get().(*keysRequest)
			if err := stream.RecvMsg(req); err != nil {
				req.release()
				keysRequests.Put(req)
				return nil, 0, err
			}
			return req, req.size(), nil
		}
		answer := func(requests []*keysRequest) error {
			var strong served
			for _, req := range requests {
				p := s.routed(l.ctx, req, &strong)
				req.release()
				keysRequests.Put(req)
				if err := l.send(stream, p); err != nil {
					return err
				}
			}
			return nil
		}
		return exchange(l, s.cfg.Limits, recv, answer)
	})
}

// routed answers one request of a stream, with a refusal if need be.
func (s *Server) routed(ctx context.Context, req *keysRequest, strong *served) *packet {
	p, err := s.route(ctx, req, strong)
	if err != nil {
		p = newPacket()
		p.data = appendDetail(p.data, 5, s.detail(err))
	}
	return p
}

func (s *Server) route(ctx context.Context, req *keysRequest, strong *served) (*packet, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if strong.view != nil && strong.satisfies(req.read) {
		return strong.lookUp(ctx, req)
	}
	if waits(req.read) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Limits.StreamWait)
		defer cancel()
	}
	v, err := s.serve(ctx, req.read)
	if err != nil {
		return nil, err
	}
	if v.class == coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE {
		*strong = v
	}
	return v.lookUp(ctx, req)
}

// satisfies says whether a view that was served strong may answer another
// request that came before the root was asked.
func (v *served) satisfies(read *coordinatorv1.ReadOptions) bool {
	if read.GetFreshness() != coordinatorv1.Freshness_FRESHNESS_STRONG {
		return false
	}
	at := state.TokenFromProto(read.GetRequiredRootToken())
	return at.Index == 0 || at.Incarnation == v.view.Token.Incarnation && at.Term <= v.view.Token.Term && at.Index <= v.view.Token.Index
}

// lookUp answers a request for many keys from one view.
func (v *served) lookUp(ctx context.Context, req *keysRequest) (*packet, error) {
	a := answers.Get().(*answer)
	defer a.release()
	for {
		if err := catalog.LookupBatch(v.state, req.keyspace, req.keys, &a.found); err != nil {
			return nil, v.atToken(err)
		}
		newer, err := v.atRevision(ctx, req.read, a.oldest())
		if err != nil {
			return nil, err
		}
		if newer == v.view {
			return a.packet(v), nil
		}
		v.view, v.state = newer, newer.State
	}
}

// answer is the room in which an answer to many keys is put together.
type answer struct {
	found  catalog.Batch
	owners map[state.MemberID]struct{}
}

var answers = sync.Pool{New: func() any { return &answer{owners: map[state.MemberID]struct{}{}} }}

func (a *answer) release() {
	clear(a.owners)
	answers.Put(a)
}

// oldest is the lowest descriptor revision found.
func (a *answer) oldest() uint64 {
	lowest := uint64(math.MaxUint64)
	for _, r := range a.found.Regions {
		lowest = min(lowest, r.Revision)
	}
	return lowest
}

// packet is a GetRegionsByKeysResponse.
func (a *answer) packet(v *served) *packet {
	p := newPacket()
	for _, r := range a.found.Regions {
		p.data = appendRegion(p.data, 1, r)
	}
	p.data = appendPositions(p.data, 2, a.found.RegionOfKey)
	var last state.MemberID
	for _, r := range a.found.Regions {
		for i := range r.Owners {
			id := r.Owners[i].Member
			if id == last {
				continue
			}
			last = id
			if _, seen := a.owners[id]; !seen {
				a.owners[id] = struct{}{}
				p.data = appendOwner(p.data, 3, id, v.state.Member(id))
			}
		}
	}
	p.data = appendDisclosure(p.data, 4, v.disclosure())
	return p
}

// appendPositions appends a packed field of small numbers.
func appendPositions(b []byte, num protowire.Number, positions []uint32) []byte {
	if len(positions) == 0 {
		return b
	}
	b, at := open(b, num)
	for _, p := range positions {
		b = protowire.AppendVarint(b, uint64(p))
	}
	return shut(b, at)
}

// GetRegion implements coordinatorv1.CoordinatorServer.
func (s *Server) GetRegion(ctx context.Context, req *coordinatorv1.GetRegionRequest) (*coordinatorv1.GetRegionResponse, error) {
	if req.GetRegionId() == 0 {
		return nil, invalid("region_id", "it is 0")
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	region, err := v.find(ctx, req.GetRead(), func() (*state.Region, error) {
		return catalog.Get(v.state, state.RegionID(req.GetRegionId()))
	})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.GetRegionResponse{
		Region: region.Proto(), Owners: catalog.Owners(v.state, region),
		LeaderMemberId: string(s.cfg.Soft.Leader(region, v.now)), Disclosure: v.disclosure(),
	}, nil
}

// ScanRegions implements coordinatorv1.CoordinatorServer.
func (s *Server) ScanRegions(ctx context.Context, req *coordinatorv1.ScanRegionsRequest) (*coordinatorv1.ScanRegionsResponse, error) {
	if err := checkBound("start_key", req.GetStartKey()); err != nil {
		return nil, err
	}
	if err := checkBound("end_key", req.GetEndKey()); err != nil {
		return nil, err
	}
	if err := checkKeyspace(req.GetKeyspace()); err != nil {
		return nil, err
	}
	if req.GetLimit() > catalog.MaxScanLimit {
		return nil, invalidLimit("limit", uint64(req.GetLimit()), catalog.MaxScanLimit)
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	page, err := catalog.Scan(v.state, req.GetKeyspace(), req.GetStartKey(), req.GetEndKey(), req.GetLimit())
	if err != nil {
		return nil, v.atToken(err)
	}
	resp := &coordinatorv1.ScanRegionsResponse{Disclosure: v.disclosure(), NextStartKey: []byte(page.Next)}
	bytes := 0
	for i, r := range page.Regions {
		if bytes += regionBytes(r); bytes > MaxReplyBytes && i > 0 {
			page.Regions, resp.NextStartKey = page.Regions[:i], []byte(r.Start)
			break
		}
		resp.Regions = append(resp.Regions, r.Proto())
	}
	resp.Owners = v.owners(page.Regions)
	return resp, nil
}

// regionBytes is about the size of a region on the wire.
func regionBytes(r *state.Region) int {
	n := 48 + len(r.Start) + len(r.End) + len(r.Frontier)
	for i := range r.Owners {
		n += 16 + len(r.Owners[i].Member)
	}
	return n
}

// owners are the addresses of the regions' owners, each once, in the order met.
func (v *served) owners(regions []*state.Region) []*coordinatorv1.OwnerAddress {
	var out []*coordinatorv1.OwnerAddress
	seen := map[state.MemberID]bool{}
	for _, r := range regions {
		for i := range r.Owners {
			if id := r.Owners[i].Member; !seen[id] {
				seen[id] = true
				m := v.state.Member(id)
				out = append(out, &coordinatorv1.OwnerAddress{
					MemberId: string(id), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation(),
				})
			}
		}
	}
	return out
}
