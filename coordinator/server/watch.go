package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

const (
	// watchHeartbeat is the longest silence of a watch.
	watchHeartbeat = time.Second
	// boundCheck is the time between two looks whether a bounded watch holds its
	// bound. One that does not twice in a row is ended.
	boundCheck = 250 * time.Millisecond
)

// WatchRegions implements coordinatorv1.CoordinatorServer. A goroutine of its own
// brings a watch to where frames are, and ends; from there on fanout.deliver
// sends, and this one waits for the end.
func (s *Server) WatchRegions(req *coordinatorv1.WatchRegionsRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
	begun := time.Now()
	return s.hold(stream.Context(), s.watchStreams, func(l *live) {
		w := &watch{server: s, live: l, begun: begun, stream: stream, connection: gate.Of(stream.Context()), place: -1, fell: make(chan struct{}, 1), class: coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT}
		w.out.watch = w
		l.work(func() error { return w.begin(req) })
		for {
			select {
			case <-w.fell:
				l.work(w.level)
			case <-l.end:
				w.leave()
				return
			case <-l.ctx.Done():
				l.cut(l.ctx.Err())
			}
		}
	})
}

// watch is one stream of changes.
type watch struct {
	server     *Server
	live       *live
	stream     grpc.ServerStream
	connection *gate.Conn
	// bounds are what the watch must hold; nil: nothing.
	bounds *coordinatorv1.ReadOptions
	class  coordinatorv1.ServingClass
	begun  time.Time // the call was taken
	// resumed: the reader knows of its keyspace, whether there is one or not.
	resumed bool

	// Owned by whom the watch is with: its own goroutine, or fanout.deliver.
	at                state.Token // where the reader stands
	parts             int         // of the frame behind at that were sent; 0 wherever else the watch goes on
	sentAt, checkedAt time.Time
	unheld            bool // the bound did not hold when it was checked last
	sharing           bool // what is sent others are sent too

	message watchMessage // the last one
	out     outlet
	fell    chan struct{} // level: frames do not lead on any more

	// Guarded by fanout.mu. place is where the watch stands in scope.level, -1:
	// nowhere; jumps is fanout.jumps of when it came there; left: it is over.
	scope *scope
	place int
	jumps uint64
	left  bool
}

// begin takes a request, sends a snapshot if it asks for one, and brings the watch
// to where frames are.
func (w *watch) begin(req *coordinatorv1.WatchRegionsRequest) error {
	if err := checkKeyspace(req.GetKeyspace()); err != nil {
		return err
	}
	if req.GetRead().GetFreshness() == coordinatorv1.Freshness_FRESHNESS_BOUNDED {
		w.bounds = &coordinatorv1.ReadOptions{
			Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: req.GetRead().MaxRootLag, MaxRootLagMillis: req.GetRead().MaxRootLagMillis,
		}
		w.class = coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED
	}
	w.at = state.TokenFromProto(req.GetAfter())
	w.resumed = w.at.Index != 0
	v, err := w.view(req.GetRead())
	if err != nil {
		return err
	}
	if err := w.admitted(req.GetKeyspace(), v); err != nil {
		return err
	}
	if !w.server.fanout.enter(w, scopeKey{req.GetKeyspace(), req.GetMembers()}) {
		return w.live.ctx.Err()
	}
	if !w.resumed || w.at.Incarnation < v.view.Token.Incarnation {
		if err := w.snapshot(v); err != nil {
			return err
		}
	}
	return w.level()
}

// leave ends the watch's part in the fan-out.
func (w *watch) leave() {
	w.out.close()
	w.server.fanout.part(w)
	if w.scope != nil {
		w.server.fanout.leave(w.scope)
	}
}

// view finds a view that is as fresh as the request asks for, and not behind
// the reader.
func (w *watch) view(read *coordinatorv1.ReadOptions) (served, error) {
	ctx, cancel := context.WithTimeout(w.live.ctx, w.server.cfg.Limits.StreamWait)
	defer cancel()
	v, err := w.server.serve(ctx, read)
	if err != nil {
		return served{}, w.lagging(err)
	}
	switch now := v.view.Token; {
	case w.at.Index == 0 || w.at.Incarnation < now.Incarnation:
		return v, nil
	case w.at.Incarnation > now.Incarnation || w.at.Index <= now.Index && w.at.Term > now.Term:
		return v, w.foreign(v.view)
	case w.at.Index > now.Index:
		return w.reach(ctx)
	default:
		return v, nil
	}
}

// reach waits until the view is where the reader is. Whether it ever can be is
// the root's to say: what it had not committed when it was asked nobody can have
// read.
func (w *watch) reach(ctx context.Context) (served, error) {
	v, err := w.server.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG})
	switch {
	case reason.Of(err) == rootv1.Reason_REASON_ROOT_LAG_EXCEEDED:
		view := w.server.view()
		behind := reason.New(rootv1.Reason_REASON_REQUIRED_TOKEN, "the view is at %s, the reader at %s: ask another coordinator", view.Token, w.at)
		behind.Detail.CurrentToken = view.Token.Proto()
		return v, behind
	case err != nil:
		return v, err
	case w.at.Compare(v.view.Token) > 0:
		return v, w.foreign(v.view)
	default:
		return v, nil
	}
}

// foreign refuses a position that this cluster's log does not have.
func (w *watch) foreign(view *rootview.View) error {
	refused := reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
		"after: position %s is not of this cluster's log, which is at %s: it is of another cluster", w.at, view.Token)
	refused.Detail.CurrentToken = view.Token.Proto()
	return refused
}

// lagging makes one refusal of all that a bounded watch can get for its bound.
func (w *watch) lagging(err error) error {
	refused, ok := errors.AsType[*reason.Error](err)
	if w.bounds != nil && ok && refused.Detail.GetReason() == rootv1.Reason_REASON_ROOT_UNAVAILABLE && w.server.view().Loaded() {
		refused.Detail.Reason = rootv1.Reason_REASON_ROOT_LAG_EXCEEDED
	}
	return err
}

// level brings the watch to where frames begin, and there leaves it to
// fanout.deliver.
func (w *watch) level() error {
	for {
		w.live.received.Add(1) // a watcher is never idle
		if err := w.checkBound(); err != nil {
			return err
		}
		next, level := w.server.fanout.join(w)
		switch {
		case level:
			return nil
		case next.behind:
			if err := w.catchUp(next.until); err != nil {
				return err
			}
		default:
			select {
			case <-next.ahead:
			case <-w.live.end:
			case <-w.live.ctx.Done():
			}
			if err := w.live.over(); err != nil {
				return err
			}
		}
	}
}

// checkBound ends a bounded watch whose view does not hold the bound.
func (w *watch) checkBound() error {
	if w.bounds == nil || time.Since(w.checkedAt) < boundCheck {
		return nil
	}
	w.checkedAt = time.Now()
	_, _, err := w.server.cfg.Views.Serve(w.live.ctx, w.bounds)
	if err != nil && w.unheld {
		return w.lagging(err)
	}
	w.unheld = err != nil
	return nil
}

// catchUp sends changes that are in no frame which begins where the reader is, up
// to where one does.
func (w *watch) catchUp(until state.Token) error {
	batches, err := w.server.cfg.Views.Subscribe(w.at).NextAll(w.live.ctx, frameBytes)
	if errors.Is(err, rootview.ErrSnapshotNeeded) {
		v, err := w.server.serve(w.live.ctx, nil)
		if err != nil {
			return err
		}
		return w.snapshot(v)
	}
	if err != nil {
		return err
	}
	for len(batches) > 1 && batches[len(batches)-1].Token.Compare(until) > 0 {
		batches = batches[:len(batches)-1]
	}
	return w.forward(w.server.fanout.frameOf(w.scope, w.at, batches))
}

// forward sends a frame as one batch. Only its last part moves the position, so
// that a reader that resumes in between gets the whole again.
func (w *watch) forward(k *frame) error {
	for i, part := range k.parts {
		if i < len(k.parts)-1 {
			if err := w.send(w.at, false, true, part); err != nil {
				return err
			}
			continue
		}
		w.at = k.to
		return w.send(w.at, false, false, part)
	}
	w.at = k.to // nothing concerned this watch
	return nil
}

// admitted is permitted for a watch that begins. Where there are grants one of a keyspace
// that is not there is refused like one of a keyspace that is closed, also if it goes on
// behind a position, which anybody can make up.
func (w *watch) admitted(name string, v served) error {
	if name == "" || w.server.cfg.Access == nil {
		return v.atToken(w.permitted(name, v.state))
	}
	if err := v.mayRead(w.live.ctx, name); err != nil {
		return err
	}
	_, err := v.keyspace(name)
	return err
}

// permitted refuses a reader whom grants keep out of what is watched, at the start
// and from the first message on that is sent after they changed.
func (w *watch) permitted(keyspace string, st *state.State) error {
	gate, verb := w.server.cfg.Access, rootv1.Verb_VERB_READ
	if keyspace == "" {
		return gate.MayAll(w.live.ctx, st, verb)
	}
	return gate.May(w.live.ctx, st, verb, keyspace)
}

// watchMessage is a WatchRegionsResponse: changes that others share, and what
// differs from watch to watch. That is the last, so that all is written when it
// is freed. Nobody changes the bytes after a send.
type watchMessage struct {
	changes []byte
	shared  bool // changes are kept for all watches anyway
	own     *packet
	load    *load
}

func (m *watchMessage) buffers() mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 2)
	if len(m.changes) > 0 {
		out = append(out, mem.SliceBuffer(m.changes))
	}
	return append(out, m.own.releaseTo(m.load))
}

// send sends one message, which says what the watch is worth when it is sent.
func (w *watch) send(at state.Token, snapshot, partial bool, changes []byte) error {
	return w.sendWith(newPacket(), at, snapshot, partial, changes)
}

// sendWith is send of what a packet begins with besides.
func (w *watch) sendWith(p *packet, at state.Token, snapshot, partial bool, changes []byte) error {
	w.sentAt = time.Now()
	view := w.server.view()
	if err := w.permitted(w.scope.key.keyspace, view.State); err != nil {
		return err
	}
	if at.Index != 0 {
		p.data = appendToken(p.data, watchToken, at)
	}
	p.data = appendBool(p.data, watchSnapshot, snapshot)
	p.data = appendBool(p.data, watchPartial, partial)
	p.data = append(p.data, w.server.fanout.saying(w.server, view, w.class, w.sentAt)...)
	p.data = appendUint(p.data, watchSent, uint64(w.sentAt.Sub(w.begun).Milliseconds())+1)
	l := w.out.load(len(changes) + max(len(p.data), packetBytes))
	if cap(p.data) >= snapshotPartBytes {
		l.lent = partBytes
	}
	w.message = watchMessage{changes, w.sharing, p, l}
	return w.live.send(w.stream, &w.message)
}

// saidFor is how old what a watch is told that it is worth may be.
const saidFor = time.Millisecond

// said is a disclosure of a view, encoded, as it was at a moment.
type said struct {
	view *rootview.View
	at   time.Time
	data []byte
}

// saying is the disclosure of a view, which all share who are sent something at
// about the same time.
func (f *fanout) saying(s *Server, view *rootview.View, class coordinatorv1.ServingClass, at time.Time) []byte {
	last := &f.said
	if class == coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED {
		last = &f.saidBounded
	}
	if d := last.Load(); d != nil && d.view == view && at.Sub(d.at) < saidFor {
		return d.data
	}
	v := served{server: s, view: view, class: class, now: s.cfg.Clock.Now()}
	d := &said{view: view, at: at, data: appendDisclosure(nil, watchSays, v.disclosure())}
	last.Store(d)
	return d.data
}

// snapshot sends everything that is watched, as of one view, in parts of bounded
// size.
func (w *watch) snapshot(v served) error {
	keyspaces, err := w.keyspaces(v)
	if err != nil {
		return err
	}
	w.server.opening.watches.Add(1)
	defer w.server.opening.watches.Add(-1)
	w.out.open(w.live.account(budget.Replies))
	part := newPacket()
	failed := w.server.opening.wait(w, 0)
	more := func() bool {
		if len(part.data) > packetBytes/2 {
			part.enlarge()
		}
		if size := len(part.data); size >= snapshotPartBytes {
			if failed = w.sendWith(part, w.at, true, true, nil); failed == nil {
				failed = w.server.opening.wait(w, size)
			}
			part = newPacket()
		}
		return failed == nil
	}
	if failed == nil && w.scope.key.members {
		v.state.Members(func(m *rootv1.Member) bool {
			part.data = appendRecordChange(part.data, watchMembers, w.scope.member(m), false)
			return more()
		})
	}
	for i := 0; failed == nil && i < len(keyspaces); i++ {
		part.data = appendRecordChange(part.data, watchKeyspaces, withoutSecrets(keyspaces[i]), false)
		if !more() {
			break
		}
		v.state.RegionsFrom(state.KeyspaceID(keyspaces[i].GetId()), "", func(r *state.Region) bool {
			part.data = appendRegionChange(part.data, r, false)
			return more()
		})
	}
	if failed != nil {
		return failed
	}
	if cap(part.data) < snapshotPartBytes { // it is short: as much as for any change
		w.out.giveBack(partBytes)
	}
	w.at, w.resumed = v.view.Token, true
	return w.sendWith(part, w.at, true, false, nil)
}

// opening paces the snapshots of watches that open together, behind everybody else.
// Callers have their turns one after another, however many watches each has.
type opening struct {
	watches atomic.Int64 // that are sent their snapshot

	mu sync.Mutex
	// Guarded by mu. due is when the next part is to be made; queues are who waits for
	// that, by caller, and callers those in the order of their turns.
	due     time.Time
	queues  map[places.Caller][]*turnOfPart
	callers []places.Caller
}

// turnOfPart is that of one watch.
type turnOfPart struct {
	cost    time.Duration
	account *budget.Account // of the caller, for the part that is to be made
	come    chan struct{}   // closed when it is there
	// Guarded by opening.mu. gone: nobody waits. has: the account has taken partBytes.
	gone, has bool
}

// snapshotShare is how much longer at most a part of a snapshot is in coming than it
// costs: a crowd that opens takes no more than about a sixth of a processor.
const snapshotShare = 6

// partBytes are what a part of a snapshot takes until it is written; memory for it is
// asked for again every roomEvery, by so many callers at most.
const (
	partBytes = snapshotPartBytes + 8<<10
	roomEvery = 10 * time.Millisecond
	roomAsked = 64
)

// wait waits for the next part's time and memory, after a watch was sent one of a size.
// What crowds that open have been given and their readers have not taken is bounded that
// way. A watch that opens alone waits for nobody.
func (o *opening) wait(w *watch, size int) error {
	share := max(0, min(o.watches.Load()-1, snapshotShare))
	turn := &turnOfPart{cost: time.Duration(share) * costOf(size), account: w.out.account, come: make(chan struct{})}
	o.enter(places.Of(w.live.ctx), turn)
	select {
	case <-turn.come:
	case <-w.live.end:
	case <-w.live.ctx.Done():
	}
	o.mu.Lock()
	turn.gone = true
	o.mu.Unlock()
	if turn.has {
		w.out.lend(partBytes)
	}
	return w.live.over()
}

func (o *opening) enter(c places.Caller, turn *turnOfPart) {
	o.mu.Lock()
	first := len(o.callers) == 0
	if o.queues == nil {
		o.queues = map[places.Caller][]*turnOfPart{}
	}
	if len(o.queues[c]) == 0 {
		o.callers = append(o.callers, c)
	}
	o.queues[c] = append(o.queues[c], turn)
	o.mu.Unlock()
	if first { // nobody else calls turn before they are all gone
		o.turn()
	}
}

// turn has those go on whose time has come and whose part fits in the memory, and comes
// again when the next one's does. Who went meanwhile costs nothing.
func (o *opening) turn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, refused := time.Now(), 0
	if o.due.Before(now) {
		o.due = now
	}
	for len(o.callers) > 0 {
		c := o.callers[0]
		queue := o.queues[c]
		if turn := queue[0]; !turn.gone {
			if pause := o.due.Sub(now); pause >= restFrom {
				time.AfterFunc(pause, o.turn)
				return
			}
			if !turn.account.Spares() || turn.account.Take(partBytes) != nil {
				o.callers = append(o.callers[1:], c)
				if refused++; refused >= min(len(o.callers), roomAsked) {
					time.AfterFunc(roomEvery, o.turn)
					return
				}
				continue
			}
			o.due, turn.has = o.due.Add(turn.cost), true
			close(turn.come)
		}
		queue[0], o.callers = nil, o.callers[1:]
		if queue = queue[1:]; len(queue) > 0 {
			o.queues[c], o.callers = queue, append(o.callers, c)
		} else {
			delete(o.queues, c)
		}
	}
}

// keyspaces are those that this watch is about.
func (w *watch) keyspaces(v served) ([]*rootv1.Keyspace, error) {
	var all []*rootv1.Keyspace
	if name := w.scope.key.keyspace; name != "" {
		k, err := v.keyspace(name)
		if err == nil {
			all = append(all, k)
		} else if w.resumed && reason.Of(err) == rootv1.Reason_REASON_NOT_FOUND {
			err = nil // it was deleted since
		}
		return all, err
	}
	v.state.Keyspaces("", func(k *rootv1.Keyspace) bool {
		all = append(all, k)
		return true
	})
	return all, nil
}
