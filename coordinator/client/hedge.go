package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What is done about a coordinator that says nothing. A process that died breaks
// its connections; one that was stopped keeps them. After Config.TryTimeout it is
// given up. Before that, reads are asked of another one as well, and who waits for
// ids and timestamps asks whether the Tenure has another holder.

// hedgeDelay is how long a read waits for one coordinator alone.
const hedgeDelay = 100 * time.Millisecond

func (c *Client) hedgeDelay() time.Duration { return min(hedgeDelay, c.cfg.TryTimeout/2) }

// allowance bounds the reads that are asked twice, as gRPC throttles retries: each
// question costs what hedgeShare answers bring, and no more than hedgesSaved are
// saved up. Where all coordinators are slow, one read in hedgeShare is asked twice.
// Who was silent for TryTimeout is replaced for nothing. The zero value is full.
type allowance struct{ spent atomic.Int64 } // in answers

const (
	hedgeShare  = 10
	hedgesSaved = 4
)

func (a *allowance) spend() bool {
	for {
		n := a.spent.Load()
		if n > (hedgesSaved-1)*hedgeShare {
			return false
		}
		if a.spent.CompareAndSwap(n, n+hedgeShare) {
			return true
		}
	}
}

// earn notes an answer to a read. One that is lost to a race is no harm.
func (a *allowance) earn() {
	if n := a.spent.Load(); n > 0 {
		a.spent.CompareAndSwap(n, n-1)
	}
}

// asked are the coordinators that one question went to.
type asked struct {
	c     *Client
	first *endpoint // where the order begins

	mu    sync.Mutex  // guards what follows
	tried []*endpoint // in this round; who is being asked is among them
	tries []attempt   // in order
}

// attempt is the last thing that a coordinator said.
type attempt struct {
	at     *endpoint
	said   error // errSilent until it has said something
	asking bool
}

// next is the coordinator to ask as well; nil: there is no other, or the allowance
// does not pay for it.
func (a *asked) next(pays bool) *endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.c.ends.pick(a.first, a.tried)
	if e == nil || pays && !a.c.hedges.spend() {
		return nil
	}
	a.c.count.hedges.Add(1)
	a.tried = append(a.tried, e)
	a.attemptLocked(e).asking = true
	return e
}

// attemptLocked is the attempt at a coordinator.
func (a *asked) attemptLocked(e *endpoint) *attempt {
	i := slices.IndexFunc(a.tries, func(t attempt) bool { return t.at == e })
	if i < 0 {
		i, a.tries = len(a.tries), append(a.tries, attempt{at: e, said: errSilent})
	}
	return &a.tries[i]
}

// again begins another round when all were asked, of those that are not being asked
// still: one that was down may be back.
func (a *asked) again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c.ends.pick(nil, a.tried) != nil {
		return
	}
	a.tried = nil
	for _, t := range a.tries {
		if t.asking {
			a.tried = append(a.tried, t.at)
		}
	}
}

// answered notes what a coordinator said in the end.
func (a *asked) answered(e *endpoint, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.attemptLocked(e)
	t.said, t.asking = err, false
}

// others asks one coordinator after the other until an answer settles the
// question, and returns who gave it; nil: nobody did, or one said nothing for
// TryTimeout.
func (a *asked) others(ctx context.Context, pays bool, ask func(context.Context, *endpoint) error) *endpoint {
	for e := a.next(pays); e != nil; e = a.next(pays) {
		question, end := context.WithTimeout(ctx, a.c.cfg.TryTimeout)
		err := ask(question, e)
		silent := question.Err() != nil
		end()
		switch {
		case ctx.Err() != nil:
			return nil
		case silent && err != nil:
			err = errSilent
		case settles(err):
			return e
		}
		if class, detail := classify(err); unreached(class, detail) {
			a.c.ends.shun(e)
		}
		a.answered(e, err)
		if silent {
			return nil
		}
	}
	return nil
}

// settles says whether an answer ends a question.
func settles(err error) bool {
	if err == nil {
		return true
	}
	class, _ := classify(err)
	return class == final || class == redirect
}

// hedged is a try that does not wait for one coordinator alone: reads after the
// hedge delay, and all calls after each TryTimeout, ask another one as well. The
// first answer that settles the call counts, and the other tries are cancelled. It
// returns who answered.
func hedged[Q, R any](ctx context.Context, c *Client, op operation, w *walk, e *endpoint, req *Q, m method[Q, R]) (*R, *endpoint, error) {
	if len(*c.ends.list.Load()) == 1 {
		reply, err := once(ctx, c, op, e, req, m)
		return reply, e, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &hedge[R]{e: e, cancel: cancel, asked: asked{
		c: c, first: w.first(), tried: append(slices.Clone(w.tried), e), tries: []attempt{{e, errSilent, true}},
	}}
	h.ask = func(ctx context.Context, e *endpoint) (*R, error) { return once(ctx, c, op, e, req, m) }
	delay := c.cfg.TryTimeout
	if !op.changes {
		delay = c.hedgeDelay()
	}
	h.mu.Lock()
	h.timer = time.AfterFunc(delay, func() { h.extra(ctx, !op.changes) })
	h.mu.Unlock()
	reply, err := h.ask(ctx, e)
	return h.settle(ctx, w, reply, err)
}

// hedge is the race of one try's coordinators.
type hedge[R any] struct {
	e      *endpoint // the first one asked
	ask    func(context.Context, *endpoint) (*R, error)
	cancel context.CancelFunc
	asked  asked

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	passed  bool // the first one asked was given up, or has answered
	running int  // questions beside it
	over    bool
	settled bool // one of them was answered:
	reply   *R
	by      *endpoint
	err     error
	idle    chan struct{} // closed when running falls to 0, if the first one waits for it
}

// extra asks others, on a goroutine of its own; early: before anybody is given up.
func (h *hedge[R]) extra(ctx context.Context, early bool) {
	c := h.asked.c
	if !c.enter() {
		return
	}
	defer c.leave()
	if !h.begin(ctx, early) {
		return
	}
	var reply *R
	var err error
	by := h.asked.others(ctx, early, func(ctx context.Context, e *endpoint) error {
		reply, err = h.ask(ctx, e)
		return err
	})
	h.finish(by, reply, err)
}

// begin says whether more may be asked, and arms the next time. Unless it is early,
// others are preferred to a first one that is silent still.
func (h *hedge[R]) begin(ctx context.Context, early bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.settled {
		return false
	}
	c, next := h.asked.c, h.asked.c.cfg.TryTimeout
	if early {
		next -= c.hedgeDelay()
	} else {
		if !h.passed {
			h.passed = true
			c.ends.shun(h.e)
		}
		h.asked.again()
	}
	h.timer = time.AfterFunc(next, func() { h.extra(ctx, false) })
	h.running++
	return true
}

// finish ends questions beside the first; a nil by: nobody settled them.
func (h *hedge[R]) finish(by *endpoint, reply *R, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if by != nil && !h.settled && !h.over {
		h.settled, h.reply, h.by, h.err = true, reply, by, err
		h.cancel()
	}
	if h.running == 0 && h.idle != nil {
		close(h.idle)
	}
}

// settle is called with the answer of the first one asked. When it settles
// nothing, the questions beside it are waited for, and more are asked meanwhile.
// When those have failed too, the walk goes on behind all of them.
func (h *hedge[R]) settle(ctx context.Context, w *walk, reply *R, err error) (*R, *endpoint, error) {
	h.mu.Lock()
	if !h.settled && !settles(err) && h.running > 0 {
		h.asked.answered(h.e, err)
		h.passed = true
		h.idle = make(chan struct{})
		h.mu.Unlock()
		select {
		case <-h.idle:
		case <-ctx.Done():
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	h.timer.Stop()
	h.over = true
	if h.settled {
		return h.reply, h.by, h.err
	}
	over := w.over(ctx) != nil
	h.asked.mu.Lock()
	defer h.asked.mu.Unlock()
	for _, t := range h.asked.tries {
		switch {
		case over:
			w.trail.noteEnd(t.at.address, t.said)
		case t.at != h.e:
			w.tried = append(w.tried, t.at)
			w.trail.note(t.at.address, t.said)
		}
	}
	return reply, h.e, err
}

// streamHedge asks other coordinators one request of a stream that brings nothing:
// one at once, another one whenever the silence has doubled. With an answer the
// stream is left for who gave it: what else waits there is sent again.
type streamHedge[Q, R any] struct {
	p     *pipe[Q, R]
	at    *endpoint
	asked *asked
	// Used by the callback of one timer.
	silence time.Duration // as last told
	due     time.Duration // the silence after which the next question is due
}

// heed is succession's.
func (h *streamHedge[Q, R]) heed(ctx context.Context, leave context.CancelCauseFunc, silence time.Duration) time.Duration {
	c := h.p.c
	delay := c.hedgeDelay()
	if h.asked == nil || silence < delay || silence < h.silence { // another one
		h.due = delay
		h.asked = &asked{c: c, first: h.at, tried: []*endpoint{h.at}}
	}
	h.silence = silence
	if silence < h.due {
		return min(delay, h.due-silence)
	}
	if r := h.p.askable(); r != nil {
		asked := h.asked
		c.spawn(func() { h.ask(ctx, leave, asked, r) })
	}
	h.due *= 2
	return delay
}

func (h *streamHedge[Q, R]) ask(ctx context.Context, leave context.CancelCauseFunc, asked *asked, r *request[Q, R]) {
	var parts []*R
	var err error
	by := asked.others(ctx, true, func(ctx context.Context, e *endpoint) error {
		parts, err = h.p.alone(ctx, e, r.msg)
		return err
	})
	if by == nil || len(h.p.remove(func(other *request[Q, R]) bool { return other == r })) == 0 {
		return
	}
	var w walk
	w.reset(h.p.c, h.p.op)
	w.succeeded(by)
	leave(errSilent)
	r.by = by.address
	if err != nil {
		var t trail
		t.note(by.address, err)
		r.finish(nil, t.fail(h.p.op.name, nil))
		return
	}
	last := len(parts) - 1
	r.parts = parts[:last]
	r.finish(parts[last], nil)
}

// succession is the doubt whether a coordinator that says nothing still holds
// the Tenure. A process that died breaks its connections; one that was stopped
// keeps them, and only others can tell that its era is over. They are asked one
// at a time. The client goes to the holder of a newer era and nowhere else: while
// the era that it knows is the rooted one, it stays.
type succession struct {
	c      *Client
	holder *endpoint
	asking atomic.Bool // a question is under way
	// Used by the callback of one timer.
	asked     []*endpoint // since all were
	questions int         // since the silence began
}

const (
	// guessedTTL is the ttl of the Tenure until a coordinator has told it.
	guessedTTL = 200 * time.Millisecond
	// takeoverTime is what a takeover needs beyond the ttl.
	takeoverTime = 50 * time.Millisecond
	// The pauses between questions: they double after every few, so that a
	// successor is found soon after it serves, whenever that is.
	shortestPause   = 25 * time.Millisecond
	longestPause    = 100 * time.Millisecond
	questionsAPause = 4
	// questionTime is how long one may take.
	questionTime = 200 * time.Millisecond
)

// heed is told how long the silence has lasted, and asks if that is due. It
// returns when it is to be told again.
func (s *succession) heed(ctx context.Context, leave context.CancelCauseFunc, silence time.Duration) time.Duration {
	patience := time.Duration(s.c.tenureTTL.Load()) + takeoverTime
	if silence < patience {
		s.asked, s.questions = nil, 0
		return patience - silence
	}
	if e := s.other(); e != nil && s.asking.CompareAndSwap(false, true) {
		s.asked = append(s.asked, e)
		ask := func() {
			defer s.asking.Store(false)
			s.ask(ctx, leave, e)
		}
		if !s.c.spawn(ask) {
			s.asking.Store(false)
		}
	}
	pause := min(longestPause, shortestPause<<min(s.questions/questionsAPause, 8))
	s.questions++
	return pause
}

// other is the coordinator to ask now; nil: there is no other.
func (s *succession) other() *endpoint {
	for range 2 {
		if e := s.c.ends.pick(nil, append([]*endpoint{s.holder}, s.asked...)); e != nil {
			return e
		}
		s.asked = nil
	}
	return nil
}

func (s *succession) ask(ctx context.Context, leave context.CancelCauseFunc, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	s.c.count.hedges.Add(1)
	status, err := e.rpc.Status(ctx, &coordinatorv1.StatusRequest{Brief: true})
	if err != nil || s.c.accept(e, status) != nil {
		return
	}
	t := status.GetTenure()
	if t.GetEra() <= s.holder.era.Load() || t.GetRetired() || t.GetHolderAddress() == "" || t.GetHolderAddress() == s.holder.address {
		return
	}
	leave(&reason.Error{Detail: &rootv1.ErrorDetail{
		Reason: rootv1.Reason_REASON_TENURE_NOT_HELD, Message: "it says nothing, and its era is over",
		HolderId: t.GetHolderId(), HolderAddress: t.GetHolderAddress(), Era: t.GetEra(),
	}})
}
