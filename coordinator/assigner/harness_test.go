package assigner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	clusterID = 0x1234
	self      = "c1"
	other     = "c2"
	life      = 99 // of self
)

// root is a metadata root of one peer in memory, whose answers can be spoilt.
type root struct {
	t       testing.TB
	mu      sync.Mutex
	state   *state.State
	log     []*rootv1.TailEntry
	changed chan struct{}
	muted   bool   // tails bring nothing new
	piece   uint64 // of the log is sent at a time; 0: all there is
	// spoil is asked for each call of Propose, by number: what it says happens.
	spoil func(call int) fault
	calls int
	// refuses: a command is one that the root does not take.
	refuses func(cmd *rootv1.Command) bool
	// asked are the commands of each call that reached the log, made the changes of records.
	asked [][]*rootv1.Command
	// slow lets calls wait until it is closed.
	slow chan struct{}
}

type fault int

const (
	fine fault = iota
	lostBefore
	lostAfter
	refusedForNow
	denied
	short // fewer results than commands
)

func newRoot(t testing.TB) *root {
	r := &root{t: t, state: state.New(), changed: make(chan struct{})}
	r.must(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: clusterID, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	return r
}

func (r *root) appendLocked(cmds ...*rootv1.Command) []*rootv1.CommandResult {
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		r.t.Fatal(err)
	}
	next, index := r.state.Fork(), r.state.Token().Index+1
	var out state.Applied
	if err := next.ApplyEntry(1, index, data, &out); err != nil {
		r.t.Fatal(err)
	}
	r.state = next
	r.log = append(r.log, &rootv1.TailEntry{Term: 1, Index: index, Entry: data})
	close(r.changed)
	r.changed = make(chan struct{})
	results := make([]*rootv1.CommandResult, len(out.Results))
	for i := range out.Results {
		results[i] = out.Results[i].Proto()
	}
	return results
}

// Propose implements assigner.Root.
func (r *root) Propose(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	if _, ok := ctx.Deadline(); !ok {
		r.t.Error("a call to the root has no deadline")
	}
	r.mu.Lock()
	r.calls++
	call, slow, is := r.calls, r.slow, fine
	if r.spoil != nil {
		is = r.spoil(call)
	}
	r.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch is {
	case lostBefore:
		return nil, errors.New("the connection broke")
	case refusedForNow:
		return nil, reason.New(rootv1.Reason_REASON_OVERLOADED, "too much waits")
	case denied:
		return nil, reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, "no")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, cmds)
	for i, cmd := range cmds {
		if r.refuses != nil && r.refuses(cmd) {
			cmds[i] = &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
				MemberId: "nobody", State: failed, Reason: "a test",
			}}}}}
		}
	}
	results := r.appendLocked(cmds...)
	switch is {
	case lostAfter:
		return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the connection broke")
	case short:
		return results[1:], nil
	}
	return results, nil
}

// must proposes events that have to apply, as somebody else.
func (r *root) must(events ...*rootv1.Event) *rootv1.CommandResult {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	result := r.appendLocked(&rootv1.Command{Events: events})[0]
	if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		r.t.Fatalf("%v: %v", events[0], result.GetError())
	}
	return result
}

func (r *root) Tail(ctx context.Context, after state.Token) (rootview.TailStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &tail{root: r, ctx: ctx, cancel: cancel, at: after.Index}, nil
}

func (r *root) Snapshot(context.Context, func(*rootv1.SnapshotChunk) error) error {
	return errors.New("the whole log is there")
}

func (r *root) ReadIndex(context.Context) (state.Token, error) {
	return state.Token{}, errors.New("nobody reads")
}

type tail struct {
	root   *root
	ctx    context.Context
	cancel context.CancelFunc
	at     uint64
}

func (t *tail) Recv() (*rootv1.TailResponse, error) {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	for {
		t.root.mu.Lock()
		last, changed := uint64(len(t.root.log)), t.root.changed
		if t.root.muted {
			last = t.at
		}
		resp := &rootv1.TailResponse{CommitIndex: last, LeaderId: 1, ClusterId: clusterID, Incarnation: 1}
		if t.at < last {
			if t.root.piece > 0 {
				last = min(last, t.at+t.root.piece)
			}
			resp.Entries = t.root.log[t.at:last:last]
		}
		t.root.mu.Unlock()
		if t.at < last {
			t.at = last
			return resp, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return resp, nil
		case <-t.ctx.Done():
			return nil, t.ctx.Err()
		}
	}
}

func (t *tail) Close() { t.cancel() }

// world is an Assigner over a root, and members that are made up.
type world struct {
	*root
	cfg      assigner.Config
	a        *assigner.Assigner
	follower *rootview.Follower
	soft     *catalog.Soft
	clock    clock.Clock

	mu sync.Mutex
	// Guarded by mu. probe says what comes of a probe, words what another coordinator
	// says; nil: it does not answer.
	probe   func(ctx context.Context, p liveness.Probe) liveness.ProbeResult
	words   func(ctx context.Context, ids []state.MemberID) ([]liveness.Word, error)
	probed  int
	shown   state.Token
	since   clock.Instant
	streams map[state.MemberID]uint64
	applied
	// orders are the commands that members got since begun; deaf ones get none.
	orders []asking
	// undrained are the refusals of drains that members were told.
	undrained []*rootv1.ErrorDetail
	begun     time.Time
	deaf      map[state.MemberID]bool
}

func (w *world) Shown(state.MemberID, uint64) (state.Token, clock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown, w.since
}

// play runs a test in a bubble, with an Assigner that runs until it ends.
func play(t *testing.T, test func(t *testing.T, w *world)) {
	playBehind(t, func(*world) {}, test)
}

// playBehind is play with a root that has a past when the coordinator starts.
func playBehind(t *testing.T, past func(w *world), test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{root: newRoot(t), clock: clock.NewMonotonic(), soft: catalog.NewSoft(catalog.SoftConfig{}), since: 1, streams: map[state.MemberID]uint64{}, begun: time.Now()}
		w.probe = func(context.Context, liveness.Probe) liveness.ProbeResult { return liveness.Refused }
		var err error
		w.follower, err = rootview.New(rootview.Config{Root: w.root, ReadIndexer: w.root, Clock: w.clock})
		if err != nil {
			t.Fatal(err)
		}
		w.cfg = assigner.Config{
			ID: self, Incarnation: life, Views: w.follower, Root: w.root, Soft: w.soft, Clock: w.clock,
			Probe: func(ctx context.Context, p liveness.Probe) liveness.ProbeResult {
				w.mu.Lock()
				w.probed++
				if _, ok := ctx.Deadline(); !ok {
					t.Error("a probe has no deadline")
				}
				probe := w.probe
				w.mu.Unlock()
				return probe(ctx, p)
			},
			Ask: func(ctx context.Context, _ *rootv1.Coordinator, ids []state.MemberID) ([]liveness.Word, error) {
				w.mu.Lock()
				words := w.words
				w.mu.Unlock()
				if words == nil {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return words(ctx, ids)
			},
			Hooks: w, Strategies: map[string]propose.Strategy{"code": code{w}},
		}
		w.a, err = assigner.New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.a.UseStreams(w)
		past(w)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.follower.Run(ctx) })
		running.Go(func() {
			if err := w.a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer running.Wait()
		defer cancel()
		test(t, w)
	})
}

// claim gives the Tenure to a coordinator.
func (w *world) claim(who string, incarnation uint64) {
	w.t.Helper()
	w.root.mu.Lock()
	held := w.root.state.Tenure()
	w.root.mu.Unlock()
	w.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: who, HolderIncarnation: incarnation, HolderAddress: who + ":1", ExpectedEra: held.GetEra(), TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}, PredecessorExpired: held.GetEra() > 0,
	}}})
	synctest.Wait()
}

// hosts makes the keyspace games with points that members m1 to mN own in turn, and
// opens their streams.
func (w *world) hosts(members, points int) {
	w.t.Helper()
	settings, _ := state.Preset("games")
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
	for i := range members {
		w.join(name(i))
	}
	for i := range points {
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 2, StartKey: fmt.Appendf(nil, "p%03d", i), Owners: []*rootv1.Owner{{MemberId: string(name(i % members))}},
		}}}})
	}
	synctest.Wait()
	for i := range members {
		w.open(name(i))
	}
}

func name(i int) state.MemberID { return state.MemberID(fmt.Sprintf("m%d", i+1)) }

func (w *world) join(id state.MemberID) {
	w.t.Helper()
	w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member:  &rootv1.Member{Id: string(id), Address: string(id) + ":1", ProbeAddress: string(id) + ":2", StartNonce: 5 + uint64(w.now().MemberCount())},
		Follows: w.now().Member(id).GetIncarnation(),
	}}})
	synctest.Wait()
}

// now is the root's state.
func (w *world) now() *state.State {
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	return w.root.state
}

func (w *world) lives(id state.MemberID) uint64 { return w.now().Member(id).GetIncarnation() }

func (w *world) open(id state.MemberID) {
	w.streams[id]++
	w.a.Opened(id, w.lives(id), w.streams[id], 0)
	w.frame(id)
}

func (w *world) close(id state.MemberID) { w.a.Closed(id, w.lives(id), w.streams[id], 0) }

func (w *world) frame(id state.MemberID, change ...func(*server.HeardFrame)) {
	f := server.HeardFrame{Member: id, Incarnation: w.lives(id), Stream: w.streams[id], At: w.clock.Now()}
	for _, c := range change {
		c(&f)
	}
	w.a.Frame(f)
}

// pass lets time pass, in which the members speak.
func (w *world) pass(d time.Duration, members ...state.MemberID) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(100*time.Millisecond, time.Until(end)))
		for _, id := range members {
			w.frame(id)
		}
		synctest.Wait()
	}
}

// report has a member say something of a region, without a frame.
func (w *world) report(id state.MemberID, r *rootv1.Region, change func(*coordinatorv1.RegionReport)) {
	w.t.Helper()
	p := &coordinatorv1.RegionReport{RegionId: r.GetId(), Epoch: r.GetEpoch(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING}
	change(p)
	if _, err := w.soft.Report(w.now(), w.now().Member(id), p, w.clock.Now()); err != nil {
		w.t.Fatal(err)
	}
}

// owned are a member's regions.
func (w *world) owned(id state.MemberID) []*state.Region {
	var all []*state.Region
	w.now().MemberRegionsAfter(id, 0, func(r *state.Region) bool {
		all = append(all, r)
		return true
	})
	return all
}

// commands are what the Assigner had judged, in order.
func (w *world) commands() []*rootv1.Command {
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	return slices.Concat(w.asked...)
}

// wantHomed checks that every region has an owner that may act, and went through as many
// owners as it should.
func (w *world) wantHomed(confVersion func(r *state.Region) uint64) {
	w.t.Helper()
	st := w.now()
	if n := st.Orphaned(); n != 0 {
		w.t.Errorf("%d regions are orphaned", n)
	}
	st.RegionsFrom(2, "", func(r *state.Region) bool {
		if want := confVersion(r); r.Epoch.ConfVersion != want {
			w.t.Errorf("region %d has had %d sets of owners, want %d", r.ID, r.Epoch.ConfVersion, want)
		}
		return true
	})
}

// every checks each command that was sent.
func (w *world) wantEra(era uint64) {
	w.t.Helper()
	for _, cmd := range w.commands() {
		if cmd.GetRequireEra() != era || cmd.GetIdentity().GetOrigin() == 0 {
			w.t.Errorf("a command requires era %d and has identity %v, want era %d and one", cmd.GetRequireEra(), cmd.GetIdentity(), era)
		}
	}
}
