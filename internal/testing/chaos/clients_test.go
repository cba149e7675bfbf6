package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// The load: callers that ask one thing after the other, without a client
// library between them and the answers, and some with the Go client. Each has
// connections, and so links, of its own.

// kindOfLoad is what must make progress between two faults.
type kindOfLoad int

const (
	loadIDs kindOfLoad = iota
	loadTimestamps
	loadWrites
	loadStrong
	loadRoutes
	loadClientIDs
	loadClientTimestamps
	loadWatch
	loadRemovals
	loadKeyspaces
	loadMembers
	loadCopies
	loadKinds
)

func (k kindOfLoad) String() string {
	return [...]string{"ids", "timestamps", "writes", "strong reads", "routes", "ids by the Go client", "timestamps by the Go client", "watch messages", "removals", "changes of keyspaces", "changes of members", "batches of a cache"}[k]
}

const (
	callLimit = time.Second
	// tries of one write before its outcome stays unknown.
	writeTries = 4
	// setupTries are those of a write without which there is no load.
	setupTries = int(patience / callLimit)
	// clientLimit bounds a call of the Go client: longer than an outage should take.
	clientLimit = 10 * time.Second
	// thinking is the longest pause between two calls: five processes share the
	// machine with the load.
	thinking = 8 * time.Millisecond
	// callersGo is the place of callers with the Go client, and of coordinators
	// that probe each other.
	callersGo = "callers"
)

// load is all callers of a run.
type load struct {
	t     testing.TB
	c     *cluster
	e     *evidence
	began time.Time
	// pauseAll ends the askers, stop also those who follow.
	pauseAll, stop    context.CancelFunc
	askers, followers sync.WaitGroup
	progress          [loadKinds]atomic.Uint64
	refused           atomic.Uint64
	cluster           atomic.Uint64 // 0: not asked for yet
	// identities of all changes.
	identities *identity.Source
	// mirror and cache are kept until the load ends.
	mirror *client.Mirror
	cache  *client.Cache
	// invalidated are keys whose routes the cache was told are stale.
	invalidated sync.Map
	// slowest is the longest that a call took beyond its limit.
	slowest atomic.Int64

	mu sync.Mutex // guards what follows
	// conf is the newest epoch that anybody was told of, as a number, by key.
	conf map[string]uint64
	// ids of the shared regions, by key.
	ids map[string]uint64
	// keys are those that somebody wrote.
	keys []string
	last error
}

// sharedRegions are written and read by everybody.
const sharedRegions = 6

func sharedKey(i int) string { return fmt.Sprintf("shared/%d", i) }

// caller is one sequence of calls.
type caller struct {
	*load
	name string
	rng  *rand.Rand
	// nodes are the coordinators as this caller reaches them, at is the one to ask next.
	nodes []coordinatorv1.CoordinatorClient
	at    int
	// tries of one write.
	tries int
	// session is the newest position this caller was told of.
	session state.Token
	next    int
}

// startLoad makes the shared regions and starts all callers.
func startLoad(t testing.TB, c *cluster, e *evidence, began time.Time, seed uint64) *load {
	following, stop := context.WithCancel(t.Context())
	ctx, pause := context.WithCancel(following)
	l := &load{t: t, c: c, e: e, began: began, stop: stop, pauseAll: pause, conf: make(map[string]uint64), ids: make(map[string]uint64), identities: identity.NewSource()}
	t.Cleanup(l.finish)
	first := l.caller("setup", seed)
	first.tries = setupTries
	shared := make([]string, 0, sharedRegions+goneRegions)
	for i := range sharedRegions {
		shared = append(shared, sharedKey(i))
	}
	for i := range goneRegions {
		shared = append(shared, goneKey(i))
	}
	for _, key := range shared {
		if err := first.make(ctx, key); err != nil {
			t.Fatalf("before any fault: make a shared region: %v", err)
		}
	}
	for i, work := range []struct {
		name string
		do   func(*caller, context.Context)
	}{
		{"ids-1", (*caller).allocIDs},
		{"ids-2", (*caller).allocIDs},
		{"tso-1", (*caller).timestamps},
		{"tso-2", (*caller).timestamps},
		{"tso-3", (*caller).timestamps},
		{"writer-1", (*caller).write},
		{"writer-2", (*caller).write},
		{"writer-3", (*caller).write},
		{"reader-1", (*caller).read},
		{"reader-2", (*caller).read},
		{"reader-3", (*caller).read},
		{"comer-1", (*caller).comeAndGo},
		{"comer-2", (*caller).comeAndGo},
		{"keyspaces", (*caller).keyspaces},
		{"members", (*caller).members},
	} {
		who := l.caller(work.name, seed+uint64(i)+1)
		l.askers.Go(func() {
			for ctx.Err() == nil {
				work.do(who, ctx)
				time.Sleep(time.Duration(who.rng.Int64N(int64(thinking)))) // how long this caller thinks
			}
		})
	}
	l.withGoClient(ctx, following)
	return l
}

// pause ends the callers: nothing changes any more, and watches go on.
func (l *load) pause() {
	l.pauseAll()
	l.askers.Wait()
}

// finish ends the load.
func (l *load) finish() {
	l.pause()
	l.stop()
	l.followers.Wait()
}

func (l *load) now() time.Duration { return time.Since(l.began) }

// caller connects a new caller to every coordinator.
func (l *load) caller(name string, seed uint64) *caller {
	who := &caller{load: l, name: name, rng: rand.New(rand.NewPCG(seed, 1)), tries: writeTries}
	who.at = who.rng.IntN(coordinators)
	for i := range coordinators {
		conn := dial(l.t, l.c.net.Door(name, coordinatorPlace(i), l.c.CoordinatorAddrs[i]), clusterid.Caller(l.clusterID).Options()...)
		who.nodes = append(who.nodes, coordinatorv1.NewCoordinatorClient(conn))
	}
	return who
}

func dial(t testing.TB, address string, more ...grpc.DialOption) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+address, append(more, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: callLimit}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask runs one call within the limit and notes when it does not end in time.
func (c *caller) ask(ctx context.Context, call func(context.Context, coordinatorv1.CoordinatorClient) error) error {
	callCtx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	begun := time.Now()
	err := call(callCtx, c.nodes[c.at])
	late := int64(time.Since(begun) - callLimit)
	for was := c.slowest.Load(); late > was && !c.slowest.CompareAndSwap(was, late); was = c.slowest.Load() {
	}
	if err != nil && ctx.Err() == nil {
		c.refused.Add(1)
		c.mu.Lock()
		c.last = err
		c.mu.Unlock()
	}
	return err
}

// turn has another coordinator asked next, after a breath.
func (c *caller) turn(ctx context.Context) {
	c.at = (c.at + 1) % len(c.nodes)
	select {
	case <-time.After(5 * time.Millisecond):
	case <-ctx.Done():
	}
}

func (c *caller) allocIDs(ctx context.Context) {
	c.values(ctx, history.OpID, loadIDs, func(ctx context.Context, n coordinatorv1.CoordinatorClient, count uint64) (first, era uint64, err error) {
		r, err := n.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: count})
		return r.GetFirst(), r.GetEra(), err
	})
}

func (c *caller) timestamps(ctx context.Context) {
	c.values(ctx, history.OpTSO, loadTimestamps, func(ctx context.Context, n coordinatorv1.CoordinatorClient, count uint64) (first, era uint64, err error) {
		r, err := n.Tso(ctx, &coordinatorv1.TsoRequest{Count: count})
		return r.GetFirst(), r.GetEra(), err
	})
}

// values makes one call for ids or timestamps.
func (c *caller) values(ctx context.Context, op string, kind kindOfLoad, call func(context.Context, coordinatorv1.CoordinatorClient, uint64) (first, era uint64, err error)) {
	count := 1 + c.rng.Uint64N(4)
	note := history.Call{Client: c.name, Op: op, Endpoint: coordinatorPlace(c.at), Holder: coordinatorPlace(c.at), CallNS: int64(c.now())}
	var first, era uint64
	err := c.ask(ctx, func(ctx context.Context, n coordinatorv1.CoordinatorClient) (err error) {
		first, era, err = call(ctx, n, count)
		return err
	})
	note.ReturnNS, note.WallMS = int64(c.now()), uint64(time.Now().UnixMilli())
	if err != nil {
		note.Err, note.Holder = err.Error(), ""
		c.e.call(note)
		c.turn(ctx)
		return
	}
	note.First, note.Count, note.Era = first, count, era
	c.e.call(note)
	c.progress[kind].Add(1)
}

// withGoClient adds callers that use the Go client, and a watch.
func (l *load) withGoClient(ctx, following context.Context) {
	var addrs []string
	addrs = append(addrs, l.c.advertised...)
	cl, err := client.New(client.Config{Endpoints: addrs})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		l.finish()
		if s := cl.Stats(); s.OrderViolations+s.OtherClusters > 0 {
			l.t.Errorf("the Go client counted %d timestamps out of order, %d answers of another cluster", s.OrderViolations, s.OtherClusters)
		}
		_ = cl.Close()
	})
	values := func(op string, kind kindOfLoad, call func(context.Context) (first, count, era uint64, err error)) {
		l.askers.Go(func() {
			for ctx.Err() == nil {
				note := history.Call{Client: "go-" + op, Op: op, CallNS: int64(l.now())}
				callCtx, cancel := context.WithTimeout(ctx, clientLimit)
				first, count, era, err := call(callCtx)
				cancel()
				note.ReturnNS, note.WallMS = int64(l.now()), uint64(time.Now().UnixMilli())
				if err != nil {
					note.Err = err.Error()
				} else {
					note.First, note.Count, note.Era = first, count, era
					l.progress[kind].Add(1)
				}
				l.e.call(note)
				time.Sleep(thinking / 2) // how long this caller thinks
			}
		})
	}
	values(history.OpID, loadClientIDs, func(ctx context.Context) (uint64, uint64, uint64, error) {
		r, err := cl.AllocID(ctx, 3)
		return r.First, r.Count, uint64(r.Era), err
	})
	values(history.OpTSO, loadClientTimestamps, func(ctx context.Context) (uint64, uint64, uint64, error) {
		r, err := cl.Tso(ctx, 2)
		return uint64(r.First), r.Count, uint64(r.Era), err
	})
	l.followers.Go(func() {
		for b, err := range cl.WatchRegions(following, client.Position{}) {
			if err != nil {
				if following.Err() == nil {
					l.t.Errorf("Tail: a watch ended: %v", err)
				}
				return
			}
			l.e.watched("go-watch", batchOf(b), l.now())
			l.progress[loadWatch].Add(1)
		}
	})
	l.withCopies(ctx, following, cl)
}

// batchOf keeps what a watch brought.
func batchOf(b client.Batch) *batch {
	out := &batch{to: b.Position().Token, snapshot: b.GetSnapshot(), snapshotBegin: b.GetSnapshot() && b.First, snapshotEnd: b.GetSnapshot() && b.Last}
	for _, c := range b.GetChanges() {
		out.regions = append(out.regions, regionChange{state.RegionFromProto(c.GetRegion()), c.GetRemoved()})
	}
	return out
}

// errNoAnswer says that no try was answered.
var errNoAnswer = errors.New("no answer")

// learn takes the answer of a write into account.
func (c *caller) learn(w *write, r *rootv1.CommandResult) {
	w.outcome, w.reason, w.token, w.returned = r.GetOutcome(), r.GetError().GetReason(), state.TokenFromProto(r.GetToken()), c.now()
	w.repetition = r.GetRepetition()
	if c.session.Compare(w.token) < 0 {
		c.session = w.token
	}
	c.progress[loadWrites].Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := max(c.conf[w.key], numberOf(state.EpochFromProto(r.GetError().GetRegion().GetEpoch())))
	for _, e := range r.GetEvents() {
		known = max(known, numberOf(state.EpochFromProto(e.GetRegion().GetEpoch())))
		if c.ids[w.key] == 0 {
			c.ids[w.key] = e.GetRegion().GetId()
			c.keys = append(c.keys, w.key)
		}
	}
	c.conf[w.key] = known
}
