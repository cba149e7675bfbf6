package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Desk is where keys are claimed. Make it with New and run it once; Claim may be called at
// any time from any goroutine.
type Desk struct {
	cfg Config
	// began is when the process started, about.
	began  clock.Instant
	counts counts
	wake   chan struct{} // level: there is something to send
	judged chan *batch   // calls that have come back
	heard  chan *question

	mu sync.Mutex
	// Guarded by mu. open are the claims that are not answered, so many bytes; lines has those of
	// each keyspace, turns the lines of which some were not sent. closed: nothing is taken any more.
	open   map[place]*claim
	bytes  int
	lines  map[state.KeyspaceID]*line
	turns  []*line
	closed bool

	// Owned by Run.
	calls, questions int
	// later are claims that are looked at again when a view is at their tokens.
	later  []*claim
	fields map[state.KeyspaceID]*field
	hooks  map[state.KeyspaceID]*hooked
	given  given
	// moves that were under way at a moment.
	moves   *placement.Moves
	movesAt clock.Instant
}

// place is a key of a keyspace.
type place struct {
	keyspace state.KeyspaceID
	key      string
}

// claim is one that is not answered, of all who ask for the key.
type claim struct {
	at  place
	why string
	// callers is how many wait for it; guarded by Desk.mu.
	callers int
	// done is closed when answer is set.
	done   chan struct{}
	answer Answer

	// Owned by Run: how often it was judged, whether a command made the region, and the
	// position from which on a view shows what became of it.
	tries int
	made  bool
	after state.Token
	// since is when it began to wait for a hook. asked: that was asked, and named somebody or
	// nobody, or is waited for no longer.
	since clock.Instant
	asked bool
	named state.MemberID
	grant *grant
}

// Answer is what became of the claim of a key.
type Answer struct {
	// Region, as it is at Token. It is shared: nobody changes it.
	Region *rootv1.Region
	Token  state.Token
	// Made: it was not there before.
	Made bool
	// Err is why there is none: a refusal.
	Err error
}

// New makes a Desk; Run starts it.
func New(cfg Config) (*Desk, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Desk{
		cfg: cfg, began: cfg.Clock.Now(), wake: make(chan struct{}, 1), judged: make(chan *batch, maxCalls), heard: make(chan *question, maxQuestions),
		open: map[place]*claim{}, lines: map[state.KeyspaceID]*line{}, fields: map[state.KeyspaceID]*field{}, hooks: map[state.KeyspaceID]*hooked{},
	}, nil
}

// Claim finds the regions of keys, and makes those that are not there. There is one answer
// for each key, in their order; who and why are for people. What has no answer when ctx
// ends may be made or not: whoever claims it again is told.
func (d *Desk) Claim(ctx context.Context, keyspace state.KeyspaceID, keys [][]byte, why string) []Answer {
	answers := make([]Answer, len(keys))
	waits := make([]*claim, len(keys))
	d.mu.Lock()
	for i, key := range keys {
		waits[i], answers[i].Err = d.joinLocked(place{keyspace, string(key)}, why)
	}
	waiting := len(d.turns) > 0
	d.mu.Unlock()
	if waiting {
		d.signal()
	}
	for i, c := range waits {
		if c == nil {
			continue
		}
		select {
		case <-c.done:
			answers[i] = c.answer
		case <-ctx.Done():
			answers[i] = d.left(c)
		}
	}
	return answers
}

// joinLocked joins those who claim a key, or is the first.
func (d *Desk) joinLocked(at place, why string) (*claim, error) {
	if c := d.open[at]; c != nil {
		c.callers++
		return c, nil
	}
	c := &claim{at: at, why: why, callers: 1}
	l := d.lines[at.keyspace]
	if l == nil {
		l = new(line)
	}
	switch n := c.bytes(); {
	case d.closed:
		return nil, errStopping
	case l.open >= share*(maxOpen-len(d.open)) || l.bytes+n > share*(maxOpenBytes-d.bytes-n):
		d.counts.overloaded.Add(1)
		e := reason.New(rootv1.Reason_REASON_OVERLOADED, "%d claims of this keyspace wait already, and %d of all", l.open, len(d.open))
		e.Detail.Limit, e.Detail.RetryAfterMillis = maxOpen, 100
		return nil, e
	}
	c.done = make(chan struct{})
	d.lines[at.keyspace], d.open[at] = l, c
	d.countLocked(c, 1)
	d.waitLocked(c, false)
	return c, nil
}

var errStopping = reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "this coordinator is stopping")

// left is the answer for a caller that waits no more.
func (d *Desk) left(c *claim) Answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-c.done:
		return c.answer
	default:
	}
	c.callers--
	return Answer{Err: reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the root did not answer in time: claim it again, that is safe")}
}

// finish answers a claim, once.
func (d *Desk) finish(c *claim, a Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.countLocked(c, -1)
	c.answer = a
	close(c.done)
	switch {
	case a.Err != nil:
		d.counts.refused.Add(1)
	case a.Made:
		d.counts.made.Add(1)
	default:
		d.counts.found.Add(1)
	}
}

// deserted reports whether nobody waits for a claim, which ends it: it was not sent.
func (d *Desk) deserted(c *claim) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.callers > 0 {
		return false
	}
	d.countLocked(c, -1)
	d.counts.deserted.Add(1)
	return true
}

func (d *Desk) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. It is called once. What waits then is refused.
func (d *Desk) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer d.close()
	defer calls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := d.cfg.Views.Changed()
		d.again(d.cfg.Views.View())
		d.giveUp(d.cfg.Clock.Now())
		for d.calls < maxCalls {
			b := d.next()
			if b == nil {
				break
			}
			d.calls++
			calls.Go(func() {
				d.propose(ctx, b)
				d.judged <- b // there is room for all of them
			})
		}
		d.ask(ctx, d.cfg.Views.View(), calls.Go)
		if len(d.later) == 0 {
			changed = nil
		}
		var waited <-chan time.Time
		if since := d.waitsSince(); since != 0 {
			timer.Reset(since.Add(questionTime).Sub(d.cfg.Clock.Now()))
			waited = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-waited:
		case <-d.wake:
		case b := <-d.judged:
			d.calls--
			d.settle(b)
		case q := <-d.heard:
			d.told(q)
		}
	}
}

// close refuses what waits, and all that comes.
func (d *Desk) close() {
	d.mu.Lock()
	d.closed = true
	var left []*claim
	for _, c := range d.open {
		left = append(left, c)
	}
	d.mu.Unlock()
	for _, c := range left {
		d.finish(c, Answer{Err: errStopping})
	}
}

// era is the one that is held, as a view has it; 0: none is.
func (d *Desk) era(v *rootview.View) state.Era {
	t := v.State.Tenure()
	if t.GetHolderId() != string(d.cfg.ID) || t.GetHolderIncarnation() != d.cfg.Incarnation || t.GetRetired() {
		return 0
	}
	return state.Era(t.GetEra())
}

// batch is the claims of one call to the root.
type batch struct {
	era      state.Era
	claims   []*claim
	commands []*rootv1.Command
	// results are in the order of claims; nil: nobody knows what became of them, and why.
	results []*rootv1.CommandResult
	why     error
}

// propose has commands judged, for as long as somebody waits for one of them.
func (d *Desk) propose(ctx context.Context, b *batch) {
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		attempt, cancel := context.WithTimeout(ctx, proposeTime)
		results, err := d.cfg.Root.Propose(attempt, b.commands...)
		cancel()
		if err == nil && len(results) == len(b.commands) {
			b.results = results
			return
		}
		if err == nil {
			err = fmt.Errorf("%d commands had %d results", len(b.commands), len(results))
		}
		b.why = err
		if d.hopeless(b, err) {
			return
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// hopeless reports whether there is no use in sending commands again: the era is over, they
// are refused as such, or nobody waits.
func (d *Desk) hopeless(b *batch, err error) bool {
	if e, ok := errors.AsType[*reason.Error](err); ok {
		switch e.Detail.GetReason() {
		case rootv1.Reason_REASON_INVALID_REQUEST, rootv1.Reason_REASON_PERMISSION_DENIED:
			return true
		}
	}
	if d.era(d.cfg.Views.View()) != b.era {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range b.claims {
		if c.callers > 0 {
			return false
		}
	}
	return true
}

// counts are sums since the Desk was made.
type counts struct {
	made, found, refused, deserted, overloaded, entries, again, asked, unasked atomic.Uint64
}
