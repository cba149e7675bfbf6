package member_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	serving   = coordinatorv1.RegionPhase_REGION_PHASE_SERVING
	acquiring = coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING
	ready     = coordinatorv1.RegionPhase_REGION_PHASE_READY
	released  = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
)

var games = &coordinatorv1.KeyspaceTerms{
	KeyspaceId: 1, Name: "games", Fence: rootv1.Fence_FENCE_EPOCH, HoldRequestsMillis: 2000,
	Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
}

// app notes what it is asked, and does what a test says; nil: it succeeds.
type app struct {
	mu    sync.Mutex
	calls []string
	do    func(ctx context.Context, call string, r member.Region) error
}

func (a *app) note(ctx context.Context, call string, r member.Region) error {
	a.mu.Lock()
	a.calls = append(a.calls, fmt.Sprintf("%s %d@%s %s", call, r.ID, r.Epoch, r.Frontier))
	do := a.do
	a.mu.Unlock()
	if do != nil {
		return do(ctx, call, r)
	}
	return nil
}

func (a *app) called(want string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if c == want {
			n++
		}
	}
	return n
}

func (a *app) Acquire(ctx context.Context, r member.Region) error { return a.note(ctx, "acquire", r) }
func (a *app) Evict(ctx context.Context, r member.Region) error   { return a.note(ctx, "evict", r) }
func (a *app) Abandon(ctx context.Context, r member.Region) error { return a.note(ctx, "abandon", r) }

func (a *app) Prepare(ctx context.Context, r member.Region, from member.Peer) error {
	return a.note(ctx, "prepare from "+string(from.ID), r)
}

func (a *app) Release(ctx context.Context, r member.Region) ([]byte, error) {
	return []byte("after " + r.Frontier), a.note(ctx, "release", r)
}

func (a *app) Checkpoint(ctx context.Context, r member.Region) ([]byte, error) {
	return []byte("checkpoint"), a.note(ctx, "checkpoint", r)
}

func (a *app) Stopped(ctx context.Context, keyspace string) {
	_ = a.note(ctx, "stopped "+keyspace, member.Region{})
}

func (a *app) Resumed(ctx context.Context, keyspace string) {
	_ = a.note(ctx, "resumed "+keyspace, member.Region{})
}

// bubble is a cluster of fake coordinators and members in virtual time.
type bubble struct {
	*testing.T
	cluster *fakecoordinator.Cluster
	// coordinators are c1, c2 and c3.
	coordinators []*fakecoordinator.Coordinator
	client       *client.Client
	ends         []func()
}

// inBubble runs a test with coordinators c1, c2 and c3, of which c1 holds the Tenure;
// members know c1.
func inBubble(t *testing.T, keyspace *coordinatorv1.KeyspaceTerms, test func(*bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{T: t, cluster: fakecoordinator.New(keyspace)}
		for _, address := range []string{"c1", "c2", "c3"} {
			b.coordinators = append(b.coordinators, b.cluster.Start(address))
		}
		var err error
		b.client, err = client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(b.cluster.Dial)}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, end := range b.ends {
				end()
			}
			_ = b.client.Close()
			b.cluster.Stop()
		}()
		test(b)
	})
}

// process is a member that runs.
type process struct {
	*member.Member
	app    *app
	stop   context.CancelFunc
	ended  chan struct{}
	result error
}

func (b *bubble) start(id string, set func(*member.Config)) *process {
	b.Helper()
	return b.startWith(id, set, func(a *app) member.Handler { return a })
}

// startWith starts a member with an application that can do more, or less, than app.
func (b *bubble) startWith(id string, set func(*member.Config), handler func(*app) member.Handler) *process {
	b.Helper()
	begun := time.Now()
	cfg := member.Config{
		ID: id, Address: id + ":7000", Client: b.client, HandlerTimeout: 5 * time.Second,
		Elapsed: func() time.Duration { return time.Since(begun) },
	}
	if set != nil {
		set(&cfg)
	}
	m, err := member.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	before := b.cluster.Member(id).GetIncarnation()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{Member: m, app: &app{}, stop: stop, ended: make(chan struct{})}
	go func() {
		p.result = m.Run(ctx, handler(p.app))
		close(p.ended)
	}()
	b.ends = append(b.ends, func() {
		stop()
		<-p.ended
	})
	b.eventually("registered", func() bool { return b.cluster.Member(id).GetIncarnation() > before })
	return p
}

// eventually waits in virtual time.
func (b *bubble) eventually(what string, holds func() bool) {
	b.Helper()
	for range 3000 {
		synctest.Wait()
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatalf("never: %s", what)
}

func (b *bubble) await(id string, what string, holds func(fakecoordinator.Reported) bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := b.cluster.Await(ctx, id, holds); err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func (b *bubble) awaitPhase(id string, region uint64, phase coordinatorv1.RegionPhase) {
	b.Helper()
	b.await(id, fmt.Sprintf("region %d is %v", region, phase), func(r fakecoordinator.Reported) bool { return r.Phase(region) == phase })
}

// own is a region at (1, conf), of key "k<id>".
func own(id, conf uint64) *coordinatorv1.ShownRegion {
	key := fmt.Appendf(nil, "k%d", id)
	return &coordinatorv1.ShownRegion{Region: &rootv1.Region{
		Id: id, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: conf}, StartKey: key, EndKey: append(key, 0), Frontier: fmt.Appendf(nil, "f%d", conf),
	}}
}

func moving(id, conf uint64, role coordinatorv1.MoveRole, peer string, release bool) *coordinatorv1.ShownRegion {
	r := own(id, conf)
	r.Move = &coordinatorv1.ShownMove{TransitionId: fmt.Sprintf("move-%d-1.%d", id, conf), Role: role, PeerId: peer, PeerAddress: peer + ":7000", PeerIncarnation: 1, ReleaseNow: release}
	return r
}

func epoch(conf uint64) rooted.Epoch { return rooted.Epoch{Version: 1, ConfVersion: conf} }

func (p *process) ask(id, conf uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.Do(ctx, member.Request{Region: rooted.RegionID(id), Epoch: epoch(conf)}, func(context.Context, member.Region) error { return nil })
}

func is[E error](t testing.TB, err error) E {
	t.Helper()
	e, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("%v is no %T", err, e)
	}
	return e
}
