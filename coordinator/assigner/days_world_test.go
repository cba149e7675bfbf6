package assigner_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// weather is a Raw with a root that judges at once and members that do what they are
// shown, in one goroutine and virtual time: days pass in seconds.
type weather struct {
	testing.TB
	raw     *assigner.Raw
	clock   *clock.Manual
	st      *state.State
	soft    *catalog.Soft
	random  *rand.Rand
	hosts   []*host
	streams uint64
	// load of a region now.
	load func(r *state.Region) float64
	// passages are changes of owners under way.
	passages map[string]*passage
	moves    []madeMove
	// commands are those that the Raw had judged, refused those that the root did not take.
	commands, refused int
}

// host is a member's process.
type host struct {
	id          state.MemberID
	incarnation uint64
	stream      uint64
	up, silent  bool
	leaves      clock.Instant // since when
	back        clock.Instant // when it is started again
	joined      clock.Instant
	told        map[state.RegionID]float64
}

// passage is a change of owners as members see it.
type passage struct {
	t     *rootv1.Transition
	acts  clock.Instant
	ready bool
}

// madeMove is a move that was planned.
type madeMove struct {
	at     clock.Instant
	region state.RegionID
	load   float64
	reason rootv1.OperationReason
}

func newWeather(t testing.TB, seed uint64, members int) *weather {
	w := &weather{
		TB: t, clock: &clock.Manual{Elapsed: clock.Instant(time.Hour)}, st: state.New(), soft: catalog.NewSoft(catalog.SoftConfig{}),
		random: rand.New(rand.NewPCG(seed, 11)), load: func(*state.Region) float64 { return 1 }, passages: map[string]*passage{},
	}
	w.raw = assigner.NewRaw(assigner.RawConfig{
		ID: self, Incarnation: life, View: func() *rootview.View { return &rootview.View{State: w.st, Token: w.st.Token()} }, Streams: w, Soft: w.soft,
		Settings: liveness.Settings{}, Identities: identity.SourceOf(77), Clock: w.clock, Logger: hclog.NewNullLogger(), Wake: func() {},
	})
	w.raw.Jump(&rootview.View{State: w.st, Token: w.st.Token()})
	w.must(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: clusterID, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	w.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: self, HolderIncarnation: life, HolderAddress: "c1:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	for i := range members {
		w.hosts = append(w.hosts, &host{id: state.MemberID(fmt.Sprintf("m%02d", i))})
		w.start(w.hosts[i])
	}
	return w
}

func (w *weather) now() clock.Instant { return w.clock.Now() }

// Shown implements assigner.Streams: members take what they are shown at once.
func (w *weather) Shown(state.MemberID, uint64) (state.Token, clock.Instant) { return w.st.Token(), 1 }

// apply has commands judged in one entry.
func (w *weather) apply(cmds ...*rootv1.Command) []*rootv1.CommandResult {
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		w.Fatal(err)
	}
	next := w.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, next.Token().Index+1, data, &out); err != nil {
		w.Fatal(err)
	}
	for i := range out.Changes {
		if c := &out.Changes[i]; c.Kind == state.ChangeTransition {
			w.follow(next, c.Transition, c.Removed)
		}
	}
	w.st = next
	w.raw.Follow(next, next.Token(), out.Changes)
	var results []*rootv1.CommandResult
	for i := range out.Results {
		results = append(results, out.Results[i].Proto())
	}
	return results
}

func (w *weather) must(e *rootv1.Event) *rootv1.CommandResult {
	w.Helper()
	r := w.apply(&rootv1.Command{Events: []*rootv1.Event{e}})[0]
	if r.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		w.Fatalf("%v: %v", e, r.GetError())
	}
	return r
}

func (w *weather) follow(st *state.State, t *rootv1.Transition, gone bool) {
	if gone || t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
		delete(w.passages, t.GetId())
		return
	}
	if p := w.passages[t.GetId()]; p != nil && p.ready == (t.GetReadyAt() != nil) {
		p.t = t
		return
	} else if p == nil && t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE {
		r := st.Region(state.RegionID(t.GetRegionId()))
		w.moves = append(w.moves, madeMove{w.now(), r.ID, w.load(r), t.GetCause()})
	}
	takes := time.Duration(200+w.random.IntN(1800)) * time.Millisecond
	w.passages[t.GetId()] = &passage{t: t, acts: w.now().Add(takes), ready: t.GetReadyAt() != nil}
}

// start starts a member's process.
func (w *weather) start(h *host) {
	r := w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member:  &rootv1.Member{Id: string(h.id), Address: string(h.id) + ":1", ProbeAddress: string(h.id) + ":2", StartNonce: 5 + w.streams},
		Follows: w.st.Member(h.id).GetIncarnation(),
	}}})
	w.streams++
	*h = host{id: h.id, incarnation: r.GetEvents()[0].GetMember().GetIncarnation(), stream: w.streams, up: true, silent: h.silent, joined: w.now()}
	w.raw.Opened(h.id, h.incarnation, h.stream, 0)
	w.frame(h, nil)
}

// stop ends it, and starts it again after a while.
func (w *weather) stop(h *host, away time.Duration) {
	h.up, h.back, h.leaves = false, w.now().Add(away), 0
	w.raw.Closed(h.id, h.incarnation, h.stream, 0)
}

// leave has it say goodbye.
func (w *weather) leave(h *host) {
	h.leaves = w.now()
	w.frame(h, &coordinatorv1.Goodbye{DeadlineMillis: 60_000, Reason: "an upgrade"})
}

// serves has a member say once that it serves what it owns.
func (w *weather) serves(h *host, r *state.Region) {
	if _, said := w.soft.Own(r.ID, h.incarnation); said {
		return
	}
	if _, err := w.soft.Report(w.st, w.st.Member(h.id), &coordinatorv1.RegionReport{
		RegionId: uint64(r.ID), Epoch: r.Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING, Load: w.load(r),
	}, w.now()); err != nil {
		w.Fatal(err)
	}
}

// frame tells what has changed by more than a little.
func (w *weather) frame(h *host, g *coordinatorv1.Goodbye) {
	f := server.HeardFrame{Member: h.id, Incarnation: h.incarnation, Stream: h.stream, At: w.now(), Goodbye: g, Complete: h.told == nil}
	all, sum := map[state.RegionID]float64{}, 0.0
	w.st.MemberRegionsAfter(h.id, 0, func(r *state.Region) bool {
		o, _ := r.Owner(h.id)
		if o.Incarnation == h.incarnation {
			w.serves(h, r)
		}
		if h.silent || o.Incarnation != h.incarnation {
			return true
		}
		x := w.load(r)
		if old, ok := h.told[r.ID]; ok && x > old*0.98 && x < old*1.02 {
			x = old
		} else {
			f.Loads = append(f.Loads, server.RegionLoad{Region: r.ID, Epoch: r.Epoch, Load: x})
		}
		all[r.ID], sum = x, sum+x
		return true
	})
	if !h.silent {
		f.Load = &coordinatorv1.MemberLoad{Load: sum}
	}
	for id := range h.told {
		if _, has := all[id]; !has {
			f.Gone = append(f.Gone, id)
		}
	}
	slices.Sort(f.Gone)
	h.told = all
	w.raw.Frame(f)
}

func (w *weather) host(id state.MemberID) *host {
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return h.id == id })
	return w.hosts[i]
}

// obey has members do what is their turn in a change of owners, and says when the next one is.
func (w *weather) obey() (acted bool, next clock.Instant) {
	next = never
	for _, id := range slices.Sorted(maps.Keys(w.passages)) {
		p := w.passages[id]
		if p.acts > w.now() {
			next = min(next, p.acts)
			continue
		}
		p.acts = never
		who, phase := state.MemberID(p.t.GetOwner().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_READY
		if p.ready {
			who, phase = state.MemberID(p.t.GetFrom().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
		}
		h, r := w.host(who), w.st.Region(state.RegionID(p.t.GetRegionId()))
		if !h.up || r == nil {
			continue
		}
		if _, err := w.soft.Report(w.st, w.st.Member(who), &coordinatorv1.RegionReport{
			RegionId: uint64(r.ID), Epoch: r.Epoch.Proto(), Phase: phase, TransitionId: p.t.GetId(), SetFrontier: phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED,
		}, w.now()); err != nil {
			continue // it has been replaced
		}
		w.raw.Frame(server.HeardFrame{Member: who, Incarnation: h.incarnation, Stream: h.stream, At: w.now(), Turned: []state.RegionID{r.ID}})
		acted = true
	}
	return acted, next
}

// never is later than every moment.
const never = clock.Instant(1<<63 - 1)

// settle does all that there is to do now, and says when there is something again.
func (w *weather) settle() clock.Instant {
	for range 100_000 {
		orders, pause := w.raw.Look()
		done := len(orders.Calls) > 0 || len(orders.Probes) > 0 || orders.Asking != nil
		for _, c := range orders.Calls {
			results := w.apply(c.Commands...)
			for _, r := range results {
				if w.commands++; r.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
					w.refused++
				}
			}
			w.raw.Judged(c, results)
		}
		for _, p := range orders.Probes {
			result := liveness.Refused
			if h := w.host(p.Member); h.up && h.incarnation == p.Incarnation {
				result = liveness.AnsweredSame
			} else if h.up {
				result = liveness.AnsweredOther
			}
			w.raw.Probed(p, result)
		}
		if orders.Asking != nil {
			w.raw.Told(orders.Asking, nil, true)
		}
		acted, next := w.obey()
		if done || acted {
			continue
		}
		return min(next, w.now().Add(max(pause, time.Millisecond)))
	}
	w.Fatal("there is always something to do")
	return 0
}

// pass lets time pass, in which nobody says anything but about changes of owners.
func (w *weather) pass(d time.Duration) {
	for until := w.now().Add(d); ; {
		next := min(w.settle(), until)
		w.clock.Elapsed = max(next, w.now())
		if w.now() >= until {
			w.settle()
			return
		}
	}
}

// imbalance is the highest load of an active member by the mean, or by the hottest region
// where one alone has more; and what all have.
func (w *weather) imbalance(ks state.KeyspaceID) (worst, sum float64) {
	by, hottest, n := map[state.MemberID]float64{}, 0.0, 0.0
	w.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		x := w.load(r)
		sum, hottest = sum+x, max(hottest, x)
		for _, o := range r.Owners {
			by[o.Member] += x / float64(len(r.Owners))
		}
		return true
	})
	most := 0.0
	for _, h := range w.hosts {
		if w.st.Member(h.id).GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && h.up {
			n++
			most = max(most, by[h.id])
		}
	}
	return most / max(sum/n, hottest), sum
}
