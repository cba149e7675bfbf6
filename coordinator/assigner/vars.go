package assigner

import (
	"maps"
	"strings"
	"sync"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Vars are an Assigner's numbers. The field names stay.
type Vars struct {
	// Era that it assigns in, 0: none.
	Era uint64 `json:"era"`
	// Orphaned regions by the view, and those of them that nobody can take as far as is
	// known. Moves under way.
	Orphaned int `json:"orphaned"`
	Starving int `json:"starving"`
	Moves    int `json:"moves"`
	// Uneven are transitions under way that were planned to even out.
	Uneven int `json:"uneven"`
	// Assigned regions have an owner who may act; Waiting are those that nothing is done about
	// now, by reason.
	Assigned int               `json:"assigned"`
	Waiting  map[string]uint64 `json:"waiting"`
	// Nodes counts members by state, Distribution is what they have, Members are those of them
	// that have most, and MembersHidden how many others there are.
	Nodes         Nodes        `json:"nodes"`
	Distribution  Distribution `json:"distribution"`
	Members       []MemberVars `json:"members"`
	MembersHidden int          `json:"members_hidden"`
	// Held are members whose verdicts a guard holds now, by guard.
	Held map[string]int `json:"held"`

	Frames     uint64 `json:"frames"`
	Suspicions uint64 `json:"suspicions"`
	Probes     uint64 `json:"probes"`
	Questions  uint64 `json:"questions"`
	Verdicts   uint64 `json:"verdicts"`
	Proven     uint64 `json:"proven"`
	Holds      uint64 `json:"holds"`
	Drains     uint64 `json:"drains"`
	// Refusals of the root by reason.
	Refusals map[string]uint64 `json:"refusals"`
	// VerdictSignals counts rooted verdicts by each signal, Operations what was rooted
	// by what it does and why.
	VerdictSignals map[string]uint64 `json:"verdict_signals"`
	Operations     map[string]uint64 `json:"operations"`
	// Rebalances counts rounds in which a keyspace was evened out, by what they were for.
	// RebalancesCompleted and RebalancesFailed count transitions that were planned so and
	// ended, Withheld what rounds refused, by reason.
	Rebalances          map[string]uint64 `json:"rebalances"`
	RebalancesCompleted uint64            `json:"rebalances_completed"`
	RebalancesFailed    uint64            `json:"rebalances_failed"`
	// RebalancesFailedFor counts the latter by what they were planned for.
	RebalancesFailedFor map[string]uint64 `json:"rebalances_failed_for"`
	Withheld            map[string]uint64 `json:"withheld"`
	// Hooks counts calls of hooks by what came of them, of wishes with wish_ before it.
	// Fallbacks counts regions that were placed otherwise than a hook, or code that was brought,
	// would have it, by reason. Scalings counts wishes for members by up and down.
	Hooks     map[string]uint64 `json:"hooks"`
	Fallbacks map[string]uint64 `json:"fallbacks"`
	Scalings  map[string]uint64 `json:"scalings"`
	// CheckpointsAsked counts commands to make one, CheckpointsUnheard those of them to members
	// that have no stream here or too much to do, CheckpointsRooted frontiers that came of it.
	CheckpointsAsked   uint64 `json:"checkpoints_asked"`
	CheckpointsUnheard uint64 `json:"checkpoints_unheard"`
	CheckpointsRooted  uint64 `json:"checkpoints_rooted"`
}

// counters count what was done. They may be used from any goroutine.
type counters struct {
	mu sync.Mutex
	// Guarded by mu.
	probes, drains, evened, unevened                uint64
	asked, unheard, acknowledged                    uint64
	refusals, signals, operations, rounds, withheld map[string]uint64
	hooks, fallbacks, scalings                      map[string]uint64
	failedFor                                       map[string]uint64
}

func (c *counters) add(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusals == nil {
		c.refusals, c.signals, c.operations = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
		c.rounds, c.withheld, c.failedFor = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
		c.hooks, c.fallbacks, c.scalings = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	}
	fn()
}

func (c *counters) refusal(r rootv1.Reason) {
	c.add(func() { c.refusals[word(r.String(), "REASON_")]++ })
}

func (c *counters) fallback(why string, regions int) {
	if regions > 0 {
		c.add(func() { c.fallbacks[why] += uint64(regions) })
	}
}

func (c *counters) verdict(v liveness.Verdict) {
	c.add(func() {
		for _, name := range v.Signals.Names() {
			c.signals[name]++
		}
	})
}

func (c *counters) operation(o *placement.Operation) {
	c.add(func() { c.operations[o.Kind.String()+" "+word(o.Reason.String(), "OPERATION_REASON_")]++ })
}

func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// Vars returns the Assigner's numbers. It looks at every member.
func (a *Raw) Vars() Vars {
	v := Vars{Era: a.shows.era.Load(), Orphaned: a.cfg.View().State.Orphaned(), Starving: int(a.shows.starving.Load()), Moves: int(a.shows.moves.Load()), Uneven: int(a.shows.evened.Load()), Held: map[string]int{}}
	a.mu.Lock()
	for _, h := range a.core.Holds() {
		v.Held[h.Guard.String()] = len(h.Members)
	}
	n := a.core.Counters()
	a.mu.Unlock()
	v.Frames, v.Suspicions, v.Questions, v.Verdicts, v.Proven, v.Holds = n.Frames, n.Suspicions, n.Questions, n.Verdicts, n.Proven, n.Holds
	a.distribution(&v)
	v.Waiting = map[string]uint64{}
	for _, x := range a.Stuck() {
		v.Waiting[x.GetWhy()] += x.GetCount()
	}
	st := a.cfg.View().State
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if id := state.KeyspaceID(k.GetId()); k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED {
			v.Assigned += st.KeyspaceRegionCount(id) - st.KeyspaceOrphaned(id)
		}
		return true
	})
	c := &a.count
	c.add(func() {
		v.Probes, v.Drains = c.probes, c.drains
		v.RebalancesFailedFor = maps.Clone(c.failedFor)
		v.CheckpointsAsked, v.CheckpointsUnheard, v.CheckpointsRooted = c.asked, c.unheard, c.acknowledged
		v.Refusals, v.VerdictSignals, v.Operations = maps.Clone(c.refusals), maps.Clone(c.signals), maps.Clone(c.operations)
		v.Rebalances, v.Withheld, v.RebalancesCompleted, v.RebalancesFailed = maps.Clone(c.rounds), maps.Clone(c.withheld), c.evened, c.unevened
		v.Hooks, v.Fallbacks, v.Scalings = maps.Clone(c.hooks), maps.Clone(c.fallbacks), maps.Clone(c.scalings)
	})
	return v
}
