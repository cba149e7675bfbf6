package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func snapMessage(from, to uint64) *raftpb.Message {
	return &raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), From: proto.Uint64(from), To: proto.Uint64(to), Term: proto.Uint64(9),
		Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: proto.Uint64(70), Term: proto.Uint64(5), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}},
	}
}

// pair starts two peers; the first one has a checkpoint of some chunks.
func pair(t *testing.T, n *memNet) (a, b *node) {
	ids := members(3)
	a, b = n.start(t, ids[0], nil), n.start(t, ids[1], nil)
	a.ck.data = make([]byte, 3*chunkBytes+17)
	rand.New(rand.NewSource(1)).Read(a.ck.data)
	a.ck.meta = storage.CheckpointMeta{Index: 77, Term: 6, Bytes: uint64(len(a.ck.data))}
	time.Sleep(time.Second)
	return a, b
}

func (n *node) told() []string {
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	return slices.Clone(n.in.snapshots)
}

func (n *node) delivered() int {
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	return len(n.in.messages)
}

func TestCheckpointArrivesBeforeItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, newMemNet())
		a.Send([]*raftpb.Message{snapMessage(1, 2)})
		synctest.Wait()
		if got := a.told(); !slices.Equal(got, []string{"2 true"}) {
			t.Errorf("told %v\n%s", got, b.log)
		}
		if received, _ := b.ck.outcome(); !bytes.Equal(received, a.ck.data) {
			t.Error("other bytes arrived")
		}
		b.in.add(func() {
			if len(b.in.messages) != 1 {
				t.Fatalf("delivered %v", b.in.messages)
			}
			m := b.in.messages[0]
			if m.GetType() != raftpb.MsgSnap || m.GetTerm() != 9 || m.Snapshot.Metadata.GetIndex() != 77 || m.Snapshot.Metadata.GetTerm() != 6 || len(m.Snapshot.Metadata.ConfState.Voters) != 3 {
				t.Errorf("delivered %v", m)
			}
		})
	})
}

// Its raft is asked all the same: it answers how far it is, and that ends the
// sending.
func TestCheckpointThatIsThereAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, newMemNet())
		b.ck.refuse = fmt.Errorf("receive: %w", storage.ErrOutdated)
		a.Send([]*raftpb.Message{snapMessage(1, 2)})
		synctest.Wait()
		if got := a.told(); !slices.Equal(got, []string{"2 true"}) || b.delivered() != 1 {
			t.Errorf("told %v, delivered %d\n%s", got, b.delivered(), b.log)
		}
	})
}

func TestNoCheckpointToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, newMemNet())
		a.ck.data = nil
		a.Send([]*raftpb.Message{snapMessage(1, 2), snapMessage(1, 3)})
		time.Sleep(time.Minute)
		got := a.told()
		slices.Sort(got)
		if !slices.Equal(got, []string{"2 false", "3 false"}) || b.delivered() != 0 {
			t.Errorf("told %v", got)
		}
	})
}

// A peer whose disk is full is sent a checkpoint now and then, and not as fast as raft asks
// for it; with room it gets the next one.
func TestACheckpointThatIsRefusedIsSentSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, newMemNet())
		b.ck.refuse = &storage.NoRoomError{Op: "write a received checkpoint", Err: syscall.ENOSPC}
		ask := func(d time.Duration) (sent int) {
			before := len(a.told())
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if len(a.told()) == before+sent {
					continue
				}
				sent++
				a.Send([]*raftpb.Message{snapMessage(1, 2)})
			}
			return sent
		}
		a.Send([]*raftpb.Message{snapMessage(1, 2)})
		if sent := ask(time.Minute); sent < 5 || sent > 15 {
			t.Errorf("it was sent %d times in a minute", sent)
		}
		b.ck.with(func() { b.ck.refuse = nil })
		ask(time.Minute)
		if got := a.told(); got[len(got)-1] != "2 true" || !strings.Contains(a.log.String(), "no room to write a received checkpoint") {
			t.Errorf("told %v\n%s", got, a.log)
		}
	})
}

func TestDamagedCheckpointIsNotDelivered(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(frame []byte) []byte
		want   string
	}{
		{"flipped bit in a chunk", func(f []byte) []byte { f[headerBytes+1000] ^= 4; return f }, "checksum"},
		{"chunk left out", func([]byte) []byte { return nil }, "arrived as"},
		{"chunk twice", func(f []byte) []byte { return append(f, f...) }, "arrived as"},
		{"interrupted", nil, ""}, // by whichever end notices first
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemNet()
				d := &damager{damage: c.damage}
				n.wrap = d.wrap
				a, b := pair(t, n)
				a.Send([]*raftpb.Message{snapMessage(1, 2)})
				time.Sleep(2 * time.Minute)
				received, broken := b.ck.outcome()
				if got := a.told(); !slices.Equal(got, []string{"2 false"}) || b.delivered() != 0 || received != nil {
					t.Errorf("told %v, delivered %d", got, b.delivered())
				}
				if broken == nil || !strings.Contains(broken.Error(), c.want) {
					t.Errorf("storage was told %v, want %q", broken, c.want)
				}
				// The next one works.
				a.Send([]*raftpb.Message{snapMessage(1, 2)})
				synctest.Wait()
				if got := a.told(); !slices.Equal(got, []string{"2 false", "2 true"}) {
					t.Errorf("told %v", got)
				}
			})
		})
	}
}

// damager changes the second chunk frame that passes; without damage it closes
// the connection there.
type damager struct {
	damage func([]byte) []byte
	mu     sync.Mutex
	chunks int
}

func (d *damager) wrap(c net.Conn) net.Conn { return &damagedConn{Conn: c, d: d} }

type damagedConn struct {
	net.Conn
	d *damager
}

func (c *damagedConn) Write(b []byte) (int, error) {
	if len(b) < headerBytes || kind(b[4]) != kindChunk || binary.BigEndian.Uint32(b) == 0 {
		return c.Conn.Write(b)
	}
	c.d.mu.Lock()
	c.d.chunks++
	hit := c.d.chunks == 2
	c.d.mu.Unlock()
	if !hit {
		return c.Conn.Write(b)
	}
	if c.d.damage == nil {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	if _, err := c.Conn.Write(c.d.damage(bytes.Clone(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}
