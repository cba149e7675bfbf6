package claims_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/claims"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const life = 99 // of c1

// world is a Desk over a root in memory, whose answers can be spoilt, and its view, which
// can be held back.
type world struct {
	t    testing.TB
	desk *claims.Desk
	ks   state.KeyspaceID

	mu      sync.Mutex
	state   *state.State
	view    *rootview.View
	changed chan struct{}
	frozen  bool
	entries int
	calls   int
	spoil   func(call int) error // asked behind the log
	slow    chan struct{}        // calls wait for it, if it is not nil
	away    map[state.MemberID]bool
	unfit   map[state.MemberID]bool
	loads   map[state.MemberID]float64
	// hook answers for keyspaces of a hook, code is the strategy of keyspace "code".
	hook  func(context.Context, []hook.Region, []propose.Candidate) (map[state.RegionID]state.MemberID, error)
	asked int
	code  func(*propose.Question) (int, bool)
}

// proposer is a world's code as a strategy.
type proposer struct{ w *world }

// Propose implements propose.Strategy.
func (p proposer) Propose(q *propose.Question) (int, bool) { return p.w.code(q) }

func (w *world) askHook(ctx context.Context, _ *rootv1.Keyspace, regions []hook.Region, candidates []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
	w.mu.Lock()
	w.asked++
	fn := w.hook
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return fn(ctx, regions, candidates)
}

func newWorld(t testing.TB, members int, change func(*rootv1.KeyspaceSettings)) *world {
	w := &world{t: t, state: state.New(), changed: make(chan struct{}), away: map[state.MemberID]bool{}, unfit: map[state.MemberID]bool{}, loads: map[state.MemberID]float64{}}
	w.view = &rootview.View{State: w.state}
	w.must(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 7, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	w.hold("c1", life)
	s := &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}, Policy: &rootv1.Policy{OnMiss: rootv1.OnMiss_ON_MISS_CLAIM, Strategy: rootv1.Strategy_STRATEGY_BALANCED},
	}
	if change != nil {
		change(s)
	}
	w.ks = state.KeyspaceID(w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: s}}}).GetEvents()[0].GetKeyspace().GetId())
	for i := range members {
		w.join(fmt.Sprintf("m%03d", i), map[string]string{"n": fmt.Sprint(i)})
	}
	var err error
	w.desk, err = claims.New(claims.Config{
		Strategies: map[string]propose.Strategy{"code": proposer{w}}, AskHook: w.askHook,
		ID: "c1", Incarnation: life, Views: w, Root: w, Observed: w, Clock: clock.NewMonotonic(),
		Load: func(id state.MemberID, _ uint64) (float64, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			x, ok := w.loads[id]
			return x, ok
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs the Desk until the returned function is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.desk.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) join(id string, labels map[string]string) {
	w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: id, Address: id + ":1", Labels: labels, StartNonce: 5}}}})
}

func (w *world) hold(id string, incarnation uint64) {
	old := w.state.Tenure()
	w.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: id, HolderIncarnation: incarnation, HolderAddress: id + ":1", ExpectedEra: old.GetEra(), TtlMillis: 1000, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO, rootv1.Mandate_MANDATE_SCHEDULE},
	}}})
}

func (w *world) setState(id string, s rootv1.MemberState) {
	w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: s, Reason: "a test"}}})
}

// must proposes events that have to apply, as somebody else.
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
	w.showLocked()
	results := make([]*rootv1.CommandResult, len(out.Results))
	for i := range out.Results {
		results[i] = out.Results[i].Proto()
	}
	return results
}

func (w *world) showLocked() {
	if w.frozen {
		return
	}
	w.view = &rootview.View{State: w.state.Fork(), Token: w.state.Token(), Known: w.state.Token()}
	close(w.changed)
	w.changed = make(chan struct{})
}

// freeze holds the view back, and lets it go on.
func (w *world) freeze(frozen bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = frozen
	w.showLocked()
}

// View implements claims.Views.
func (w *world) View() *rootview.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view
}

// Changed implements claims.Views.
func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// errLost is an answer that did not come.
var errLost = errors.New("the connection broke")

// Propose implements claims.Root.
func (w *world) Propose(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	if _, ok := ctx.Deadline(); !ok {
		w.t.Error("a call to the root has no deadline")
	}
	w.mu.Lock()
	w.calls++
	call, slow := w.calls, w.slow
	w.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, c := range cmds {
		if d := state.CheckCommand(c); d != nil { // as a root's door does: all or nothing
			return nil, &reason.Error{Detail: d}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	results := w.appendLocked(cmds...)
	w.entries++
	if w.spoil != nil {
		if err := w.spoil(call); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// Takes implements placement.Observed, with what follows.
func (w *world) Takes(id state.MemberID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.away[id]
}
func (w *world) Damped(state.MemberID) bool { return false }
func (w *world) Unfit(o state.Owner, _ state.KeyspaceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unfit[o.Member]
}
func (w *world) Probation(state.Owner, state.KeyspaceID) bool { return false }
func (w *world) ClearAt(state.MemberID, uint64, liveness.Fence) clock.Instant {
	return 0
}
func (w *world) Shown(state.MemberID, uint64) state.Token { return state.Token{} }
func (w *world) Report(state.RegionID, state.Owner) (placement.Report, bool) {
	return placement.Report{}, false
}

// claim claims keys within some seconds.
func (w *world) claim(keys ...string) []claims.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	raw := make([][]byte, len(keys))
	for i, k := range keys {
		raw[i] = []byte(k)
	}
	return w.desk.Claim(ctx, w.ks, raw, "first touch")
}

// one claims one key, which must have an answer.
func (w *world) one(key string) claims.Answer {
	w.t.Helper()
	a := w.claim(key)[0]
	if a.Err != nil {
		w.t.Fatalf("claim %s: %v", key, a.Err)
	}
	return a
}

// refused claims a key that nobody may have.
func (w *world) refused(key string, want rootv1.Reason) error {
	w.t.Helper()
	a := w.claim(key)[0]
	if got := reason.Of(a.Err); got != want {
		w.t.Fatalf("claim %s: %v, %v; want %v", key, a.Region, a.Err, want)
	}
	return a.Err
}

// counts is how many regions members have.
func (w *world) owned() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[string]int{}
	w.state.RegionsFrom(w.ks, "", func(r *state.Region) bool {
		if r.Keyspace != w.ks {
			return false
		}
		for _, o := range r.Owners {
			counts[string(o.Member)]++
		}
		return true
	})
	return counts
}
