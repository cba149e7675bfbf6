package idle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Releaser has unused regions released, and removes them. Make it with New and run it once;
// Frame may be called at any time from any goroutine.
type Releaser struct {
	cfg    Config
	counts counts
	wake   chan struct{} // level: something was heard
	judged chan *call    // calls that have come back

	mu sync.Mutex
	// Guarded by mu. wanted: this process holds the Tenure. replies and stopped are what was
	// heard since Run looked; many: there was no room for all.
	wanted  bool
	replies []*coordinatorv1.MemberCommandReply
	stopped []stopped
	many    bool

	// Owned by Run, and of one era: 0: none is held.
	era     state.Era
	eraCtx  context.Context
	eraOver context.CancelFunc
	calling bool
	// No call is made before rested, and nobody is asked before askAt.
	rested, askAt clock.Instant

	lastID  uint64
	scan    scan
	found   map[uint64]*owner // by incarnation
	finds   int
	asked   map[uint64]asked            // by id of the command
	oldest  []uint64                    // ids in order, some of which are answered
	asking  map[state.RegionID]struct{} // regions that are in found or asked
	leaving []stopped
	// going are regions that are in leaving, on their way to the root, or were refused there.
	going map[state.RegionID]clock.Instant
	again []stopped
}

// stopped is a region that its owner has stopped, at an epoch.
type stopped struct {
	region      state.RegionID
	incarnation uint64
	epoch       state.Epoch
}

// owner is a member with regions to be asked for.
type owner struct {
	id    state.MemberID
	found []stopped
	asked int
}

// asked is a command without an answer.
type asked struct {
	incarnation uint64
	region      state.RegionID
	since       clock.Instant
}

// New makes a Releaser; Run starts it.
func New(cfg Config) (*Releaser, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Releaser{cfg: cfg, wake: make(chan struct{}, 1), judged: make(chan *call, 1), eraOver: func() {}}, nil
}

// Frame takes what a member said.
func (r *Releaser) Frame(f server.HeardFrame) {
	if len(f.Replies) == 0 && len(f.Turned) == 0 {
		return
	}
	r.mu.Lock()
	wanted := r.wanted
	r.mu.Unlock()
	if !wanted {
		return
	}
	var ended []stopped
	for _, id := range f.Turned {
		if own, ok := r.cfg.Soft.Own(id, f.Incarnation); ok && released(own.Phase, own.IdleSeconds) {
			ended = append(ended, stopped{id, f.Incarnation, own.Epoch})
		}
	}
	r.mu.Lock()
	for _, reply := range f.Replies {
		if reply.GetId() >= firstCommand && len(r.replies) < maxAskedAll {
			r.replies = append(r.replies, reply)
		}
	}
	if room := maxStopped - len(r.stopped); room < len(ended) {
		ended, r.many = ended[:room], true
	}
	r.stopped = append(r.stopped, ended...)
	heard := len(r.replies) > 0 || len(r.stopped) > 0 || r.many
	r.mu.Unlock()
	if heard {
		r.signal()
	}
}

// released reports whether a report says that a region was stopped because nobody uses it.
func released(phase coordinatorv1.RegionPhase, idle uint32) bool {
	return phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED && idle > 0
}

func (r *Releaser) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. It is called once.
func (r *Releaser) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	defer func() { r.eraOver() }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := r.cfg.Views.Changed()
		now := r.cfg.Clock.Now()
		view := r.cfg.Views.View()
		r.holdEra(ctx, view, now)
		pause := time.Hour
		if r.era != 0 {
			r.attend(now)
			r.look(view, now)
			r.ask(view, now)
			if c := r.next(view, now); c != nil {
				r.calling = true
				era := r.eraCtx
				calls.Go(func() {
					r.propose(era, c)
					r.judged <- c // there is room for it
				})
			}
			pause = r.pause(now)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-r.wake:
		case <-timer.C:
		case c := <-r.judged:
			r.calling = false
			r.settle(c)
		}
	}
}

// holdEra begins and ends with the Tenure, as the view has it.
func (r *Releaser) holdEra(ctx context.Context, v *rootview.View, now clock.Instant) {
	t, era := v.State.Tenure(), state.Era(0)
	if t.GetHolderId() == string(r.cfg.ID) && t.GetHolderIncarnation() == r.cfg.Incarnation && !t.GetRetired() {
		era = state.Era(t.GetEra())
	}
	if era == r.era {
		return
	}
	r.eraOver()
	r.era, r.lastID = era, firstCommand
	r.eraCtx, r.eraOver = context.WithCancel(ctx)
	r.scan, r.rested, r.askAt = newScan(), 0, 0
	r.asking = map[state.RegionID]struct{}{}
	r.found, r.finds, r.asked, r.oldest, r.leaving, r.going, r.again = map[uint64]*owner{}, 0, map[uint64]asked{}, nil, nil, map[state.RegionID]clock.Instant{}, nil
	r.mu.Lock()
	r.wanted, r.replies, r.stopped, r.many = era != 0, nil, nil, false
	r.mu.Unlock()
	if era != 0 {
		r.scan.begin(now) // what members have stopped for another holder
	}
}

// attend takes what was heard.
func (r *Releaser) attend(now clock.Instant) {
	r.mu.Lock()
	replies, ended, many := r.replies, r.stopped, r.many
	r.replies, r.stopped, r.many = nil, nil, false
	r.mu.Unlock()
	for _, reply := range replies {
		if state.Era(reply.GetEra()) == r.era {
			r.answered(reply.GetId(), reply.GetDone())
		}
	}
	for _, s := range ended {
		if many = many || len(r.leaving) >= maxStopped; many {
			break
		}
		r.leave(s)
	}
	if many {
		r.scan.soon(now.Add(againAfter))
	}
	for len(r.oldest) > 0 {
		a, waits := r.asked[r.oldest[0]]
		if waits && now.Sub(a.since) < answerTime {
			break
		}
		if waits {
			r.counts.silent.Add(1)
			r.answered(r.oldest[0], false)
		}
		r.oldest = r.oldest[1:]
	}
}

// answered notes that a command was answered.
func (r *Releaser) answered(id uint64, done bool) {
	a, waits := r.asked[id]
	if !waits {
		return
	}
	delete(r.asked, id)
	delete(r.asking, a.region)
	if !done {
		r.counts.kept.Add(1)
	}
	if o := r.found[a.incarnation]; o != nil {
		if o.asked--; o.asked == 0 && len(o.found) == 0 {
			delete(r.found, a.incarnation)
		}
	}
}

// leave has a region removed that its owner has stopped.
func (r *Releaser) leave(s stopped) {
	if _, going := r.going[s.region]; going {
		return
	}
	r.going[s.region] = 0
	r.leaving = append(r.leaving, s)
}

// ask asks members for what was found, as far as there is room, when it is time.
func (r *Releaser) ask(v *rootview.View, now clock.Instant) {
	if len(r.found) == 0 || len(r.leaving) >= maxLeaving { // what comes back has it go on
		return
	}
	if now < r.askAt {
		r.scan.look(r.askAt)
		return
	}
	burst := 0
	defer func() {
		if burst > 0 {
			r.askAt = now.Add(burstEvery)
			r.scan.look(r.askAt)
		}
	}()
	for incarnation, o := range r.found {
		for len(o.found) > 0 && o.asked < maxAsked && len(r.asked) < maxAskedAll && burst < maxBurst {
			s := o.found[0]
			if at := v.State.Region(s.region); at == nil || at.Epoch != s.epoch || v.State.PendingTransition(s.region) != nil {
				delete(r.asking, s.region)
				r.taken(o)
				continue
			}
			r.lastID++
			err := r.cfg.Commands.Command(o.id, incarnation, &coordinatorv1.MemberCommand{
				Era: uint64(r.era), Id: r.lastID, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_RELEASE_IF_IDLE,
				RegionId: uint64(s.region), Epoch: s.epoch.Proto(), Reason: rootv1.OperationReason_OPERATION_REASON_IDLE,
			})
			if reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
				r.scan.look(now.Add(crowdedPause)) // as many as may wait for its next answer
				break
			}
			r.taken(o)
			if err != nil { // it has no stream here; what was found is found again
				r.counts.unreached.Add(1)
				delete(r.asking, s.region)
				continue
			}
			r.counts.asked.Add(1)
			burst++
			o.asked++
			r.asked[r.lastID] = asked{incarnation, s.region, now}
			r.oldest = append(r.oldest, r.lastID)
		}
		if len(o.found) == 0 && o.asked == 0 {
			delete(r.found, incarnation)
		}
	}
}

func (r *Releaser) taken(o *owner) {
	o.found = o.found[1:]
	r.finds--
}

// call is commands that remove regions.
type call struct {
	era      state.Era
	began    clock.Instant
	of       [][]stopped
	commands []*rootv1.Command
	results  []*rootv1.CommandResult // nil: the era is over
}

// next makes a call of what members have stopped; nil: there is nothing, or it is not time.
func (r *Releaser) next(v *rootview.View, now clock.Instant) *call {
	if r.calling || len(r.leaving)+len(r.again) == 0 {
		return nil
	}
	if now < r.rested {
		r.scan.look(r.rested)
		return nil
	}
	c := &call{era: r.era, began: now}
	var events []*rootv1.Event
	var of []stopped
	for len(events) < maxRemoved && len(r.leaving) > 0 {
		s := r.leaving[0]
		r.leaving = r.leaving[1:]
		if !r.stands(v, s) {
			delete(r.going, s.region)
			continue
		}
		of = append(of, s)
		events = append(events, removal(s))
	}
	if len(events) > 0 {
		c.add(r, v, of, events)
	}
	for len(c.commands) < maxCommands && len(r.again) > 0 { // those that stood in others' way
		s := r.again[0]
		r.again = r.again[1:]
		c.add(r, v, []stopped{s}, []*rootv1.Event{removal(s)})
	}
	if len(c.commands) == 0 {
		return nil
	}
	return c
}

// stands reports whether a region is still what its only owner has stopped.
func (r *Releaser) stands(v *rootview.View, s stopped) bool {
	at := v.State.Region(s.region)
	own, ok := r.cfg.Soft.Own(s.region, s.incarnation)
	return at != nil && at.Epoch == s.epoch && len(at.Owners) == 1 && at.Owners[0].Incarnation == s.incarnation && ok && own.Epoch == s.epoch && released(own.Phase, own.IdleSeconds) &&
		v.State.PendingTransition(s.region) == nil && v.State.Keyspace(at.Keyspace).GetSettings().GetLayout().GetPoints() != nil
}

func removal(s stopped) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{
		RegionId: uint64(s.region), ExpectedEpoch: s.epoch.Proto(),
	}}}
}

func (c *call) add(r *Releaser, v *rootview.View, of []stopped, events []*rootv1.Event) {
	c.of = append(c.of, of)
	c.commands = append(c.commands, &rootv1.Command{
		Events: events, RequireEra: uint64(c.era), Identity: r.cfg.Identities.Next(max(v.Known.Index, v.Token.Index)), Why: "nobody uses it",
	})
}

// propose has commands judged, however long that takes.
func (r *Releaser) propose(ctx context.Context, c *call) {
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		attempt, cancel := context.WithTimeout(ctx, proposeTime)
		results, err := r.cfg.Root.Propose(attempt, c.commands...)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && len(results) == len(c.commands):
			c.results = results
			return
		case err == nil:
			err = fmt.Errorf("%d commands had %d results", len(c.commands), len(results))
		}
		if e, ok := errors.AsType[*reason.Error](err); ok && (e.Detail.GetReason() == rootv1.Reason_REASON_INVALID_REQUEST || e.Detail.GetReason() == rootv1.Reason_REASON_PERMISSION_DENIED) {
			r.cfg.Logger.Warn("the root removes no regions", "err", err)
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

// settle goes on from what became of a call.
func (r *Releaser) settle(c *call) {
	if c.era != r.era {
		return
	}
	now := r.cfg.Clock.Now()
	r.rested = now.Add(min(now.Sub(c.began), maxRest))
	for i, of := range c.of {
		var result *rootv1.CommandResult
		if c.results != nil {
			result = c.results[i]
		}
		switch {
		case result != nil && result.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED:
			r.counts.removed.Add(uint64(len(of)))
			for _, s := range of {
				delete(r.going, s.region)
			}
		case result != nil && len(of) > 1 && result.GetError().GetReason() != rootv1.Reason_REASON_ERA_STALE:
			r.again = append(r.again, of...)
		default: // it is looked at again, if it is still so
			r.counts.refused.Add(uint64(len(of)))
			for _, s := range of {
				r.going[s.region] = now
			}
			r.scan.soon(now.Add(againAfter))
		}
	}
}

// counts are sums since the Releaser was made.
type counts struct {
	scans, asked, kept, silent, unreached, removed, refused atomic.Uint64
}
