package server

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
	v, err := s.serveRegion(ctx, req.read)
	if err != nil {
		return nil, err
	}
	region, err := v.find(ctx, req.read, func() (*state.Region, error) {
		if err := v.mayRead(ctx, req.keyspace); err != nil {
			return nil, err
		}
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
	p.data = appendString(p.data, 4, s.cfg.Soft.Leader(v.state, region, v.now))
	p.data = appendDisclosure(p.data, 5, v.disclosure())
	return p, nil
}

// regionsByKeys serves GetRegionsByKeys.
func (s *Server) regionsByKeys(ctx context.Context, req *keysRequest) (*packet, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	v, err := s.serveRegion(ctx, req.read)
	if err != nil {
		return nil, err
	}
	a, err := v.lookUp(ctx, req)
	if err != nil {
		return nil, err
	}
	defer a.release()
	var p *packet
	err = s.inTurn(ctx, len(req.keys), func() error {
		p, _ = a.next(&v, MaxReplyBytes)
		return nil
	})
	return p, err
}

// routeStream serves RouteStream. What is answered from the view is answered in
// order; what waits for the root does so beside it.
func (s *Server) routeStream(stream grpc.ServerStream) error {
	return s.run(stream.Context(), s.routeStreams, func(l *live) error {
		a := &routeAnswers{
			s: s, l: l, stream: stream, account: l.account(budget.Waiting),
			stats: s.cfg.Stats.Method(coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName),
		}
		defer a.account.Close()
		defer a.waiting.Wait()
		recv := func() (*keysRequest, int, error) {
			req := keysRequests.Get().(*keysRequest)
			if err := stream.RecvMsg(req); err != nil {
				req.free()
				return nil, 0, err
			}
			return req, req.size(), nil
		}
		return exchange(l, s.cfg.Limits, recv, a.answer)
	})
}

// routeAnswers answers the requests of a RouteStream.
type routeAnswers struct {
	s      *Server
	l      *live
	stream grpc.ServerStream
	stats  *rpcstats.Method

	waiting sync.WaitGroup
	// Requests that wait for the root, and their bytes.
	count, bytes atomic.Int64
	account      *budget.Account // of those
}

func (a *routeAnswers) answer(requests []*keysRequest, since time.Time) error {
	for _, req := range requests {
		a.stats.Begin(1)
		var err error
		if a.s.mustWait(req.read) {
			err = a.await(req, since)
		} else {
			err = a.one(a.l.ctx, req, since)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mustWait says whether the answer to a read waits for the root: what the view
// has reached already is not waited for.
func (s *Server) mustWait(read *coordinatorv1.ReadOptions) bool {
	at := s.view().Token
	token := state.TokenFromProto(read.GetRequiredRootToken())
	return read.GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG ||
		token.Index != 0 && (token.Incarnation != at.Incarnation || token.Compare(at) > 0) ||
		read.GetRequiredDescriptorRevision() > at.Index
}

// await answers a request that may wait for the root on a goroutine of its own,
// until its own deadline. Too many at a time are refused.
func (a *routeAnswers) await(req *keysRequest, since time.Time) error {
	limits, size := &a.s.cfg.Limits, int64(req.size())
	count, bytes := a.count.Add(1), a.bytes.Add(size)
	leave := func() { a.count.Add(-1); a.bytes.Add(-size) }
	refuse := func(why error) error {
		defer leave()
		a.s.counted(a.l.ctx, a.stats, 1, since, why)
		refusal := a.s.routeRefusal(req.id, why)
		req.free()
		return a.l.send(a.stream, refusal)
	}
	if count > int64(limits.MaxQueued) || count > 1 && bytes > int64(limits.MaxMessageBytes) {
		return refuse(errManyWait)
	}
	if err := a.account.Take(int(size)); err != nil {
		return refuse(err)
	}
	a.waiting.Go(func() {
		defer leave()
		defer a.account.Give(int(size))
		ctx, cancel := context.WithTimeout(a.l.ctx, req.patience(limits.StreamWait))
		defer cancel()
		if err := a.one(ctx, req, since); err != nil {
			a.l.cut(err)
		}
	})
	return nil
}

var errManyWait = func() error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED, "too many requests of this stream wait for the root: ask again, or by a call of its own")
	e.Detail.RetryAfterMillis = retryAfterMillis
	return e
}()

// one answers a request that came at since, with a refusal if need be, and counts it. What
// is sent is made when it is this answer's turn, a part at a time: for a reader that takes nothing there
// is one part, however many answers wait.
func (a *routeAnswers) one(ctx context.Context, req *keysRequest, since time.Time) error {
	id := req.id
	v, found, err := a.s.route(ctx, req)
	req.free()
	if err == nil {
		defer found.release()
	} else {
		err = a.s.refusal(err)
	}
	a.s.counted(ctx, a.stats, 1, since, err)
	if cut := a.l.turn(); cut != nil {
		return cut
	}
	defer a.l.pass()
	if err != nil {
		return a.l.sendLocked(a.stream, a.s.routeRefusal(id, err))
	}
	for more := true; more && err == nil; {
		var p *packet
		p, more = found.next(&v, maxPartBytes)
		err = a.l.sendLocked(a.stream, p)
	}
	return err
}

// routeRefusal is a refusal of the request of an id as an answer of the stream.
func (s *Server) routeRefusal(id uint64, err error) *packet {
	p := newPacket()
	p.data = appendDetail(p.data, 5, s.detail(err))
	p.data = appendUint(p.data, 6, id)
	return p
}

func (s *Server) route(ctx context.Context, req *keysRequest) (served, *answer, error) {
	if err := req.check(); err != nil {
		return served{}, nil, err
	}
	v, err := s.serveRegion(ctx, req.read)
	if err != nil {
		return served{}, nil, err
	}
	found, err := v.lookUp(ctx, req)
	return v, found, err
}

// maxPartBytes is about how long a response of a route stream is at most, in
// bytes: what a client's window for the stream takes.
const maxPartBytes = 1 << 20

// lookUp finds the answer to a request for many keys in one view. The caller
// releases it.
func (v *served) lookUp(ctx context.Context, req *keysRequest) (*answer, error) {
	a := answers.Get().(*answer)
	a.id, a.made = req.id, 0
	for {
		err := v.mayRead(ctx, req.keyspace)
		if err == nil {
			err = v.server.inTurn(ctx, len(req.keys), func() error {
				return v.atToken(catalog.LookupBatch(v.state, req.keyspace, req.keys, &a.found))
			})
		}
		if err != nil {
			a.release()
			return nil, err
		}
		newer, err := v.atRevision(ctx, req.read, a.oldest())
		if err != nil {
			a.release()
			return nil, err
		}
		if newer == v.view {
			return a, nil
		}
		v.view, v.state = newer, newer.State
	}
}

// answer is the answer to a request for many keys, and the room in which it is
// put together.
type answer struct {
	id    uint64 // of the request
	found catalog.Batch
	made  int // keys in the parts that were made
	// owners is the place of each owner in the message, plus one; leaders that
	// of each region's leader.
	owners  map[state.MemberID]uint32
	leaders []uint32
	// part is the regions and positions of one part of a long answer.
	part      []*state.Region
	positions []uint32
	places    map[uint32]uint32 // in found, in the part
}

var answers = sync.Pool{New: func() any {
	return &answer{owners: map[state.MemberID]uint32{}, places: map[uint32]uint32{}}
}}

func (a *answer) release() {
	clear(a.owners)
	clear(a.part[:cap(a.part)])
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

// next makes the next part, a GetRegionsByKeysResponse of so many bytes, which has
// the regions of its own keys, and says whether there are more.
func (a *answer) next(v *served, most int) (p *packet, more bool) {
	regions, keys := a.found.Regions, a.found.RegionOfKey
	bytes := len(keys) * positionBytes
	for _, r := range regions {
		bytes += routeBytes(r)
	}
	if bytes <= most {
		return a.packet(v, regions, keys, false), false
	}
	clear(a.places)
	a.part, a.positions, bytes = a.part[:0], a.positions[:0], 0
	for _, n := range keys[a.made:] {
		place := a.places[n]
		bytes += positionBytes
		if n > 0 && place == 0 {
			bytes += routeBytes(regions[n-1])
		}
		if bytes > most && len(a.positions) > 0 {
			break
		}
		if n > 0 && place == 0 {
			a.part = append(a.part, regions[n-1])
			place = uint32(len(a.part))
			a.places[n] = place
		}
		a.positions = append(a.positions, place)
	}
	a.made += len(a.positions)
	more = a.made < len(keys)
	return a.packet(v, a.part, a.positions, more), more
}

// positionBytes is what a key takes of an answer.
const positionBytes = 2

// routeBytes is about the most that a region takes of an answer, with the
// addresses of its owners.
func routeBytes(r *state.Region) int {
	n := regionBytes(r)
	for i := range r.Owners {
		n += 2*len(r.Owners[i].Member) + ownerBytes
	}
	return n
}

// ownerBytes is room for an address; longer ones are rare, and the limit is not sharp.
const ownerBytes = 96

// packet is a GetRegionsByKeysResponse.
func (a *answer) packet(v *served, regions []*state.Region, positions []uint32, partial bool) *packet {
	p := newPacket()
	for _, r := range regions {
		p.data = appendRegion(p.data, 1, r)
	}
	p.data = appendPositions(p.data, 2, positions)
	clear(a.owners)
	a.leaders = a.leaders[:0]
	led := false
	var last state.MemberID
	for _, r := range regions {
		for i := range r.Owners {
			id := r.Owners[i].Member
			if id == last {
				continue
			}
			last = id
			if a.owners[id] == 0 {
				a.owners[id] = uint32(len(a.owners) + 1)
				p.data = appendOwner(p.data, 3, id, v.state.Member(id))
			}
		}
		var leader uint32
		if id := v.server.cfg.Soft.Leader(v.state, r, v.now); id != "" {
			leader = a.owners[id]
			led = led || leader != 0
		}
		a.leaders = append(a.leaders, leader)
	}
	p.data = appendDisclosure(p.data, 4, v.disclosure())
	p.data = appendUint(p.data, 6, a.id)
	p.data = appendBool(p.data, 7, partial)
	if led {
		p.data = appendPositions(p.data, 8, a.leaders)
	}
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
	v, err := s.serveRegion(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	region, err := v.find(ctx, req.GetRead(), func() (*state.Region, error) {
		return v.region(ctx, state.RegionID(req.GetRegionId()))
	})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.GetRegionResponse{
		Region: region.Proto(), Owners: catalog.Owners(v.state, region),
		LeaderMemberId: string(s.cfg.Soft.Leader(v.state, region, v.now)), Disclosure: v.disclosure(),
	}, nil
}

// manyRegions is how many regions an answer may be about that waits for no turn.
const manyRegions = 64

// inTurn does a part of a long answer when its turn comes, and refuses one that there is no
// room for before anything is made. A turn is processor time: whoever waits for something
// else has none.
func (s *Server) inTurn(ctx context.Context, regions int, do func() error) error {
	if regions <= manyRegions {
		return do()
	}
	if err := s.long.Take(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	defer s.long.Pass()
	if err := gate.Room(ctx); err != nil {
		return err
	}
	return do()
}

// scanRegions answers ScanRegions. It writes the answer itself: a long one takes
// milliseconds of a processor, in a turn that covers all of it.
func (s *Server) scanRegions(ctx context.Context, req *coordinatorv1.ScanRegionsRequest) (*packet, error) {
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
	if err := v.mayRead(ctx, req.GetKeyspace()); err != nil {
		return nil, err
	}
	most := int(req.GetLimit())
	if most == 0 {
		most = catalog.MaxScanLimit
	}
	var p *packet
	err = s.inTurn(ctx, most, func() (err error) {
		p, err = v.scan(req)
		return err
	})
	return p, err
}

// scan makes the answer of scanRegions.
func (v *served) scan(req *coordinatorv1.ScanRegionsRequest) (*packet, error) {
	page, err := catalog.Scan(v.state, req.GetKeyspace(), req.GetStartKey(), req.GetEndKey(), req.GetLimit())
	if err != nil {
		return nil, v.atToken(err)
	}
	regions, next, bytes := page.Regions, page.Next, 0
	for i, r := range regions {
		if bytes += regionBytes(r); bytes > MaxReplyBytes && i > 0 {
			regions, next = regions[:i], r.Start
			break
		}
	}
	p := newPacket()
	p.data = slices.Grow(p.data, bytes)
	for _, r := range regions {
		p.data = appendRegion(p.data, 1, r)
	}
	p.data = appendString(p.data, 2, next)
	seen := map[state.MemberID]bool{}
	for _, r := range regions {
		for i := range r.Owners {
			if id := r.Owners[i].Member; !seen[id] {
				seen[id] = true
				p.data = appendOwner(p.data, 3, id, v.state.Member(id))
			}
		}
	}
	p.data = appendDisclosure(p.data, 4, v.disclosure())
	return p, nil
}

// regionBytes is about the size of a region on the wire.
func regionBytes(r *state.Region) int {
	n := 48 + len(r.Start) + len(r.End) + len(r.Frontier)
	for i := range r.Owners {
		n += 16 + len(r.Owners[i].Member)
	}
	if r.Former != nil {
		n += 16 + len(r.Former.Member)
	}
	return n
}
