package member

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/internal/loglimit"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// ErrSuperseded ends Run: another process registered under this member's id. Whoever
// runs both has to stop one, or give it another id.
var ErrSuperseded = errors.New("another process registered under this member's id: stop one of the two, or give it another id")

// ErrRemoved ends Run: an operator removed the member.
var ErrRemoved = errors.New("the member was removed by an operator")

// ErrStuck ends Run: calls to the Handler, or requests, do not return, so that what they hold
// can neither be released nor begun anew. None of them is said to be good any more. The
// process should end.
var ErrStuck = errors.New("calls to the application, or requests, do not return: end the process")

// ErrProbeLost ends Run: the probe's listener is broken, so that coordinators are refused,
// which proves to them that the process is dead. So that they are right nothing is served
// any more. Somebody else in the process closed it.
var ErrProbeLost = errors.New("the listener for probes is lost: nothing may be served without it")

// ErrAborted ends Run: Abort was called.
var ErrAborted = errors.New("the member was ended at once")

// errOver says that this incarnation is over; errFailed that the verdict was that it is
// dead, errMistaken that who said so was behind: the member registers anew.
var (
	errOver     = errors.New("this incarnation is over")
	errFailed   = errors.New("it was said to have failed")
	errMistaken = errors.New("a coordinator that is behind said that it is over")
)

// Member is a process that hosts regions. Its methods may be called by any number of
// goroutines, before, while and after it runs.
type Member struct {
	cfg Config
	log hclog.Logger
	// failing bounds what is said of calls to the Handler that fail, which are made again.
	failing loglimit.Lines
	table   atomic.Pointer[held.Table]
	// waiting is how many requests wait in Do.
	waiting waiting
	pins    *Pins
	// wake is a level: there may be something to do for Run, which closes ended.
	wake    chan struct{}
	ended   chan struct{}
	running sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu. core, incarnation and over are of the incarnation under way: over
	// is why it ended.
	core        *held.Core
	incarnation uint64
	over        error
	handling    context.Context
	lost        error // the probe is; for good
	aborted     error // by Abort; for good
	tasks       map[uint64]*task
	lines       [held.MaxStreams]*line
	known       []string
	ids         map[string]rooted.CoordinatorID // of those at an address
	holder      string
	holderID    string
	troubles    map[route]*trouble
	keyspaces   map[string]bool // of cfg.Keyspaces, those that coordinators have told of
	state       rootv1.MemberState
	load        Load
	drain       *drain
}

// drain is what Drain asked for, and waits for while it is awaited; done is closed when it
// is over.
type drain struct {
	deadline      clock.Instant
	reason        string
	done          chan struct{}
	awaited, over bool
	// refused is why the root did not let the member drain, when it said so last.
	refused error
}

// New makes a Member. It does nothing before Run.
func New(cfg Config) (*Member, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	m := &Member{cfg: cfg, log: cfg.Logger.With("member", cfg.ID), waiting: waiting{region: map[rooted.RegionID]int{}}, wake: make(chan struct{}, 1), ended: make(chan struct{}), troubles: map[route]*trouble{}, keyspaces: map[string]bool{}}
	m.pins = newPins(m)
	return m, nil
}

// Run registers the member and keeps it going until the context ends: then nothing more
// is let in, every region is released, coordinators are told, and Run returns nil.
// Drain before that gives the regions away without a gap. Other errors: ErrSuperseded,
// ErrRemoved, ErrStuck, and what makes the registration or a stream impossible, such as
// client.ErrPermissionDenied. It may be called once.
func (m *Member) Run(ctx context.Context, h Handler) error {
	defer close(m.ended)
	p, address, err := listenProbe(ctx, m.cfg, m.loseProbe)
	if err != nil {
		return err
	}
	// The last of all: that it is closed says that nothing is served here.
	defer p.close()
	m.cfg.Client.KeepRevoked(m.cfg.TLS)
	defer m.awaitKeyspaces(ctx)()
	follows := uint64(0)
	for pause := time.Duration(0); ; pause = min(max(2*pause, againMin), againMax) {
		rooted, err := m.register(ctx, address, follows)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrMemberRetired):
			return ErrSuperseded
		case err != nil:
			return fmt.Errorf("register member %q: %w", m.cfg.ID, err)
		}
		follows = rooted.GetIncarnation()
		if p != nil {
			p.incarnation.Store(follows)
		}
		m.log.Info("registered", "incarnation", follows)
		begun := m.cfg.clock.Now()
		err = m.live(ctx, h, follows)
		if errors.Is(err, errOver) {
			err = m.verdict(ctx, follows)
		}
		if !errors.Is(err, errFailed) && !errors.Is(err, errMistaken) {
			return err
		}
		if m.cfg.clock.Now().Sub(begun) >= lasted {
			pause = 0
		}
		m.log.Warn("begins anew", "incarnation", follows, "why", err, "after", pause)
		if err := rest(ctx, pause); err != nil {
			return nil
		}
	}
}

// register registers, as often as it takes.
func (m *Member) register(ctx context.Context, probe string, follows uint64) (*rootv1.Member, error) {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	record := m.cfg.record(probe, binary.BigEndian.Uint64(nonce[:])|1)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, registerPauses) {
		var made *rootv1.Member
		var err error
		if follows == 0 {
			made, err = m.cfg.Client.RegisterMember(ctx, record)
		} else {
			made, err = m.cfg.Client.RegisterMemberAfter(ctx, record, follows)
		}
		if err == nil || ctx.Err() != nil || !passes(err) {
			return made, err
		}
		m.log.Warn("not registered yet", "err", err)
		if err := rest(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// verdict asks why an incarnation is over, as often as it takes; nil: the context ended.
func (m *Member) verdict(ctx context.Context, incarnation uint64) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, registerPauses) {
		there, err := m.cfg.Client.GetMember(ctx, rooted.MemberID(m.cfg.ID), client.Strong())
		at := there.GetMember()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrMemberNotFound), err == nil && at.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED:
			return ErrRemoved
		case err == nil && at.GetIncarnation() != incarnation:
			return ErrSuperseded
		case err == nil && at.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED:
			return errFailed
		case err == nil:
			return errMistaken
		case !passes(err):
			return fmt.Errorf("ask what became of member %q: %w", m.cfg.ID, err)
		}
		if err := rest(ctx, pause); err != nil {
			return nil
		}
	}
}

// rest waits for half of a pause to all of it.
func rest(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause/2 + mathrand.N(pause/2+1)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// passes says whether an error may pass by itself: also that of a cluster which is being
// upgraded, and does not understand yet what the member says.
func passes(err error) bool {
	for _, e := range []error{context.DeadlineExceeded, client.ErrUnreachable, client.ErrRootUnavailable, client.ErrOverloaded, client.ErrOutcomeUnknown, client.ErrNotLeader, client.ErrRequiredToken, client.ErrBootstrapRequired, client.ErrRootLagExceeded, client.ErrFeatureLevel} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// live is one incarnation.
func (m *Member) live(ctx context.Context, h Handler, incarnation uint64) error {
	// What goes on behind the end of ctx, bounded by time: releasing, and saying so.
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	_, evicts := h.(Evicter)
	core := held.New(held.Config{Member: rooted.MemberID(m.cfg.ID), Incarnation: incarnation, Evicts: evicts, Workers: m.cfg.Workers, Grace: m.cfg.RequestGrace, Pinned: m.cfg.Pins.Grace, Deaf: m.cfg.HandlerTimeout})
	m.mu.Lock()
	m.core, m.incarnation, m.over, m.handling, m.tasks = core, incarnation, nil, after, map[uint64]*task{}
	m.state = rootv1.MemberState_MEMBER_STATE_UNSPECIFIED
	if m.lost != nil {
		m.endLocked(m.lost)
	}
	m.abortLocked()
	core.SetLoad(m.load)
	if d := m.drain; d != nil {
		core.Goodbye(d.deadline, d.reason)
	}
	m.mu.Unlock()
	m.table.Store(core.Table())
	err := m.serve(ctx, after, h, core)
	m.mu.Lock()
	if m.over == nil {
		core.Gone("the process ends")
	}
	m.mu.Unlock()
	m.kick()
	m.sayFarewell(cancel)
	m.table.CompareAndSwap(core.Table(), nil)
	return err
}

// sayFarewell waits for the lines to end, and for calls that have not been left behind.
func (m *Member) sayFarewell(cancel func()) {
	m.mu.Lock()
	for _, l := range m.lines {
		if l != nil && (m.over != nil && m.aborted == nil || !l.answered) {
			l.cancel()
		}
		if l != nil {
			kick(l.wake) // what is said last is said at once, whatever the interval
		}
	}
	m.mu.Unlock()
	over := time.NewTimer(farewell)
	defer over.Stop()
	for {
		m.mu.Lock()
		open := 0
		for _, l := range m.lines {
			if l != nil {
				open++
			}
		}
		m.mu.Unlock()
		if open == 0 && m.pins.open() == 0 {
			break
		}
		select {
		case <-m.wake:
			continue
		case <-over.C:
		}
		break
	}
	cancel()
	m.mu.Lock()
	if m.over == nil {
		m.over = errOver // nothing is begun any more
	}
	stuck := len(m.tasks) + m.pins.open()
	m.mu.Unlock()
	if stuck == 0 {
		m.running.Wait()
	}
}

// serve does what the core asks for until the incarnation is over and nothing is held.
func (m *Member) serve(ctx, after context.Context, h Handler, core *held.Core) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	var giveUp <-chan time.Time
	for {
		m.mu.Lock()
		if m.aborted != nil {
			defer m.mu.Unlock()
			return m.aborted
		}
		now := m.cfg.clock.Now()
		core.Tick(now)
		for _, call := range core.Calls(m.cfg.Workers, now) {
			m.startLocked(h, call)
		}
		next := core.Next()
		if m.over == nil {
			if at := m.arrangeLocked(after, now); at != 0 && (next == 0 || at < next) {
				next = at
			}
		}
		for _, l := range m.lines {
			if l != nil {
				kick(l.wake)
			}
		}
		m.drainedLocked()
		over, holding := m.over, core.Holding()
		m.mu.Unlock()
		if holding == 0 && (over != nil || stop == nil) {
			return over
		}
		if over != nil && giveUp == nil {
			giveUp = time.After(2 * m.cfg.HandlerTimeout)
		}
		pause := time.Hour
		if next != 0 {
			pause = next.Sub(now)
		}
		timer.Reset(pause)
		select {
		case <-m.wake:
		case <-timer.C:
		case <-giveUp:
			return fmt.Errorf("%w: %d regions are held", ErrStuck, holding)
		case <-stop:
			stop = nil
			giveUp = time.After(m.cfg.HandlerTimeout)
			m.mu.Lock()
			core.Stop(m.cfg.clock.Now())
			m.mu.Unlock()
		}
	}
}

// endLocked ends the incarnation.
func (m *Member) endLocked(why error) {
	if m.over != nil {
		return
	}
	m.over = why
	m.core.Retire(m.cfg.clock.Now())
	m.kick()
}

// Abort ends Run at once, with ErrAborted, for who acts in place of another process, which is
// dead: nothing is released, the Handler is asked nothing more, and coordinators are told that
// nothing of the member is served, so that others are given its regions without waiting. The
// caller has made sure of that before. What is under way is not said to be good.
func (m *Member) Abort(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.aborted == nil {
		m.aborted = fmt.Errorf("%w: %s", ErrAborted, why)
		m.abortLocked()
	}
	m.kick()
}

// abortLocked does what Abort asked for.
func (m *Member) abortLocked() {
	if m.aborted == nil || m.core == nil || m.over != nil {
		return
	}
	m.over = m.aborted
	m.core.Gone(m.aborted.Error())
}

// loseProbe ends the member: whoever asks whether it is dead is told so.
func (m *Member) loseProbe(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = fmt.Errorf("%w: %w", ErrProbeLost, err)
	if m.core != nil {
		m.endLocked(m.lost)
	}
}

// kick lets Run look again.
func (m *Member) kick() { kick(m.wake) }

func kick(level chan struct{}) {
	select {
	case level <- struct{}{}:
	default:
	}
}

// Drain asks for the member's regions to be moved to others, and returns when they have
// been: the process can end then without anybody noticing. The context needs a deadline,
// which is told: it is the time that the process has left. An error says how many regions
// are left, or that Run has ended. The member takes no more from then on, until it runs anew.
// One Drain waits at a time; one that took too long can be asked for again.
func (m *Member) Drain(ctx context.Context, why string) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("drain: the context has no deadline: give it the time that the process has left")
	}
	d := &drain{deadline: m.cfg.clock.Now().Add(time.Until(deadline)), reason: why, done: make(chan struct{}), awaited: true}
	m.mu.Lock()
	if m.drain != nil && m.drain.awaited {
		m.mu.Unlock()
		return errors.New("drain: another one waits already: ask again when it has returned")
	}
	m.drain = d
	defer func() {
		m.mu.Lock()
		d.awaited = false
		m.mu.Unlock()
	}()
	if m.core != nil {
		m.core.Goodbye(d.deadline, why)
	}
	m.mu.Unlock()
	m.kick()
	select {
	case <-d.done:
		return nil
	case <-m.ended:
		return errors.New("drain: the member has ended")
	case <-ctx.Done():
		m.mu.Lock()
		refused := d.refused
		m.mu.Unlock()
		if refused != nil {
			return fmt.Errorf("drain: the root refused it: %w: %w", refused, ctx.Err())
		}
		if left := m.Status().Regions; left > 0 {
			return fmt.Errorf("drain: regions are left: %d: %w", left, ctx.Err())
		}
		return fmt.Errorf("drain: no region is left, but no coordinator has answered that the member drains: %w", ctx.Err())
	}
}

// drainedLocked looks whether Drain is over: the root knows that the member drains, so
// that it gets nothing more, and nothing is its own.
func (m *Member) drainedLocked() {
	if d := m.drain; d != nil && !d.over && m.state == rootv1.MemberState_MEMBER_STATE_DRAINING && m.core.Regions() == 0 {
		d.over = true
		close(d.done)
	}
}

// Report tells what a region costs. It is sent with the next frame if it differs enough
// from what was told before. False: the member has nothing to do with the region.
func (m *Member) Report(id rooted.RegionID, s Stats) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core != nil && m.core.Report(id, s)
}

// SetLoad tells the load of the process as a whole.
func (m *Member) SetLoad(l Load) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.load = l
	if m.core != nil {
		m.core.SetLoad(l)
	}
}

// Status is how a member is doing.
type Status struct {
	// Incarnation under way; 0: none.
	Incarnation uint64
	State       rootv1.MemberState
	// Regions that it has to do with, and Holding those that the application has.
	Regions, Holding int
	// Coordinators that it has lines to, and the address of the Tenure's holder.
	Coordinators []string
	Holder       string
	// Obeyed is the position of what it was shown.
	Obeyed rooted.Token
	// Held is how many requests wait.
	Held int
	rooted.MemberCounts
}

// Status returns how the member is doing.
func (m *Member) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{State: m.state, Holder: m.holder, Held: m.waiting.count()}
	for _, l := range m.lines {
		if l != nil && l.answered && l.to == "" {
			s.Coordinators = append(s.Coordinators, l.via)
		}
	}
	if m.core != nil {
		s.Incarnation, s.Regions, s.Holding, s.Obeyed, s.MemberCounts = m.incarnation, m.core.Regions(), m.core.Holding(), m.core.Obeyed(), m.core.Counts()
	}
	return s
}
