package transport

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func TestMessagesArriveInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		var nodes []*node
		for _, id := range ids {
			nodes = append(nodes, n.start(t, id, nil))
		}
		time.Sleep(time.Second)
		var sent []*raftpb.Message
		for i := range uint64(500) {
			sent = append(sent, message(1, 2, i, int(i*10)), message(1, 3, i, 1))
		}
		nodes[0].Send(sent)
		nodes[0].Tell(replica.Standing{Index: 7, Hash: 0xabc})
		synctest.Wait()
		for _, to := range nodes[1:] {
			to.in.add(func() {
				if len(to.in.messages) != 500 || !slices.Equal(to.in.hashes, []string{"1 7 abc"}) {
					t.Errorf("%d messages, hashes %v", len(to.in.messages), to.in.hashes)
				}
				for i, m := range to.in.messages {
					if m.GetIndex() != uint64(i) || m.GetFrom() != 1 {
						t.Fatalf("message %d is %d from %d", i, m.GetIndex(), m.GetFrom())
					}
				}
			})
		}
		if m := nodes[0].Metrics()[3]; m.Writes > 30 {
			t.Errorf("501 items left in %d writes", m.Writes)
		}
		if got := nodes[0].Address(2); got != "grpc-n2" {
			t.Errorf("gRPC address of peer 2 = %q", got)
		}
		if !nodes[0].Connected(3) || nodes[0].Connected(9) || nodes[0].Address(1) != "grpc-n1" {
			t.Error("who is connected is wrong")
		}
	})
}

func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(time.Second)
		for round := range uint64(20) {
			n.cut()
			time.Sleep(100 * time.Millisecond)
			a.Send([]*raftpb.Message{message(1, 2, round, 10)})
			synctest.Wait()
			b.in.add(func() {
				if got := len(b.in.messages); got != int(round)+1 {
					t.Fatalf("round %d: %d messages", round, got)
				}
			})
		}
		a.in.add(func() {
			if len(a.in.refused) != 0 {
				t.Errorf("refused: %v", a.in.refused)
			}
		})
	})
}

// A peer that moved is found where it says that it is by those who have its old
// address; one that says what is wrong from here is found where the list has it.
func TestAPeerThatMovesIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(time.Second)
		b.stop()
		time.Sleep(time.Second)
		moved := ids[1]
		moved.Peers = slices.Clone(moved.Peers)
		moved.Peers[1].Address = "elsewhere"
		b = n.start(t, moved, nil)
		time.Sleep(5 * time.Second)
		if !a.Connected(2) || a.Reached(2) != "elsewhere" || b.Reached(2) != "elsewhere" {
			t.Fatalf("peer 2 is reached at %q, connected: %v", a.Reached(2), a.Connected(2))
		}
		a.Send([]*raftpb.Message{message(1, 2, 7, 10)})
		synctest.Wait()
		b.in.add(func() {
			if len(b.in.messages) != 1 {
				t.Errorf("%d messages came", len(b.in.messages))
			}
		})
		if log := a.log.String(); strings.Count(log, "correct -peer") != 1 || !strings.Contains(log, "elsewhere") {
			t.Errorf("the log says:\n%s", log)
		}
		// Back home, while it says an address that leads nowhere.
		b.stop()
		time.Sleep(time.Second)
		moved.Peers[1].Address = "nowhere"
		n.start(t, moved, func(c *Config) { c.Listener = n.listen("n2") })
		time.Sleep(10 * time.Second)
		if !a.Connected(2) || a.Reached(2) != "n2" {
			t.Errorf("peer 2 is reached at %q, connected: %v", a.Reached(2), a.Connected(2))
		}
	})
}

// Only a peer that worked and whose port is closed counts as refused, once.
func TestRefusedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(5 * time.Second)
		a.in.add(func() {
			if len(a.in.refused) != 0 {
				t.Errorf("peer 3 never worked and was told as refused: %v", a.in.refused)
			}
		})
		b.stop()
		synctest.Wait()
		check := func(want ...uint64) {
			t.Helper()
			a.in.add(func() {
				if !slices.Equal(a.in.refused, want) {
					t.Errorf("refused %v, want %v", a.in.refused, want)
				}
			})
		}
		check(2)
		time.Sleep(10 * time.Second)
		check(2)
		b = n.start(t, ids[1], nil)
		time.Sleep(time.Second)
		b.stop()
		synctest.Wait()
		check(2, 2)
	})
}

func TestRefusalBehindAnotherFailureCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(time.Second)
		n.mu.Lock()
		n.dialErr = os.ErrDeadlineExceeded
		n.mu.Unlock()
		b.stop()
		time.Sleep(time.Second)
		a.in.add(func() {
			if len(a.in.refused) != 0 || !slices.Contains(a.in.unreachable, 2) {
				t.Errorf("refused %v, unreachable %v", a.in.refused, a.in.unreachable)
			}
		})
		n.mu.Lock()
		n.dialErr = nil
		n.mu.Unlock()
		time.Sleep(time.Second)
		a.in.add(func() {
			if !slices.Equal(a.in.refused, []uint64{2}) {
				t.Errorf("refused %v", a.in.refused)
			}
		})
	})
}

// What reaches the port of a process while it dies may be dropped: whoever
// dials it then must not wait for a handshake's whole time.
func TestDyingPortDelaysARefusalLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		var dying atomic.Bool
		a := n.start(t, ids[0], func(c *Config) {
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				if address == ids[1].Peers[1].Address && dying.Swap(false) {
					silent, _ := net.Pipe()
					return silent, nil
				}
				return n.dial(ctx, address)
			}
		})
		b := n.start(t, ids[1], nil)
		time.Sleep(4500 * time.Millisecond)
		a.in.add(func() {
			if len(a.in.refused) != 0 {
				t.Errorf("refused %v before", a.in.refused)
			}
		})
		time.Sleep(100 * time.Millisecond)
		dying.Store(true)
		b.stop()
		time.Sleep(2*hastyConnect + 10*time.Millisecond)
		a.in.add(func() {
			if !slices.Equal(a.in.refused, []uint64{2}) {
				t.Errorf("refused %v within %s", a.in.refused, 2*hastyConnect+10*time.Millisecond)
			}
		})
	})
}

func TestRefusedOnRealSockets(t *testing.T) {
	ids := members(3)
	addrs := proctest.Addrs(t, 3) // nobody else takes the port of who ended
	var listeners []net.Listener
	for i := range 2 {
		l, err := net.Listen("tcp", addrs[i])
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		for _, id := range ids {
			id.Peers[i].Address = l.Addr().String() // Shared by all identities.
		}
	}
	ids[0].Peers[2].Address = addrs[2]
	refused := make(chan uint64, 10)
	var running sync.WaitGroup
	defer running.Wait()
	start := func(i int) (*Transport, context.CancelFunc) {
		tr, err := New(fresh(Config{Identity: ids[i], Listener: listeners[i], Checkpoints: &checkpoints{}}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		running.Go(func() { _ = tr.Run(ctx, &refusals{refused: refused}) })
		return tr, cancel
	}
	a, stopA := start(0)
	defer stopA()
	_, stopB := start(1)
	defer stopB()
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	for !a.Connected(2) && ctx.Err() == nil {
		pause(ctx, time.Millisecond)
	}
	stopB()
	select {
	case id := <-refused:
		if id != 2 {
			t.Errorf("refused %d", id)
		}
	case <-ctx.Done():
		t.Error("the end of peer 2 was not told")
	}
}

type refusals struct {
	inbox
	refused chan uint64
}

func (r *refusals) PeerRefused(n uint64) { r.refused <- n }

// A full queue drops, and says so once until it drains.
func TestFullQueueDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		var gate gate
		n.wrap = gate.wrap
		a, b := n.start(t, ids[0], func(c *Config) { c.MaxQueued = 10 }), n.start(t, ids[1], nil)
		time.Sleep(1500 * time.Millisecond) // Between two signs of life.
		gate.close()
		a.Send([]*raftpb.Message{message(1, 2, 1000, 1)})
		synctest.Wait() // It is being written.
		for i := range uint64(50) {
			a.Send([]*raftpb.Message{message(1, 2, i, 1)})
		}
		a.in.add(func() {
			if got := slices.DeleteFunc(slices.Clone(a.in.unreachable), func(n uint64) bool { return n != 2 }); len(got) != 1 {
				t.Errorf("unreachable was told %d times for one overflow", len(got))
			}
		})
		if got := a.Metrics()[2].Dropped; got != 40 {
			t.Errorf("%d dropped, want 40", got)
		}
		gate.open()
		synctest.Wait()
		b.in.add(func() {
			if got := len(b.in.messages); got != 11 {
				t.Errorf("%d messages arrived, want 11", got)
			}
		})
	})
}

// gate holds writes of the dialing side back.
type gate struct {
	mu   sync.Mutex
	wait chan struct{}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.wait)
	g.wait = nil
}

func (g *gate) wrap(c net.Conn) net.Conn { return &gatedConn{Conn: c, g: g} }

type gatedConn struct {
	net.Conn
	g *gate
}

func (c *gatedConn) Write(b []byte) (int, error) {
	c.g.mu.Lock()
	wait := c.g.wait
	c.g.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return c.Conn.Write(b)
}

// A peer whose machine vanished without a word is noticed at both ends.
func TestHalfOpenConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		hole := &blackhole{}
		n.wrap = hole.wrap
		a, _ := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(3 * time.Second)
		if got := a.Metrics()[2]; got.Connects != 1 || !got.Connected {
			t.Fatalf("before: %+v", got)
		}
		hole.set(true)
		time.Sleep(7 * time.Second)
		if a.Connected(2) {
			t.Error("still connected to a machine that is gone")
		}
		hole.set(false)
		time.Sleep(5 * time.Second)
		if !a.Connected(2) {
			t.Error("not connected again")
		}
	})
}

// blackhole swallows what the dialing side writes.
type blackhole struct {
	mu sync.Mutex
	on bool
}

func (h *blackhole) set(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = on
}

func (h *blackhole) wrap(c net.Conn) net.Conn { return &holeConn{Conn: c, h: h} }

type holeConn struct {
	net.Conn
	h *blackhole
}

func (c *holeConn) Write(b []byte) (int, error) {
	c.h.mu.Lock()
	on := c.h.on
	c.h.mu.Unlock()
	if on {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestMessageOfSomebodyElseBreaksTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b := n.start(t, ids[0], nil), n.start(t, ids[1], nil)
		time.Sleep(time.Second)
		a.remotes()[2].put(item{message: message(3, 2, 1, 1)})
		a.remotes()[2].put(item{message: &raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: proto.Uint64(1), To: proto.Uint64(2)}})
		time.Sleep(time.Second)
		b.in.add(func() {
			if len(b.in.messages) != 0 {
				t.Errorf("delivered %v", b.in.messages)
			}
		})
		b.stop()
		if !strings.Contains(b.log.String(), "message from 3 to 2 on the connection from 1 to 2") {
			t.Errorf("log: %s", b.log)
		}
	})
}
