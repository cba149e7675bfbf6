package server

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/mem"
)

const (
	// maxPending is how much a watch may hold that its reader has not taken, in
	// bytes, before it is given nothing more. It is below what gRPC queues for a
	// stream before a send waits, so that giving never waits.
	maxPending = 32 << 10
	// lookEvery is the time between two looks at all watches: for signs of life,
	// bounds, and readers that take nothing.
	lookEvery = 250 * time.Millisecond
	// messageCost and byteNanos are about the processor time of a message to one
	// watch, wherever it is spent, of itself and of each byte. Watches are given no more
	// than what takes about one processor.
	messageCost = 10 * time.Microsecond
	byteNanos   = 2
	// turnWatches are given something before there is a pause, yieldWatches before
	// everybody else who can run does: the messages of these are one write.
	turnWatches  = 64
	yieldWatches = 16
	// restFrom is the shortest pause.
	restFrom = time.Millisecond / 2
)

func costOf(bytes int) time.Duration { return messageCost + time.Duration(bytes)*byteNanos }

// deliver visits watches until the context ends: some, then behind a pause the next
// ones, so that whoever else calls finds a processor. Each is given all that there is
// when its turn comes.
func (f *fanout) deliver(ctx context.Context) {
	look, rest, later := time.NewTicker(lookEvery), time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	defer look.Stop()
	defer rest.Stop()
	defer later.Stop()
	for news := f.news; ; {
		select {
		case <-news:
			if f.turn() {
				signal(f.news)
			} else if !f.until.IsZero() {
				later.Reset(time.Until(f.until))
			}
			if pause := f.pause(time.Now()); pause >= restFrom {
				rest.Reset(pause)
				news = nil
			} else {
				signal(f.rested)
			}
		case <-rest.C:
			news = f.news
			signal(f.rested)
		case <-later.C:
			signal(f.news)
		case <-look.C:
			f.visitAll()
		case <-ctx.Done():
			return
		}
	}
}

// pause is how long nobody is visited after what was given: as long as that costs
// together with the turn itself, on the average of several turns, and a quarter of it
// even when turns take longer than they should.
func (f *fanout) pause(now time.Time) time.Duration {
	if earliest := now.Add(-f.spent * 3 / 4); f.due.Before(earliest) {
		f.due = earliest
	}
	f.due, f.spent = f.due.Add(f.spent), 0
	return f.due.Sub(now)
}

// turn visits some watches, and says whether there are more to be visited.
func (f *fanout) turn() (more bool) {
	defer f.gather(nil)
	for n := range turnWatches {
		w, round := f.next(n%2 == 0)
		if w == nil {
			return false
		}
		f.gather(w.connection)
		w.visit(round)
		f.pass()
		if n%yieldWatches == yieldWatches-1 {
			f.gather(nil)
			runtime.Gosched()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fresh) > 1 { // nobody waits for the round of a crowd
		f.fresh = append(f.fresh[1:], f.fresh[0])
	}
	return true
}

// gather has what is given on a connection leave when the next one's is gathered: in few
// writes, each of which costs as much as the messages in it. nil: there is no next one yet.
func (f *fanout) gather(on *gate.Conn) {
	if f.gathering == on {
		return
	}
	if f.gathering != nil {
		f.gathering.Release()
	}
	if f.gathering = nil; on.Hold() {
		f.gathering = on
	}
}

// next begins the visit of a watch, which stays until pass: one of a round, or one
// that has room again. nil: there is none.
func (f *fanout) next(roundFirst bool) (w *watch, round bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if roundFirst {
		w = f.nextOfRoundLocked()
	}
	round = w != nil
	for w == nil && len(f.roomy) > 0 {
		if w = f.roomy[0]; w.place < 0 {
			w = nil
		}
		f.roomy[0], f.roomy = nil, f.roomy[1:]
	}
	if w == nil && !roundFirst {
		w = f.nextOfRoundLocked()
		round = w != nil
	}
	f.given, f.until = w, f.soonest
	return w, round
}

// nextOfRoundLocked is the next watch of a round that has begun: of scopes that something
// changed for, and one in two of those that are looked at.
func (f *fanout) nextOfRoundLocked() *watch {
	f.beginLocked()
	f.looking = !f.looking
	for len(f.fresh) > 0 || len(f.looks) > 0 {
		queue := &f.fresh
		if len(f.fresh) == 0 || f.looking && len(f.looks) > 0 {
			queue = &f.looks
		}
		s := (*queue)[0]
		if s.queue != queue {
			pop(queue) // Something changed for it since: it has gone ahead.
			continue
		}
		if s.place = min(s.place, len(s.level)); s.place > 0 {
			s.place--
			return s.level[s.place]
		}
		pop(queue)
		s.queue = nil
		if s.again {
			s.again = false
			f.refreshLocked(s, &f.fresh)
		}
	}
	return nil
}

func pop(queue *[]*scope) { (*queue)[0], *queue = nil, (*queue)[1:] }

// beginLocked begins the rounds of crowds whose time has come.
func (f *fanout) beginLocked() {
	now := time.Now()
	if f.soonest.IsZero() || now.Before(f.soonest) {
		return
	}
	f.soonest = time.Time{}
	f.resting = slices.DeleteFunc(f.resting, func(s *scope) bool {
		if now.Before(s.begin) {
			f.soonLocked(s.begin)
			return false
		}
		s.queue = &f.fresh
		f.fresh = append(f.fresh, s)
		return true
	})
}

// soonLocked notes when a round begins.
func (f *fanout) soonLocked(begin time.Time) {
	if f.soonest.IsZero() || begin.Before(f.soonest) {
		f.soonest = begin
	}
}

// visitAll has every watch visited, behind those that something changed for.
func (f *fanout) visitAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.scopes {
		if s.queue == nil {
			f.refreshLocked(s, &f.looks)
		}
	}
	signal(f.news)
}

func (f *fanout) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.given = nil
	f.passed.Broadcast()
}

// join has a watch given what follows its position, when it is one that frames
// begin at; otherwise it says what the watch does first.
func (f *fanout) join(w *watch) (first step, level bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.nextLocked(w.scope, w.at)
	if w.left || next.behind || next.ahead != nil {
		return next, false
	}
	w.jumps, w.place = f.jumps, len(w.scope.level)
	w.scope.level, w.scope.mixed = append(w.scope.level, w), true
	f.hasRoomLocked(w)
	return next, true
}

// hasRoom has a watch visited soon.
func (f *fanout) hasRoom(w *watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hasRoomLocked(w)
}

func (f *fanout) hasRoomLocked(w *watch) {
	f.roomy = append(f.roomy, w)
	signal(f.news)
}

// part ends that a watch is given anything. It returns when nobody does.
func (f *fanout) part(w *watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.left = true
	f.dropLocked(w)
	for f.given == w {
		f.passed.Wait()
	}
}

func (f *fanout) dropLocked(w *watch) {
	if w.place < 0 {
		return
	}
	level := w.scope.level
	last := level[len(level)-1]
	level[w.place], last.place = last, w.place
	level[len(level)-1] = nil
	w.scope.level, w.scope.mixed, w.place = level[:len(level)-1], true, -1
}

// pump gives a watch what there is for it, as long as it takes it: in the round of
// all of its scope, or by itself. It says whether the watch is still one to be given
// something.
func (w *watch) pump(round bool) bool {
	f := w.server.fanout
	for {
		if !w.out.room() {
			return true
		}
		f.mu.Lock()
		next := f.nextLocked(w.scope, w.at)
		leap := f.jumps != w.jumps
		if next.behind {
			f.dropLocked(w)
		}
		if next.frame != nil && w.parts == 0 && w.scope.latest != nil {
			next.frame = w.scope.latest.instead(next.frame, f.at, round)
		}
		f.mu.Unlock()
		switch {
		case next.behind && leap && w.parts == 0: // a batch that was begun is not gone on with in other words
			signal(w.fell)
			return false
		case next.behind:
			w.live.cut(w.tooSlow())
			return false
		case next.frame == nil:
			if next.ahead == nil {
				w.at = next.at
			}
			return true
		}
		if err := w.offer(next.frame); err != nil {
			w.live.cut(err)
			return false
		}
	}
}

// offer sends the next part of a frame.
func (w *watch) offer(k *frame) error {
	w.sharing = !k.own
	defer func() { w.sharing = false }()
	i := w.parts
	w.server.fanout.spent += costOf(len(k.parts[i]))
	w.parts++
	if w.parts < len(k.parts) {
		return w.send(w.at, false, true, k.parts[i])
	}
	w.at, w.parts = k.to, 0
	return w.send(w.at, false, false, k.parts[i])
}

// tooSlow is the refusal of a watch that what follows its position, or the rest of
// the frame it has a part of, is no longer kept for.
func (w *watch) tooSlow() error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"the reader of this watch is too slow, it was cut: go on behind the last position it took, which is %s or before", w.at)
	e.Detail.CurrentToken = w.at.Proto()
	e.Detail.RetryAfterMillis = slowPauseMillis
	return e
}

// slowPauseMillis is the pause that a watch is asked for that was cut for its slowness.
const slowPauseMillis = 1000

// visit gives a watch what there is for it, or a sign of life, and ends one that
// should not go on.
func (w *watch) visit(round bool) {
	w.live.received.Add(1) // a watcher is never idle
	if err := w.checkBound(); err != nil {
		w.live.cut(err)
		return
	}
	if w.out.stuck(w.server.cfg.Limits.SendTimeout) {
		w.live.cut(errSlowReader)
		return
	}
	if w.pump(round) && time.Since(w.sentAt) > watchHeartbeat-lookEvery && w.parts == 0 && w.out.room() {
		w.server.fanout.spent += messageCost
		if err := w.send(w.at, false, false, nil); err != nil {
			w.live.cut(err)
		}
	}
}

// outlet counts what a watch was given and its reader has not taken.
type outlet struct {
	watch *watch

	mu sync.Mutex
	// Guarded by mu.
	pending int       // bytes
	moved   time.Time // when pending last fell, or rose from nothing
	full    bool      // the watch is to be told of room
	// Parts of snapshots count for the caller: lent is how many bytes of account are this
	// watch's, until they are written or it ends.
	account *budget.Account
	lent    int
	closed  bool
}

// open has parts of a snapshot count on an account, once.
func (o *outlet) open(a *budget.Account) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.account != nil || o.closed {
		a.Close()
		return
	}
	o.account = a
}

// close ends the counting: what the transport still has of an ended watch it drops.
func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.account.Give(o.lent)
	o.lent = 0
	o.account.Close()
}

// lend counts bytes that the account has taken already.
func (o *outlet) lend(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		o.account.Give(n)
		return
	}
	o.lent += n
}

func (o *outlet) giveBack(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n = min(n, o.lent); n > 0 {
		o.lent -= n
		o.account.Give(n)
	}
}

// room says whether more may be given now; if not, the watch is told when it may.
func (o *outlet) room() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.full = o.pending >= maxPending
	return !o.full
}

// stuck says that the reader has taken nothing for so long.
func (o *outlet) stuck(limit time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending > 0 && time.Since(o.moved) >= limit
}

// load counts a message that is being given.
func (o *outlet) load(n int) *load {
	l := loads.Get().(*load)
	l.outlet, l.bytes, l.lent = o, n, 0
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending == 0 {
		o.moved = time.Now()
	}
	o.pending += n
	return l
}

func (o *outlet) taken(n int) {
	o.mu.Lock()
	o.pending -= n
	o.moved = time.Now()
	tell := o.full && o.pending <= maxPending/2
	if tell {
		o.full = false
	}
	o.mu.Unlock()
	if tell {
		o.watch.server.fanout.hasRoom(o.watch)
	}
}

// load is the last buffer of a message of a watch: the transport frees it when it
// has written the message.
type load struct {
	outlet      *outlet
	bytes, lent int
}

var loads = sync.Pool{New: func() any { return new(load) }}

// Get implements mem.BufferPool.
func (l *load) Get(length int) *[]byte { return bufferPool.Get(length) }

// Put implements mem.BufferPool.
func (l *load) Put(buf *[]byte) {
	o, n, lent := l.outlet, l.bytes, l.lent
	l.outlet = nil
	loads.Put(l)
	if cap(*buf) >= snapshotPartBytes {
		partPool.Put(buf)
	} else {
		bufferPool.Put(buf)
	}
	o.giveBack(lent)
	o.taken(n)
}

var _ mem.BufferPool = (*load)(nil)
