package assigner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// maxHookCalls bounds the hooks that are asked at a time: one call for a keyspace, for
	// many regions. maxHookRegions, maxHookKeys of their keys, maxHookMembers and
	// maxHookLabels of these bound what is asked, the last two in bytes.
	maxHookCalls   = 64
	maxHookRegions = 4096
	maxHookKeys    = 1 << 20
	maxHookMembers = 4096
	maxHookLabels  = 2 << 20
	// hookFailures in a row, or one that came late, and nobody waits for a hook any more until it
	// answers a probe: the first after restLeast, then doubling up to restMost.
	hookFailures        = 3
	restLeast, restMost = time.Second, 30 * time.Second
	// probeMembers bounds the candidates of a probe.
	probeMembers = 64
)

// hooks are what applications say of where regions of keyspaces shall go. They belong to
// Look, in an era.
type hooks struct {
	of map[state.KeyspaceID]*hooked
	// strategies are those of keyspaces that something is brought for: a hook, or code.
	strategies map[state.KeyspaceID]propose.Strategy
	// code is what is brought as code.
	code map[state.KeyspaceID]*brought
	// answers are for the next plan.
	answers map[state.RegionID]answer
	// active are keyspaces whose hook something waits for, or which is probed.
	active map[state.KeyspaceID]struct{}
	calls  int
}

// answer is what a hook said of a region; failed: why it said nothing.
type answer struct {
	epoch  state.Epoch
	member state.MemberID
	named  bool
	failed hook.Why
}

// hooked is a keyspace whose strategy is a hook.
type hooked struct {
	hooks    *hooks
	id       state.KeyspaceID
	settings *rootv1.Keyspace
	url      string
	timeout  time.Duration
	// queue waits to be asked about, in the order of time; waits has it, and what is asked now.
	queue      []awaiting
	waits      map[state.RegionID]struct{}
	candidates []hook.Candidate
	call       *HookCall
	// failures in a row. resting: nobody waits for it, because of why; it is probed at due.
	failures int
	resting  bool
	why      hook.Why
	due      clock.Instant
	pause    time.Duration
	probe    *hook.Placement
	// told are reasons that the log has of answers that could not be taken.
	told map[placement.Why]bool
}

type awaiting struct {
	placement.Awaiting
	since clock.Instant
}

func newHooks() *hooks {
	return &hooks{
		of: map[state.KeyspaceID]*hooked{}, strategies: map[state.KeyspaceID]propose.Strategy{}, code: map[state.KeyspaceID]*brought{},
		answers: map[state.RegionID]answer{}, active: map[state.KeyspaceID]struct{}{},
	}
}

var _ placement.Asker = (*hooked)(nil)

// Answered implements placement.Asker.
func (h *hooked) Answered(id state.RegionID, epoch state.Epoch) bool {
	x, ok := h.hooks.answers[id]
	return h.resting || ok && x.epoch == epoch
}

// Propose implements propose.Strategy.
func (h *hooked) Propose(q *propose.Question) (int, bool) {
	x := h.hooks.answers[q.Region]
	if !x.named {
		return 0, false
	}
	return q.Index(x.member), true
}

// HookCall is a call of an application's hook: about regions, or with a wish.
type HookCall struct {
	URL string
	// Within is how long it has.
	Within time.Duration
	Place  *hook.Placement
	Wish   *hook.Wish

	era   state.Era
	asked []awaiting
}

// bringAll follows the settings of all keyspaces.
func (a *Raw) bringAll() {
	for id := range a.hooks.strategies {
		a.bring(id)
	}
	a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		a.bring(state.KeyspaceID(k.GetId()))
		return true
	})
}

// bring follows the settings of a keyspace. What waits for a hook that was another one
// waits no more.
func (a *Raw) bring(id state.KeyspaceID) {
	k := a.st.Keyspace(id)
	a.scales(id, k)
	old := a.hooks.of[id]
	delete(a.hooks.strategies, id)
	delete(a.hooks.code, id)
	if code := a.cfg.Strategies[k.GetName()]; k != nil && code != nil {
		x := &brought{raw: a, strategy: code, keyspace: k.GetName()}
		a.hooks.strategies[id], a.hooks.code[id] = x, x
	} else if h := hookOf(k); h != nil {
		if old != nil && old.url == h.url {
			old.settings, old.timeout = k, h.timeout
			a.hooks.strategies[id] = old
			return
		}
		h.hooks = a.hooks
		a.hooks.of[id], a.hooks.strategies[id] = h, h
	}
	if old == nil {
		return
	}
	if a.hooks.of[id] == old {
		delete(a.hooks.of, id)
	}
	a.shows.resting.set(id, nil)
	for r := range old.waits {
		a.work.Mark(r)
	}
}

// hookOf is that of a keyspace; nil: its strategy is another one.
func hookOf(k *rootv1.Keyspace) *hooked {
	s, p := k.GetSettings(), k.GetSettings().GetPolicy()
	if s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || p.GetStrategy() != rootv1.Strategy_STRATEGY_HOOK {
		return nil
	}
	return &hooked{
		id: state.KeyspaceID(k.GetId()), settings: k, url: p.GetHookUrl(), timeout: timeoutOf(p.GetHookTimeoutMillis()),
		waits: map[state.RegionID]struct{}{}, pause: restLeast, told: map[placement.Why]bool{},
	}
}

func timeoutOf(millis uint64) time.Duration {
	return time.Duration(min(cmp.Or(millis, state.DefaultHookTimeoutMillis), state.MaxHookMillis)) * time.Millisecond
}

// heed takes what a plan asks, and drops the answers that it has had.
func (a *Raw) heed(plan *placement.Plan, regions []state.RegionID, now clock.Instant) {
	if len(a.hooks.strategies) == 0 {
		return
	}
	a.passedOver(plan)
	for i := range plan.Operations {
		if o := &plan.Operations[i]; o.Kind == placement.Assign {
			o.Because = cmp.Or(o.Because, a.because(o))
		}
	}
	for _, id := range regions {
		delete(a.hooks.answers, id)
	}
	for id, q := range plan.Asked {
		h := a.hooks.of[id]
		if h == nil {
			continue
		}
		h.candidates = members(q.Candidates)
		for _, r := range q.Regions {
			if _, waits := h.waits[r.Region.ID]; !waits {
				h.waits[r.Region.ID] = struct{}{}
				h.queue = append(h.queue, awaiting{r, now})
				a.hooks.active[id] = struct{}{}
			}
		}
	}
}

// because says in the log why a region went to whom no hook named.
func (a *Raw) because(o *placement.Operation) string {
	h := a.hooks.of[o.Keyspace]
	if h == nil {
		return ""
	}
	why := a.hooks.answers[o.Region].failed
	switch {
	case h.resting && why == "":
		why = h.why
		a.count.fallback(string(why), 1)
	case why == "":
		return ""
	}
	return fmt.Sprintf("the hook of %s is of no use (%s): placed by %s", h.settings.GetName(), why, h.fallback())
}

func (h *hooked) fallback() string {
	s := h.settings.GetSettings().GetPolicy().GetHookFallback()
	return word(cmp.Or(s, rootv1.Strategy_STRATEGY_BALANCED).String(), "STRATEGY_")
}

// passedOver counts, and tells once, who was named and could not be taken.
func (a *Raw) passedOver(plan *placement.Plan) {
	because := map[state.RegionID]placement.Why{}
	for i := range plan.Refusals {
		f := &plan.Refusals[i]
		switch f.Why {
		case placement.NamedNobody, placement.NamedUnfit, placement.NamedFull:
		default:
			continue
		}
		because[f.Region] = f.Why
		h := a.hooks.of[f.Keyspace]
		if h == nil {
			a.count.fallback(f.Why.String(), 1)
			continue
		}
		named := f.Member
		if named == "" {
			named = a.hooks.answers[f.Region].member
		}
		a.count.fallback(f.Why.String(), 1)
		if !h.told[f.Why] {
			h.told[f.Why] = true
			a.cfg.Logger.Warn("a hook names a member that cannot be taken", "keyspace", h.settings.GetName(), "region", uint64(f.Region),
				"member", fmt.Sprintf("%.64q", string(named)), "why", f.Why.String())
		}
	}
	for i := range plan.Operations {
		if why, ok := because[plan.Operations[i].Region]; ok && plan.Operations[i].Kind == placement.Assign {
			plan.Operations[i].Because = "who was named could not be taken: " + why.String()
		}
	}
}

// members are candidates as a hook is told them: the coldest, if there are too many.
func members(all []propose.Candidate) []hook.Candidate {
	bytes := 0
	size := func(c *propose.Candidate) (n int) {
		n = len(c.ID) + 128
		for k, v := range c.Labels {
			n += 2*(len(k)+len(v)) + 8
		}
		return n
	}
	for i := range all {
		bytes += size(&all[i])
	}
	if len(all) > maxHookMembers || bytes > maxHookLabels {
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b propose.Candidate) int { return load.Compare(a.Load, a.Capacity, b.Load, b.Capacity) })
		n, room := 0, maxHookLabels
		for n < min(len(all), maxHookMembers) && size(&all[n]) <= room {
			room -= size(&all[n])
			n++
		}
		all = all[:n]
		slices.SortFunc(all, func(a, b propose.Candidate) int { return cmp.Compare(a.ID, b.ID) })
	}
	told := make([]hook.Candidate, len(all))
	for i, c := range all {
		told[i] = hook.Candidate{ID: string(c.ID), Labels: c.Labels, Capacity: c.Capacity, Load: float64(c.Load) / float64(load.One)}
	}
	return told
}

// expire has regions placed that have waited as long as a hook has time, and were not even
// asked about.
func (h *hooked) expire(a *Raw, now clock.Instant) {
	n := 0
	for n < len(h.queue) && h.queue[n].since.Add(h.timeout) <= now {
		n++
	}
	a.giveUp(h, h.queue[:n], hook.Busy)
	h.queue = h.queue[n:]
}

func (a *Raw) expireHooks(now clock.Instant) {
	for id := range a.hooks.active {
		if h := a.hooks.of[id]; h != nil {
			h.expire(a, now)
		}
	}
}

// startHooks asks the hooks of keyspaces that something waits for, and says when it is due
// again.
func (a *Raw) startHooks(now clock.Instant) (calls []*HookCall, due clock.Instant) {
	due = never
	for _, id := range slices.Sorted(maps.Keys(a.hooks.active)) {
		h := a.hooks.of[id]
		if h == nil || h.call == nil && len(h.queue) == 0 && !h.resting {
			delete(a.hooks.active, id)
			continue
		}
		room := h.call == nil && a.hooks.calls < maxHookCalls
		switch {
		case len(h.queue) > 0 && room:
			h.call = h.ask(a.era, now)
		case len(h.queue) > 0:
			due = min(due, h.queue[0].since.Add(h.timeout))
			continue
		case h.call != nil:
			continue
		case h.due > now:
			due = min(due, h.due)
			continue
		case !room:
			h.due = now.Add(restLeast)
			due = min(due, h.due)
			continue
		default:
			h.call = &HookCall{URL: h.url, Within: h.timeout, Place: h.probe, era: a.era}
		}
		a.hooks.calls++
		calls = append(calls, h.call)
		if len(h.queue) > 0 {
			due = min(due, h.queue[0].since.Add(h.timeout))
		}
	}
	return calls, due
}

// ask makes a call of what waits, as far as one has room.
func (h *hooked) ask(era state.Era, now clock.Instant) *HookCall {
	n, bytes := 0, 0
	for n < len(h.queue) && n < maxHookRegions && bytes <= maxHookKeys {
		bytes += len(h.queue[n].Region.Start) + len(h.queue[n].Region.End)
		n++
	}
	c := &HookCall{URL: h.url, Within: h.queue[0].since.Add(h.timeout).Sub(now), era: era, asked: h.queue[:n:n]}
	h.queue = h.queue[n:]
	c.Place = h.placement(len(c.asked))
	for i := range c.asked {
		c.Place.Regions = append(c.Place.Regions, h.region(&c.asked[i]))
	}
	return c
}

func (h *hooked) placement(regions int) *hook.Placement {
	return &hook.Placement{
		Version: hook.Version, Keyspace: h.settings.GetName(), KeyspaceID: uint32(h.id), Regions: make([]hook.Region, 0, regions), Candidates: h.candidates,
	}
}

func (h *hooked) region(w *awaiting) hook.Region {
	r := hook.Region{
		ID: uint64(w.Region.ID), StartKey: []byte(w.Region.Start), EndKey: []byte(w.Region.End),
		Load: float64(w.Load) / float64(load.One), Reason: word(w.Reason.String(), "OPERATION_REASON_"),
	}
	if h.settings.GetSettings().GetLayout().GetSlots() != nil && len(w.Region.Start) == 8 {
		slot := rooted.SlotAt(w.Region.Start)
		r.Slot = &slot
	}
	return r
}

// Hooked tells what a hook said of a HookCall's regions, or that it took its wish.
func (a *Raw) Hooked(c *HookCall, owners map[state.RegionID]state.MemberID, err error) {
	if a.era != c.era {
		return
	}
	now := a.tick()
	if c.Wish != nil {
		a.posted(c, err, now)
		return
	}
	a.hooks.calls--
	h := a.hooks.of[state.KeyspaceID(c.Place.KeyspaceID)]
	if h == nil || h.call != c {
		return // what waited was marked when the settings changed
	}
	h.call = nil
	if err != nil {
		a.hookFailed(h, c, err, now)
		return
	}
	a.count.add(func() { a.count.hooks["answered"]++ })
	if h.resting {
		a.cfg.Logger.Info("a hook answers again", "keyspace", h.settings.GetName(), "url", hook.Address(h.url))
		clear(h.told)
	}
	h.failures, h.resting, h.why, h.pause, h.probe = 0, false, "", restLeast, nil
	a.shows.resting.set(h.id, nil)
	for i := range c.asked {
		r := c.asked[i].Region
		member, named := owners[r.ID]
		a.answer(h, r, answer{epoch: r.Epoch, member: member, named: named})
	}
}

func (a *Raw) answer(h *hooked, r *state.Region, x answer) {
	delete(h.waits, r.ID)
	a.hooks.answers[r.ID] = x
	a.work.Mark(r.ID)
}

// giveUp has regions placed without the hook.
func (a *Raw) giveUp(h *hooked, waiting []awaiting, why hook.Why) {
	for i := range waiting {
		r := waiting[i].Region
		a.answer(h, r, answer{epoch: r.Epoch, failed: why})
	}
	a.count.fallback(string(why), len(waiting))
}

// hookFailed goes on without a hook: nothing waits for it any more, and, if it came late or
// has failed often, nothing will until it answers.
func (a *Raw) hookFailed(h *hooked, c *HookCall, err error, now clock.Instant) {
	why := hook.WhyOf(err)
	a.count.add(func() { a.count.hooks[string(why)]++ })
	h.failures++
	first := h.failures == 1
	a.giveUp(h, c.asked, why)
	if len(c.asked) > 0 && h.probe == nil {
		h.probe = h.placement(1)
		h.probe.Probe, h.probe.Candidates = true, h.candidates[:min(len(h.candidates), probeMembers)]
		h.probe.Regions = append(h.probe.Regions, c.Place.Regions[0])
	}
	if h.resting || why == hook.Late || h.failures >= hookFailures {
		h.resting, h.why, h.due = true, why, now.Add(h.pause)
		a.shows.resting.set(h.id, &coordinatorv1.RestingHook{Keyspace: h.settings.GetName(), Why: string(why), Instead: h.fallback()})
		h.pause = min(2*h.pause, restMost)
		a.giveUp(h, h.queue, why)
		h.queue = nil
	}
	if first {
		a.cfg.Logger.Warn("a hook is of no use: regions are placed without it", "keyspace", h.settings.GetName(), "url", hook.Address(h.url),
			"why", string(why), "err", fmt.Sprintf("%.200s", err), "instead", h.fallback())
	}
}
