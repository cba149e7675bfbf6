package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// MaxKeys is the most keys of one GetRegionsByKeys.
const MaxKeys = 1024

// scanPage is how many regions ScanRegions asks for at a time.
const scanPage = 1024

// GetRegionByKey finds the region that holds a key. ErrNotFound: there is none.
// Concurrent callers share requests.
func (c *Client) GetRegionByKey(ctx context.Context, key []byte, opts ...ReadOption) (Route, error) {
	const op = "GetRegionByKey"
	r := readOf(opts)
	if err := checkLookup(op, r.keyspace, key); err != nil {
		return Route{}, err
	}
	route, err := c.lookups.find(ctx, key, &r)
	if before, elsewhere := err.(errElsewhere); elsewhere {
		return c.regionByKey(ctx, key, &r, before)
	}
	if err != nil {
		return Route{}, err
	}
	r.saw(route.from)
	return route, nil
}

// regionByKey is GetRegionByKey by a call of its own.
func (c *Client) regionByKey(ctx context.Context, key []byte, r *read, before errElsewhere) (Route, error) {
	req := &coordinatorv1.GetRegionByKeyRequest{Key: bytes.Clone(key), Keyspace: r.keyspace, Read: r.options}
	reply, err := doAfter(ctx, c, operation{name: "GetRegionByKey"}, before, req, coordinatorv1.CoordinatorClient.GetRegionByKey)
	if err != nil {
		return Route{}, err
	}
	r.saw(reply.GetDisclosure())
	return routeOf(reply.GetRegion(), directoryOf(reply.GetOwners()), reply.GetLeaderMemberId(), reply.GetDisclosure()), nil
}

// checkLookup refuses what would be refused by every coordinator: it shares
// requests with others.
func checkLookup(op, keyspace string, keys ...[]byte) error {
	if len(keyspace) > rooted.MaxNameBytes || !utf8.ValidString(keyspace) {
		return invalid(op, "the keyspace name %.80q is not UTF-8 of at most %d bytes", keyspace, rooted.MaxNameBytes)
	}
	for i, key := range keys {
		if len(key) == 0 || len(key) > rooted.MaxKeyBytes {
			return invalid(op, "key %d of %d has %d bytes, not 1 to %d", i+1, len(keys), len(key), rooted.MaxKeyBytes)
		}
	}
	return nil
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
// Requests go over one shared stream, long ones on streams of their own.
func (c *Client) GetRegionsByKeys(ctx context.Context, keys [][]byte, opts ...ReadOption) ([]Route, error) {
	const op = "GetRegionsByKeys"
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, invalid(op, "%d keys are not in 1 to %d", len(keys), MaxKeys)
	}
	r := readOf(opts)
	if err := checkLookup(op, r.keyspace, keys...); err != nil {
		return nil, err
	}
	size := 0
	for _, key := range keys {
		size += keyBytes + len(key)
	}
	raw := make([]byte, 0, size+128)
	for _, key := range keys {
		raw = appendKey(raw, key)
	}
	req, err := keysMessage(raw, len(keys), r.keyspace, r.options, c.lookups.nextID(), c.patience(ctx))
	if err != nil {
		return nil, invalid(op, "the read options cannot be encoded: %v", err)
	}
	var reply *keysAnswer
	var before errElsewhere
	alone := size > maxSharedBytes
	if !alone {
		reply, err = c.streamed(ctx, req)
		before, alone = err.(errElsewhere)
	}
	if alone {
		reply, err = doAfter(ctx, c, operation{name: op}, before, req, lookUpAlone)
	}
	if err != nil {
		return nil, err
	}
	r.saw(reply.GetDisclosure())
	routes, err := reply.routes(len(keys))
	if err != nil {
		return nil, &Error{Op: op, Cause: err}
	}
	return routes, nil
}

// maxSharedBytes is the most bytes of keys of a request on the shared stream:
// others wait behind it. keyBytes is what a key takes beside its own bytes.
const (
	maxSharedBytes = 64 << 10
	keyBytes       = 3
)

// patience is how long a coordinator may hold an answer back: not until it
// would be taken for dead.
func (c *Client) patience(ctx context.Context) time.Duration {
	most := c.cfg.TryTimeout - c.cfg.TryTimeout/10
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end))
	}
	return max(most, time.Millisecond)
}

func newRouteStream(c *Client) *pipe[keysRequest, keysReply] {
	op := operation{name: "GetRegionsByKeys"}
	return &pipe[keysRequest, keysReply]{
		c: c, op: op,
		alone: func(ctx context.Context, e *endpoint, req *keysRequest) ([]*keysReply, error) {
			answer, err := once(ctx, c, op, e, req, lookUpAlone)
			if err != nil {
				return nil, err
			}
			return answer.parts, nil
		},
		connect: wired[keysRequest, keysReply](coordinatorv1.CoordinatorClient.RouteStream),
		match: func(queue []*request[keysRequest, keysReply], reply *keysReply) int {
			return slices.IndexFunc(queue, func(r *request[keysRequest, keysReply]) bool { return r.msg.id == reply.id })
		},
		judge: func(e *endpoint, r *request[keysRequest, keysReply], reply *keysReply) error {
			if d := reply.refusal; d != nil {
				return refused(d)
			}
			if err := c.accept(e, reply); err != nil {
				return err
			}
			return fits(r.msg, r.parts, reply)
		},
		partial: func(reply *keysReply) bool { return reply.partial },
		apart:   func(err error) bool { return reason.From(err) != nil || errors.Is(err, errMisfit) },
		work:    make(chan struct{}, 1),
	}
}

// errMisfit is an answer that cannot be one to the request.
var errMisfit = fmt.Errorf("%w: not to this request", errUnfit)

// fits says why a reply cannot be the next part of an answer.
func fits(req *keysRequest, before []*keysReply, reply *keysReply) error {
	answered := len(reply.positions)
	for _, part := range before {
		answered += len(part.positions)
	}
	if answered > req.keys || !reply.partial && answered != req.keys || len(reply.positions) == 0 {
		return fmt.Errorf("%w: %d positions for %d keys", errMisfit, answered, req.keys)
	}
	return reply.check()
}

// keysAnswer is the parts of an answer, one at least.
type keysAnswer struct{ parts []*keysReply }

// GetDisclosure lets Client.accept judge the answer.
func (a *keysAnswer) GetDisclosure() *coordinatorv1.Disclosure { return a.parts[0].disclosure }

func (a *keysAnswer) routes(keys int) (out []Route, err error) {
	out = make([]Route, 0, keys)
	for _, part := range a.parts {
		if out, err = part.appendRoutes(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// route is the route of one of the keys.
func (a *keysAnswer) route(key int) (Route, error) {
	for _, part := range a.parts {
		if key < len(part.positions) {
			return part.route(key)
		}
		key -= len(part.positions)
	}
	return Route{}, fmt.Errorf("%w: no position for a key", errUnfit)
}

// lookUpAlone is a lookup on a stream of its own.
func lookUpAlone(rpc coordinatorv1.CoordinatorClient, ctx context.Context, req *keysRequest, opts ...grpc.CallOption) (*keysAnswer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := rpc.RouteStream(ctx, append(opts, grpc.ForceCodecV2(ownCodec))...)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(req); err != nil && err != io.EOF {
		return nil, err
	}
	answer := &keysAnswer{}
	for more := true; more; {
		reply := &keysReply{}
		if err := stream.RecvMsg(reply); err != nil {
			return nil, err
		}
		if reply.refusal != nil {
			return nil, refused(reply.refusal)
		}
		if err := fits(req, answer.parts, reply); err != nil {
			return nil, err
		}
		answer.parts, more = append(answer.parts, reply), reply.partial
	}
	return answer, nil
}

// streamed is a lookup over the shared stream.
func (c *Client) streamed(ctx context.Context, req *keysRequest) (*keysAnswer, error) {
	type result struct {
		answer *keysAnswer
		err    error
	}
	done := make(chan result, 1)
	expires, ok := ctx.Deadline()
	if !ok {
		expires = time.Now().Add(c.cfg.DefaultTimeout)
	}
	r := &request[keysRequest, keysReply]{
		msg: req, expires: expires, bytes: len(req.raw), deserted: func() bool { return ctx.Err() != nil }, waits: req.waits,
	}
	r.finish = func(reply *keysReply, err error) { done <- result{&keysAnswer{append(r.parts, reply)}, err} }
	c.routes.send(r)
	select {
	case a := <-done:
		return a.answer, a.err
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
