package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	hosts     = 4
	hostedBy  = 8 // regions of a keyspace
	hostedTTL = 500 * ms
)

// served is an answer of a member, as its caller got it: for which region, at which
// epoch, and which request of the region it was.
type served struct {
	keyspace, member    string
	region              state.RegionID
	epoch               state.Epoch
	number, incarnation uint64
	called, returned    time.Duration
}

// hosting is a cluster with members as processes, and callers that ask them for work at
// the epochs that coordinators tell.
type hosting struct {
	*run
	client   *client.Client
	http     http.Client
	workers  [hosts]*proctest.Process
	restarts int
	// on changes how a member's process is run; nil: on this machine.
	on func(member int, o *proctest.Options)

	mu sync.Mutex
	// Guarded by mu.
	answers []served
	refused int
	last    error
}

// hostedSettings are those of both keyspaces.
func hostedSettings(o *rootv1.Ownership, dead time.Duration) *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{
		Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: hostedBy}}},
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: o,
		Liveness: &rootv1.Liveness{IntervalMillis: 100, SuspectAfterMillis: 300, DeadAfterMillis: uint64(dead / ms), Probe: true, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_SUSPECT},
		Moves:    &rootv1.Moves{PrepareMaxMillis: 500, DeadlineMillis: 3000, HoldRequestsMillis: 500},
		Guards:   &rootv1.Guards{MassPermille: 1000, FlapFailures: 16, FlapWindowMillis: 1000},
	}
}

var hostedIn = map[string]*rootv1.Ownership{
	"timed":  {MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: uint64(hostedTTL / ms)},
	"fenced": {MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
}

// TestA45C66R02Members breaks members that are processes, and the coordinators above them, while
// callers ask for work: a member whose line to the holder is cut goes on by another
// coordinator.
func TestA45C66R02Members(t *testing.T) {
	t.Parallel()
	h := startHosts(t)
	ctx, stop := context.WithCancel(t.Context())
	var asking, following sync.WaitGroup
	defer following.Wait()
	defer asking.Wait()
	defer stop()
	for i := range roots {
		following.Go(func() { h.c.follow(ctx, i, h.e) })
	}
	for i := range 4 {
		asking.Go(func() { h.ask(ctx, i%2 == 0) })
	}
	h.all("before any fault")
	faults := h.memberFaults()
	took := map[string]time.Duration{}
	rounds := max(1, *runs)
	for round := range rounds {
		for _, f := range faults {
			begun := time.Now()
			f.do(h)
			h.all("after " + f.name)
			took[f.name] = max(took[f.name], time.Since(begun))
		}
		t.Logf("round %d: %d answers", round+1, h.count())
	}
	stop()
	asking.Wait()
	following.Wait()
	h.judgeMembers()
	slices.SortFunc(faults, func(a, b memberFault) int { return int(took[b.name] - took[a.name]) })
	testreport.Linef(t, "chaos with members: %d processes, %d rounds of %d faults, %d answers, %d requests refused or unanswered, %d log entries replayed; everything served again at the latest %s after %s",
		hosts, rounds, len(faults), len(h.answers), h.refused, len(h.e.log), took[faults[0].name].Round(ms), faults[0].name)
}

type memberFault struct {
	name string
	do   func(*hosting)
}

func (h *hosting) memberFaults() []memberFault {
	return []memberFault{
		{"kill -9 of a member", func(h *hosting) {
			i := h.any()
			h.killHost(i)
			h.start(i)
		}},
		{"a member stopped beyond its ttl, and back", func(h *hosting) {
			w := h.workers[h.any()]
			w.Signal(syscall.SIGSTOP)
			time.Sleep(3 * hostedTTL) // the fault
			w.Signal(syscall.SIGCONT)
		}},
		{"SIGTERM: a drain", func(h *hosting) {
			i := h.any()
			h.workers[i].Signal(syscall.SIGTERM)
			if code := h.workers[i].Wait(patience); code != 0 {
				h.t.Errorf("%s: exit status %d after SIGTERM", hostName(i), code)
			}
			h.start(i)
		}},
		{"the holder cut from members, in one direction", func(h *hosting) {
			m := h.c.find("holder")
			cut := both(callersGo, place(m))[h.rng.IntN(2)]
			h.c.net.Set(cut[0], cut[1], proctest.Condition{Cut: true})
			before := h.harm([]way{cut})
			time.Sleep(2 * hostedTTL) // the fault
			proctest.Eventually(h.t, patience, func() error {
				if h.harm([]way{cut}) == before {
					return fmt.Errorf("nothing went from %s to %s while that was cut", cut[0], cut[1])
				}
				return nil
			})
			h.c.net.Set(cut[0], cut[1], proctest.Condition{})
		}},
		{"kill -9 of a member and the holder", func(h *hosting) {
			i, m := h.any(), h.c.find("holder")
			h.killHost(i)
			h.c.kill(m)
			h.c.start(m, nil)
			h.start(i)
		}},
		{"kill -9 of half of the members", func(h *hosting) {
			for i := range hosts / 2 {
				h.killHost(i)
			}
			for i := range hosts / 2 {
				h.start(i)
			}
		}},
	}
}

func startHosts(t *testing.T) *hosting {
	t.Helper()
	return startHostsOn(t, newCluster(t, defaultTTL), 700*ms, nil)
}

// startHostsOn starts members on a cluster; who is silent for dead has failed.
func startHostsOn(t *testing.T, c *cluster, dead time.Duration, on func(int, *proctest.Options)) *hosting {
	t.Helper()
	seed := *firstSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	h := &hosting{run: &run{
		t: t, s: &schedule{seed: seed, ttl: defaultTTL}, e: &evidence{staleness: staleness}, rng: rand.New(rand.NewPCG(seed, 3)),
		began: time.Now(), c: c,
	}, http: http.Client{Timeout: 500 * ms}, on: on}
	for m := range members {
		h.c.start(m, nil)
	}
	h.c.WaitHealthy(patience)
	var err error
	if h.client, err = client.New(client.Config{Endpoints: h.c.advertised}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range h.workers {
		h.start(i)
	}
	// Behind the members, so that each has some of the regions.
	for i := range h.workers {
		proctest.Eventually(t, patience, func() error {
			m, err := h.client.GetMember(ctx, rooted.MemberID(hostName(i)), client.Strong())
			if err == nil && !m.GetConnected() {
				err = fmt.Errorf("%s has no stream yet", hostName(i))
			}
			return err
		})
	}
	for name, o := range hostedIn {
		if _, err := h.client.CreateKeyspace(ctx, name, "", hostedSettings(o, dead)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func hostName(i int) string { return fmt.Sprintf("w%d", i+1) }

func (h *hosting) any() int { return h.rng.IntN(hosts) }

// start starts a member's process.
func (h *hosting) start(i int) {
	h.restarts++
	o := h.c.Options(fmt.Sprintf("%s-%d", hostName(i), h.restarts), "worker", "--id", hostName(i), "--coordinator-addr", strings.Join(h.c.advertised, ","), "-o", "json")
	if h.on != nil {
		h.on(i, &o)
	}
	h.workers[i] = proctest.Start(h.t, o)
}

func (h *hosting) killHost(i int) {
	if !h.workers[i].Running() {
		h.t.Errorf("%s was not there to kill:\n%s", hostName(i), h.workers[i].Tail())
	}
	h.workers[i].Kill()
}

// ask asks for work, as its route says, until ctx ends. A loyal caller goes by the same route until it is refused:
// nobody else asks who has lost a region.
func (h *hosting) ask(ctx context.Context, loyal bool) {
	names := []string{"timed", "fenced"}
	var known map[[2]string]client.Route
	if loyal {
		known = map[[2]string]client.Route{}
	}
	for n := rand.IntN(1000); ctx.Err() == nil; n++ {
		called := time.Since(h.began)
		a, err := h.askOne(ctx, names[n%2], fmt.Sprintf("k%d", n%64), known)
		h.mu.Lock()
		if err != nil {
			h.refused++
			h.last = err
		} else {
			a.called, a.returned = called, time.Since(h.began)
			h.answers = append(h.answers, a)
		}
		h.mu.Unlock()
	}
}

// askOne asks by the route that is known, or by that of now, and notes it if known is not nil.
func (h *hosting) askOne(ctx context.Context, keyspace, key string, known map[[2]string]client.Route) (a served, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	at := [2]string{keyspace, key}
	route, ok := known[at]
	if !ok {
		if route, err = h.client.GetRegionByKey(ctx, []byte(key), client.In(keyspace)); err != nil {
			return a, err
		}
	}
	a, err = h.askBy(ctx, keyspace, key, route)
	switch {
	case err != nil:
		delete(known, at)
	case known != nil:
		known[at] = route
	}
	return a, err
}

func (h *hosting) askBy(ctx context.Context, keyspace, key string, route client.Route) (a served, err error) {
	if route.Address() == "" {
		return a, errors.New("nobody owns it")
	}
	url := fmt.Sprintf("http://%s/%s/%s?epoch=%d.%d", route.Address(), keyspace, key, route.Region.Epoch.Version, route.Region.Epoch.ConfVersion)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return a, err
	}
	resp, err := h.http.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s: %w", resp.Status, raw, err)
	}
	a.keyspace = keyspace
	var quoted string
	_, err = fmt.Sscanf(string(raw), "%s serves %q in region %d at %d.%d: request %d of incarnation %d\n",
		&a.member, &quoted, &a.region, &a.epoch.Version, &a.epoch.ConfVersion, &a.number, &a.incarnation)
	return a, err
}

func (h *hosting) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.answers)
}

// all waits until every region of every keyspace has answered anew.
func (h *hosting) all(when string) {
	h.t.Helper()
	from := h.count()
	proctest.Eventually(h.t, patience, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		seen := map[state.RegionID]bool{}
		for _, a := range h.answers[from:] {
			seen[a.region] = true
		}
		if want := hostedBy * len(hostedIn); len(seen) < want {
			return fmt.Errorf("%s: %d of %d regions are served; the last error: %w", when, len(seen), want, h.last)
		}
		return nil
	})
}

// judgeMembers judges the answers against each other and the log.
func (h *hosting) judgeMembers() {
	h.t.Helper()
	for _, err := range judgeServed(h.answers, h.grants()) {
		h.t.Error(err)
	}
	if h.e.disagreed != nil {
		h.t.Errorf("Tail: %v", h.e.disagreed)
	}
}

// grant is a region as the log grants it.
type grant struct {
	region state.RegionID
	epoch  state.Epoch
}

type granted struct {
	owners []state.Owner
	// frontier that it was granted with; moved: its owner before released it there.
	frontier uint64
	moved    bool
}

// grants replays the log.
func (h *hosting) grants() map[grant]granted {
	h.t.Helper()
	all := map[grant]granted{}
	st := state.New()
	for i, e := range h.e.log {
		var out state.Applied
		before := st.Fork()
		if err := st.ApplyEntry(e.term, uint64(i)+1, e.data, &out); err != nil {
			h.t.Fatalf("Durability: entry %d: %v", i+1, err)
		}
		moved := map[state.RegionID]bool{}
		for _, c := range out.Changes {
			if c.Kind == state.ChangeTransition && c.Transition.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
				from := rooted.OwnerFromProto(c.Transition.GetFrom())
				moved[state.RegionID(c.Transition.GetRegionId())] = before.Acts(from)
			}
		}
		for _, c := range out.Changes {
			if c.Kind != state.ChangeRegion || c.Removed {
				continue
			}
			var n uint64
			_, _ = fmt.Sscan(c.Region.Frontier, &n) // empty: 0
			all[grant{c.Region.ID, c.Region.Epoch}] = granted{slices.Clone(c.Region.Owners), n, moved[c.Region.ID]}
		}
		if n := orphansOf(st); n != st.Orphaned() {
			h.t.Errorf("Orphans: %d regions have no owner at %s, %d are counted", n, st.Token(), st.Orphaned())
		}
	}
	return all
}

func orphansOf(st *state.State) (n int) {
	for name := range hostedIn {
		if k := st.KeyspaceByName(name); k != nil {
			st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
				if !slices.ContainsFunc(r.Owners, st.Acts) {
					n++
				}
				return true
			})
		}
	}
	return n
}

// judgeServed asks for one owner an epoch, for one a moment where the fence is a ttl, and
// for frontiers: whoever takes a region from an owner that released it goes on where that
// stopped, and no request has two numbers.
func judgeServed(answers []served, grants map[grant]granted) (broken []error) {
	add := func(format string, args ...any) {
		if len(broken) < 5 {
			broken = append(broken, fmt.Errorf(format, args...))
		}
	}
	slices.SortFunc(answers, func(a, b served) int { return int(a.called - b.called) })
	numbers := map[grant]map[uint64]bool{}
	for _, a := range answers {
		at := grant{a.region, a.epoch}
		g, ok := grants[at]
		switch {
		case !ok:
			add("One owner an epoch: %s answered for region %d at %s, which the log does not have", a.member, a.region, a.epoch)
		case !slices.ContainsFunc(g.owners, func(o state.Owner) bool {
			return string(o.Member) == a.member && o.Incarnation == a.incarnation
		}):
			add("One owner an epoch: %s/%d answered for region %d at %s, which is %v's", a.member, a.incarnation, a.region, a.epoch, g.owners)
		case a.number <= g.frontier:
			add("Frontier: %s gave number %d of region %d at %s, which it had from %d on", a.member, a.number, a.region, a.epoch, g.frontier)
		}
		next := grant{a.region, state.Epoch{Version: a.epoch.Version, ConfVersion: a.epoch.ConfVersion + 1}}
		if g, ok := grants[next]; ok && g.moved && a.number > g.frontier {
			add("Frontier: %s gave number %d of region %d at %s, its next owner began above %d", a.member, a.number, a.region, a.epoch, g.frontier)
		}
		if numbers[at] == nil {
			numbers[at] = map[uint64]bool{}
		}
		if numbers[at][a.number] {
			add("Frontier: region %d at %s gave number %d twice", a.region, a.epoch, a.number)
		}
		numbers[at][a.number] = true
	}
	return append(broken, judgeMoments(answers)...)
}

// judgeMoments: where the fence is a ttl, nobody answers a request that began behind the
// answer of a later owner.
func judgeMoments(answers []served) []error {
	type seen struct {
		epoch state.Epoch
		at    time.Duration
	}
	byEnd := slices.Clone(answers)
	slices.SortFunc(byEnd, func(a, b served) int { return int(a.returned - b.returned) })
	newest, i := map[state.RegionID]seen{}, 0
	for _, a := range answers { // by call
		for ; i < len(byEnd) && byEnd[i].returned < a.called; i++ {
			b := byEnd[i]
			if b.epoch.NewerThan(newest[b.region].epoch) {
				newest[b.region] = seen{b.epoch, b.returned}
			}
		}
		if s := newest[a.region]; a.keyspace == "timed" && s.epoch.NewerThan(a.epoch) {
			return []error{fmt.Errorf("One owner a moment: %s answered for region %d at %s a request of %v, and %s had answered at %v", a.member, a.region, a.epoch, a.called, s.epoch, s.at)}
		}
	}
	return nil
}

// Each promise broken by hand is found.
func TestMembersContrast(t *testing.T) {
	one := grant{7, state.Epoch{Version: 1, ConfVersion: 2}}
	two := grant{7, state.Epoch{Version: 1, ConfVersion: 3}}
	grants := map[grant]granted{
		one: {owners: []state.Owner{{Member: "w1", Incarnation: 1}}},
		two: {owners: []state.Owner{{Member: "w2", Incarnation: 2}}, frontier: 5, moved: true},
	}
	say := func(g grant, member string, incarnation, number uint64, called, returned time.Duration) served {
		return served{keyspace: "timed", member: member, region: g.region, epoch: g.epoch, incarnation: incarnation, number: number, called: called, returned: returned}
	}
	good := []served{say(one, "w1", 1, 5, 1, 2), say(two, "w2", 2, 6, 3, 4)}
	if broken := judgeServed(good, grants); len(broken) != 0 {
		t.Errorf("nothing is wrong, and found: %v", broken)
	}
	for want, bad := range map[string][]served{
		"One owner an epoch": {say(one, "w2", 2, 1, 1, 2)},
		"One owner a moment": append([]served{say(one, "w1", 1, 4, 5, 6)}, good...),
		"which it had from":  {say(two, "w2", 2, 5, 1, 2)},
		"its next owner":     {say(one, "w1", 1, 6, 1, 2)},
		"twice":              {say(one, "w1", 1, 3, 1, 2), say(one, "w1", 1, 3, 3, 4)},
	} {
		if broken := errors.Join(judgeServed(bad, grants)...); broken == nil || !strings.Contains(broken.Error(), want) {
			t.Errorf("%s: found %v", want, broken)
		}
	}
}
