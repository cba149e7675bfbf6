package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goclient "github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/test/size"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// A seed of TestWatchSimulation is half a minute of virtual trouble, and a minute of calm.
var watchSeeds = size.Int("watch-seeds", 5, 64, "how many seeds the simulation of watches runs")

// TestWatchSimulation has the real watch service and the real Go client, in
// virtual time, follow a root whose regions, keyspaces and members come and go,
// through coordinators that lag, are cut off, restart and forget. The Tail
// checker compares every copy with the log replayed to the copy's position,
// whenever the copy moves.
func TestWatchSimulation(t *testing.T) {
	total := watched{}
	for seed := *first; seed < *first+uint64(*watchSeeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { total.add(runWatch(t, seed)) })
		})
		if t.Failed() {
			t.Fatal(repeat("TestWatchSimulation", seed, "-watch-seeds 1"))
		}
	}
	for what, n := range map[string]int{ // which one seed may lack
		"snapshots": total.snapshots, "snapshots that replaced a copy": total.replaced, "batches in parts": total.parts,
		"resumed copies": total.loads, "watches left in the middle of a batch": total.left, "keyspaces made again": total.remade,
		"routes after an Invalidate": total.routes,
	} {
		if n == 0 && *watchSeeds >= 5 {
			t.Errorf("only %d %s in %d seeds", n, what, *watchSeeds)
		}
	}
	testreport.Linef(t, "simulation of watches: %d seeds, %+v", *watchSeeds, total)
}

// watched counts what happened.
type watched struct{ moves, snapshots, replaced, parts, loads, left, remade, routes int }

func (w *watched) add(o watched) {
	w.moves += o.moves
	w.snapshots += o.snapshots
	w.replaced += o.replaced
	w.parts += o.parts
	w.loads += o.loads
	w.left += o.left
	w.remade += o.remade
	w.routes += o.routes
}

// watchRun is one seed.
type watchRun struct {
	t     *testing.T
	rand  *rand.Rand
	root  *watchRoot
	nodes []*watchNode

	mu    sync.Mutex
	count watched // guarded by mu
}

const watchKeyspace = "actors"

func runWatch(t *testing.T, seed uint64) watched {
	r := &watchRun{t: t, rand: rand.New(rand.NewPCG(seed, 8)), root: newWatchRoot(t)}
	for i := range 3 {
		r.nodes = append(r.nodes, &watchNode{r: r, address: fmt.Sprintf("c%d", i+1)})
		r.nodes[i].start()
	}
	r.remake(8)
	cl, err := goclient.New(goclient.Config{
		Endpoints: []string{"c1", "c2", "c3"}, WatchSilence: 3 * time.Second, Shuffle: seed%2 == 0,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(r.dial)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, cfg := range []goclient.MirrorConfig{
		{Members: true},
		{Keyspace: watchKeyspace},
		{Read: []goclient.ReadOption{goclient.Bounded(1<<40, time.Second)}},
	} {
		readers.Go(func() { r.mirror(ctx, cl, cfg) })
	}
	readers.Go(func() { r.cache(ctx, cl) })
	readers.Go(func() { r.resumer(ctx, cl) })
	end := time.Now().Add(30 * time.Second)
	for time.Now().Before(end) {
		r.change()
		if r.chance(0.1) {
			r.disturb()
		}
		time.Sleep(time.Duration(r.rand.IntN(200)) * time.Millisecond)
	}
	r.calm(ctx)
	cancel()
	readers.Wait()
	_ = cl.Close()
	for _, n := range r.nodes {
		n.stop()
	}
	return r.count
}

func (r *watchRun) chance(p float64) bool { return r.rand.Float64() < p }

func (r *watchRun) counted(count func(*watched)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count(&r.count)
}

// calm ends the trouble for all coordinators but one, which stays cut off, and
// asks that every copy then reaches the newest position.
func (r *watchRun) calm(ctx context.Context) {
	for i, n := range r.nodes {
		n.root.set(func(p *rootPort) { p.cut, p.hold = i == 0, 0 })
	}
	time.Sleep(time.Minute)
	r.root.mu.Lock()
	last := r.root.last()
	r.root.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.root.copies {
		if at != last.Index && ctx.Err() == nil {
			r.t.Errorf("a minute after all was well %s is at %d, the log at %d", name, at, last.Index)
		}
	}
}

// disturb makes trouble for one coordinator, or takes it away.
func (r *watchRun) disturb() {
	n := r.nodes[r.rand.IntN(len(r.nodes))]
	switch r.rand.IntN(6) {
	case 0: // it is cut off from the root
		n.root.set(func(p *rootPort) { p.cut = true })
	case 1: // it lags
		n.root.set(func(p *rootPort) { p.hold = uint64(len(r.root.entries)) })
	case 2: // it begins again, at what the root has, or lagging
		n.stop()
		n.start()
	case 3: // the root forgets the past
		r.root.set(func() { r.root.first = uint64(len(r.root.entries)) - uint64(r.rand.IntN(3)) })
	default:
		n.root.set(func(p *rootPort) { p.cut, p.hold = false, 0 })
	}
}

// change changes the root.
func (r *watchRun) change() {
	st := r.root.now()
	keyspace := state.KeyspaceID(st.KeyspaceByName(watchKeyspace).GetId())
	switch r.rand.IntN(29) / 4 {
	case 0, 1: // a region comes
		r.root.next++
		key := fmt.Sprintf("%06d", r.rand.IntN(40))
		r.root.commit(published(&rootv1.Region{Id: 100_000 + r.root.next, KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~")}))
	case 2: // one changes
		if old := r.anyRegion(st); old != nil {
			p := old.Proto()
			p.Epoch.ConfVersion++
			r.root.commit(published(p))
		}
	case 3: // one goes
		if old := r.anyRegion(st); old != nil {
			r.root.commit(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(old.ID)}}})
		}
	case 4: // a member joins
		r.root.next++
		r.root.commit(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: fmt.Sprintf("m%d", r.root.next), Address: "10.0.0.1:1", Kind: "store", StartNonce: 1},
		}}})
	case 5: // the keyspace goes, and comes again or not; sometimes it is large
		if keyspace != 0 {
			r.root.commit(&rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: uint32(keyspace), ExpectedVersion: 1}}})
		}
		if r.chance(0.7) {
			slots := uint32(1 + r.rand.IntN(8))
			if r.chance(0.15) {
				slots = 6000 // more than fits into one part
			}
			r.remake(slots)
		}
	case 6:
		if keyspace == 0 {
			r.remake(3)
		}
	default:
		r.burst()
	}
}

// burst has many large regions come and go at once: more than fits into one
// part, with what goes far behind what came.
func (r *watchRun) burst() {
	var all []uint64
	for i := range 60 {
		r.root.next++
		key := fmt.Sprintf("burst/%02d/%s", i, strings.Repeat("x", 3000))
		all = append(all, 100_000+r.root.next)
		r.root.commit(published(&rootv1.Region{Id: all[i], KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~")}))
	}
	for _, id := range all {
		r.root.commit(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}})
	}
}

func (r *watchRun) remake(slots uint32) {
	settings := state.DefaultSettings()
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: slots}}}
	settings.Placement = rootv1.Placement_PLACEMENT_ASSIGNED
	r.root.commit(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: watchKeyspace, Settings: settings}}})
	r.counted(func(c *watched) { c.remade++ })
}

func (r *watchRun) anyRegion(st *state.State) (found *state.Region) {
	n := 0
	st.RegionsFrom(state.DefaultKeyspace, "", func(one *state.Region) bool {
		if n++; r.rand.IntN(n) == 0 {
			found = one
		}
		return true
	})
	return found
}

// copied is what somebody has who followed a watch.
type copied struct {
	regions   map[state.RegionID]*rooted.Region
	keyspaces map[uint32]*rootv1.Keyspace
	members   map[string]*rootv1.Member
}

// checkTail is the Tail checker: at a position, a copy is the log replayed to it.
func (r *watchRun) checkTail(name, keyspace string, members bool, at goclient.Position, whole bool, got copied) {
	r.root.mu.Lock()
	defer r.root.mu.Unlock()
	if at.Token.Index == 0 || at.Token.Index > uint64(len(r.root.states)) || at.Cluster != watchCluster {
		r.t.Errorf("Tail: %s is at %s, the log ends at %d", name, at, len(r.root.states))
		return
	}
	before := r.root.copies[name]
	if at.Token.Index < before {
		r.t.Errorf("Tail: %s went back from %d to %d", name, before, at.Token.Index)
	}
	if at.Token.Index == before && !whole {
		return // a sign of life
	}
	r.root.copies[name] = at.Token.Index
	if r.t.Failed() {
		return
	}
	st := r.root.states[at.Token.Index-1]
	want, keyspaces := 0, 0
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if keyspace != "" && k.GetName() != keyspace {
			return true
		}
		keyspaces++
		if got.keyspaces != nil && !proto.Equal(got.keyspaces[k.GetId()], k) {
			r.t.Errorf("Tail: %s has %v at %s, the log %v", name, got.keyspaces[k.GetId()], at, k)
		}
		st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(one *state.Region) bool {
			want++
			if !isRegion(got.regions[one.ID], one) {
				r.t.Errorf("Tail: %s has %v at %s, the log %s", name, got.regions[one.ID], at, show(one))
			}
			return !r.t.Failed()
		})
		return !r.t.Failed()
	})
	if len(got.regions) != want || got.keyspaces != nil && len(got.keyspaces) != keyspaces {
		r.t.Errorf("Tail: %s has %d regions and %d keyspaces at %s, the log %d and %d", name, len(got.regions), len(got.keyspaces), at, want, keyspaces)
	}
	if members && len(got.members) != st.MemberCount() {
		r.t.Errorf("Tail: %s has %d members at %s, the log %d", name, len(got.members), at, st.MemberCount())
	}
}

func isRegion(got *rooted.Region, want *state.Region) bool {
	return got != nil && got.ID == want.ID && got.Epoch == want.Epoch && got.Start == want.Start && got.End == want.End &&
		got.Keyspace == want.Keyspace && got.Revision == want.Revision && slices.Equal(got.Owners, want.Owners)
}

// mirror keeps a Mirror, which now and then is saved, thrown away and loaded.
func (r *watchRun) mirror(ctx context.Context, cl *goclient.Client, cfg goclient.MirrorConfig) {
	name := fmt.Sprintf("mirror of %q, %d options", cfg.Keyspace, len(cfg.Read))
	rnd := rand.New(rand.NewPCG(uint64(len(name)), 1))
	var saved bytes.Buffer
	for ctx.Err() == nil {
		life, end := context.WithTimeout(ctx, time.Duration(rnd.IntN(20_000))*time.Millisecond)
		var m *goclient.Mirror
		cfg.OnChange = func(u goclient.Update) {
			got := copied{regions: map[state.RegionID]*rooted.Region{}, keyspaces: map[uint32]*rootv1.Keyspace{}, members: map[string]*rootv1.Member{}}
			for one := range m.All() {
				got.regions[one.ID] = one
			}
			for _, k := range m.Keyspaces() {
				got.keyspaces[k.GetId()] = k
			}
			for _, one := range m.Members() {
				got.members[one.GetId()] = one
			}
			r.checkTail(name, cfg.Keyspace, cfg.Members, u.At, u.Whole, got)
			r.counted(func(c *watched) {
				c.moves++
				if u.Whole {
					c.snapshots++
					if saved.Len() > 0 {
						c.replaced++
					}
				}
			})
		}
		m = cl.NewMirror(cfg)
		if saved.Len() > 0 {
			if err := m.Load(bytes.NewReader(saved.Bytes())); err != nil {
				r.t.Error(err)
			}
			r.counted(func(c *watched) { c.loads++ })
		}
		err := m.Run(life)
		end()
		_, begun := m.At()
		// No coordinator being close enough to the root is what a bounded one may
		// say, and that there is no such keyspace who has never seen it.
		if errors.Is(err, goclient.ErrRootLagExceeded) && len(cfg.Read) > 0 || errors.Is(err, goclient.ErrNotFound) && cfg.Keyspace != "" && !begun {
			time.Sleep(100 * time.Millisecond)
		} else if err != nil {
			r.t.Errorf("%s ended: %v", name, err)
			return
		}
		if begun {
			saved.Reset()
			if err := m.Save(&saved); err != nil {
				r.t.Error(err)
			}
		}
		time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond) // much happens behind its back
	}
}

// cache keeps a goclient.Cache, and asks for routes that it was told are stale.
func (r *watchRun) cache(ctx context.Context, cl *goclient.Client) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, keyspace := range []string{watchKeyspace, "default"} {
		var k *goclient.Cache
		k = cl.NewCache(goclient.CacheConfig{Keyspace: keyspace, OnChange: func(u goclient.Update) {
			got := copied{regions: map[state.RegionID]*rooted.Region{}}
			for route := range k.All() {
				got.regions[route.Region.ID] = route.Region
			}
			r.checkTail("cache of "+keyspace, keyspace, false, u.At, u.Whole, got)
		}})
		running.Go(func() {
			for {
				err := k.Run(ctx)
				if _, begun := k.At(); begun || !errors.Is(err, goclient.ErrNotFound) {
					if err != nil {
						r.t.Errorf("cache of %s ended: %v", keyspace, err)
					}
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	def := cl.NewCache(goclient.CacheConfig{})
	running.Go(func() { _ = def.Run(ctx) })
	running.Go(func() {
		rnd := rand.New(rand.NewPCG(3, 3))
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			key := fmt.Appendf(nil, "%06d", rnd.IntN(40))
			stale, ok := def.Lookup(key)
			if !ok {
				continue
			}
			def.Invalidate(stale)
			at, _ := def.At()
			callCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
			route, err := def.Route(callCtx, key)
			cancel()
			if err == nil && (route.At.Compare(at.Token) < 0 || route.Region.ID == stale.Region.ID && route.Region.Revision < stale.Region.Revision) {
				r.t.Errorf("a route after Invalidate is of %s, the cache was at %s", route.At, at)
			}
			r.counted(func(c *watched) { c.routes++ })
		}
	})
}

// resumer reads a watch as a program that prints it does: it leaves it anywhere,
// and goes on behind the position of whatever it saw last.
func (r *watchRun) resumer(ctx context.Context, cl *goclient.Client) {
	rnd := rand.New(rand.NewPCG(5, 5))
	var at goclient.Position
	have := map[state.RegionID]*rooted.Region{}
	for ctx.Err() == nil {
		left := rnd.IntN(12)
		var arriving map[state.RegionID]*rooted.Region
		for b, err := range cl.WatchRegions(ctx, at) {
			if err != nil {
				if ctx.Err() == nil {
					r.t.Errorf("resumer ended: %v", err)
				}
				return
			}
			switch { // what is left in the middle counts for nothing
			case b.First && b.GetSnapshot():
				arriving = map[state.RegionID]*rooted.Region{}
			case b.First:
				arriving = maps.Clone(have)
			}
			for _, c := range b.GetChanges() {
				one := rooted.RegionFromProto(c.GetRegion())
				arriving[one.ID] = one
				if c.GetRemoved() {
					delete(arriving, one.ID)
				}
			}
			at = b.Position()
			if b.Last {
				have = arriving
				r.checkTail("resumer", "", false, at, true, copied{regions: have})
			} else {
				r.counted(func(c *watched) { c.parts++ })
			}
			if left--; left < 0 || !b.Last && rnd.IntN(2) == 0 {
				if !b.Last {
					r.counted(func(c *watched) { c.left++ })
				}
				break
			}
		}
	}
}

func (r *watchRun) dial(ctx context.Context, address string) (net.Conn, error) {
	for _, n := range r.nodes {
		if n.address == address {
			if l := n.at(); l != nil {
				return l.DialContext(ctx)
			}
		}
	}
	return nil, fmt.Errorf("dial %s: connection refused", address)
}

// watchNode is a coordinator: a real view and a real service.
type watchNode struct {
	r       *watchRun
	address string
	root    *rootPort
	end     func()

	mu       sync.Mutex
	listener *bufconn.Listener // guarded by mu
}

func (n *watchNode) at() *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listener
}

func (n *watchNode) start() {
	if n.root == nil {
		n.root = &rootPort{root: n.r.root}
	}
	monotonic := clock.NewMonotonic()
	views, err := rootview.New(rootview.Config{
		Root: n.root, ReadIndexer: n.root, Clock: monotonic, RetainedChanges: 20_000, RetainedBytes: 8 << 20,
		SnapshotRetryMax: 500 * time.Millisecond,
	})
	if err != nil {
		n.r.t.Fatal(err)
	}
	s, err := server.New(server.Config{
		ID: state.CoordinatorID(n.address), Address: n.address, Incarnation: n.r.rand.Uint64() | 1,
		Views: views, Authority: noAuthority{}, Root: n.root, Clock: monotonic,
	})
	if err != nil {
		n.r.t.Fatal(err)
	}
	l := bufconn.Listen(1 << 16)
	n.mu.Lock()
	n.listener = l
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = views.Run(ctx) })
	running.Go(func() { _ = s.Run(ctx, l) })
	n.end = func() {
		cancel()
		running.Wait()
	}
}

func (n *watchNode) stop() {
	n.mu.Lock()
	n.listener = nil
	n.mu.Unlock()
	n.end()
}

// noAuthority holds nothing.
type noAuthority struct{}

var errNotHeld = reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "nobody holds the Tenure here")

func (noAuthority) AllocID(context.Context, uint64) (uint64, uint64, error) { return 0, 0, errNotHeld }

func (noAuthority) Tso(context.Context, uint64) (uint64, uint64, error) { return 0, 0, errNotHeld }

func (noAuthority) Check(context.Context, uint64) error { return errNotHeld }

func (noAuthority) Status() tenure.Status { return tenure.Status{} }

func (noAuthority) ReserveTso(context.Context, uint64) (uint64, uint64, func(context.Context) error, error) {
	return 0, 0, nil, errNotHeld
}

func (noAuthority) ReserveAllocID(context.Context, uint64) (uint64, uint64, func(context.Context) error, error) {
	return 0, 0, nil, errNotHeld
}
