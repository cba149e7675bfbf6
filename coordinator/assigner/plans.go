package assigner

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/turns"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// maxPlans bounds the plans that can be applied, and planTime is for how long each can:
	// the oldest goes. One has placement.MaxGrants changes at most.
	maxPlans = 16
	planTime = 10 * time.Minute
	// maxPlanned bounds the keyspaces of a plan.
	maxPlanned = 1024
	// maxPlanBytes bounds the events of a plan that can be applied.
	maxPlanBytes = state.MaxCommandBytes / 2
)

// plans are those that were shown and can be applied. Its methods may overlap.
type plans struct {
	turns *turns.Turns

	mu sync.Mutex
	// kept is guarded by mu, oldest first.
	kept []*ask
}

// ask is a plan that was shown, and what became of it since somebody asked for it.
type ask struct {
	id  string
	era state.Era
	at  clock.Instant
	// operations even out; balanced is what they are of.
	operations []placement.Operation
	balanced   map[state.KeyspaceID]balance.Result
	// versions of the settings that it was made of.
	versions []*rootv1.KeyspaceVersion

	// asked is guarded by plans.mu: it is on its way, or judged.
	asked bool
	// done is closed when result or refused is set.
	done    chan struct{}
	result  *rootv1.CommandResult
	refused error
}

// finish says what became of it.
func (k *ask) finish(result *rootv1.CommandResult, refused error) {
	k.result, k.refused = result, refused
	close(k.done)
}

// Plan says what would be planned now for keyspaces that may be read, and why. One call
// at a time is at it; others wait, as long as their contexts last. Its refusals are those
// of ApplyPlan.
func (a *Assigner) Plan(ctx context.Context, req *coordinatorv1.PlanRequest, may func(keyspace string) bool) (*coordinatorv1.PlanResponse, error) {
	if err := a.plans.turns.Take(ctx); err != nil {
		return nil, err
	}
	defer a.plans.turns.Pass()
	s, err := a.survey(ctx)
	if err != nil {
		return nil, err
	}
	before := s.in.State
	ids, more, err := planned(before, req.GetKeyspace(), may)
	if err != nil {
		return nil, err
	}
	if err := s.imagine(req); err != nil {
		return nil, err
	}
	s.decide(ids)
	plan := s.plan(ids, int(req.GetMaxMoves()))
	t := &telling{survey: s, before: before, plan: &plan, ids: ids, req: req, outlooks: s.outlooks(ids, &plan, int(req.GetMaxMoves()))}
	resp := t.answer()
	resp.MoreKeyspaces = uint64(more)
	resp.PlanId, resp.NotApplicable = a.keep(s, &plan, imagines(req))
	return resp, nil
}

// planned are the assigned keyspaces that a plan is for, and how many more there are.
func planned(st *state.State, name string, may func(string) bool) (ids []state.KeyspaceID, more int, err error) {
	if name != "" {
		k := st.KeyspaceByName(name)
		switch {
		case k == nil || !may(name):
			return nil, 0, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %q", name)
		case k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED:
			return nil, 0, reason.New(rootv1.Reason_REASON_LAYOUT_MISMATCH, "keyspace %q is reported: its members place their regions themselves, and nothing is planned", name)
		}
		return []state.KeyspaceID{state.KeyspaceID(k.GetId())}, 0, nil
	}
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED && may(k.GetName()) {
			if len(ids) < maxPlanned {
				ids = append(ids, state.KeyspaceID(k.GetId()))
			} else {
				more++
			}
		}
		return true
	})
	return ids, more, nil
}

// survey copies what a plan is made of, a piece at a time: between two of them Run looks.
func (a *Assigner) survey(ctx context.Context) (*survey, error) {
	var s *survey
	if err := a.within(ctx, func() { s = a.raw.survey() }); err != nil {
		return nil, err
	}
	if s == nil {
		return nil, errNotHeld()
	}
	if s.book == nil {
		return s, nil
	}
	for _, piece := range append(s.loaded(), nil) {
		same := false
		if err := a.within(ctx, func() { same = a.raw.copyLoads(s, piece) }); err != nil {
			return nil, err
		}
		if !same {
			return nil, errNotHeld()
		}
	}
	return s, nil
}

// within has Run do something, and waits for that.
func (a *Assigner) within(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	a.deliver(func() {
		if ctx.Err() == nil { // else nobody looks at what comes of it, or may touch it
			fn()
		}
		close(done)
	})
	select {
	case <-done:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errNotHeld() error {
	return reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "only who holds the Tenure plans")
}

// keep keeps a plan that can be applied, and returns its id; or why it cannot be.
func (a *Assigner) keep(s *survey, plan *placement.Plan, imagined bool) (id, because string) {
	even := slices.DeleteFunc(slices.Clone(plan.Operations), func(o placement.Operation) bool { return !o.Even })
	switch {
	case imagined:
		return "", "it is of members or settings that are not there: register the members, drain or fail those that are to go, nokv keyspace update for the settings; then plan again"
	case s.blindUntil != 0:
		return "", "this coordinator holds the Tenure since a moment ago and has not heard everything yet: plan again"
	case len(even) == 0:
		return "", "there is nothing in it to begin"
	}
	if fits := fitting(even); fits < len(even) {
		return "", fmt.Sprintf("its %d changes do not fit in one command: --max-moves %d takes less", len(even), fits)
	}
	k := &ask{
		id: rand.Text(), era: s.era, at: s.in.Now, operations: even, balanced: plan.Balanced, versions: versions(s.in.State, even), done: make(chan struct{}),
	}
	p := &a.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) == maxPlans {
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	p.kept = append(p.kept, k)
	return k.id, ""
}

// versions are those of the keyspaces that operations are of.
func versions(st *state.State, operations []placement.Operation) (all []*rootv1.KeyspaceVersion) {
	of := map[state.KeyspaceID]uint64{}
	for i := range operations {
		id := operations[i].Keyspace
		of[id] = st.Keyspace(id).GetVersion()
	}
	for _, id := range sortedKeys(of) {
		all = append(all, &rootv1.KeyspaceVersion{KeyspaceId: uint32(id), Version: of[id]})
	}
	return all
}

// fitting is how many of the operations fit in one command.
func fitting(operations []placement.Operation) int {
	bytes := 0
	for i := range operations {
		if bytes += proto.Size(operations[i].Event()) + 4; i == placement.MaxGrants || bytes > maxPlanBytes {
			return i
		}
	}
	return len(operations)
}

// ApplyPlan begins what a plan said, for an actor: all of it, or nothing, and once. It
// refuses with
//
//	REASON_TENURE_NOT_HELD       somebody else plans
//	REASON_NOT_FOUND             there is no such plan here, or it is too old
//	REASON_EPOCH_STALE           a region is not as it was
//	REASON_RANGE_CHANGE_PENDING  one is under way
//	REASON_UNHEALTHY_MEMBER      a member may take nothing now
//	REASON_VERSION_STALE         the settings of a keyspace are others
//	REASON_OUTCOME_UNKNOWN       nobody knows: ask again
//
// and with what the root refuses.
func (a *Assigner) ApplyPlan(ctx context.Context, id, actor, why string) (*coordinatorv1.ApplyPlanResponse, error) {
	k, first, err := a.plans.take(id, a.cfg.Clock.Now(), a.raw.shows.era.Load())
	if err != nil {
		return nil, err
	}
	if first {
		a.deliver(func() { a.raw.ask(k, actor, why) })
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the plan is on its way to the root, which has not answered: apply plan %s again to learn what became of it", id)
	}
	switch {
	case k.refused != nil:
		return nil, k.refused
	case k.result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED:
		d := proto.CloneOf(k.result.GetError()) // others who ask for the plan have it too
		d.Message = "nothing was done, plan again: the root says: " + d.GetMessage()
		return nil, &reason.Error{Detail: d}
	}
	return &coordinatorv1.ApplyPlanResponse{Token: k.result.GetToken(), Operations: uint64(len(k.operations))}, nil
}

// take finds a plan; first: nobody has asked for it yet.
func (p *plans) take(id string, now clock.Instant, era uint64) (k *ask, first bool, err error) {
	if era == 0 {
		return nil, false, errNotHeld()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = slices.DeleteFunc(p.kept, func(k *ask) bool { return now.Sub(k.at) > planTime })
	i := slices.IndexFunc(p.kept, func(k *ask) bool { return k.id == id })
	if i < 0 {
		return nil, false, reason.New(rootv1.Reason_REASON_NOT_FOUND,
			"there is no plan %.64q here: it is older than %v, was pushed out by others, or another coordinator made it; plan again", id, planTime)
	}
	k = p.kept[i]
	first, k.asked = !k.asked, true
	return k, first, nil
}

// ask has a plan rooted that somebody asked for, if the world is as it was.
func (a *Raw) ask(k *ask, actor, why string) {
	if err := a.stands(k); err != nil {
		k.finish(nil, err)
		return
	}
	p := &parcel{why: why, actor: actor, versions: k.versions, operations: k.operations}
	for i := range k.operations {
		p.events = append(p.events, k.operations[i].Event())
	}
	a.work.Planned(&placement.Plan{Operations: k.operations})
	a.rounds.sent(k.operations)
	a.asks = append(a.asks, k)
	p.judged = func(result *rootv1.CommandResult, now clock.Instant) {
		a.asks = slices.DeleteFunc(a.asks, func(o *ask) bool { return o == k })
		defer k.finish(result, nil)
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			a.refused("a plan that was asked for", result.GetError())
			a.arrive(k.operations, result.GetToken().GetIndex(), now.Add(refusedPause))
			return
		}
		for i := range k.operations {
			a.count.operation(&k.operations[i])
		}
		a.arrive(k.operations, result.GetToken().GetIndex(), now)
		a.begun(k, now)
	}
	a.outbox.rest = append(a.outbox.rest, p)
	a.cfg.Logger.Info("a plan is applied", "plan", k.id, "changes", len(k.operations), "actor", actor, "why", why)
}

// stands says why a plan cannot be applied: a plan is applied whole in the era that it was
// made in, while the settings are those that it was made of, every region of it is at its epoch with
// nothing under way, and every member that is to get one may take it.
func (a *Raw) stands(k *ask) error {
	if a.era != k.era {
		return reason.New(rootv1.Reason_REASON_ERA_STALE, "the plan was made in era %d, which is over: plan again", k.era)
	}
	for _, v := range k.versions {
		if is := a.st.Keyspace(state.KeyspaceID(v.GetKeyspaceId())); is != nil && is.GetVersion() != v.GetVersion() {
			return reason.New(rootv1.Reason_REASON_VERSION_STALE, "the settings of keyspace %q are at version %d, and the plan was made of version %d: nothing was done, plan again",
				is.GetName(), is.GetVersion(), v.GetVersion())
		}
	}
	for i := range k.operations {
		o := &k.operations[i]
		for _, id := range []state.RegionID{o.Region, o.Next} {
			if id == 0 {
				continue
			}
			r, was := a.st.Region(id), o.Epoch
			if id == o.Next {
				was = o.NextEpoch
			}
			switch {
			case r == nil || r.Epoch != was:
				e := reason.New(rootv1.Reason_REASON_EPOCH_STALE, "region %d is not at epoch %s any more, at which it was planned: nothing was done, plan again", id, was)
				if r != nil {
					e.Detail.Region = r.Proto()
				}
				return e
			case a.st.PendingTransition(id) != nil || a.work.OnItsWay(id):
				return reason.New(rootv1.Reason_REASON_RANGE_CHANGE_PENDING, "a change of region %d is under way by now: nothing was done, plan again", id)
			}
		}
		to := o.To.Member
		if now := a.st.Member(to).GetIncarnation(); to != "" && o.To.Incarnation != now {
			return reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "member %s was process %d when it was planned, which is over, and is %d now: nothing was done, plan again", to, o.To.Incarnation, now)
		}
		if to != "" && !(observed{a}).Takes(to) {
			return reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "member %s may take nothing now: nothing was done, plan again", to)
		}
	}
	return nil
}

// begun goes on from a plan that somebody asked for: it counts as a round.
func (a *Raw) begun(k *ask, now clock.Instant) {
	shown := newShown(&placement.Plan{Operations: k.operations, Balanced: k.balanced}, slices.Collect(maps.Keys(k.balanced)))
	for id, out := range k.balanced {
		if x := a.rounds.of[id]; x != nil {
			x.budget = x.budget.Asked(out.Steps, out.Total, a.st.KeyspaceRegionCount(id), x.policy, now)
			x.until = now.Add(x.stays())
		}
		if shown[id].at, shown[id].why = now, byOperator; len(shown[id].begun) == 0 {
			delete(shown, id)
		}
	}
	a.showRounds(shown)
}

// dropAsks answers who waits for a plan of an era that is over.
func (a *Raw) dropAsks() {
	for _, k := range a.asks {
		k.finish(nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the era ended before the root answered: nokv events says whether the plan was applied"))
	}
	a.asks = nil
}
