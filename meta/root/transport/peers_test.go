package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
)

// joined is the identity of peer 4 behind the record of replaced.
func joined() storage.Identity {
	id := storage.Identity{ClusterID: 0xc1, NodeID: 4, Incarnation: 104, Member: true, Joined: true}
	for _, p := range newRecord().added(rooted(4, 104), 2).Peers {
		id.Peers = append(id.Peers, storage.Peer{NodeID: p.NodeId, Incarnation: p.Incarnation, Address: p.TransportAddress})
	}
	return id
}

// A peer that is added while it runs is talked to; one that was replaced is let go
// and refused by all, also when the record has its node id alone. It hears why, and ends.
func TestPeersChangeWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		var nodes []*node
		for _, id := range ids {
			nodes = append(nodes, n.start(t, id, nil))
			nodes[len(nodes)-1].SetPeers(newRecord().Cluster)
		}
		a, b, c := nodes[0], nodes[1], nodes[2]
		time.Sleep(time.Second)
		if !a.Connected(2) || !b.Connected(1) {
			t.Fatal("not connected")
		}
		d := n.start(t, joined(), nil)
		rec := newRecord().added(rooted(4, 104), 2)
		a.SetPeers(rec.Cluster)
		c.SetPeers(rec.Cluster)
		time.Sleep(time.Second)
		if !a.Connected(4) || !d.Connected(1) || !d.Connected(3) {
			t.Error("the new peer is not connected")
		}
		a.Send([]*raftpb.Message{message(1, 4, 1, 1)})
		synctest.Wait()
		if d.delivered() != 1 {
			t.Error("the message to the new peer did not arrive")
		}
		for _, m := range []*node{a, c, d} {
			m.SetPeers(rec.settled(2).Cluster)
		}
		synctest.Wait()
		if a.Connected(2) || b.Connected(1) || a.remotes()[2] != nil || b.remotes()[1].talks() {
			t.Error("the replaced peer is still connected")
		}
		before := b.delivered()
		a.Send([]*raftpb.Message{message(1, 2, 1, 1), snapMessage(1, 2)})
		time.Sleep(65 * time.Second)
		if b.delivered() != before || !slices.Contains(a.told(), "2 false") {
			t.Errorf("%d messages to the replaced peer, told %v", b.delivered(), a.told())
		}
		if b.Connected(1) || b.Connected(3) {
			t.Error("the replaced peer was let in again")
		}
		if gone := new(ReplacedError); !errors.As(<-b.ended, &gone) || gone.Node != 2 || !strings.Contains(gone.Error(), "root peer 2 was replaced by root peer 4") {
			t.Errorf("it ends with %v", gone)
		}
		for _, m := range nodes {
			m.stop()
		}
		const why = "root peer 2 was replaced by root peer 4. Stop that process and keep its workdir from being started"
		// The first that it asks tells it, and says so.
		d.stop()
		if lines := strings.Count(a.log.String()+c.log.String()+d.log.String(), why); lines < 1 || lines > 4 {
			t.Errorf("the reason was logged %d times in 65 s:\n%s\n%s\n%s", lines, a.log, c.log, d.log)
		}
	})
}

// Who does not understand what the cluster has is refused by name, by who it dials
// and by who dials it, and ends; so is who would join. Nobody is before it is raised.
func TestTooOldPeersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		level := func(l uint32) func(*Config) { return func(cfg *Config) { cfg.FeatureLevel = l } }
		a, b, c := n.start(t, ids[0], level(2)), n.start(t, ids[1], level(2)), n.start(t, ids[2], level(1))
		time.Sleep(time.Second)
		if !a.Connected(3) || !c.Connected(1) {
			t.Fatal("refused before the level is raised")
		}
		c.stop()
		raised := newRecord().Cluster
		raised.FeatureLevel = 2
		a.SetPeers(raised)
		b.SetPeers(raised)
		c = n.start(t, ids[2], level(1))
		time.Sleep(time.Second)
		const why = "root peer 3 understands feature level 1, the cluster is at 2: start it with a newer version"
		select {
		case err := <-c.ended:
			if old := new(TooOldError); !errors.As(err, &old) || old.Node != 3 || !strings.Contains(err.Error(), why) {
				t.Errorf("it ends with %v", err)
			}
		default:
			t.Error("it goes on")
		}
		if !strings.Contains(a.log.String()+b.log.String(), why) || a.Connected(3) || !a.Connected(2) {
			t.Errorf("connected %v; the others say\n%s\n%s", a.Connected(3), a.log, b.log)
		}
		conn, err := n.dial(t.Context(), "n1")
		if err != nil {
			t.Fatal(err)
		}
		h := hello{speaks: spoken, level: 1, purpose: forJoin, from: 4, to: 1, fromIncarnation: 104, transport: "n4"}
		if _, err = greet(conn, h, time.Second); err == nil || !strings.Contains(err.Error(), "root peer 4 understands feature level 1") {
			t.Errorf("who would join is told %v", err)
		}
		conn.Close()
		c.stop()
		c = n.start(t, ids[2], level(2))
		time.Sleep(time.Second)
		if !a.Connected(3) || !c.Connected(2) {
			t.Error("the newer version is refused")
		}
		for _, m := range []*node{a, b, c} {
			m.stop()
		}
	})
}

// A peer that was down during the replacement does not know who came: it lets them
// in as guests and answers them.
func TestGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, d := n.start(t, ids[0], nil), n.start(t, joined(), nil)
		a.SetPeers(newRecord().Cluster)
		d.SetPeers(replaced().Cluster)
		time.Sleep(time.Second)
		d.Send([]*raftpb.Message{message(4, 1, 1, 1)})
		a.Send([]*raftpb.Message{message(1, 4, 1, 1)})
		synctest.Wait()
		if a.delivered() != 1 || d.delivered() != 1 {
			t.Fatalf("%d, %d messages arrived\n%s", a.delivered(), d.delivered(), a.log)
		}
		guest := a.remotes()[4]
		// The log is being applied: records that do not name the guest yet.
		a.SetPeers(newRecord().added(rooted(9, 109), 3).Cluster)
		synctest.Wait()
		if got := a.Metrics()[4]; !got.Connected || got.Connects != 1 || a.remotes()[4] != guest {
			t.Errorf("the guest was let go: %+v", got)
		}
		a.SetPeers(replaced().Cluster)
		synctest.Wait()
		if got := a.Metrics()[4]; !got.Connected || got.Connects != 1 || a.remotes()[4].guest {
			t.Errorf("the guest that was confirmed: %+v", got)
		}
		// Confirmed, it is a peer also when it is away.
		d.stop()
		time.Sleep(time.Second)
		if a.remotes()[4] == nil {
			t.Error("a peer went with its connection")
		}
	})
}

func TestGuestsAreFewAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a := n.start(t, ids[0], nil)
		first := freshness.Claim{History: freshness.History{}.Next(1)}
		come := func(node uint64, change func(*hello)) (net.Conn, error) {
			conn, err := n.dial(t.Context(), "n1")
			if err != nil {
				t.Fatal(err)
			}
			h := hello{speaks: spoken, purpose: forMessages, from: node, to: 1, cluster: 0xc1, fromIncarnation: 100 + node, toIncarnation: 101, transport: fmt.Sprintf("n%d", node), claim: first}
			if change != nil {
				change(&h)
			}
			_, err = greet(conn, h, time.Second)
			return conn, err
		}
		for name, change := range map[string]func(*hello){
			"different clusters":          func(h *hello) { h.cluster = 0 },
			"belong to different":         func(h *hello) { h.cluster = 0xc2 },
			"is not the workdir":          func(h *hello) { h.toIncarnation = 1 },
			"does not know":               func(h *hello) { h.transport = "" },
			"has no other peer 1":         func(h *hello) { h.from = 1 },
			"the workdir was wiped or sw": func(h *hello) { h.from = 2 },
		} {
			if _, err := come(10, change); err == nil || !strings.Contains(err.Error(), refused) || !strings.Contains(a.log.String(), name) {
				t.Errorf("%s: %v\n%s", name, err, a.log)
			}
		}
		var guests []net.Conn
		for node := range uint64(maxGuests) {
			conn, err := come(10+node, nil)
			if err != nil {
				t.Fatal(err)
			}
			guests = append(guests, conn)
		}
		if _, err := come(50, nil); err == nil || !strings.Contains(err.Error(), refused) || !strings.Contains(a.log.String(), "has 8 others of that kind") {
			t.Errorf("one more: %v", err)
		}
		second, err := come(10, nil)
		if err != nil {
			t.Fatal(err)
		}
		guests[0].Close()
		synctest.Wait()
		if a.remotes()[10] == nil {
			t.Error("a guest with a connection was let go")
		}
		second.Close()
		synctest.Wait()
		if a.remotes()[10] != nil {
			t.Error("a guest without a connection stays")
		}
		if _, err := come(50, nil); err != nil {
			t.Errorf("in its place: %v", err)
		}
		// The record says that one of them was replaced.
		rec := newRecord().added(rooted(11, 111), 2).settled(2).added(rooted(12, 112), 11).settled(11)
		a.SetPeers(rec.Cluster)
		synctest.Wait()
		if _, err := guests[1].Read(make([]byte, 1)); err == nil || a.remotes()[11] != nil {
			t.Error("a replaced peer stays as a guest")
		}
		if p := a.remotes()[12]; p == nil || p.guest {
			t.Error("a guest was not confirmed")
		}
	})
}

// All start again behind a replacement, from workdirs that were written before
// it, and find each other.
func TestAllRestartBehindAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, c, d := n.start(t, ids[0], nil), n.start(t, ids[2], nil), n.start(t, joined(), nil)
		a.SetPeers(newRecord().Cluster) // its checkpoint is an old one; c has none
		time.Sleep(2 * time.Second)
		connected := func() {
			t.Helper()
			for _, m := range []*node{a, c, d} {
				for _, id := range []uint64{1, 3, 4} {
					if id != m.cfg.Identity.NodeID && !m.Connected(id) {
						t.Errorf("%d is not connected to %d", m.cfg.Identity.NodeID, id)
					}
				}
			}
		}
		connected()
		for _, m := range []*node{a, c, d} {
			m.SetPeers(replaced().Cluster)
		}
		time.Sleep(time.Second)
		connected()
		if a.remotes()[2] != nil || a.Metrics()[4].Connects != 1 {
			t.Errorf("%+v", a.Metrics())
		}
	})
}

// A peer is dialed where the flag says, or else where the record says, or else
// where it said itself.
func TestWhereAPeerIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a := n.start(t, ids[0], func(c *Config) { c.Addresses = map[uint64]string{1: "n1", 3: "m3", 5: "m5", 9: "n9", 2: "n2"} })
		at := func(node uint64) string { return a.remotes()[node].at() }
		if at(2) != "n2" || at(3) != "m3" {
			t.Errorf("at the start: %s, %s", at(2), at(3))
		}
		d := n.start(t, joined(), func(c *Config) {
			c.Identity.Peers = slices.Clone(c.Identity.Peers)
			c.Identity.Peers[3].Address = "told4"
		})
		time.Sleep(time.Second)
		if at(4) != "told4" {
			t.Errorf("the guest is at %s", at(4))
		}
		a.SetPeers(replaced().added(rooted(5, 105), 3).Cluster)
		synctest.Wait()
		if at(4) != "n4" || at(5) != "m5" || at(3) != "m3" {
			t.Errorf("with a record: %s, %s, %s", at(4), at(5), at(3))
		}
		a.SetPeers(replaced().added(rooted(5, 105), 3).Cluster)
		time.Sleep(strangersAfter)
		d.stop()
		a.stop()
		for _, want := range []string{"the cluster does not have: take it out, or make it one with `nokv root replace`\": peer=9", "names a root peer that is none any more: take it out"} {
			if want = strings.ReplaceAll(want, "\"", ""); strings.Count(a.log.String(), want) != 1 {
				t.Errorf("want once %q: %s", want, a.log)
			}
		}
	})
}

// A guest that was replaced before anything was begun for it is let go all the same.
func TestGuestThatIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		tr, err := New(fresh(Config{Identity: ids[0], Listener: n.listen("n1"), Dial: n.dial, Checkpoints: &checkpoints{}}))
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		p, _, _, why := tr.admit(hello{from: 4, cluster: 0xc1, fromIncarnation: 104, toIncarnation: 101, transport: "n4"}, 3, theirs)
		if why != "" || !p.talks() {
			t.Fatal(why)
		}
		tr.SetPeers(newRecord().added(rooted(4, 104), 2).dropped(4).Cluster)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := tr.Run(ctx, &inbox{}); err != nil {
				t.Error(err)
			}
		})
		if _, err := ours.Read(make([]byte, 1)); err == nil || tr.remotes()[4] != nil {
			t.Errorf("it stays: %v", err)
		}
		cancel()
		running.Wait()
	})
}

// A new peer that is where the lost one was does not dial itself.
func TestNewPeerAtTheOldAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		id := joined()
		id.Peers[3].Address = "n2"
		a, d := n.start(t, ids[0], nil), n.start(t, id, nil)
		rec := newRecord().added(rooted(4, 104), 2)
		rec.Peers[3].TransportAddress = "n2"
		a.SetPeers(rec.Cluster)
		time.Sleep(2 * time.Second)
		if !a.Connected(4) || a.Connected(2) || !d.Connected(1) {
			t.Error("the new peer is not connected")
		}
		if d.stop(); strings.Contains(d.log.String(), "was dialed by root peer 4") {
			t.Errorf("it dials itself: %s", d.log)
		}
	})
}

// This peer hears of its own replacement by its log.
func TestOwnReplacementEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemNet().start(t, members(3)[1], nil)
		b.SetPeers(replaced().Cluster)
		b.SetPeers(replaced().Cluster)
		if gone := new(ReplacedError); !errors.As(<-b.ended, &gone) || !strings.Contains(gone.Error(), "root peer 2 was replaced by root peer 4") {
			t.Errorf("it ends with %v", gone)
		}
	})
}

// The set of peers changes under everything that uses it.
func TestPeersChangeUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a, b, d := n.start(t, ids[0], nil), n.start(t, ids[1], nil), n.start(t, joined(), nil)
		d.SetPeers(newRecord().added(rooted(4, 104), 2).Cluster)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var users sync.WaitGroup
		use := func(what func(i int)) {
			users.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					what(i)
					pause(ctx, 3*time.Millisecond)
				}
			})
		}
		records := []record{newRecord(), newRecord().added(rooted(4, 104), 2), newRecord().added(rooted(5, 105), 2)}
		use(func(i int) { a.SetPeers(records[i%len(records)].Cluster) })
		use(func(i int) {
			a.Send([]*raftpb.Message{message(1, 2, uint64(i), 10), message(1, 4, uint64(i), 10), snapMessage(1, 4), snapMessage(1, 5)})
			a.Tell(replica.Standing{Index: uint64(i), Hash: 1})
		})
		use(func(i int) { b.Send([]*raftpb.Message{message(2, 1, uint64(i), 10)}) })
		use(func(i int) { d.Send([]*raftpb.Message{message(4, 1, uint64(i), 10)}) })
		use(func(int) { _, _, _, _ = a.Metrics(), a.Address(4), a.Connected(4), a.former() })
		users.Wait()
		a.SetPeers(newRecord().added(rooted(4, 104), 2).Cluster)
		time.Sleep(time.Second)
		got := a.delivered()
		d.Send([]*raftpb.Message{message(4, 1, 1, 1)})
		synctest.Wait()
		if !a.Connected(4) || !a.Connected(2) || a.delivered() != got+1 {
			t.Error("not connected behind it")
		}
	})
}

// Who was replaced long ago is refused by its node id, which the record has for ever.
func TestReplacedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a := n.start(t, ids[0], nil)
		rec := replaced()
		rec.Replaced, rec.ReplacedNodeIds = nil, []uint64{2}
		a.SetPeers(rec.Cluster)
		b := n.start(t, ids[1], nil)
		if gone := new(ReplacedError); !errors.As(<-b.ended, &gone) {
			t.Error("it does not end")
		}
		if a.Connected(2) || a.remotes()[2] != nil {
			t.Error("it was let in")
		}
		k := &knocker{n: n, node: 2, peers: map[uint64]string{1: "n1"}, dir: &workdir{}}
		if _, err := k.run(t.Context()); err == nil || !strings.Contains(err.Error(), "its node id is not used again") {
			t.Errorf("an empty workdir under its node id: %v", err)
		}
	})
}
