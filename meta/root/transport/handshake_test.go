package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
)

// Each mismatch is refused, and both ends log a sentence that names both.
func TestHandshakeMatrix(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*storage.Identity) // of peer 2
		want   string
	}{
		{"other cluster", func(i *storage.Identity) { i.ClusterID = 0xc2 }, "different clusters"},
		{"restored cluster", func(i *storage.Identity) {
			i.Former = []uint64{0xc0, i.ClusterID}
			i.ClusterID, i.Incarnation = 0xc2, 999
			i.Peers[1].Incarnation = 999
		}, "restored from a backup"},
		{"wiped workdir", func(i *storage.Identity) {
			i.Incarnation = 999
			i.Peers[1].Incarnation = 999
		}, "is not the workdir"},
		{"other peers", func(i *storage.Identity) { i.Peers[2].Address = "n9" }, "-peer lists must be the same"},
		{"other node", func(i *storage.Identity) { i.NodeID = 3; i.Incarnation = 103 }, "was dialed by"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids := newMemNet(), members(3)
				second := ids[1]
				second.Peers = append([]storage.Peer(nil), second.Peers...)
				c.change(&second)
				a := n.start(t, ids[0], nil)
				b := n.start(t, second, func(cfg *Config) { cfg.Listener = n.listen("n2") })
				time.Sleep(3 * time.Second)
				if a.Connected(2) || b.Connected(1) && second.NodeID == 2 {
					t.Error("connected")
				}
				a.stop()
				b.stop()
				for _, log := range []string{a.log.String(), b.log.String()} {
					if !strings.Contains(log, c.want) || !strings.Contains(log, "root peer 1") || !strings.Contains(log, "root peer 2") && c.name != "other node" {
						t.Errorf("log does not explain: %s", log)
					}
					if lines := strings.Count(log, "root peer refused") + strings.Count(log, "refused a root peer"); lines > 4 {
						t.Errorf("%d refusals logged in 3 s", lines)
					}
				}
			})
		})
	}
}

func TestStrangersAreClosed(t *testing.T) {
	oversized := binary.BigEndian.AppendUint32(nil, 1<<30)
	oversized = append(oversized, byte(kindHello), 0, 0, 0, 0)
	future := hello{version: Version, from: 1, to: 2}
	encoded := future.append(nil)
	binary.BigEndian.PutUint16(encoded[len(magic):], Version+1)
	flipped := appendFrame(nil, kindHello, future.append(nil))
	flipped[20] ^= 1
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string // the answer; empty: none
	}{
		{"nothing", nil, ""},
		{"garbage", bytes.Repeat([]byte{0xff, 0x3, 0x77}, 100), ""},
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ""},
		{"half a frame", appendFrame(nil, kindHello, encoded)[:15], ""},
		{"oversized", oversized, ""},
		{"flipped bit", flipped, ""},
		{"not a hello", appendFrame(nil, kindMessage, []byte("x")), ""},
		{"other magic", appendFrame(nil, kindHello, []byte("somebody else speaks here")), ""},
		{"short hello", appendFrame(nil, kindHello, future.append(nil)[:20]), ""},
		{"later version", appendFrame(nil, kindHello, encoded), "speaks protocol version 2, the caller version 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids := newMemNet(), members(3)
				b := n.start(t, ids[1], nil)
				conn, err := n.dial(t.Context(), "n2")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go func() { _, _ = conn.Write(c.bytes) }() // Ends with the connection.
				start := time.Now()
				answer, err := io.ReadAll(conn)
				if err != nil && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("closed after %v, want within the handshake timeout of 2 s", took)
				}
				if (c.want == "") != (len(answer) == 0) || !strings.Contains(string(answer), c.want) {
					t.Errorf("answered %q", answer)
				}
				b.in.add(func() {
					if len(b.in.messages) != 0 {
						t.Error("something was delivered")
					}
				})
			})
		})
	}
}

// Bytes that trickle do not keep a handshake open.
func TestSlowLorisIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		n.start(t, ids[1], nil)
		conn, err := n.dial(t.Context(), "n2")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		frame := appendFrame(nil, kindHello, hello{version: Version}.append(make([]byte, 0, 100)))
		start := time.Now()
		for i := range frame {
			if _, err = conn.Write(frame[i : i+1]); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start); err == nil || took > 2500*time.Millisecond {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestHelloAndWelcomeSurviveTheWire(t *testing.T) {
	h := hello{version: Version, purpose: forCheckpoint, from: 1, to: 2, cluster: 3, fromIncarnation: 4, toIncarnation: 5, peerMap: 6, address: "a:1"}
	if got, err := parseHello(h.append(nil)); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	w := welcome{node: 1, incarnation: 2, cluster: 3, peerMap: 4, address: "b:1", members: []storage.Peer{{NodeID: 1, Incarnation: 2}, {NodeID: 3, Incarnation: 4}}}
	encoded := w.append(nil)
	got, err := parseWelcome(encoded)
	if err != nil || got.node != 1 || got.address != "b:1" || len(got.members) != 2 || got.members[1] != w.members[1] {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range 40 + 32 {
		if _, err := parseWelcome(encoded[:n]); err == nil {
			t.Errorf("%d bytes were taken for a welcome", n)
		}
	}
}
