package server

import (
	"context"
	"runtime"
	"sync"
	"time"

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
	// watchCost is about the processor time of one message to one watch, wherever it
	// is spent. What follows a frame is so long in coming that watches take no more
	// than about one processor.
	watchCost = 10 * time.Microsecond
	// turnWatches are given something before everybody else who can run does.
	turnWatches = 16
)

// deliver gives frames to watches until the context ends.
func (f *fanout) deliver(ctx context.Context) {
	look, rest := time.NewTicker(lookEvery), time.NewTimer(0)
	defer look.Stop()
	defer rest.Stop()
	<-rest.C
	for {
		select {
		case <-f.news:
			begun := time.Now()
			given := f.round()
			rest.Reset(max(time.Since(begun), time.Duration(given)*watchCost))
		case <-rest.C:
			signal(f.rested)
		case <-f.drained:
			f.refill()
		case <-look.C:
			f.eachLevel(f.scopesNow(), (*watch).look)
		case <-ctx.Done():
			return
		}
	}
}

// round gives new frames to the watches that they are for, and says how many.
func (f *fanout) round() int {
	f.mu.Lock()
	fresh := f.fresh
	f.fresh = nil
	f.mu.Unlock()
	return f.eachLevel(fresh, func(w *watch) { w.pump() })
}

func (f *fanout) scopesNow() []*scope {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*scope, 0, len(f.scopes))
	for _, s := range f.scopes {
		out = append(out, s)
	}
	return out
}

// eachLevel calls do for the watches of scopes, one at a time. From the last to
// the first, so that one that leaves, whose place the last one takes, hides none.
// It says how many they were.
func (f *fanout) eachLevel(scopes []*scope, do func(*watch)) (turn int) {
	for _, s := range scopes {
		for i := f.countLevel(s) - 1; i >= 0; i-- {
			w := f.give(s, i)
			if w == nil {
				continue
			}
			do(w)
			f.pass()
			if turn++; turn%turnWatches == 0 {
				runtime.Gosched()
			}
		}
	}
	return turn
}

func (f *fanout) countLevel(s *scope) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(s.level)
}

// give begins to give something to the watch at a place, which stays until pass.
func (f *fanout) give(s *scope, i int) *watch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i < len(s.level) {
		f.given = s.level[i]
	}
	return f.given
}

func (f *fanout) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.given = nil
	f.passed.Broadcast()
}

// refill goes on with the watches that were full.
func (f *fanout) refill() {
	f.full.Lock()
	watches := f.full.watches
	f.full.watches = nil
	f.full.Unlock()
	for i, w := range watches {
		f.mu.Lock()
		level := w.place >= 0
		if level {
			f.given = w
		}
		f.mu.Unlock()
		if level {
			w.pump()
			f.pass()
		}
		if i%turnWatches == 0 {
			runtime.Gosched()
		}
	}
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
	w.scope.level = append(w.scope.level, w)
	f.hasRoom(w)
	return next, true
}

// hasRoom has a watch looked at soon.
func (f *fanout) hasRoom(w *watch) {
	f.full.Lock()
	f.full.watches = append(f.full.watches, w)
	f.full.Unlock()
	signal(f.drained)
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
	w.scope.level, w.place = level[:len(level)-1], -1
}

// pump gives a watch what there is for it, as long as it takes it. It says whether
// the watch is still one to be given something.
func (w *watch) pump() bool {
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
		f.mu.Unlock()
		switch {
		case next.behind && leap:
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
	w.sharing = true
	defer func() { w.sharing = false }()
	i := w.parts
	w.parts++
	if w.parts < len(k.parts) {
		return w.send(w.at, false, true, k.parts[i])
	}
	w.at, w.parts = k.to, 0
	return w.send(w.at, false, false, k.parts[i])
}

// tooSlow is the refusal of a watch that what follows its position is no longer
// kept for.
func (w *watch) tooSlow() error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"the reader of this watch is too slow, it was cut: go on behind the last position it took, which is %s or before", w.at)
	e.Detail.CurrentToken = w.at.Proto()
	e.Detail.RetryAfterMillis = slowPauseMillis
	return e
}

// slowPauseMillis is the pause that a watch is asked for that was cut for its slowness.
const slowPauseMillis = 1000

// look is what a watch needs now and then.
func (w *watch) look() {
	w.live.received.Add(1) // a watcher is never idle
	if err := w.checkBound(); err != nil {
		w.live.cut(err)
		return
	}
	if w.out.stuck(w.server.cfg.Limits.SendTimeout) {
		w.live.cut(errSlowReader)
		return
	}
	if w.pump() && time.Since(w.sentAt) > watchHeartbeat-lookEvery && w.parts == 0 && w.out.room() {
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
	l.outlet, l.bytes = o, n
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
	outlet *outlet
	bytes  int
}

var loads = sync.Pool{New: func() any { return new(load) }}

// Get implements mem.BufferPool.
func (l *load) Get(length int) *[]byte { return bufferPool.Get(length) }

// Put implements mem.BufferPool.
func (l *load) Put(buf *[]byte) {
	o, n := l.outlet, l.bytes
	l.outlet = nil
	loads.Put(l)
	bufferPool.Put(buf)
	o.taken(n)
}

var _ mem.BufferPool = (*load)(nil)
