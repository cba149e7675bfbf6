package server_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// memoryRoot is a metadata root of one peer that remembers everything in
// memory: the real state machine behind a log that never fails unless told to.
type memoryRoot struct {
	mu      sync.Mutex
	state   *state.State
	log     []*rootv1.TailEntry
	changed chan struct{}
	down    bool          // nothing is answered
	muted   bool          // tails bring nothing new
	expired bool          // claims find the predecessor expired
	blocked chan struct{} // not nil: proposals wait for it
	reads   int           // read indexes answered
	asked   []*rootv1.Command
	made    int // changes of records
}

const clusterID = 0x1234

func newMemoryRoot(t testing.TB) *memoryRoot { return newRootOf(t, 1) }

// restoredRoot is a root that was restored from a backup.
func restoredRoot(t testing.TB) *memoryRoot { return newRootOf(t, 2) }

func newRootOf(t testing.TB, incarnation uint64) *memoryRoot {
	r := &memoryRoot{state: state.New(), changed: make(chan struct{})}
	r.must(t, &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: clusterID, Incarnation: incarnation, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{
			{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:3380"},
		}},
	}}})
	return r
}

// append judges commands as one entry.
func (r *memoryRoot) append(cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		return nil, err
	}
	index := r.state.Token().Index + 1
	var out state.Applied
	if err := r.state.ApplyEntry(1, index, data, &out); err != nil {
		return nil, err
	}
	r.made += len(out.Changes)
	r.log = append(r.log, &rootv1.TailEntry{Term: 1, Index: index, Entry: data})
	close(r.changed)
	r.changed = make(chan struct{})
	results := make([]*rootv1.CommandResult, len(out.Results))
	for i := range out.Results {
		results[i] = out.Results[i].Proto()
	}
	return results, nil
}

var errDown = reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "the test's root is down")

func (r *memoryRoot) Propose(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	r.mu.Lock()
	r.asked = append(r.asked, cmds...)
	blocked, down := r.blocked, r.down
	r.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if down {
		return nil, errDown
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.append(cmds...)
}

// must proposes events as one command that has to apply.
func (r *memoryRoot) must(t testing.TB, events ...*rootv1.Event) *rootv1.CommandResult {
	t.Helper()
	results, err := r.Propose(t.Context(), &rootv1.Command{Events: events})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		t.Fatalf("%v rejected: %v", events, results[0].GetError())
	}
	return results[0]
}

func (r *memoryRoot) ReadIndex(context.Context) (state.Token, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return state.Token{}, errDown
	}
	r.reads++
	return r.state.Token(), nil
}

// countedReads says how often the root was asked how far it is.
func (r *memoryRoot) countedReads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads
}

func (r *memoryRoot) Claim(_ context.Context, claim *rootv1.TenureClaimed, _ ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errDown
	}
	claim = proto.CloneOf(claim)
	claim.PredecessorExpired = r.expired
	results, err := r.append(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: claim}}}})
	if err != nil {
		return nil, err
	}
	return &rootv1.ClaimTenureResponse{Result: results[0], RetryAfterMillis: 50}, nil
}

func (r *memoryRoot) Confirm(_ context.Context, req *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errDown
	}
	t := r.state.Tenure()
	active := t.GetEra() == req.GetEra() && t.GetHolderId() == req.GetHolderId() &&
		t.GetHolderIncarnation() == req.GetHolderIncarnation() && !t.GetRetired()
	return &rootv1.ConfirmTenureResponse{Active: active, Tenure: t, Token: r.state.Token().Proto()}, nil
}

func (r *memoryRoot) Tail(ctx context.Context, after state.Token) (rootview.TailStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &memoryTail{root: r, ctx: ctx, cancel: cancel, at: after.Index}, nil
}

func (r *memoryRoot) Snapshot(context.Context, func(*rootv1.SnapshotChunk) error) error {
	return errors.New("the test's root keeps its whole log")
}

type memoryTail struct {
	root   *memoryRoot
	ctx    context.Context
	cancel context.CancelFunc
	at     uint64
}

func (t *memoryTail) Recv() (*rootv1.TailResponse, error) {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	for {
		t.root.mu.Lock()
		last, down, changed := uint64(len(t.root.log)), t.root.down, t.root.changed
		if t.root.muted {
			last = t.at
		}
		resp := &rootv1.TailResponse{CommitIndex: last, LeaderId: 1, ClusterId: clusterID, Incarnation: 1}
		if t.at < last {
			resp.Entries = t.root.log[t.at:last:last]
		}
		t.root.mu.Unlock()
		if down {
			return nil, errDown
		}
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

func (t *memoryTail) Close() { t.cancel() }

func (r *memoryRoot) setDown(down bool) {
	r.mu.Lock()
	r.down = down
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
}

// mute keeps the tails from what is new, and from word of it.
func (r *memoryRoot) mute(muted bool) {
	r.mu.Lock()
	r.muted = muted
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
}

// changes is how many changes of records there were. What is refused makes none:
// only its identity is remembered.
func (r *memoryRoot) changes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

func (r *memoryRoot) token() state.Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Token()
}

// counter is an authority that always serves.
type counter struct {
	mu    sync.Mutex
	last  uint64
	calls int
	err   error
	// checks counts calls of Check.
	checks atomic.Int64
	// confirmedAt is a clock.Instant.
	status      atomic.Pointer[tenure.Status] // instead of the one it makes up
	confirmedAt atomic.Int64
	blocked     chan struct{} // not nil: calls wait for it
	arrived     chan struct{} // gets one for every call that waits
}

// block makes calls wait until the returned function is called.
func (c *counter) block() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked, c.arrived = make(chan struct{}), make(chan struct{}, 100)
	return sync.OnceFunc(func() { close(c.blocked) })
}

func (c *counter) AllocID(ctx context.Context, count uint64) (first, era uint64, err error) {
	if blocked := c.waits(); blocked != nil {
		if err := c.wait(ctx, blocked); err != nil {
			return 0, 0, err
		}
	}
	return c.give(count)
}

func (c *counter) Tso(ctx context.Context, count uint64) (first, era uint64, err error) {
	return c.AllocID(ctx, count)
}

// ReserveTso leaves the waiting to check.
func (c *counter) ReserveTso(_ context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	first, era, err = c.give(count)
	if blocked := c.waits(); blocked != nil && err == nil {
		check = func(ctx context.Context) error { return c.wait(ctx, blocked) }
	}
	return first, era, check, err
}

func (c *counter) ReserveAllocID(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	return c.ReserveTso(ctx, count)
}

// waits returns what a call must wait for, and counts it; nil: nothing.
func (c *counter) waits() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked != nil {
		c.arrived <- struct{}{}
	}
	return c.blocked
}

func (c *counter) wait(ctx context.Context, blocked chan struct{}) error {
	select {
	case <-blocked:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *counter) give(count uint64) (first, era uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.err != nil {
		return 0, 0, c.err
	}
	first = c.last + 1
	c.last += count
	return first, 7, nil
}

// Check says what calls for numbers would, of era 7.
func (c *counter) Check(ctx context.Context, era uint64) error {
	c.checks.Add(1)
	if blocked := c.waits(); blocked != nil {
		return c.wait(ctx, blocked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if era != 7 {
		return reason.New(rootv1.Reason_REASON_ERA_STALE, "era %d is not 7", era)
	}
	return c.err
}

func (c *counter) Status() tenure.Status {
	if s := c.status.Load(); s != nil {
		return *s
	}
	return tenure.Status{Phase: tenure.Holding, Era: 7, Confirmed: true, ConfirmedAt: clock.Instant(c.confirmedAt.Load()), Tenure: &rootv1.Tenure{TtlMillis: 1000}, IDsLeft: 3, TimestampsLeft: 4}
}

// world is a coordinator over a memoryRoot, and a connection to it.
type world struct {
	root      *memoryRoot
	follower  *rootview.Follower
	authority *counter
	server    *server.Server
	conn      *grpc.ClientConn
	client    coordinatorv1.CoordinatorClient
	listener  *bufconn.Listener
	retained  int // changes that the follower retains; 0: 1000
	stop      func() error
}

const coordinatorID = "c1"

func start(t testing.TB, change ...func(*server.Config)) *world {
	return startOn(t, newMemoryRoot(t), change...)
}

func startOn(t testing.TB, root *memoryRoot, change ...func(*server.Config)) *world {
	t.Helper()
	w := &world{root: root, authority: &counter{}, listener: bufconn.Listen(1 << 20)}
	w.run(t, change)
	w.catchUp(t)
	return w
}

// unavailableAfter is the silence that tells that the root is away: a slow machine is
// none.
const unavailableAfter = 30 * time.Second

// run starts everything and stops it at the end of the test.
func (w *world) run(t testing.TB, change []func(*server.Config)) {
	t.Helper()
	monotonic := clock.NewMonotonic()
	var err error
	w.follower, err = rootview.New(rootview.Config{
		Core: rootview.CoreConfig{UnavailableAfter: unavailableAfter},
		Root: w.root, ReadIndexer: w.root, Clock: monotonic, RetainedChanges: cmp.Or(w.retained, 1000),
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config{
		ID: coordinatorID, Address: "127.0.0.1:2379", Incarnation: 99, Version: "test",
		Views: w.follower, Authority: w.authority, Root: w.root, Clock: monotonic, Limits: server.DefaultLimits(),
	}
	for _, f := range change {
		f(&cfg)
	}
	if w.server, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var served error
	running.Go(func() { _ = w.follower.Run(ctx) })
	running.Go(func() { served = w.server.Run(ctx, w.listener) })
	w.conn = w.dial(t)
	w.client = coordinatorv1.NewCoordinatorClient(w.conn)
	w.stop = sync.OnceValue(func() error {
		cancel()
		running.Wait()
		return served
	})
	t.Cleanup(func() {
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return w.dialAs(t, clusterID, opts...)
}

// dialAs is dial for calls that name a cluster; 0: none.
func (w *world) dialAs(t testing.TB, cluster uint64, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append(append(clusterid.Caller(func() uint64 { return cluster }).Options(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }),
	), opts...)
	conn, err := grpc.NewClient("passthrough:///coordinator", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// end stops everything, as a bubble wants it.
func (w *world) end(t testing.TB) {
	t.Helper()
	w.conn.Close()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// catchUp waits until the view has all of the root.
func (w *world) catchUp(t testing.TB) {
	t.Helper()
	if _, err := w.follower.WaitFor(within(t), w.root.token()); err != nil {
		t.Fatal(err)
	}
}

// must changes the root and waits for the view.
func (w *world) must(t testing.TB, events ...*rootv1.Event) *rootv1.CommandResult {
	t.Helper()
	result := w.root.must(t, events...)
	w.catchUp(t)
	return result
}

// within is a context for one call.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// refused checks the reason of a refusal and returns its detail.
func refused(t testing.TB, err error, want rootv1.Reason) *rootv1.ErrorDetail {
	t.Helper()
	detail := reason.From(err)
	if detail.GetReason() != want || err == nil {
		t.Fatalf("got %v, want a refusal for %s", err, reason.Name(want))
	}
	return detail
}

// drain receives until the stream ends.
func drain[T any](recv func() (*T, error)) ([]*T, error) {
	var all []*T
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

// Events.

func publish(id uint64, keyspace uint32, start, end string, epoch uint64, owners ...string) *rootv1.Event {
	r := &rootv1.Region{
		Id: id, KeyspaceId: keyspace, StartKey: []byte(start), EndKey: []byte(end),
		Epoch: &rootv1.RegionEpoch{Version: epoch, ConfVersion: 1},
	}
	for i, o := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: o, PeerId: uint64(i + 1), Role: rootv1.OwnerRole_OWNER_ROLE_VOTER})
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
}

func join(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: id + ":1000", Kind: "store", StartNonce: 5},
	}}}
}

func create(name string, settings *rootv1.KeyspaceSettings) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: settings}}}
}

// created is create with the settings of a keyspace that has none of its own.
func created(name string) *rootv1.Event { return create(name, state.DefaultSettings()) }

// startDown is start on a root that does not answer.
func startDown(t testing.TB, root *memoryRoot) *world {
	t.Helper()
	w := &world{root: root, authority: &counter{}, listener: bufconn.Listen(1 << 20)}
	w.run(t, nil)
	return w
}
