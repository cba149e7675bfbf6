package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
)

// Each mismatch is refused; who refuses logs a sentence that names both, the other
// end that it was refused.
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
				if both := a.log.String() + b.log.String(); !strings.Contains(both, c.want) {
					t.Errorf("no log explains: %s", both)
				}
				for _, log := range []string{a.log.String(), b.log.String()} {
					if !strings.Contains(log, c.want) && !strings.Contains(log, refused) {
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
	later := hello{speaks: versions{8, 9}, from: 1, to: 2}
	encoded := later.append(nil)
	future := hello{speaks: spoken, from: 1, to: 2}
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
		{"later version", appendFrame(nil, kindHello, encoded), "it speaks protocol version 4, the caller protocol versions 8 to 9"},
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
		frame := appendFrame(nil, kindHello, hello{speaks: spoken}.append(make([]byte, 0, 100)))
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
	h := hello{
		speaks: spoken, level: 7, purpose: forCheckpoint, from: 1, to: 2, cluster: 3, fromIncarnation: 4, toIncarnation: 5, peerMap: 6, address: "a:1", transport: "b:2",
		claim: freshness.Claim{History: freshness.History{Count: 9, Nonces: []uint64{7, 8}}, Footing: freshness.Footing{Term: 3, Vote: 2, Last: 40}},
	}
	if got, err := parseHello(h.append(nil), spoken); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range h.append(nil) {
		if _, err := parseHello(h.append(nil)[:n], spoken); err == nil {
			t.Errorf("%d bytes were taken for a hello", n)
		}
	}
	w := welcome{
		version: 3, level: 9, node: 1, incarnation: 2, cluster: 3, peerMap: 4, address: "b:1", founders: true, replaced: true,
		members: []storage.Peer{{NodeID: 1, Incarnation: 2, Address: "c:1"}, {NodeID: 3, Incarnation: 4}},
		before:  freshness.Promise{Term: 5, Vote: 1, Index: 30, IndexTerm: 4},
	}
	encoded := w.append(nil)
	if got, err := parseWelcome(encoded); err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range encoded {
		if _, err := parseWelcome(encoded[:n]); err == nil {
			t.Errorf("%d bytes were taken for a welcome", n)
		}
	}
}

// Two peers speak the highest version that both know, and tell each other what they
// understand; what a later version appends to a hello is passed over.
func TestVersionsAreNegotiated(t *testing.T) {
	h := hello{speaks: versions{spoken.min, spoken.max + 1}, level: 4, from: 1, to: 2, address: "a:1"}
	got, err := parseHello(append(h.append(nil), "of a later version"...), spoken)
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, c := range []struct {
		a, b versions
		want uint16
	}{
		{versions{3, 3}, versions{3, 3}, 3},
		{versions{3, 5}, versions{2, 4}, 4},
		{versions{3, 5}, versions{4, 9}, 5},
		{versions{3, 3}, versions{4, 5}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, ids := newMemNet(), members(3)
			a := n.start(t, ids[0], func(cfg *Config) { cfg.speaks, cfg.FeatureLevel = c.a, 5 })
			b := n.start(t, ids[1], func(cfg *Config) { cfg.speaks = c.b })
			time.Sleep(time.Second)
			if a.Connected(2) != (c.want != 0) || b.Metrics()[1].Version != uint32(c.want) || a.Metrics()[2].Version != uint32(c.want) {
				t.Errorf("%v and %v: connected %v, %+v", c.a, c.b, a.Connected(2), b.Metrics())
			}
			levels := []uint32{a.FeatureLevel(1), a.FeatureLevel(2), b.FeatureLevel(1), a.FeatureLevel(3)}
			if want := []uint32{5, 1, 5, 0}; c.want != 0 && !slices.Equal(levels, want) {
				t.Errorf("levels %v, want %v", levels, want)
			}
			b.stop()
			time.Sleep(time.Second)
			if a.FeatureLevel(2) != 0 {
				t.Error("who is not connected has a level")
			}
			a.stop()
			why := fmt.Sprintf("it speaks %s, the caller %s", c.b, c.a)
			if told := strings.Contains(a.log.String(), why) && strings.Contains(b.log.String(), why); told != (c.want == 0) {
				t.Errorf("%v and %v:\n%s\n%s", c.a, c.b, a.log, b.log)
			}
		})
	}
}

// Nobody who is refused, put off or no member learns a cluster id or an incarnation.
func TestStrangersLearnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		const cluster, wd = uint64(0xc1c2c3c4c5c6c7c8), uint64(0xa1a2a3a4a5a6a7a8)
		for i := range ids {
			ids[i].ClusterID = cluster
			ids[i].Incarnation = wd + uint64(i)
			for j := range ids[i].Peers {
				ids[i].Peers[j].Incarnation = wd + uint64(j)
			}
		}
		a := n.start(t, ids[0], nil)
		l := n.listen("n7")
		ctx, cancel := context.WithCancel(t.Context())
		var pending sync.WaitGroup
		var incarnation uint64
		dir := &workdir{}
		pending.Go(func() {
			_, _ = Agree(ctx, AgreeConfig{NodeID: 1, Peers: map[uint64]string{1: "n7", 2: "n8", 3: "n9"}, Workdir: dir, Listener: l, Dial: n.dial})
		})
		time.Sleep(time.Second)
		id, _ := dir.Identity()
		incarnation = id.Incarnation
		base := hello{speaks: spoken, from: 2, to: 1, transport: "n6", cluster: cluster, fromIncarnation: wd + 1, toIncarnation: wd}
		for name, change := range map[string]func(*hello){
			"another node":     func(h *hello) { h.to = 2 },
			"another cluster":  func(h *hello) { h.cluster = 5 },
			"no cluster":       func(h *hello) { h.cluster = 0 },
			"another workdir":  func(h *hello) { h.toIncarnation = 5 },
			"a wiped one":      func(h *hello) { h.fromIncarnation = 5 },
			"itself":           func(h *hello) { h.from = 1 },
			"no peer, founds":  func(h *hello) { h.purpose, h.cluster, h.from = forBootstrap, 0, 9 },
			"a peer, founds":   func(h *hello) { h.purpose, h.cluster, h.fromIncarnation = forBootstrap, 0, 9 },
			"a peer, joins":    func(h *hello) { h.purpose, h.cluster, h.fromIncarnation = forJoin, 0, 9 },
			"joins":            func(h *hello) { h.purpose, h.cluster, h.from = forJoin, 0, 9 },
			"joins as another": func(h *hello) { h.purpose, h.cluster, h.from, h.fromIncarnation = forJoin, 0, 9, 99 },
			"from nowhere":     func(h *hello) { h.purpose, h.cluster, h.from, h.transport = forJoin, 0, 10, "" },
		} {
			for _, at := range []string{"n1", "n7"} {
				conn, err := n.dial(t.Context(), at)
				if err != nil {
					t.Fatal(err)
				}
				h := base
				h.purpose = forMessages
				change(&h)
				go func() { _, _ = conn.Write(appendFrame(nil, kindHello, h.append(nil))) }()
				answer, _ := io.ReadAll(conn)
				for _, secret := range []uint64{cluster, wd, wd + 1, wd + 2, incarnation} {
					if bytes.Contains(answer, binary.BigEndian.AppendUint64(nil, secret)) || strings.Contains(string(answer), fmt.Sprintf("%016x", secret)) {
						t.Errorf("%s at %s is told %016x: %q", name, at, secret, answer)
					}
				}
				if len(answer) == 0 {
					t.Errorf("%s at %s got no answer", name, at)
				}
				conn.Close()
			}
		}
		cancel()
		pending.Wait()
		a.stop()
	})
}

// Connections that say nothing keep no peer out, and there are never many of them.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		b := n.start(t, ids[1], func(cfg *Config) { cfg.HandshakeTimeout = time.Hour })
		var silent []net.Conn
		for range 3 * maxStrangers {
			conn, err := n.dial(t.Context(), "n2")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			silent = append(silent, conn)
			synctest.Wait()
		}
		a := n.start(t, ids[0], nil)
		time.Sleep(100 * time.Millisecond)
		if !a.Connected(2) || !b.Connected(1) {
			t.Error("a peer is kept out")
		}
		open := 0
		for _, conn := range silent {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond)) // A closed one says so below.
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			}
		}
		if open > maxStrangers {
			t.Errorf("%d connections that say nothing are open", open)
		}
	})
}

// The place of who comes is taken from the source that has the most.
func TestLobbyIsShared(t *testing.T) {
	l := &lobby{limit: 4}
	ended := ""
	enter := func(source, name string) *visitor {
		return l.enter(&addressed{source: memAddr(source + ":1"), close: func() { ended += name }})
	}
	enter("quiet", "q")
	enter("loud", "a")
	second := enter("loud", "b")
	enter("loud", "c")
	enter("loud", "d")
	l.leave(second)
	enter("other", "e")
	enter("other", "f")
	enter("quiet", "g")
	if ended != "ace" || len(l.waiting) != 4 {
		t.Errorf("ended %q, %d wait", ended, len(l.waiting))
	}
}

type addressed struct {
	net.Conn
	source net.Addr
	close  func()
}

func (c *addressed) RemoteAddr() net.Addr { return c.source }
func (c *addressed) Close() error {
	c.close()
	return nil
}
