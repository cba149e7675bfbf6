package assigner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/scaling"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// scaleEvery, and scaleEach for each member of each keyspace, are between two looks at how
	// many members keyspaces want.
	scaleEvery, scaleEach = time.Second, 10 * time.Microsecond
	// maxPosts bounds the wishes that are posted at a time; one that is not taken is posted
	// again after postLeast, doubling up to postMost.
	maxPosts            = 8
	postLeast, postMost = time.Second, time.Minute
	// maxShownScaling bounds the keyspaces whose wishes are shown.
	maxShownScaling = 4096
)

// scales are the keyspaces that may want more members or fewer. They belong to Look, in an
// era.
type scales struct {
	of    map[state.KeyspaceID]*scaled
	due   clock.Instant
	posts int
}

// scaled is one of them.
type scaled struct {
	settings scaling.Settings
	record   *rootv1.Keyspace
	memory   scaling.Memory
	verdict  scaling.Verdict
	judged   bool
	// drains is the incarnation whose drain is on its way to the root.
	drains uint64
	// wish is told to the hook, since when; nil: there is none.
	wish      *hook.Wish
	since     clock.Instant
	call      *HookCall
	delivered bool
	failures  uint64
	problem   string
	due       clock.Instant
	pause     time.Duration
}

// shownScaling is what others see of them.
type shownScaling struct {
	mu      sync.Mutex
	signals []*coordinatorv1.ScalingSignal // guarded by mu; not changed any more
}

// scales follows the settings of a keyspace.
func (a *Raw) scales(id state.KeyspaceID, k *rootv1.Keyspace) {
	s, on := scaling.SettingsOf(k.GetSettings())
	if !on {
		delete(a.scaling.of, id)
		return
	}
	x := a.scaling.of[id]
	if x == nil {
		x = &scaled{memory: scaling.Memory{Changed: a.tick()}}
		a.scaling.of[id] = x
	}
	if x.record.GetSettings().GetScaling().GetHookUrl() != k.GetSettings().GetScaling().GetHookUrl() {
		x.call, x.delivered, x.failures, x.problem, x.due, x.pause = nil, false, 0, "", 0, postLeast
	}
	x.settings, x.record = s, k
	a.scaling.due = 0
}

// scale looks at how many members keyspaces want, and says when it is due again.
func (a *Raw) scale(now clock.Instant) (calls []*HookCall, due clock.Instant) {
	if len(a.scaling.of) == 0 || !a.rounds.open {
		a.showScaling(now)
		return nil, never
	}
	ids := slices.Sorted(maps.Keys(a.scaling.of))
	if a.scaling.due <= now {
		a.mu.Lock()
		held := len(a.core.Holds()) > 0
		a.mu.Unlock()
		for _, id := range ids {
			a.judgeScaling(id, a.scaling.of[id], held, now)
		}
		a.scaling.due = now.Add(scaleEvery + scaleEach*time.Duration(a.st.MemberCount()*len(ids)))
		a.showScaling(now)
	}
	due = a.scaling.due
	for _, id := range ids {
		x := a.scaling.of[id]
		url := x.record.GetSettings().GetScaling().GetHookUrl()
		switch {
		case x.wish == nil || x.delivered || x.call != nil || url == "":
		case x.due > now:
			due = min(due, x.due)
		case a.scaling.posts < maxPosts: // else the next look has it
			x.call = &HookCall{URL: url, Within: timeoutOf(x.record.GetSettings().GetScaling().GetHookTimeoutMillis()), Wish: x.wish, era: a.era}
			a.scaling.posts++
			calls = append(calls, x.call)
		}
	}
	return calls, due
}

// judgeScaling judges one keyspace.
func (a *Raw) judgeScaling(ks state.KeyspaceID, x *scaled, held bool, now clock.Instant) {
	in := scaling.Input{Settings: x.settings, Held: held, Orphaned: a.st.KeyspaceOrphaned(ks), Now: now}
	victims := map[state.MemberID]*rootv1.Member{}
	name := x.record.GetName()
	a.mu.Lock()
	a.st.Members(func(m *rootv1.Member) bool {
		active := m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE
		if !active && m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING || !placement.Accepts(a.st, m, name) {
			return true
		}
		id := state.MemberID(m.GetId())
		one := scaling.Member{
			ID: id, Incarnation: m.GetIncarnation(), Active: active, Well: active && a.core.Standing(id).Takes(now),
			Victim:  !active && slices.Equal(m.GetSignals(), []string{state.ScalingSignal, name}),
			Regions: a.st.MemberKeyspaceRegionCount(id, ks), All: a.st.MemberRegionCount(id),
		}
		if x.settings.ByLoad {
			said := a.loads.book.Member(m.GetIncarnation(), now)
			one.Load, one.Capacity = said.Now, min(said.Capacity, load.Most)
		}
		in.Members = append(in.Members, one)
		victims[id] = m
		return true
	})
	a.mu.Unlock()
	x.verdict, x.memory = scaling.Judge(in, x.memory)
	x.judged = true
	if m := victims[x.verdict.Drain]; m != nil {
		a.drainFor(x, m)
	}
	x.wishes(a, victims[x.verdict.Victim], now)
}

// drainFor drains a member because a keyspace wants one fewer, if it is as it was.
func (a *Raw) drainFor(x *scaled, m *rootv1.Member) {
	if x.drains == m.GetIncarnation() || a.outbox.len() > maxWaiting {
		return
	}
	x.drains = m.GetIncarnation()
	why := fmt.Sprintf("scaling: members of keyspace %s are %d of 1,000 full, %d are enough", x.record.GetName(), x.verdict.Full, x.verdict.Active-1)
	change := &rootv1.MemberStateChanged{
		MemberId: m.GetId(), Incarnation: m.GetIncarnation(), State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: oneline.Within(state.MaxTextBytes, why),
		Signals: []string{state.ScalingSignal, x.record.GetName()}, ExpectedRevision: m.GetRevision(),
	}
	a.outbox.rest = append(a.outbox.rest, &parcel{events: []*rootv1.Event{memberEvent(change)}, why: oneline.Within(state.MaxWhyBytes, why), judged: func(result *rootv1.CommandResult, _ clock.Instant) {
		x.drains = 0
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			a.count.refusal(result.GetError().GetReason())
			a.cfg.Logger.Warn("the root refused a drain", "member", m.GetId(), "incarnation", m.GetIncarnation(), "why", why, "err", result.GetError().GetMessage())
			return
		}
		a.count.add(func() { a.count.drains++; a.count.scalings["down"]++ })
		a.cfg.Logger.Info("member drains", "member", m.GetId(), "incarnation", m.GetIncarnation(), "why", why)
	}})
}

// wishes goes on from a verdict to what the hook is told.
func (x *scaled) wishes(a *Raw, victim *rootv1.Member, now clock.Instant) {
	v, id := &x.verdict, ""
	switch {
	case v.More:
		id = fmt.Sprintf("%d-up-%d-%d", x.record.GetId(), a.era, x.memory.Wishes)
	case v.Drained:
		id = fmt.Sprintf("%d-down-%d", x.record.GetId(), victim.GetIncarnation())
	}
	if id == "" {
		x.wish, x.call = nil, nil
		return
	}
	if x.wish != nil && x.wish.ID == id {
		return
	}
	w := &hook.Wish{
		Version: hook.Version, ID: id, Keyspace: x.record.GetName(), KeyspaceID: x.record.GetId(), Active: v.Active, Desired: v.Desired,
		Reason: v.Reason.String(), FullPermille: v.Full,
	}
	if v.Drained {
		w.Victim, w.VictimAddress, w.VictimIncarnation = victim.GetId(), victim.GetAddress(), victim.GetIncarnation()
	} else {
		a.count.add(func() { a.count.scalings["up"]++ })
	}
	x.wish, x.since, x.call, x.delivered, x.failures, x.problem, x.due, x.pause = w, now, nil, false, 0, "", now, postLeast
	a.cfg.Logger.Info("a keyspace wants another number of members", "keyspace", w.Keyspace, "id", id, "active", w.Active, "desired", w.Desired,
		"victim", w.Victim, "why", w.Reason)
}

// posted goes on from a wish that was posted. Whatever became of it, nothing is placed
// otherwise.
func (a *Raw) posted(c *HookCall, err error, now clock.Instant) {
	a.scaling.posts--
	x := a.scaling.of[state.KeyspaceID(c.Wish.KeyspaceID)]
	outcome := "wish_taken"
	if err != nil {
		outcome = "wish_" + string(hook.WhyOf(err))
	}
	a.count.add(func() { a.count.hooks[outcome]++ })
	if x == nil || x.call != c {
		return
	}
	x.call = nil
	if err == nil {
		x.delivered, x.problem = true, ""
		a.showScaling(now)
		return
	}
	if x.failures++; x.failures == 1 {
		a.cfg.Logger.Warn("a wish for members was not taken", "keyspace", c.Wish.Keyspace, "id", c.Wish.ID, "url", hook.Address(c.URL), "err", fmt.Sprintf("%.200s", err))
	}
	x.problem = string(hook.WhyOf(err))
	x.due = now.Add(x.pause)
	x.pause = min(2*x.pause, postMost)
	a.showScaling(now)
}

// showScaling lets others see it.
func (a *Raw) showScaling(now clock.Instant) {
	if len(a.scaling.of) == 0 && a.shows.scaling.empty() {
		return
	}
	var signals []*coordinatorv1.ScalingSignal
	for _, x := range a.scaling.of {
		if !x.judged || len(signals) == maxShownScaling {
			continue
		}
		v := &x.verdict
		s := &coordinatorv1.ScalingSignal{
			Keyspace: x.record.GetName(), Active: uint64(v.Active), Desired: uint64(v.Desired), Reason: v.Reason.String(),
			Victim: string(v.Victim), Drained: v.Drained, FullPermille: v.Full,
		}
		if x.wish != nil {
			s.Id, s.AgeMillis = x.wish.ID, uint64(now.Sub(x.since).Milliseconds())
			s.Delivered, s.Failures, s.Problem = x.delivered, x.failures, x.problem
		}
		signals = append(signals, s)
	}
	slices.SortFunc(signals, func(a, b *coordinatorv1.ScalingSignal) int { return cmp.Compare(a.GetKeyspace(), b.GetKeyspace()) })
	a.shows.scaling.set(signals)
}

func (s *shownScaling) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.signals) == 0
}

func (s *shownScaling) set(signals []*coordinatorv1.ScalingSignal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signals = signals
}

// Scaling is how many members keyspaces want, by name; without the Tenure there are none.
func (a *Raw) Scaling() []*coordinatorv1.ScalingSignal {
	s := &a.shows.scaling
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signals
}
