package idle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/idle"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	life      = 99 // of c1
	idleAfter = 2 * time.Second
	scan      = 500 * time.Millisecond
)

// world is a Releaser over a root in memory, and members that are the real core of the SDK
// with one line each.
type world struct {
	t        testing.TB
	clock    clock.Clock
	soft     *catalog.Soft
	releaser *idle.Releaser
	ks       state.KeyspaceID

	mu      sync.Mutex
	state   *state.State
	view    *rootview.View
	changed chan struct{}
	calls   int
	slow    time.Duration // a call takes so long
	most    int           // regions removed by one call
	hasty   int           // calls that came sooner behind one than that took
	ended   time.Time     // the last call
	under   int           // calls under way, and the most of these
	unders  int
	spoil   func(call int) error // asked behind the log
	members map[state.MemberID]*process
}

// process is a member.
type process struct {
	w           *world
	id          state.MemberID
	incarnation uint64
	core        *held.Core
	set         *shown.Core
	stream      *shown.Stream
	commands    []*coordinatorv1.MemberCommand
	sequence    uint64
	asked       int                          // commands so far
	most        int                          // commands that waited at a time
	busy        func(rooted *held.Call) bool // says no
	deaf        bool
	acquired    map[string]int // by key
}

func newWorld(t testing.TB, members int) *world {
	w := &world{t: t, clock: clock.NewMonotonic(), soft: catalog.NewSoft(catalog.SoftConfig{}), state: state.New(), changed: make(chan struct{}), members: map[state.MemberID]*process{}}
	w.view = &rootview.View{State: w.state}
	w.must(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 7, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	w.hold("c1", life)
	w.ks = state.KeyspaceID(w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}, Policy: &rootv1.Policy{OnMiss: rootv1.OnMiss_ON_MISS_CLAIM},
		Cadence: &rootv1.Cadence{IdleEvictMillis: uint64(idleAfter.Milliseconds()), IdleScanMillis: uint64(scan.Milliseconds())},
	}}}}).GetEvents()[0].GetKeyspace().GetId())
	for i := range members {
		w.join(state.MemberID(fmt.Sprintf("m%d", i)))
	}
	w.renew()
	return w
}

// renew makes a Releaser that has heard nothing.
func (w *world) renew() {
	var err error
	w.releaser, err = idle.New(idle.Config{ID: "c1", Incarnation: life, Views: w, Root: w, Soft: w.soft, Commands: w, Clock: w.clock})
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs the Releaser and the members until the returned function is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		if err := w.releaser.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				for _, m := range w.members {
					m.turn()
				}
			}
		}
	})
	return func() { cancel(); all.Wait() }
}

func (w *world) join(id state.MemberID) {
	record := w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: string(id), Address: "h:1", StartNonce: 5}}}}).GetEvents()[0].GetMember()
	m := &process{w: w, id: id, incarnation: record.GetIncarnation(), acquired: map[string]int{}}
	m.core = held.New(held.Config{Member: id, Incarnation: m.incarnation})
	m.core.Open(0)
	m.set = shown.New(w.View().State)
	m.stream = m.set.Open(id, m.incarnation)
	w.members[id] = m
}

func (w *world) hold(id string, incarnation uint64) {
	w.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: id, HolderIncarnation: incarnation, HolderAddress: id + ":1", ExpectedEra: w.state.Tenure().GetEra(), TtlMillis: 1000, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO, rootv1.Mandate_MANDATE_SCHEDULE},
	}}})
}

// claim makes the regions of keys, each a member's.
func (w *world) claim(id state.MemberID, keys ...string) {
	for len(keys) > 0 {
		n := min(len(keys), 1000)
		cmd := &rootv1.Command{}
		for _, key := range keys[:n] {
			cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: uint32(w.ks), StartKey: []byte(key), Owners: []*rootv1.Owner{{MemberId: string(id)}},
			}}}})
		}
		w.must(cmd.Events...)
		keys = keys[n:]
	}
}

func (w *world) must(events ...*rootv1.Event) *rootv1.CommandResult {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	result := w.appendLocked(&rootv1.Command{Events: events})[0]
	if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		w.t.Fatalf("%v: %v", events[0], result.GetError())
	}
	return result
}

func (w *world) appendLocked(cmds ...*rootv1.Command) []*rootv1.CommandResult {
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		w.t.Fatal(err)
	}
	next := w.state.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, w.state.Token().Index+1, data, &out); err != nil {
		w.t.Fatal(err)
	}
	w.state = next
	w.view = &rootview.View{State: next.Fork(), Token: next.Token(), Known: next.Token()}
	close(w.changed)
	w.changed = make(chan struct{})
	w.soft.Forget(out.Changes)
	for _, m := range w.members {
		m.set.Apply(w.view.State, out.Changes)
	}
	results := make([]*rootv1.CommandResult, len(out.Results))
	for i := range out.Results {
		results[i] = out.Results[i].Proto()
	}
	return results
}

// View implements idle.Views.
func (w *world) View() *rootview.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view
}

// Changed implements idle.Views.
func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

var errLost = errors.New("the connection broke")

// Propose implements idle.Root.
func (w *world) Propose(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	if _, ok := ctx.Deadline(); !ok {
		w.t.Error("a call to the root has no deadline")
	}
	w.mu.Lock()
	w.under++
	w.unders = max(w.unders, w.under)
	if time.Since(w.ended) < w.slow {
		w.hasty++
	}
	w.mu.Unlock()
	time.Sleep(w.slow)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under--
	w.ended = time.Now()
	w.calls++
	n := 0
	for _, c := range cmds {
		n += len(c.GetEvents())
		if c.GetRequireEra() == 0 || c.GetIdentity() == nil {
			w.t.Errorf("a command without era or identity: %v", c)
		}
		if d := state.CheckCommand(c); d != nil {
			w.t.Error(d)
		}
	}
	w.most = max(w.most, n)
	results := w.appendLocked(cmds...)
	if w.spoil != nil {
		if err := w.spoil(w.calls); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// Command implements idle.Commands, as the server does.
func (w *world) Command(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.members[id]
	switch {
	case m == nil || m.incarnation != incarnation || m.deaf:
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "no stream")
	case len(m.commands) >= 64:
		return reason.New(rootv1.Reason_REASON_OVERLOADED, "64 wait")
	}
	m.commands = append(m.commands, c)
	m.asked++
	m.most = max(m.most, len(m.commands))
	return nil
}

// turn has a member answer what it is shown and asked, and say what there is to say.
func (m *process) turn() {
	m.w.mu.Lock()
	now := m.w.clock.Now()
	f := m.core.Frame(0, now)
	st := m.w.view.State
	heard := server.HeardFrame{Member: m.id, Incarnation: m.incarnation, At: now}
	if f != nil {
		m.sequence = f.GetSequence()
		for _, p := range f.GetRegions() {
			if turned, err := m.w.soft.Report(st, st.Member(m.id), p, now); err == nil && turned {
				heard.Turned = append(heard.Turned, state.RegionID(p.GetRegionId()))
			}
		}
		for _, id := range f.GetGone() {
			m.w.soft.Gone(state.RegionID(id), m.incarnation)
		}
		heard.Replies = f.GetReplies()
		m.set.Told(m.stream, f.GetShown())
	}
	deaf := m.deaf
	m.w.mu.Unlock()
	if !deaf {
		m.w.releaser.Frame(heard)
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	a := &coordinatorv1.MemberAnswer{Sequence: m.sequence, Era: st.Tenure().GetEra(), Commands: m.commands, Set: m.set.Next(m.stream)}
	a.Terms = &coordinatorv1.MemberTerms{IntervalMillis: 100, Keyspaces: []*coordinatorv1.KeyspaceTerms{{
		KeyspaceId: uint32(m.w.ks), Name: "games", Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
		Fence: rootv1.Fence_FENCE_EPOCH, HoldRequestsMillis: 2000, IdleEvictMillis: uint64(idleAfter.Milliseconds()),
	}}}
	m.commands = nil
	if err := m.core.Answer(0, a, now); err != nil {
		m.w.t.Error(err)
	}
	m.core.Tick(now)
	for calls := m.core.Calls(1000, now); len(calls) > 0; calls = m.core.Calls(1000, now) {
		for _, c := range calls {
			switch c.Kind {
			case held.Cancel:
				continue
			case held.Acquire:
				m.acquired[c.Region.Start]++
			}
			m.core.Done(c.ID, held.Result{Idle: m.busy == nil || !m.busy(&c)}, now)
		}
	}
}

// touch asks a member for a key: done is to be called behind the work, nil: refused.
func (m *process) touch(key string) (done func(), no *held.Refusal) {
	g, no := m.core.Table().Admit(held.Request{Keyspace: "games", Key: []byte(key)}, m.w.clock)
	if no != nil {
		return nil, no
	}
	return func() {
		if no := m.core.Table().Check(g, m.w.clock); no != nil {
			m.w.t.Errorf("%s: the right ended while it was used: %v", key, no.Verdict)
		}
		if m.core.Table().Leave(g) {
			m.w.mu.Lock()
			m.core.Drained(g.Region.ID, m.w.clock.Now())
			m.w.mu.Unlock()
		}
	}, nil
}

func (w *world) regions() int { return w.View().State.KeyspaceRegionCount(w.ks) }

func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("key%06d", i)
	}
	return all
}

// stopped is how many regions are there that their owner has stopped.
func (w *world) stopped() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.RegionsFrom(w.ks, "", func(r *state.Region) bool {
		if p, _ := w.members[r.Owners[0].Member].core.Phase(r.ID); p == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
			n++
		}
		return true
	})
	return n
}
