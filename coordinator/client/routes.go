package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// MaxKeys is the most keys of one GetRegionsByKeys.
const MaxKeys = 1024

// scanPage is how many regions ScanRegions asks for at a time.
const scanPage = 1024

// GetRegionByKey finds the region that holds a key. ErrNotFound: there is none.
func (c *Client) GetRegionByKey(ctx context.Context, key []byte, opts ...ReadOption) (Route, error) {
	r := readOf(opts)
	req := &coordinatorv1.GetRegionByKeyRequest{Key: key, Keyspace: r.keyspace, Read: r.options}
	reply, err := do(ctx, c, operation{name: "GetRegionByKey"}, req, coordinatorv1.CoordinatorClient.GetRegionByKey)
	if err != nil {
		return Route{}, err
	}
	r.saw(reply.GetDisclosure())
	return routeOf(reply.GetRegion(), directoryOf(reply.GetOwners()), reply.GetLeaderMemberId(), reply.GetDisclosure()), nil
}

// GetRegion finds a region by its id. ErrNotFound: there is none.
func (c *Client) GetRegion(ctx context.Context, id rooted.RegionID, opts ...ReadOption) (Route, error) {
	r := readOf(opts)
	req := &coordinatorv1.GetRegionRequest{RegionId: uint64(id), Read: r.options}
	reply, err := do(ctx, c, operation{name: "GetRegion"}, req, coordinatorv1.CoordinatorClient.GetRegion)
	if err != nil {
		return Route{}, err
	}
	r.saw(reply.GetDisclosure())
	return routeOf(reply.GetRegion(), directoryOf(reply.GetOwners()), reply.GetLeaderMemberId(), reply.GetDisclosure()), nil
}

// GetRegionsByKeys finds the regions of 1 to MaxKeys keys in one view. The
// routes are in the order of the keys; Found is false where there is no region.
//
// Reads that a coordinator answers from what it has go over one shared stream;
// reads that may have to wait (Strong, AtLeast, AtRevision) go on their own.
func (c *Client) GetRegionsByKeys(ctx context.Context, keys [][]byte, opts ...ReadOption) ([]Route, error) {
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, invalid("GetRegionsByKeys", "%d keys are not in 1 to %d", len(keys), MaxKeys)
	}
	r := readOf(opts)
	if !utf8.ValidString(r.keyspace) {
		return nil, invalid("GetRegionsByKeys", "the keyspace name %q is not UTF-8", r.keyspace)
	}
	req := &keysRequest{Keys: keys, Keyspace: r.keyspace, Read: r.options}
	if !r.mayWait() {
		reply, err := c.streamed(ctx, req)
		if err != nil {
			return nil, err
		}
		r.saw(reply.disclosure)
		routes, err := reply.routes(len(keys))
		if err != nil {
			return nil, &Error{Op: "GetRegionsByKeys", Cause: err}
		}
		return routes, nil
	}
	reply, err := do(ctx, c, operation{name: "GetRegionsByKeys"}, req, coordinatorv1.CoordinatorClient.GetRegionsByKeys)
	if err != nil {
		return nil, err
	}
	r.saw(reply.GetDisclosure())
	return spread(reply, len(keys))
}

// spread gives each key its route; keys of one region share it.
func spread(reply *coordinatorv1.GetRegionsByKeysResponse, keys int) ([]Route, error) {
	if len(reply.GetRegionOfKey()) != keys {
		return nil, &Error{Op: "GetRegionsByKeys", Cause: fmt.Errorf("%w: %d positions for %d keys", errUnfit, len(reply.GetRegionOfKey()), keys)}
	}
	d := directoryOf(reply.GetOwners())
	regions := make([]Route, len(reply.GetRegions())+1)
	regions[0] = Route{At: rooted.TokenFromProto(reply.GetDisclosure().GetServedRootToken()), from: reply.GetDisclosure()}
	for i, p := range reply.GetRegions() {
		regions[i+1] = routeOf(p, d, "", reply.GetDisclosure())
	}
	out := make([]Route, keys)
	for i, n := range reply.GetRegionOfKey() {
		if int(n) >= len(regions) {
			return nil, &Error{Op: "GetRegionsByKeys", Cause: fmt.Errorf("%w: region %d of %d", errUnfit, n, len(regions)-1)}
		}
		out[i] = regions[n]
	}
	return out, nil
}

type keysRequest = coordinatorv1.GetRegionsByKeysRequest

func newRouteStream(c *Client) *pipe[keysRequest, keysReply] {
	codec := newRouteCodec()
	return &pipe[keysRequest, keysReply]{
		c: c, op: operation{name: "GetRegionsByKeys"},
		connect: func(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[keysRequest, keysReply], error) {
			s, err := e.conn.NewStream(ctx, routeStream, coordinatorv1.Coordinator_RouteStream_FullMethodName, grpc.ForceCodecV2(codec))
			return &grpc.GenericClientStream[keysRequest, keysReply]{ClientStream: s}, err
		},
		match: first[keysRequest, keysReply],
		judge: func(e *endpoint, _ *request[keysRequest, keysReply], reply *keysReply) error {
			if d := reply.refusal; d != nil {
				return refused(d)
			}
			return c.accept(e, reply)
		},
		work: make(chan struct{}, 1),
	}
}

// routeStream is the service's own description of the stream.
var routeStream = func() *grpc.StreamDesc {
	streams := coordinatorv1.Coordinator_ServiceDesc.Streams
	i := slices.IndexFunc(streams, func(s grpc.StreamDesc) bool { return s.StreamName == "RouteStream" })
	return &streams[i]
}()

// streamed is GetRegionsByKeys over the shared stream.
func (c *Client) streamed(ctx context.Context, req *keysRequest) (*keysReply, error) {
	type answer struct {
		reply *keysReply
		err   error
	}
	done := make(chan answer, 1)
	expires, ok := ctx.Deadline()
	if !ok {
		expires = time.Now().Add(c.cfg.DefaultTimeout)
	}
	c.routes.send(&request[keysRequest, keysReply]{
		msg: req, expires: expires,
		finish: func(reply *keysReply, err error) { done <- answer{reply, err} },
	})
	select {
	case a := <-done:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, waited("GetRegionsByKeys", ctx.Err(), c.routes.seen.Load())
	}
}

// ScanRegions yields the regions that hold route keys of [start, end), in key
// order, a page at a time; an empty end is the end of the keyspace. Each page
// is a view of its own: a region that changes during the scan may be seen
// twice or in parts. An error ends the sequence.
func (c *Client) ScanRegions(ctx context.Context, start, end []byte, opts ...ReadOption) iter.Seq2[Route, error] {
	r := readOf(opts)
	return func(yield func(Route, error) bool) {
		left := r.limit
		for {
			page := scanPage
			if r.limit > 0 {
				page = min(page, left)
			}
			req := &coordinatorv1.ScanRegionsRequest{Keyspace: r.keyspace, StartKey: start, EndKey: end, Limit: uint32(page), Read: r.options}
			reply, err := do(ctx, c, operation{name: "ScanRegions"}, req, coordinatorv1.CoordinatorClient.ScanRegions)
			if err != nil {
				yield(Route{}, err)
				return
			}
			r.saw(reply.GetDisclosure())
			d := directoryOf(reply.GetOwners())
			for _, p := range reply.GetRegions() {
				if !yield(routeOf(p, d, "", reply.GetDisclosure()), nil) {
					return
				}
			}
			left -= len(reply.GetRegions())
			start = reply.GetNextStartKey()
			if len(start) == 0 || (r.limit > 0 && left <= 0) {
				return
			}
		}
	}
}
