package member

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// How lines are tried again, and how long one may be silent: so many intervals, within
// these bounds.
const (
	backoffMin     = 25 * time.Millisecond
	backoffMax     = 5 * time.Second
	silenceMin     = 2 * time.Second
	silenceMax     = 30 * time.Second
	silentTimes    = 5
	farewell       = time.Second
	maxKnown       = 256
	maxRemembered  = 512
	registerPauses = 5 * time.Second
	// Between an incarnation that is over and the next; from the first again behind one
	// that has lasted.
	againMin = 50 * time.Millisecond
	againMax = 5 * time.Second
	lasted   = 2 * againMax
)

// route is the way of a line: to the coordinator at an address, or through it to another
// one, by id, that cannot be reached.
type route struct{ via, to string }

// String names the coordinator, and the way.
func (r route) String() string {
	if r.to != "" {
		return r.to + " through " + r.via
	}
	return r.via
}

// line is a stream to one coordinator.
type line struct {
	m *Member
	route
	slot   int
	cancel context.CancelFunc
	wake   chan struct{}
	// answered: it has said something. Guarded by m.mu.
	answered bool
	interval time.Duration
}

// trouble is what is remembered of a route that failed.
type trouble struct {
	failures int
	until    clock.Instant
}

// wanted are the routes to have lines by, most wanted first, and when that may
// change by itself; 0: it does not. The caller holds m.mu.
func (m *Member) wantedLocked(now clock.Instant) (wanted []route, next clock.Instant) {
	usable := func(r route) bool {
		t := m.troubles[r]
		if t == nil || now >= t.until {
			return true
		}
		if next == 0 || t.until < next {
			next = t.until
		}
		return false
	}
	add := func(addresses []string) {
		for _, a := range addresses {
			if r := (route{via: a}); usable(r) && len(wanted) < m.cfg.Coordinators && !slices.Contains(wanted, r) {
				wanted = append(wanted, r)
			}
		}
	}
	add(m.known)
	if len(wanted) == 0 {
		// Nobody who is known answers: those that the client knows may have other names
		// for them.
		add(m.cfg.Client.Endpoints())
	}
	if r, ok := m.detourLocked(usable); ok {
		wanted = append(wanted, r)
	}
	return wanted, next
}

// detourLocked is a way to the holder of the Tenure while it cannot be reached: through
// another coordinator that answers. Nobody else confirms the member, moves its regions and
// knows what it released. It is given up when the holder has answered directly.
func (m *Member) detourLocked(usable func(route) bool) (route, bool) {
	if m.holderID == "" || m.troubles[route{via: m.holder}] == nil {
		return route{}, false
	}
	for _, l := range m.lines {
		if l != nil && l.to == m.holderID {
			return l.route, true
		}
	}
	for _, l := range m.lines {
		if l == nil || !l.answered || l.to != "" || l.via == m.holder {
			continue
		}
		if r := (route{l.via, m.holderID}); usable(r) {
			return r, true
		}
	}
	return route{}, false
}

// learnLocked takes the coordinators that terms name: the holder of the Tenure first,
// then the others in an order of this member's own, so that members spread.
func (m *Member) learnLocked(t *coordinatorv1.MemberTerms) {
	if len(t.GetCoordinators()) == 0 {
		return
	}
	known, ids := make([]string, 0, len(t.GetCoordinators())), map[string]rooted.CoordinatorID{}
	holder, id := "", ""
	for _, k := range t.GetCoordinators()[:min(len(t.GetCoordinators()), maxKnown)] {
		if k.GetAddress() == "" {
			continue
		}
		ids[k.GetAddress()] = rooted.CoordinatorID(k.GetId())
		if k.GetId() == t.GetHolderId() {
			holder, id = k.GetAddress(), k.GetId()
			continue
		}
		known = append(known, k.GetAddress())
	}
	slices.SortFunc(known, func(a, b string) int {
		if x, y := m.rank(a), m.rank(b); x != y {
			if x < y {
				return -1
			}
			return 1
		}
		return 0
	})
	if holder != "" {
		known = append([]string{holder}, known...)
	}
	m.known, m.ids, m.holder, m.holderID = known, ids, holder, id
}

func (m *Member) rank(address string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(m.cfg.ID + "\x00" + address))
	return h.Sum64()
}

// arrangeLocked opens and closes lines, and says when to look again.
func (m *Member) arrangeLocked(ctx context.Context, now clock.Instant) clock.Instant {
	wanted, next := m.wantedLocked(now)
	live := false
	for _, l := range m.lines {
		live = live || l != nil && l.answered && slices.Contains(wanted, l.route)
	}
	for _, l := range m.lines {
		if l != nil && live && !slices.Contains(wanted, l.route) {
			l.cancel()
		}
	}
	for _, r := range wanted {
		if slices.ContainsFunc(m.lines[:], func(l *line) bool { return l != nil && l.route == r }) {
			continue
		}
		slot := slices.Index(m.lines[:], nil)
		if slot < 0 {
			break
		}
		l := &line{m: m, route: r, slot: slot, wake: make(chan struct{}, 1), interval: silenceMin}
		var lineCtx context.Context
		lineCtx, l.cancel = context.WithCancel(ctx)
		m.lines[slot] = l
		m.running.Add(1)
		go func() {
			defer m.running.Done()
			defer l.cancel()
			l.ended(ctx, l.run(lineCtx))
		}()
	}
	return next
}

// errSilent is a coordinator that takes frames and answers none.
var errSilent = errors.New("the coordinator is silent")

// run keeps a stream until it breaks.
func (l *line) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(silenceMin, func() { cancel(errSilent) })
	defer silence.Stop()
	l.m.mu.Lock()
	whose := l.m.ids[l.via]
	l.m.mu.Unlock()
	stream, err := l.m.cfg.Client.MemberStream(ctx, whose, l.via)
	if err != nil {
		return causeOf(ctx, err)
	}
	l.m.mu.Lock()
	l.m.core.Open(l.slot)
	core := l.m.core
	l.m.mu.Unlock()
	received := make(chan error, 1)
	go func() {
		for {
			a, err := stream.Recv()
			if err == nil {
				silence.Reset(min(max(silentTimes*l.interval, silenceMin), silenceMax))
				err = l.take(a)
			}
			if err != nil {
				received <- err
				cancel(err)
				return
			}
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.m.mu.Lock()
		now := l.m.cfg.clock.Now()
		f := core.Frame(l.slot, now)
		due := core.Due(l.slot)
		l.m.mu.Unlock()
		if f != nil {
			if f.GetHello() != nil {
				f.Hello.RelayTo = l.to
			}
			if err := stream.Send(f); err != nil {
				cancel(nil)
				return causeOf(ctx, <-received) // Recv tells why
			}
			if f.GetGoodbye().GetGone() && !f.GetPartial() {
				_ = stream.CloseSend()
				err := <-received
				return err
			}
			continue
		}
		timer.Reset(due.Sub(now))
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
			return causeOf(ctx, <-received)
		}
	}
}

func causeOf(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// take takes an answer.
func (l *line) take(a *coordinatorv1.MemberAnswer) error {
	m := l.m
	m.mu.Lock()
	if m.lines[l.slot] != l {
		m.mu.Unlock()
		return context.Canceled
	}
	err := m.core.Answer(l.slot, a, m.cfg.clock.Now())
	l.answered = true
	delete(m.troubles, l.route)
	if t := a.GetTerms(); t != nil {
		if ms := t.GetIntervalMillis(); ms > 0 {
			l.interval = time.Duration(min(ms, 60_000)) * time.Millisecond
		}
		m.learnLocked(t)
		m.toldLocked(t)
	}
	if a.GetState() != rootv1.MemberState_MEMBER_STATE_UNSPECIFIED {
		m.state = a.GetState()
	}
	if d := a.GetDrainRefused(); m.drain != nil {
		if m.state == rootv1.MemberState_MEMBER_STATE_DRAINING {
			m.drain.refused = nil
		} else if d != nil {
			m.drain.refused = &reason.Error{Detail: d}
		}
	}
	switch a.GetState() {
	case rootv1.MemberState_MEMBER_STATE_FAILED, rootv1.MemberState_MEMBER_STATE_REMOVED:
		m.endLocked(errOver)
	}
	m.mu.Unlock()
	if d := a.GetDrainRefused(); d != nil {
		m.log.Warn("this member does not drain: the root refused it", "coordinator", l.route, "err", (&reason.Error{Detail: d}).Error())
	}
	for _, d := range a.GetRefusals() {
		m.log.Debug("a coordinator refused what was reported", "coordinator", l.route, "err", (&reason.Error{Detail: d}).Error())
	}
	m.kick()
	return err
}

// ended looks at why a stream broke.
func (l *line) ended(ctx context.Context, err error) {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lines[l.slot] != l {
		return
	}
	m.lines[l.slot] = nil
	m.core.Close(l.slot)
	m.kick()
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	d := reason.From(err)
	switch d.GetReason() {
	case rootv1.Reason_REASON_MEMBER_RETIRED, rootv1.Reason_REASON_UNHEALTHY_MEMBER:
		m.endLocked(errOver)
		return
	case rootv1.Reason_REASON_PERMISSION_DENIED:
		// It is about this process's certificate, which no time mends, unless somebody else
		// takes what it says.
		if !slices.ContainsFunc(m.lines[:], func(l *line) bool { return l != nil && l.answered }) {
			m.endLocked(fmt.Errorf("%w: the process needs a certificate of the role member with the name %s: %s: %s", client.ErrPermissionDenied, m.cfg.ID, l.route, d.GetMessage()))
			return
		}
	}
	t := m.troubles[l.route]
	if t == nil {
		if len(m.troubles) == maxRemembered {
			clear(m.troubles)
		}
		t = &trouble{}
		m.troubles[l.route] = t
	}
	pause := min(backoffMin<<min(t.failures, 16), backoffMax)
	pause = max(pause/2+rand.N(pause/2+1), time.Duration(min(d.GetRetryAfterMillis(), 60_000))*time.Millisecond)
	t.failures++
	t.until = m.cfg.clock.Now().Add(pause)
	m.log.Info("line to a coordinator ended", "coordinator", l.route, "again", pause, "err", err)
}
