package replay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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

const (
	self = "replay"
	life = 1
	move = "move"
	// maxSteps bounds what happens at one moment: a planner that goes on for ever is one that
	// does not converge.
	maxSteps = 1 << 16
)

// world is a cluster of one coordinator, whose root and members do everything at once.
type world struct {
	st    *state.State
	view  *rootview.View
	clock *clock.Manual
	raw   *assigner.Raw
	soft  *catalog.Soft
	woken bool

	// keyspaces by their ids as recorded, and back.
	keyspaces map[uint32]state.KeyspaceID
	recorded  map[state.KeyspaceID]uint32
	// regions by their ids as recorded, with their loads; known says that it was told.
	regions map[uint64]state.RegionID
	loads   map[state.RegionID]float64
	members map[string]*coordinatorv1.RecordedMember
	totals  map[state.MemberID]float64

	// under are regions with a change under way, stirred those whose owners or loads are
	// others than members have told, gave what members do not have any more.
	under   map[state.RegionID]struct{}
	stirred map[state.RegionID]struct{}
	gave    map[state.MemberID][]state.RegionID

	changes map[uint32]map[Change]uint64
	moved   map[uint32]float64
}

func newWorld() (*world, error) {
	w := &world{
		st: state.New(), clock: &clock.Manual{Elapsed: clock.Instant(24 * time.Hour), WallMillis: 1}, soft: catalog.NewSoft(catalog.SoftConfig{}),
		keyspaces: map[uint32]state.KeyspaceID{}, recorded: map[state.KeyspaceID]uint32{}, regions: map[uint64]state.RegionID{}, loads: map[state.RegionID]float64{},
		members: map[string]*coordinatorv1.RecordedMember{}, totals: map[state.MemberID]float64{},
		under: map[state.RegionID]struct{}{}, stirred: map[state.RegionID]struct{}{}, gave: map[state.MemberID][]state.RegionID{},
		changes: map[uint32]map[Change]uint64{}, moved: map[uint32]float64{},
	}
	w.view = &rootview.View{State: w.st}
	w.raw = assigner.NewRaw(assigner.RawConfig{
		ID: self, Incarnation: life, View: func() *rootview.View { return w.view }, Streams: w, Soft: w.soft,
		Identities: identity.NewSource(), Clock: w.clock, Logger: hclog.NewNullLogger(), Wake: func() { w.woken = true },
	})
	err := w.must(
		&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
			ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "replay:1"}},
		}}}},
	)
	if err == nil {
		err = w.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: self, HolderIncarnation: life, HolderAddress: "replay:1", TtlMillis: 1000,
			Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
		}}})
	}
	return w, err
}

// Shown implements assigner.Streams: members take everything at once.
func (w *world) Shown(state.MemberID, uint64) (state.Token, clock.Instant) { return w.st.Token(), 1 }

// apply has commands judged.
func (w *world) apply(cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		return nil, err
	}
	next := w.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, w.st.Token().Index+1, data, &out); err != nil {
		return nil, err
	}
	w.st = next
	w.view = &rootview.View{State: next, Token: next.Token(), Known: next.Token()}
	for i := range out.Changes {
		w.note(&out.Changes[i])
	}
	if w.raw.At() == (state.Token{}) {
		w.raw.Jump(w.view)
	} else {
		w.raw.Follow(next, next.Token(), out.Changes)
	}
	w.woken = true
	results := make([]*rootv1.CommandResult, len(out.Results))
	for i := range out.Results {
		results[i] = out.Results[i].Proto()
	}
	return results, nil
}

// must has events judged that have to apply.
func (w *world) must(events ...*rootv1.Event) error {
	for len(events) > 0 {
		n, bytes := 0, 0
		for n < len(events) && n < 1024 && (n == 0 || bytes+proto.Size(events[n]) < state.MaxCommandBytes/2) {
			bytes += proto.Size(events[n]) + 8
			n++
		}
		results, err := w.apply(&rootv1.Command{Events: events[:n]})
		if err != nil {
			return err
		}
		if d := results[0].GetError(); d != nil {
			return errors.New(d.GetMessage())
		}
		events = events[n:]
	}
	return nil
}

// note keeps what members have to do about a change.
func (w *world) note(c *state.Change) {
	switch c.Kind {
	case state.ChangeTransition:
		id := state.RegionID(c.Transition.GetRegionId())
		if !c.Removed && c.Transition.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			w.under[id] = struct{}{}
		} else {
			delete(w.under, id)
		}
	case state.ChangeRegion:
		if c.OldRegion != nil {
			for _, o := range c.OldRegion.Owners {
				if now, has := c.Region.Owner(o.Member); c.Removed || !has || now != o {
					w.gave[o.Member] = append(w.gave[o.Member], c.Region.ID)
				}
			}
		}
		if c.Removed {
			delete(w.stirred, c.Region.ID)
		} else {
			w.stirred[c.Region.ID] = struct{}{}
		}
	}
}

// pass lets time go by, in which members are heard.
func (w *world) pass(d time.Duration) error {
	for end := w.clock.Elapsed.Add(d); w.clock.Elapsed < end; {
		pause, err := w.step()
		if err != nil {
			return err
		}
		w.clock.Advance(min(max(pause, time.Millisecond), beat, end.Sub(w.clock.Elapsed)))
		w.speak()
	}
	return nil
}

// settle has everything done that can be done now.
func (w *world) settle() error {
	w.speak()
	_, err := w.step()
	return err
}

// step has the planner look until there is nothing to do, and returns for how long.
func (w *world) step() (time.Duration, error) {
	for range maxSteps {
		w.woken = false
		orders, pause := w.raw.Look()
		for _, c := range orders.Calls {
			results, err := w.apply(c.Commands...)
			if err != nil {
				return 0, err
			}
			w.count(c.Commands, results)
			w.raw.Judged(c, results)
		}
		for _, p := range orders.Probes {
			w.raw.Probed(p, liveness.AnsweredSame)
		}
		if orders.Asking != nil {
			w.raw.Told(orders.Asking, nil)
		}
		w.obey()
		w.tell()
		if len(orders.Calls)+len(orders.Probes) == 0 && orders.Asking == nil && !w.woken {
			return pause, nil
		}
	}
	return 0, fmt.Errorf("the planner came to no end in %d steps: please report this with the recording", maxSteps)
}

// speak has every member be heard.
func (w *world) speak() {
	for _, id := range slices.Sorted(maps.Keys(w.members)) {
		w.frame(state.MemberID(id), func(*server.HeardFrame) {})
	}
}

func (w *world) frame(id state.MemberID, say func(*server.HeardFrame)) {
	m := w.st.Member(id)
	f := server.HeardFrame{Member: id, Incarnation: m.GetIncarnation(), Stream: m.GetIncarnation(), At: w.clock.Now(), Complete: true}
	say(&f)
	w.raw.Frame(f)
}

// obey has members do their part of what is under way.
func (w *world) obey() {
	turned := map[state.MemberID][]state.RegionID{}
	for _, id := range slices.Sorted(maps.Keys(w.under)) {
		t, r := w.st.PendingTransition(id), w.st.Region(id)
		if t == nil || r == nil {
			continue
		}
		who, phase := state.MemberID(t.GetOwner().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_READY
		switch t.GetKind() {
		case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
			if t.GetReadyAt() != nil {
				who, phase = state.MemberID(t.GetFrom().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
			}
		case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
			phase = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
		}
		incarnation := w.st.Member(who).GetIncarnation()
		if was, ok := w.soft.Own(id, incarnation); ok && was.Phase == phase && was.Epoch == r.Epoch && was.More != nil && was.More.TransitionID == t.GetId() {
			continue // it has said so
		}
		p := &coordinatorv1.RegionReport{
			RegionId: uint64(id), Epoch: r.Epoch.Proto(), Phase: phase, TransitionId: t.GetId(), SetFrontier: phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED,
		}
		if _, err := w.soft.Report(w.st, w.st.Member(who), p, w.clock.Now()); err == nil {
			turned[who] = append(turned[who], id)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(turned)) {
		w.frame(who, func(f *server.HeardFrame) { f.Turned = turned[who] })
	}
}

// tell has members say what load they have now, of what changed.
func (w *world) tell() {
	loads, gone := map[state.MemberID][]server.RegionLoad{}, w.gave
	for _, id := range slices.Sorted(maps.Keys(w.stirred)) {
		r := w.st.Region(id)
		load, known := w.loads[id]
		if r == nil {
			continue
		}
		for _, o := range r.Owners {
			if !known || !w.st.Acts(o) {
				continue
			}
			share := load / float64(len(r.Owners))
			p := &coordinatorv1.RegionReport{RegionId: uint64(id), Epoch: r.Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING, Load: share}
			if w.st.PendingTransition(id) == nil {
				_, _ = w.soft.Report(w.st, w.st.Member(o.Member), p, w.clock.Now())
			}
			loads[o.Member] = append(loads[o.Member], server.RegionLoad{Region: id, Epoch: r.Epoch, Load: share})
		}
	}
	clear(w.stirred)
	w.gave = map[state.MemberID][]state.RegionID{}
	for id := range gone {
		if loads[id] == nil {
			loads[id] = []server.RegionLoad{}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(loads)) {
		said := loads[id]
		if w.members[string(id)] == nil {
			continue
		}
		slices.Sort(gone[id])
		sum := 0.0
		w.st.MemberRegionsAfter(id, 0, func(r *state.Region) bool {
			sum += w.loads[r.ID] / float64(max(len(r.Owners), 1))
			return true
		})
		w.frame(id, func(f *server.HeardFrame) {
			f.Loads, f.Gone = said, gone[id]
			if old, told := w.totals[id]; !told || old != sum {
				f.Load = &coordinatorv1.MemberLoad{Load: sum}
				w.totals[id] = sum
			}
		})
	}
}
