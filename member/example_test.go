package member_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// exampleCluster is a coordinator in memory. Real programs need only
//
//	client.New(client.Config{Endpoints: []string{"10.0.0.1:7100", "10.0.0.2:7100"}})
func exampleCluster() (*fakecoordinator.Cluster, *client.Client, func()) {
	cluster := fakecoordinator.New(games)
	cluster.Start("c1")
	c, err := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(cluster.Dial)}})
	if err != nil {
		panic(err)
	}
	return cluster, c, func() {
		_ = c.Close()
		cluster.Stop()
	}
}

// grant gives a region to the member of an example once that is registered.
func grant(cluster *fakecoordinator.Cluster, r *coordinatorv1.ShownRegion) {
	_ = cluster.Await(context.Background(), "worker-1", func(fakecoordinator.Reported) bool { return cluster.Member("worker-1") != nil })
	cluster.Show("worker-1", r)
}

// counters is an application that counts requests. What it got to is its frontier: the next
// owner goes on from there.
type counters struct {
	acquired chan member.Region
	count    int
}

func (c *counters) Acquire(_ context.Context, r member.Region) (err error) {
	if c.count, err = strconv.Atoi(r.Frontier); err != nil {
		return fmt.Errorf("frontier %q of region %d: %w", r.Frontier, r.ID, err)
	}
	fmt.Printf("acquire region %d at %s from %d\n", r.ID, r.Epoch, c.count)
	c.acquired <- r
	return nil
}

func (c *counters) Release(_ context.Context, r member.Region) ([]byte, error) {
	fmt.Printf("release region %d at %d\n", r.ID, c.count)
	return strconv.AppendInt(nil, int64(c.count), 10), nil
}

// A process hosts regions: it registers, is shown what is its own, serves that, and gives it
// back when it ends.
func ExampleMember_Run() {
	cluster, c, end := exampleCluster()
	defer end()
	m, err := member.New(member.Config{ID: "worker-1", Address: "10.0.0.7:7000", Client: c})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	app, ended := &counters{acquired: make(chan member.Region, 1)}, make(chan error)
	go func() { ended <- m.Run(ctx, app) }()

	granted := own(17, 3)
	granted.Region.Frontier = []byte("41")
	grant(cluster, granted)
	r := <-app.acquired

	err = m.Do(ctx, member.Request{Keyspace: "games", Key: []byte("k17"), Epoch: r.Epoch}, func(_ context.Context, r member.Region) error {
		app.count++
		fmt.Printf("serve k17 in region %d\n", r.ID)
		return nil
	})
	fmt.Println(err)
	stop() // SIGTERM; a process with time left calls Drain first
	fmt.Println(<-ended)
	// Output:
	// acquire region 17 at 1.3 from 41
	// serve k17 in region 17
	// <nil>
	// release region 17 at 42
	// <nil>
}

// A process that is to end gives its regions to others first: nobody notices that it goes.
func ExampleMember_Drain() {
	cluster, c, end := exampleCluster()
	defer end()
	m, err := member.New(member.Config{ID: "worker-1", Address: "10.0.0.7:7000", Client: c})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	app, ended := &counters{acquired: make(chan member.Region, 1)}, make(chan error)
	go func() { ended <- m.Run(ctx, app) }()
	granted := own(17, 3)
	granted.Region.Frontier = []byte("41")
	grant(cluster, granted)
	<-app.acquired

	// What the holder of the Tenure does about a goodbye: worker-2 prepares, then takes over.
	go func() {
		_ = cluster.Await(ctx, "worker-1", func(r fakecoordinator.Reported) bool { return r.Goodbye != nil })
		cluster.SetState("worker-1", rootv1.MemberState_MEMBER_STATE_DRAINING)
		cluster.Show("worker-1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "worker-2", true))
		_ = cluster.Await(ctx, "worker-1", func(r fakecoordinator.Reported) bool { return r.Phase(17) == released })
		cluster.End("worker-1", 17)
	}()

	// SIGTERM: the time that is left is told.
	deadline, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println("drained:", m.Drain(deadline, "the host is updated"))
	err = m.Do(ctx, member.Request{Region: 17, Epoch: rooted.Epoch{Version: 1, ConfVersion: 3}}, nil)
	if moved, ok := errors.AsType[*member.Moved](err); ok {
		fmt.Printf("307 to %s at epoch %s\n", moved.Address, moved.Epoch)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// acquire region 17 at 1.3 from 41
	// release region 17 at 41
	// drained: <nil>
	// 307 to worker-2:7000 at epoch 1.4
	// <nil>
}
