package tenure_test

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// machine is the real state machine behind a log of one entry a command.
type machine struct {
	s     *state.State
	index uint64
}

func newMachine() *machine {
	m := &machine{s: state.New()}
	r := m.apply(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_ClusterBootstrapped{
		ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
			ClusterId: 1, Incarnation: 1, FeatureLevel: state.FeatureLevel,
			Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "root:1"}},
		}},
	}}}})
	if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		panic(fmt.Sprintf("bootstrap: %v", r))
	}
	return m
}

func (m *machine) apply(c *rootv1.Command) *rootv1.CommandResult {
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{c}})
	if err != nil {
		panic(err)
	}
	var out state.Applied
	m.index++
	if err := m.s.ApplyEntry(1, m.index, data, &out); err != nil {
		panic(err)
	}
	return out.Results[0].Proto()
}

// claim is the command of a claim with windows.
func (m *machine) claim(c *rootv1.TenureClaimed, windows []*rootv1.FirstWindow) *rootv1.Command {
	command := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: c}}}}
	for _, w := range windows {
		command.Events = append(command.Events, &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: w.Mandate, Era: c.ExpectedEra + 1, Floor: w.Floor, Size: w.Size,
		}}})
	}
	return command
}

// window is what an extension would be given now.
func (m *machine) window(f *rootv1.FenceExtended) *rootv1.Window {
	fence := m.s.Allocators().GetIdFence()
	if f.GetMandate() == rootv1.Mandate_MANDATE_TSO {
		fence = m.s.Allocators().GetTsoFence()
	}
	from := max(fence, f.GetFloor())
	return &rootv1.Window{Era: f.GetEra(), From: from, To: from + f.GetSize()}
}

func (m *machine) handover() *rootv1.Handover {
	if h := m.s.Handovers(); len(h) > 0 {
		return h[len(h)-1]
	}
	return nil
}

// simRoot models the root leader's side of rules 1 to 3 over the machine. Its
// quorum is one log; leaders come and go and remember nothing.
type simRoot struct {
	w       *world
	machine *machine
	leader  int
	clock   simClock
	// since is when the current era was last confirmed by this leader.
	since clock.Instant
	// fenced counts, by era, the claims over it that are not decided.
	fenced map[uint64]int
	// claimed is called when a claim over an active era is judged.
	claimed  func()
	keyspace uint64
}

func newSimRoot(w *world) *simRoot {
	return &simRoot{w: w, machine: newMachine(), clock: w.newClock(), fenced: map[uint64]int{}}
}

// ask answers a message of a holder.
func (r *simRoot) ask(m *tenure.Message, answer func(tenure.Answer)) {
	switch {
	case m.Claim != nil:
		r.claim(m.Claim, m.Windows, func(c *rootv1.ClaimTenureResponse) { answer(tenure.Answer{Claim: c}) })
	case m.Confirm != nil:
		r.confirm(m.Confirm, func(c *rootv1.ConfirmTenureResponse) { answer(tenure.Answer{Confirm: c}) })
	default:
		r.proposeFence(m.Command, func(c *rootv1.CommandResult) { answer(tenure.Answer{Result: c}) })
	}
}

// elect replaces the leader.
func (r *simRoot) elect() {
	r.w.fault.leaders++
	r.leader++
	r.clock = r.w.newClock()
	r.fenced = map[uint64]int{}
	r.since = r.clock.now()
	if r.w.knobs.variant == newLeaderDoesNotWait {
		r.since = -1 << 62
	}
}

// propose commits and applies c after a while. A change of leaders loses the
// answer and perhaps the command.
func (r *simRoot) propose(c *rootv1.Command, answer func(*rootv1.CommandResult)) {
	r.commit(func() *rootv1.Command { return c }, answer)
}

// commit is propose of a command that is made when it commits.
func (r *simRoot) commit(c func() *rootv1.Command, answer func(*rootv1.CommandResult)) {
	leader := r.leader
	d := r.w.spread(500 * time.Microsecond)
	if r.w.trouble(r.w.knobs.slow) {
		d = r.w.spread(50 * time.Millisecond) // a slow disk
	}
	r.w.after(d, func() {
		if leader != r.leader && r.w.chance(500) {
			return
		}
		result := r.machine.apply(c())
		if leader == r.leader {
			answer(result)
		}
		r.publish()
	})
}

func (r *simRoot) proposeFence(c *rootv1.Command, answer func(*rootv1.CommandResult)) {
	if f := c.Events[0].GetFenceExtended(); f.GetMandate() == rootv1.Mandate_MANDATE_TSO && r.machine.window(f).To>>18 > r.w.wall()+60_000 {
		r.w.fault.clockRefusals++
		answer(&rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_CLOCK_BOUND}})
		return
	}
	r.propose(c, answer)
}

// claim is rule 3. Windows come with it where they are sure to apply.
func (r *simRoot) claim(c *rootv1.TenureClaimed, windows []*rootv1.FirstWindow, answer func(*rootv1.ClaimTenureResponse)) {
	t := r.machine.s.Tenure()
	over := t != nil && !t.Retired && t.Era == c.ExpectedEra
	claim := proto.CloneOf(c)
	claim.PredecessorExpired = over
	if over && t.TtlMillis > 0 {
		ttl := time.Duration(t.TtlMillis) * time.Millisecond
		wait := r.since.Add(time.Duration(float64(ttl) * (1 + r.w.knobs.drift))).Sub(r.clock.now())
		if wait > 0 {
			answer(&rootv1.ClaimTenureResponse{
				RetryAfterMillis: uint64(wait/time.Millisecond) + 1,
				Result: &rootv1.CommandResult{
					Outcome: rootv1.Outcome_OUTCOME_REJECTED,
					Error:   &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_PRIMACY, Era: t.Era},
				},
			})
			return
		}
	}
	if over {
		r.fenced[t.Era]++
		if r.claimed != nil {
			r.claimed()
		}
	}
	leader := r.leader
	if r.w.chance(250) || windows[1].Floor>>18 > r.w.wall()+50_000 {
		windows = nil
	}
	build := func() *rootv1.Command {
		if r.machine.s.Tenure().GetEra() != c.ExpectedEra {
			windows = nil
		}
		return r.machine.claim(claim, windows)
	}
	r.commit(build, func(result *rootv1.CommandResult) {
		if over && leader == r.leader {
			r.fenced[t.Era]--
		}
		if result.Outcome == rootv1.Outcome_OUTCOME_APPLIED {
			r.since = r.clock.now()
		}
		answer(&rootv1.ClaimTenureResponse{Result: result})
	})
}

// end has an operator ask the era under way to end.
func (r *simRoot) end() {
	r.propose(&rootv1.Command{Actor: "operator/o", Why: "to see what happens", Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureEnded{
		TenureEnded: &rootv1.TenureEnded{Era: max(1, r.machine.s.Tenure().GetEra())},
	}}}}, func(*rootv1.CommandResult) {})
}

// confirm is rule 2: a read index, then the applied state.
func (r *simRoot) confirm(q *rootv1.ConfirmTenureRequest, answer func(*rootv1.ConfirmTenureResponse)) {
	leader := r.leader
	r.w.after(r.w.spread(300*time.Microsecond), func() {
		if leader != r.leader {
			return
		}
		t := r.machine.s.Tenure()
		active := t != nil && !t.Retired && t.End == nil && t.Era == q.Era && t.HolderId == q.HolderId && t.HolderIncarnation == q.HolderIncarnation
		if active && r.fenced[t.Era] > 0 && r.w.knobs.variant != confirmDuringClaim {
			r.confirm(q, answer)
			return
		}
		if active {
			r.since = max(r.since, r.clock.now())
		}
		answer(&rootv1.ConfirmTenureResponse{Active: active, Tenure: t})
	})
}

// giveID lets the root take an id for a region, as it does for regions
// published without one.
func (r *simRoot) giveID() {
	r.keyspace++
	key := func(n uint64) []byte { return fmt.Appendf(nil, "%08d", n) }
	r.propose(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{
		RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 1, StartKey: key(r.keyspace), EndKey: key(r.keyspace + 1),
		}},
	}}}}, func(result *rootv1.CommandResult) {
		if result.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			panic(fmt.Sprint(result))
		}
		r.w.fault.rootIDs++
		id := result.Events[0].Region.Id
		r.w.log.RootIDs = append(r.w.log.RootIDs, id)
	})
}

// publish sends the newest authority to every view; views lag.
func (r *simRoot) publish() {
	a := tenure.Authority{Tenure: r.machine.s.Tenure(), Handover: r.machine.handover(), Index: r.machine.index}
	if a.Tenure != nil {
		r.w.log.Note(a.Tenure)
	}
	for _, n := range r.w.nodes {
		lag := time.Duration(0)
		if r.w.trouble(300) {
			lag = time.Duration(r.w.rng.Int64N(int64(80 * time.Millisecond)))
		}
		r.w.after(lag, func() { r.w.send(n.unlessCut(func() { n.onView(a) })) })
	}
}
