package nokvtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// FreezePlanner has no coordinator plan anything until what it returns is called: regions
// without an owner get none, nothing is evened out, and moves under way do not go on. Members
// fail and claims are answered as always.
func (c *Cluster) FreezePlanner() (thaw func()) {
	c.frozen.Store(true)
	return func() { c.frozen.Store(false) }
}

// Assign gives the region of a key to a member, and returns its route when the member owns it.
// In a keyspace of points the region is made if it is not there. An owner that is alive gives it
// back first; while the planner is frozen it is taken away from it at once, as by nokv region
// assign --now. That it owns the region may be news to the member: a request with region and epoch
// of the route waits there until it is ready.
func (c *Cluster) Assign(t testing.TB, keyspace string, key []byte, to rooted.MemberID) client.Route {
	t.Helper()
	var route client.Route
	var last error
	err := c.await(func(ctx context.Context) (done bool, err error) {
		if route, err = c.find(ctx, keyspace, key); err != nil {
			last = err
			return false, passes(err)
		}
		r := route.Region
		if len(r.Owners) == 1 && r.Owners[0].Member == to && acts(ctx, c.client, r.Owners[0]) {
			return true, nil
		}
		event := &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
			Owners: []*rootv1.Owner{{MemberId: string(to)}}, AtOnce: c.frozen.Load(),
		}}}}}
		if !c.frozen.Load() && len(r.Owners) == 1 && r.Owners[0].Member != to && acts(ctx, c.client, r.Owners[0]) {
			k, err := c.client.GetKeyspace(ctx, keyspace)
			if err != nil {
				last = err
				return false, passes(err)
			}
			times := state.MovesOf(k.GetKeyspace().GetSettings())
			event = &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
				RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), From: r.Owners[0].Proto(), To: &rootv1.Owner{MemberId: string(to)},
				PrepareMaxMillis: times.GetPrepareMaxMillis(), DeadlineMillis: times.GetDeadlineMillis(),
				Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
			}}}
		}
		_, last = c.client.PublishEvent(ctx, event)
		return false, passes(last)
	})
	if err != nil {
		t.Fatalf("nokvtest: assign key %q of %s to %s: %v", key, keyspace, to, errors.Join(err, last))
	}
	return route
}

// find finds the region of a key, and has it made where that is how regions come to be.
func (c *Cluster) find(ctx context.Context, keyspace string, key []byte) (client.Route, error) {
	route, err := c.client.GetRegionByKey(ctx, key, client.In(keyspace), client.Strong())
	if !errors.Is(err, client.ErrNotFound) {
		return route, err
	}
	claimed, err := c.client.Claim(ctx, keyspace, key)
	return claimed.Route, err
}

// acts reports whether an owner may act.
func acts(ctx context.Context, cl *client.Client, o rooted.Owner) bool {
	m, err := cl.GetMember(ctx, o.Member, client.Strong())
	is := m.GetMember().GetState()
	return err == nil && m.GetMember().GetIncarnation() == o.Incarnation && (is == rootv1.MemberState_MEMBER_STATE_ACTIVE || is == rootv1.MemberState_MEMBER_STATE_DRAINING)
}

// passes returns what does not pass by itself.
func passes(err error) error {
	for _, e := range []error{
		context.DeadlineExceeded, client.ErrUnreachable, client.ErrRootUnavailable, client.ErrNotLeader, client.ErrEpochStale, client.ErrOverloaded,
		client.ErrOutcomeUnknown, client.ErrEraStale, client.ErrNoActiveMembers, client.ErrRangeChangePending,
	} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// AwaitOwner waits until a member owns the region of a key alone, and returns its route.
func (c *Cluster) AwaitOwner(t testing.TB, keyspace string, key []byte, member rooted.MemberID) client.Route {
	t.Helper()
	var route client.Route
	var last error
	err := c.await(func(ctx context.Context) (bool, error) {
		route, last = c.client.GetRegionByKey(ctx, key, client.In(keyspace), client.Strong())
		return last == nil && route.Region != nil && len(route.Region.Owners) == 1 && route.Region.Owners[0].Member == member, nil
	})
	if err != nil {
		has := "nobody"
		if r := route.Region; r != nil && len(r.Owners) > 0 {
			has = fmt.Sprint(r.Owners)
		}
		t.Fatalf("nokvtest: key %q of %s is not %s's but %s's: %v", key, keyspace, member, has, errors.Join(err, last))
	}
	return route
}

// Await waits until something has come true, and fails the test if that takes 2 minutes.
func (c *Cluster) Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if err := c.await(func(context.Context) (bool, error) { return holds(), nil }); err != nil {
		t.Fatalf("nokvtest: never: %s: %v", what, err)
	}
}

func (c *Cluster) await(holds func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	look := time.NewTicker(pace)
	defer look.Stop()
	for {
		if done, err := holds(ctx); done || err != nil {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %v", patience)
		}
	}
}

// Cut stops everything between two hosts, in both directions, without either being told, until
// what it returns is called.
func (c *Cluster) Cut(a, b string) (mend func()) {
	set := func(cut bool) func() {
		return func() { c.net.cut[[2]string{a, b}], c.net.cut[[2]string{b, a}] = cut, cut }
	}
	c.net.change(set(true))
	return func() { c.net.change(set(false)) }
}

// Pause stops everything to and from a host, until what it returns is called: to others it
// looks like a process that hangs. Its own clock goes on, so that a member stops itself when its
// ttl is over, as it does when it wakes up.
func (c *Cluster) Pause(host string) (resume func()) {
	c.net.change(func() { c.net.paused[host] = true })
	return func() { c.net.change(func() { delete(c.net.paused, host) }) }
}

// EndEra asks the era under way to end, and returns when another one has begun. A cluster of one
// coordinator is without ids and timestamps for 5 s then; with two, the other one takes over.
func (c *Cluster) EndEra(t testing.TB) rooted.Era {
	t.Helper()
	ctx, cancel := context.WithTimeout(client.WithWhy(context.Background(), "nokvtest"), patience)
	defer cancel()
	ended, err := c.client.EndTenure(ctx, 0)
	if err != nil {
		t.Fatalf("nokvtest: end the era: %v", err)
	}
	before := rooted.Era(ended.GetTenure().GetEra())
	if err := c.await(func(ctx context.Context) (bool, error) {
		_, err := c.client.Tso(ctx, 1)
		return err == nil && c.client.Era() > before, nil
	}); err != nil {
		t.Fatalf("nokvtest: no era behind %d: %v", before, err)
	}
	return c.client.Era()
}

// Holder is the id of the coordinator that holds the Tenure: that of the newest era that this test
// has heard of. A coordinator that is asked may know only of an older one.
func (c *Cluster) Holder(t testing.TB) string {
	t.Helper()
	holder := ""
	if err := c.await(func(ctx context.Context) (bool, error) {
		for _, at := range append([]string{""}, c.Addresses()...) {
			s, err := c.client.Status(ctx, at)
			holder = s.GetTenure().GetHolderId()
			if err == nil && holder != "" && rooted.Era(s.GetTenure().GetEra()) >= c.client.Era() {
				return true, nil
			}
		}
		return false, nil
	}); err != nil {
		t.Fatalf("nokvtest: nobody holds the Tenure: %v", err)
	}
	return holder
}

// KillCoordinator ends a coordinator as kill -9 does.
func (c *Cluster) KillCoordinator(t testing.TB, id string) {
	t.Helper()
	p := c.coordinator(t, id)
	c.net.kill(p.host)
	p.stop()
}

// RestartCoordinator starts a coordinator anew at its address; one that runs is killed first.
func (c *Cluster) RestartCoordinator(t testing.TB, id string) {
	t.Helper()
	p := c.coordinator(t, id)
	c.net.kill(p.host)
	p.stop()
	if _, err := c.startCoordinator(id, p.address); err != nil {
		t.Fatalf("nokvtest: restart coordinator %s: %v", id, err)
	}
}

func (c *Cluster) coordinator(t testing.TB, id string) *coordinatorProcess {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.coordinators[id]
	if p == nil {
		t.Fatalf("nokvtest: there is no coordinator %q: they are c1 to c%d", id, c.options.coordinators)
	}
	return p
}
