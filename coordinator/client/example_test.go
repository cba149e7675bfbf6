package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// example serves one fake coordinator in memory. Real programs need only
//
//	client.New(client.Config{Endpoints: []string{"10.0.0.1:7100", "10.0.0.2:7100"}})
func example() (*client.Client, func()) {
	f := &fake{cluster: newCluster(7)}
	f.watch = func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
		first := snapshot(1)
		first.Changes = now(region(1, "", "m", 1), region(2, "m", "", 1))
		first.Keyspaces = []*coordinatorv1.KeyspaceChange{{Keyspace: &rootv1.Keyspace{Id: 1, Name: "default"}}}
		first.Members = members(&rootv1.Member{Id: "m1", Address: "10.0.0.1:7000", State: rootv1.MemberState_MEMBER_STATE_ACTIVE})
		if req.GetAfter() == nil {
			if err := s.Send(first); err != nil {
				return err
			}
		}
		second := whole(2)
		second.Changes = now(region(2, "m", "", 2))
		if err := s.Send(second); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
	l, s := bufconn.Listen(1<<16), grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServer(s, f)
	go func() { _ = s.Serve(l) }()
	c, err := client.New(client.Config{
		Endpoints:   []string{"coordinator"},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })},
	})
	if err != nil {
		panic(err)
	}
	return c, func() { _ = c.Close(); s.Stop() }
}

func ExampleClient_GetRegionByKey() {
	c, end := example()
	defer end()
	ctx := context.Background()
	route, err := c.GetRegionByKey(ctx, []byte("user/42"), client.In("users"), client.Bounded(100, time.Second))
	switch {
	case errors.Is(err, client.ErrNotFound):
		fmt.Println("nobody has it")
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("region", route.Region.ID, "is at", route.Address())
	}
	// Output: region 1 is at 10.0.0.1:7000
}

func ExampleClient_AllocID() {
	c, end := example()
	defer end()
	ids, err := c.AllocID(context.Background(), 100)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ids.Count, "ids, the last is", ids.Last()-ids.First, "above the first")
	// Output: 100 ids, the last is 99 above the first
}

func ExampleClient_Tso() {
	c, end := example()
	defer end()
	ctx := context.Background()
	began, err := c.Now(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	run, err := c.Tso(ctx, 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(began.Time().UTC().Format(time.DateOnly), run.Count, run.First > began)
	// Output: 2023-11-14 10 true
}

func ExampleClient_Publish() {
	c, end := example()
	defer end()
	ctx := context.Background()
	publish := &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
		Region: &rootv1.Region{KeyspaceId: uint32(rooted.DefaultKeyspace), StartKey: []byte("a"), EndKey: []byte("b")},
	}}}
	result, err := c.PublishEvent(ctx, publish)
	var refused *client.Error
	switch {
	case errors.Is(err, client.ErrRangeOverlap) && errors.As(err, &refused):
		fmt.Println("in the way:", refused.Detail.GetRegion())
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println(result.GetOutcome(), rooted.TokenFromProto(result.GetToken()))
	}
	// Output: OUTCOME_APPLIED 1.1.1
}

func ExampleClient_NewSession() {
	c, end := example()
	defer end()
	ctx := context.Background()
	s := c.NewSession(rooted.Token{})
	if _, err := s.Publish(ctx, &rootv1.Command{Events: []*rootv1.Event{{}}}); err != nil {
		fmt.Println(err)
		return
	}
	// At any coordinator, this read waits for what was just written.
	route, err := c.GetRegionByKey(ctx, []byte("a"), s.Read())
	fmt.Println(route.Found(), err, s.Token())
	// Output: true <nil> 1.1.1
}

func ExampleClient_WatchRegions() {
	c, end := example()
	defer end()
	for batch, err := range c.WatchRegions(context.Background(), client.Position{}, client.In("default")) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, change := range batch.GetChanges() {
			fmt.Println(batch.GetSnapshot(), batch.Position(), "region", change.GetRegion().GetId())
		}
		if batch.Last && !batch.GetSnapshot() {
			break
		}
	}
	// Output:
	// true 1.1.1@0000000000000007 region 1
	// true 1.1.1@0000000000000007 region 2
	// false 1.1.2@0000000000000007 region 2
}

// A Mirror is an exact copy that survives its process.
func ExampleMirror() {
	c, end := example()
	defer end()
	var file bytes.Buffer // a real program writes a file, and renames it

	run := func(until uint64) *client.Mirror {
		ctx, stop := context.WithCancel(context.Background())
		m := c.NewMirror(client.MirrorConfig{Keyspace: "default", OnChange: func(u client.Update) {
			fmt.Println("at", u.At, "everything:", u.Whole)
			if u.At.Token.Index >= until {
				stop()
			}
		}})
		if file.Len() > 0 {
			if err := m.Load(&file); err != nil {
				fmt.Println(err)
			}
		}
		if err := m.Run(ctx); err != nil {
			fmt.Println(err)
		}
		return m
	}
	if err := run(1).Save(&file); err != nil {
		fmt.Println(err)
	}
	// Another process goes on from there.
	for region := range run(2).All() {
		fmt.Println("region", region.ID, "revision", region.Revision)
	}
	// Output:
	// at 1.1.1@0000000000000007 everything: true
	// at 1.1.2@0000000000000007 everything: false
	// region 1 revision 1
	// region 2 revision 2
}

func ExampleCache() {
	c, end := example()
	defer end()
	cache := c.NewCache(client.CacheConfig{Keyspace: "default"})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- cache.Run(ctx) }()
	<-cache.Ready()

	route, err := cache.Route(ctx, []byte("zebra")) // tens of nanoseconds
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("region", route.Region.ID, "is at", route.Address())
	// A member that refuses the route's epoch as stale knows better:
	cache.Invalidate(route)

	stop()
	fmt.Println(<-done)
	// Output:
	// region 2 is at 10.0.0.1:7000
	// <nil>
}
