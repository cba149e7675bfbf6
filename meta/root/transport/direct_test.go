package transport

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"go.etcd.io/raft/v3/raftpb"
)

// narrow dials connections that take little at once, so that direct sends
// leave a rest.
func narrow(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(TCP).Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return conn, conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
}

// onSockets starts two members on loopback; the second one delivers to deliver. They
// give no signs of life and take none for dead, however slow the machine is.
func onSockets(t *testing.T, dial Dial, deliver Receiver) *Transport {
	t.Helper()
	ids := members(2)
	var listeners []net.Listener
	for range ids {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, lis)
	}
	for i := range ids {
		ids[i].Peers[i].Address = listeners[i].Addr().String()
	}
	receivers := []Receiver{&inbox{}, deliver}
	var both []*Transport
	for i, id := range ids {
		tr, err := New(fresh(Config{Identity: id, Address: "grpc", Listener: listeners[i], Dial: dial, Checkpoints: &checkpoints{}, AliveEvery: time.Hour, DeadAfter: 2 * time.Hour}))
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, tr)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx, receivers[i]) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	// What comes before a start is admitted is not taken.
	for !both[0].Connected(2) || !both[1].Connected(1) {
		time.Sleep(time.Millisecond)
	}
	return both[0]
}

// counted tells when as many messages have come as were announced. It takes
// none before gate is closed.
type counted struct {
	inbox
	want int
	gate chan struct{}
	done chan struct{}
}

func newCounted(want int) *counted {
	return &counted{want: want, gate: make(chan struct{}), done: make(chan struct{})}
}

func (c *counted) Deliver(m *raftpb.Message) {
	<-c.gate
	c.inbox.Deliver(m)
	if len(c.messages) == c.want {
		close(c.done)
	}
}

// Whatever a sender writes itself, leaves half written to the other goroutine
// or leaves to it whole: everything arrives once and in order.
func TestDirectSendsKeepOrder(t *testing.T) {
	const n = 1000
	in := newCounted(n)
	tr := onSockets(t, narrow, in)
	connected := time.NewTicker(time.Millisecond)
	defer connected.Stop()
	for !tr.Connected(2) {
		<-connected.C
	}
	for i := range uint64(n) {
		size := int(i*7919) % 3000
		if i > n/2 && i%50 == 0 {
			size = 2 * maxDirectBytes
		}
		if i == n/2 {
			close(in.gate) // until here the connection filled up
		}
		tr.Send([]*raftpb.Message{message(1, 2, i, size)})
	}
	select {
	case <-in.done:
	case <-time.After(proctest.Patience):
	}
	in.add(func() {
		if len(in.messages) != n {
			t.Fatalf("%d messages of %d arrived; %+v", len(in.messages), n, tr.Metrics()[2])
		}
		for i, m := range in.messages {
			if m.GetIndex() != uint64(i) {
				t.Fatalf("message %d is %d", i, m.GetIndex())
			}
		}
	})
}

// A small message on an idle connection leaves in the call that sends it.
func TestSmallMessagesLeaveAtOnce(t *testing.T) {
	in := newCounted(1)
	close(in.gate)
	tr := onSockets(t, new(TCP).Dial, in)
	connected := time.NewTicker(time.Millisecond)
	defer connected.Stop()
	for !tr.Connected(2) {
		<-connected.C
	}
	tr.Send([]*raftpb.Message{message(1, 2, 1, 10)})
	if m := tr.Metrics()[2]; m.Sent != 1 {
		t.Errorf("the call has returned and %+v", m)
	}
	<-in.done
}
