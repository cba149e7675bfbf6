package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/storage"
)

// workdir is a Workdir in memory that can crash at a save.
type workdir struct {
	mu    sync.Mutex
	id    storage.Identity
	has   bool
	saves int
	// crashAt is the save that fails, counted from 1; lost says that it had no effect.
	crashAt int
	lost    bool
}

var errCrash = errors.New("power cut")

func (w *workdir) Identity() (storage.Identity, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id, w.has
}

func (w *workdir) SaveIdentity(id storage.Identity) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.saves++
	if w.saves != w.crashAt || !w.lost {
		id.Peers = append([]storage.Peer(nil), id.Peers...)
		w.id, w.has = id, true
	}
	if w.saves == w.crashAt {
		return errCrash
	}
	return nil
}

var threePeers = map[uint64]string{1: "n1", 2: "n2", 3: "n3"}

// boot runs Agree on n's network with a listener of its own.
func (n *memNet) boot(ctx context.Context, id uint64, peers map[uint64]string, w *workdir) (storage.Identity, error) {
	l := n.listen(peers[id])
	defer l.Close()
	return Agree(ctx, AgreeConfig{NodeID: id, Peers: peers, Workdir: w, Listener: l, Dial: n.dial})
}

func TestThreeEmptyWorkdirsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		var ids [4]storage.Identity
		dirs := map[uint64]*workdir{1: {}, 2: {}, 3: {}}
		for id, w := range dirs {
			all.Go(func() {
				time.Sleep(time.Duration(id) * time.Second) // They start one after the other.
				got, err := n.boot(ctx, id, threePeers, w)
				if err != nil {
					t.Errorf("peer %d: %v", id, err)
					return
				}
				ids[id] = got
				if saved, _ := w.Identity(); !reflect.DeepEqual(saved, got) {
					t.Errorf("peer %d saved %v, returned %v", id, saved, got)
				}
				// Serves as a member, so that the others can finish.
				n.start(t, got, nil)
			})
		}
		all.Wait()
		for id := 1; id <= 3; id++ {
			got := ids[id]
			if !got.Member || got.ClusterID == 0 || got.ClusterID != ids[1].ClusterID || !reflect.DeepEqual(got.Peers, ids[1].Peers) || got.Incarnation != got.Peers[id-1].Incarnation {
				t.Errorf("peer %d: %+v", id, got)
			}
		}
		// Again: nothing is written, the same answer.
		saves := dirs[2].saves
		got, err := n.boot(ctx, 2, threePeers, dirs[2])
		if err != nil || !reflect.DeepEqual(got, ids[2]) || dirs[2].saves != saves {
			t.Errorf("second start: %+v, %v", got, err)
		}
	})
}

// A crash at any save of any peer, before or after it had effect, ends in one
// cluster after a restart.
func TestCrashAtEachSave(t *testing.T) {
	for victim := uint64(1); victim <= 3; victim++ {
		for crashAt := 1; crashAt <= 2; crashAt++ {
			for _, lost := range []bool{true, false} {
				t.Run(fmt.Sprintf("peer %d save %d lost %v", victim, crashAt, lost), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { crashAtSave(t, victim, crashAt, lost) })
				})
			}
		}
	}
}

func crashAtSave(t *testing.T, victim uint64, crashAt int, lost bool) {
	n := newMemNet()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var ids [4]storage.Identity
	for id := uint64(1); id <= 3; id++ {
		w := &workdir{}
		if id == victim {
			w.crashAt, w.lost = crashAt, lost
		}
		all.Go(func() {
			got, err := n.boot(ctx, id, threePeers, w)
			if id == victim {
				if !errors.Is(err, errCrash) {
					t.Errorf("victim: %v", err)
				}
				time.Sleep(5 * time.Second)
				got, err = n.boot(ctx, id, threePeers, w)
			}
			if err != nil {
				t.Errorf("peer %d: %v", id, err)
				return
			}
			ids[id] = got
			n.start(t, got, nil)
		})
	}
	all.Wait()
	for id := 2; id <= 3; id++ {
		if ids[id].ClusterID != ids[1].ClusterID || !reflect.DeepEqual(ids[id].Peers, ids[1].Peers) {
			t.Errorf("peer 1: %+v\npeer %d: %+v", ids[1], id, ids[id])
		}
	}
}

// Founders that were given different peers say so, each of what the other answers.
func TestFoundersWithOtherPeersAreToldWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		other := maps.Clone(threePeers)
		other[3] = "n9"
		why := func(sentence string) bool {
			return strings.Contains(sentence, "their -peer lists must be the same") || strings.Contains(sentence, otherPeers)
		}
		var all sync.WaitGroup
		var said [3]string // until it says why: both end at one moment, and then it is another reason
		for id, peers := range map[uint64]map[uint64]string{1: threePeers, 2: other} {
			all.Go(func() {
				l := n.listen(peers[id])
				defer l.Close()
				_, err := Agree(ctx, AgreeConfig{
					NodeID: id, Peers: peers, Workdir: &workdir{}, Listener: l, Dial: n.dial, Waiting: func(sentence string) {
						if !why(said[id]) {
							said[id] = sentence
						}
					},
				})
				if err == nil {
					t.Errorf("peer %d founded a cluster", id)
				}
			})
		}
		all.Wait()
		for _, sentence := range said[1:] {
			if !why(sentence) || strings.Contains(sentence, refused) {
				t.Errorf("it waits, and says %q", sentence)
			}
		}
	})
}

func TestWipedPeerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		a := n.start(t, ids[0], nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w := &workdir{}
		_, err := n.boot(ctx, 2, threePeers, w)
		refused := new(RefusedError)
		if !errors.As(err, &refused) || !strings.Contains(refused.Why, "wiped or is the wrong one") || !strings.Contains(refused.Why, "root peer 2") {
			t.Errorf("Agree = %v", err)
		}
		if w.id.Member {
			t.Error("the wiped workdir became a member")
		}
		if a.stop(); !strings.Contains(a.log.String(), "wiped, or the wrong one") {
			t.Errorf("the member does not say it: %s", a.log)
		}
	})
}

// One wiped peer and one member are enough to refuse; without any member the
// wiped one waits for all.
func TestPendingPeersWaitForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for id := uint64(1); id <= 2; id++ {
			all.Go(func() {
				if _, err := n.boot(ctx, id, threePeers, &workdir{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "heard 1 of 2") {
					t.Errorf("peer %d: %v", id, err)
				}
			})
		}
		all.Wait()
	})
}

func TestDifferentPeerMapsNeverAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for id := uint64(1); id <= 3; id++ {
			peers := threePeers
			if id == 2 {
				peers = map[uint64]string{1: "n1", 2: "n2", 3: "n3", 4: "n4", 5: "n5"}
			}
			all.Go(func() {
				if _, err := n.boot(ctx, id, peers, &workdir{}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("peer %d: %v", id, err)
				}
			})
		}
		all.Wait()
	})
}

// Founders that understand different things found nothing, whichever way round they
// meet: the cluster begins at the level of all of them. Each log says whose differ.
func TestDifferentLevelsNeverAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		var logs [4]written.Text
		for id := uint64(1); id <= 3; id++ {
			l := n.listen(threePeers[id])
			defer l.Close()
			level := uint32(3)
			if id == 2 {
				level = 1
			}
			all.Go(func() {
				_, err := Agree(ctx, AgreeConfig{NodeID: id, Peers: threePeers, Workdir: &workdir{}, Listener: l, Dial: n.dial, FeatureLevel: level, Logger: logs[id].Logger(hclog.Info)})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("peer %d: %v", id, err)
				}
			})
		}
		all.Wait()
		for id, want := range map[int]string{
			1: "root peer 1 understands feature level 3 and root peer 2 level 1", 2: "root peer 2 understands feature level 1 and root peer 1 level 3",
			3: "root peer 3 understands feature level 3 and root peer 2 level 1",
		} {
			if got := logs[id].String(); !strings.Contains(got, want) {
				t.Errorf("peer %d logs:\n%s\nwant %q", id, got, want)
			}
		}
	})
}

func TestOnePeerAgreesWithItself(t *testing.T) {
	w := &workdir{}
	got, err := Agree(t.Context(), AgreeConfig{NodeID: 7, Peers: map[uint64]string{7: "x"}, Workdir: w})
	if err != nil || !got.Member || got.ClusterID == 0 || len(got.Peers) != 1 || got.Peers[0].Incarnation != got.Incarnation {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWorkdirOfAnotherNodeOrClusterIsRefused(t *testing.T) {
	id := members(3)[0]
	for name, cfg := range map[string]AgreeConfig{
		"belongs to root peer 1":    {NodeID: 2, Peers: threePeers},
		"belongs to root peer 1 of": {NodeID: 4, Peers: threePeers, Address: "n4", Join: true},
		"do not name node 9":        {NodeID: 9, Peers: threePeers},
		"do not name node 0 itself": {NodeID: 0, Peers: map[uint64]string{0: "x"}},
	} {
		cfg.Workdir = &workdir{id: id, has: true}
		if _, err := Agree(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Members may move: addresses are those given at this start. Nodes that were not
// there at the founding, and those left out, do not matter.
func TestMemberTakesNewAddresses(t *testing.T) {
	w := &workdir{id: members(3)[0], has: true}
	got, err := Agree(t.Context(), AgreeConfig{NodeID: 1, Peers: map[uint64]string{1: "m1", 2: "m2", 9: "m9"}, Workdir: w})
	if err != nil || len(got.Peers) != 3 || got.Peers[0].Address != "m1" || got.Peers[1].Address != "m2" || got.Peers[2].Address != "n3" {
		t.Errorf("%+v, %v", got, err)
	}
	if w.saves != 0 || w.id.Peers[1].Address != "n2" {
		t.Errorf("the workdir has %+v", w.id)
	}
}

func TestAnEmptyWorkdirIsToldWhatItNeeds(t *testing.T) {
	two := map[uint64]string{1: "n1", 2: "n2"}
	for want, cfg := range map[string]AgreeConfig{
		"2 peers cannot found one": {NodeID: 1, Peers: two},
		"-join to become":          {NodeID: 1, Peers: map[uint64]string{1: "a", 2: "b", 3: "c", 4: "d"}},
		"one of its peers":         {NodeID: 1, Peers: map[uint64]string{1: "n1"}, Join: true},
		"one of its peers at":      {NodeID: 1, Address: "n1", Join: true},
		"do not name node 3":       {NodeID: 3, Peers: two, Join: true},
	} {
		w := &workdir{}
		cfg.Workdir = w
		if _, err := Agree(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || w.saves != 0 {
			t.Errorf("%s: %v, %d saves", want, err, w.saves)
		}
	}
}
