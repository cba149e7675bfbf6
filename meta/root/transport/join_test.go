package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// record is a cluster record of the peers of members(3), as replacements left it.
type record struct{ *rootv1.Cluster }

func newRecord() record {
	c := &rootv1.Cluster{ClusterId: 0xc1, Incarnation: 1}
	for _, p := range members(3)[0].Peers {
		c.Peers = append(c.Peers, rooted(p.NodeID, p.Incarnation))
	}
	return record{c}
}

func rooted(node, incarnation uint64) *rootv1.RootPeer {
	return &rootv1.RootPeer{NodeId: node, Incarnation: incarnation, TransportAddress: fmt.Sprintf("n%d", node)}
}

// added has another peer, that is to replace one.
func (r record) added(next *rootv1.RootPeer, lost uint64) record {
	next.Replaces, next.Role = lost, rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER
	return record{&rootv1.Cluster{ClusterId: r.ClusterId, Peers: append(r.Peers[:len(r.Peers):len(r.Peers)], next), Replaced: r.Replaced, PeersRevision: r.PeersRevision + 10}}
}

// settled ends the replacement of a peer.
func (r record) settled(lost uint64) record {
	out := &rootv1.Cluster{ClusterId: r.ClusterId, Replaced: r.Replaced, PeersRevision: r.PeersRevision + 10}
	for _, p := range r.Peers {
		p = &rootv1.RootPeer{NodeId: p.NodeId, Incarnation: p.Incarnation, TransportAddress: p.TransportAddress, Replaces: p.Replaces}
		if p.NodeId == lost {
			out.Replaced = append(out.Replaced[:len(out.Replaced):len(out.Replaced)], p)
			continue
		}
		out.Peers = append(out.Peers, p)
	}
	return record{out}
}

// dropped gives a learner up.
func (r record) dropped(node uint64) record {
	out := r.settled(node)
	out.Replaced[len(out.Replaced)-1].Role = rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER
	return out
}

// replaced is the record behind the replacement of 2 by 4.
func replaced() record { return newRecord().added(rooted(4, 104), 2).settled(2) }

// knocker runs Agree with Join.
type knocker struct {
	n    *memNet
	node uint64
	// peers are those that it is given.
	peers map[uint64]string
	dir   *workdir
	log   written.Text
}

func (k *knocker) run(ctx context.Context) (storage.Identity, error) {
	l := k.n.listen(fmt.Sprintf("n%d", k.node))
	defer l.Close()
	return Agree(ctx, AgreeConfig{
		NodeID: k.node, Peers: k.peers, Address: fmt.Sprintf("n%d", k.node), Join: true, Workdir: k.dir, Listener: l, Dial: k.n.dial,
		Logger: k.log.Logger(hclog.Debug),
	})
}

// Whoever knocks is a candidate at every member, also at those that it was not
// told of; it joins when it is counted in, and goes on when it is started again.
func TestKnockAndJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids, rec := newMemNet(), members(3), newRecord()
		a, c := n.start(t, ids[0], nil), n.start(t, ids[2], nil)
		for _, m := range []*node{a, c} {
			m.SetPeers(rec.Cluster)
		}
		k := &knocker{n: n, node: 4, peers: map[uint64]string{1: "n1"}, dir: &workdir{}}
		var got storage.Identity
		var knocking sync.WaitGroup
		knocking.Go(func() {
			var err error
			if got, err = k.run(t.Context()); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(12 * time.Second)
		pending, _ := k.dir.Identity()
		want := storage.Peer{NodeID: 4, Incarnation: pending.Incarnation, Address: "n4"}
		for _, m := range []*node{a, c} {
			if got, ok := m.Candidate(4); !ok || got != want || pending.Member || pending.Incarnation == 0 {
				t.Errorf("candidate %+v, %v, want %+v", got, ok, want)
			}
			if _, ok := m.Candidate(5); ok {
				t.Error("nobody knocks as 5")
			}
		}
		rec = rec.added(rooted(4, pending.Incarnation), 2)
		a.SetPeers(rec.Cluster)
		c.SetPeers(rec.Cluster)
		knocking.Wait()
		if saved, _ := k.dir.Identity(); !reflect.DeepEqual(saved, got) || !got.Member || !got.Joined || got.ClusterID != 0xc1 ||
			got.Incarnation != pending.Incarnation || names(got.Peers) != "1, 2, 3, 4" || addressOf(got.Peers, 3) != "n3" {
			t.Errorf("saved %+v\nreturned %+v", saved, got)
		}
		for _, want := range []string{"root peer 4 is not part of the cluster yet: run `nokv root replace --lost ID --with 4`: 2: dial"} {
			if !strings.Contains(k.log.String(), want) {
				t.Errorf("the log does not say %q: %s", want, &k.log)
			}
		}
		d := n.start(t, got, nil)
		time.Sleep(10 * time.Second) // pauses between attempts to connect grow
		a.Send([]*raftpb.Message{message(1, 4, 1, 10)})
		d.Send([]*raftpb.Message{message(4, 3, 1, 10)})
		synctest.Wait()
		if d.delivered() != 1 || c.delivered() != 1 {
			t.Errorf("%d, %d messages arrived", d.delivered(), c.delivered())
		}
		for _, join := range []bool{true, false} {
			again, err := Agree(t.Context(), AgreeConfig{NodeID: 4, Peers: map[uint64]string{1: "m1", 4: "n4"}, Join: join, Workdir: k.dir})
			if err != nil || again.Peers[0].Address != "m1" || !again.Joined || again.Incarnation != got.Incarnation || k.dir.saves != 2 {
				t.Errorf("join %v: %+v, %v, %d saves", join, again, err, k.dir.saves)
			}
		}
		time.Sleep(candidateFor)
		if _, ok := a.Candidate(4); ok {
			t.Error("who knocks no more is still a candidate")
		}
	})
}

// A crash at either save, before or after it had effect, ends with the workdir
// that was rooted.
func TestJoinCrashAtEachSave(t *testing.T) {
	for crashAt := 1; crashAt <= 2; crashAt++ {
		for _, lost := range []bool{true, false} {
			t.Run(fmt.Sprintf("save %d lost %v", crashAt, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n, rec := newMemNet(), newRecord()
					a := n.start(t, members(3)[0], nil)
					a.SetPeers(rec.Cluster)
					k := &knocker{n: n, node: 4, peers: threePeers, dir: &workdir{crashAt: crashAt, lost: lost}}
					var got storage.Identity
					var knocking sync.WaitGroup
					knocking.Go(func() {
						_, err := k.run(t.Context())
						if !errors.Is(err, errCrash) {
							t.Errorf("victim: %v", err)
						}
						if got, err = k.run(t.Context()); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(time.Second)
					p, ok := a.Candidate(4)
					if !ok {
						t.Fatal("no candidate")
					}
					a.SetPeers(rec.added(rooted(4, p.Incarnation), 2).Cluster)
					knocking.Wait()
					if got.Incarnation != p.Incarnation || !got.Member || !got.Joined {
						t.Errorf("rooted %016x, became %+v", p.Incarnation, got)
					}
				})
			})
		}
	}
}

// What can never be ends at once, with what to do; nothing becomes a member.
func TestJoinIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		node   uint64
		record record
		second func(*storage.Identity) // of the other member
		want   string
	}{
		{"in use", 3, newRecord(), nil, "the node id is in use"},
		{"replaced", 2, replaced(), nil, "had a root peer 2 that was replaced or given up: its node id is not used again"},
		{"given up", 4, newRecord().added(rooted(4, 104), 2).dropped(4), nil, "replaced or given up"},
		{"two clusters", 4, newRecord(), func(i *storage.Identity) { i.ClusterID = 0xc2 }, "belong to different clusters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids := newMemNet(), members(3)
				a := n.start(t, ids[0], nil)
				a.SetPeers(c.record.Cluster)
				if c.second != nil {
					c.second(&ids[2])
					n.start(t, ids[2], nil)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				k := &knocker{n: n, node: c.node, peers: map[uint64]string{1: "n1", 3: "n3"}, dir: &workdir{}}
				if c.node == 3 {
					k.peers = map[uint64]string{1: "n1"}
				}
				_, err := k.run(ctx)
				refused := new(RefusedError)
				if !errors.As(err, &refused) || !strings.Contains(refused.Why, c.want) || k.dir.id.Member {
					t.Errorf("Agree = %v", err)
				}
				if _, ok := a.Candidate(c.node); ok && c.second == nil {
					t.Error("it is a candidate")
				}
			})
		})
	}
}

// Of two processes under one node id the first is the candidate. When one is
// rooted, the other is refused.
func TestTwoKnockUnderOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, rec := newMemNet(), newRecord()
		a := n.start(t, members(3)[0], nil)
		a.SetPeers(rec.Cluster)
		first := &knocker{n: n, node: 4, peers: threePeers, dir: &workdir{}}
		second := &knocker{n: n, node: 4, peers: threePeers, dir: &workdir{}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var both sync.WaitGroup
		var errs [2]error
		both.Go(func() { _, errs[0] = first.run(ctx) })
		time.Sleep(3 * time.Second)
		both.Go(func() { _, errs[1] = second.run(ctx) })
		time.Sleep(20 * time.Second)
		p, _ := a.Candidate(4)
		if mine, _ := first.dir.Identity(); mine.Incarnation != p.Incarnation {
			t.Errorf("candidate %016x, the first to knock is %016x", p.Incarnation, mine.Incarnation)
		}
		a.SetPeers(rec.added(rooted(4, p.Incarnation), 2).Cluster)
		both.Wait()
		if !strings.Contains(second.log.String(), "another process knocks as root peer 4 already: stop it") {
			t.Errorf("the second does not say what it waits for: %s", &second.log)
		}
		refused := new(RefusedError)
		if errs[0] != nil || !errors.As(errs[1], &refused) || !strings.Contains(refused.Why, "the node id is in use") {
			t.Errorf("%v\n%v", errs[0], errs[1])
		}
	})
}

// A flood of knocks is not remembered, and not logged, in full.
func TestKnocksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		a := n.start(t, members(3)[0], nil)
		knock := func(node uint64) error {
			conn, err := n.dial(t.Context(), "n1")
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = greet(conn, hello{speaks: spoken, purpose: forJoin, from: node, to: 1, fromIncarnation: 7 * node, transport: "x:1"}, time.Second)
			if errors.Is(err, io.ErrClosedPipe) {
				err = nil // a pipe says so behind the answer
			}
			return err
		}
		putOff := 0
		for node := uint64(10); node < 310; node++ {
			if err := knock(node); err != nil {
				if !strings.Contains(err.Error(), "more than 16 processes wait") {
					t.Fatal(err)
				}
				putOff++
			}
		}
		if putOff != 300-maxCandidates {
			t.Errorf("%d of 300 put off", putOff)
		}
		if _, ok := a.Candidate(10); !ok {
			t.Error("the flood drove out who was there before")
		}
		time.Sleep(candidateFor)
		if err := knock(2000); err != nil {
			t.Errorf("after the flood: %v", err)
		}
		for node := range uint64(300) { // without an address: each one another reason
			conn, err := n.dial(t.Context(), "n1")
			if err != nil {
				t.Fatal(err)
			}
			_, err = greet(conn, hello{speaks: spoken, purpose: forJoin, from: 5000 + node, to: 1, fromIncarnation: node + 1}, time.Second)
			if conn.Close(); err == nil || !strings.Contains(err.Error(), refused) {
				t.Fatal(err)
			}
		}
		a.stop()
		if !strings.Contains(a.log.String(), "does not say who and where it is") {
			t.Errorf("the log does not say why: %s", a.log)
		}
		if lines := strings.Count(a.log.String(), "\n"); lines > maxRefusals+2*maxCandidates+10 {
			t.Errorf("%d lines logged", lines)
		}
	})
}

// A founder that crashed before its second save is counted in as well when the
// peers have changed since.
func TestPendingFounderFindsItselfInALaterList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		n.start(t, ids[0], nil).SetPeers(replaced().Cluster)
		w := &workdir{has: true, id: storage.Identity{NodeID: 3, Incarnation: 103, Peers: ids[0].Peers}}
		got, err := n.boot(t.Context(), 3, threePeers, w)
		if err != nil || !got.Joined || got.ClusterID != 0xc1 || names(got.Peers) != "1, 3, 4" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A workdir without cluster that no -join was said for is told what to do.
func TestEmptyWorkdirAtACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a := n.start(t, ids[0], nil)
		a.SetPeers(replaced().Cluster)
		for node, want := range map[uint64]string{
			2: "had a root peer 2 that was replaced", 3: "wiped or is the wrong one. Restore the old workdir, or replace the peer", 5: "root peer 5 is none of them",
		} {
			_, err := n.boot(t.Context(), node, map[uint64]string{1: "n1", node: fmt.Sprintf("n%d", node), 6: "n6"}, &workdir{})
			refused := new(RefusedError)
			if !errors.As(err, &refused) || !strings.Contains(refused.Why, want) || !strings.Contains(refused.Why, "-join, then `nokv root replace --lost ID --with ID`") {
				t.Errorf("node %d: %v", node, err)
			}
		}
	})
}
