package transport

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
)

// stale waits for a node to end by itself because its folder is not the newest.
func stale(t *testing.T, n *node, why string) {
	t.Helper()
	select {
	case err := <-n.ended:
		if e := new(freshness.StaleError); !errors.As(err, &e) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "nokv root replace") {
			t.Errorf("ended with %v, want %q", err, why)
		}
	default:
		t.Errorf("the peer goes on; its log: %s", n.log)
	}
}

// A folder that was put back comes with a count that the others know, whatever it
// was: they refuse it by name, and its process ends.
func TestOlderCopyOfAFolderIsRefused(t *testing.T) {
	for name, back := range map[string]func(f *folder){
		"an earlier start": func(f *folder) { f.history = freshness.History{Count: 1, Nonces: f.history.Nonces[:1]} },
		"before any start": func(f *folder) { f.history = freshness.History{} },
		"a start that forked": func(f *folder) {
			f.history = freshness.History{Count: 1, Nonces: f.history.Nonces[:1]}.Next(5).Next(6).Next(7)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids := newMemNet(), members(3)
				var others []*node
				for _, id := range ids[1:] {
					others = append(others, n.start(t, id, nil))
				}
				for range 3 {
					one := n.start(t, ids[0], nil)
					time.Sleep(time.Second)
					if !one.Connected(2) || !one.Connected(3) {
						t.Fatalf("a peer is not let in: %s", one.log)
					}
					one.stop()
				}
				back(n.folders[1])
				one := n.start(t, ids[0], nil)
				time.Sleep(time.Second)
				stale(t, one, "is known")
				if both := others[0].log.String() + others[1].log.String(); !strings.Contains(both, "the folder of root peer 1 is an older copy") {
					t.Errorf("the logs of the others: %s", both)
				}
			})
		})
	}
}

// A copy that was made since the newest start comes with a count that is right: what
// the peer promised since tells it.
func TestCopyThatLacksAPromiseIsRefused(t *testing.T) {
	promised := replica.Standing{Promise: freshness.Promise{Term: 4, Vote: 2, Index: 90, IndexTerm: 3}}
	runs := []freshness.Run{{Term: 2, Last: 60}, {Term: 3, Last: 95}}
	for name, c := range map[string]struct {
		footing freshness.Footing
		why     string
	}{
		"everything":    {freshness.Footing{Term: 4, Vote: 2, Last: 95, Runs: runs}, ""},
		"a later term":  {freshness.Footing{Term: 5, Last: 10}, ""},
		"term":          {freshness.Footing{Term: 3, Vote: 2, Last: 95}, "it was in term 4"},
		"vote":          {freshness.Footing{Term: 4, Vote: 3, Last: 95}, "it voted for root peer 2"},
		"entry":         {freshness.Footing{Term: 4, Vote: 2, Last: 89}, "it acknowledged entry 90"},
		"another entry": {freshness.Footing{Term: 4, Vote: 2, Last: 95, Runs: []freshness.Run{{Term: 2, Last: 95}}}, "has one of term 2 there"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids := newMemNet(), members(3)
				n.start(t, ids[1], nil)
				one := n.start(t, ids[0], nil)
				time.Sleep(time.Second)
				one.Tell(promised)
				synctest.Wait()
				one.stop()
				one = n.start(t, ids[0], func(cfg *Config) { cfg.Claim.Footing = c.footing })
				time.Sleep(time.Second)
				if c.why != "" {
					stale(t, one, c.why)
				} else if !one.Connected(2) {
					t.Errorf("it is not let in: %s", one.log)
				}
			})
		})
	}
}

// What a peer acknowledged to one, another hears of from that one: it was away.
func TestPromisesAreToldOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		two, one := n.start(t, ids[1], nil), n.start(t, ids[0], nil)
		time.Sleep(time.Second)
		one.Send([]*raftpb.Message{{Type: raftpb.MsgAppResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)), Index: new(uint64(90))}})
		synctest.Wait()
		one.stop()
		three := n.start(t, ids[2], nil)
		time.Sleep(time.Second)
		two.Tell(replica.Standing{})
		synctest.Wait()
		two.stop()
		one = n.start(t, ids[0], func(cfg *Config) { cfg.Claim.Footing = freshness.Footing{Term: 4, Last: 80} })
		time.Sleep(time.Second)
		stale(t, one, "it acknowledged entry 90")
		if three.Connected(1) {
			t.Error("the copy is let in")
		}
	})
}

// A clone beside the original comes with a start of its own while that of the original
// is alive; and is let in when the original has ended.
func TestCloneBesideTheOriginal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		n.start(t, ids[1], nil)
		one := n.start(t, ids[0], nil)
		time.Sleep(time.Second)
		clone := n.start(t, ids[0], func(cfg *Config) { cfg.Identity.Peers = ids[0].Peers; cfg.Listener = n.listen("elsewhere") })
		time.Sleep(5 * time.Second)
		stale(t, clone, "while the process of an earlier start was alive")
		if !one.Connected(2) {
			t.Error("the original is not connected any more")
		}
	})
}

// A process that is stopped, with its connections open, keeps its successor out only
// until they are given up.
func TestSuccessorOfAProcessThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		n.start(t, ids[1], nil)
		h := hello{speaks: spoken, level: 1, purpose: forMessages, from: 1, to: 2, cluster: ids[0].ClusterID, fromIncarnation: 101, toIncarnation: 102}
		f := &folder{}
		var cfg Config
		f.begin(&cfg)
		h.claim = cfg.Claim
		conn, err := n.dial(t.Context(), "n2")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := greet(conn, h, time.Second); err != nil {
			t.Fatal(err)
		}
		go func() { // It reads, and says nothing.
			for b := make([]byte, 100); err == nil; {
				_, err = conn.Read(b)
			}
		}()
		n.folders[1] = f
		one := n.start(t, ids[0], nil)
		time.Sleep(time.Second)
		if one.Connected(2) {
			t.Fatal("it is let in beside a connection of an earlier start")
		}
		time.Sleep(6 * time.Second)
		if !one.Connected(2) {
			t.Errorf("it is not let in behind the end of that connection: %s", one.log)
		}
	})
}

// A peer takes nothing of another that has not let its present start in: what its
// folder lacks must not come before that is judged.
func TestNothingIsTakenBeforeTheStartIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids := newMemNet(), members(3)
		n.folders[1] = &folder{memory: freshness.NewMemory(nil, nil, nil)}
		two := n.start(t, ids[1], nil)
		one := n.start(t, ids[0], func(cfg *Config) {
			cfg.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("no way") }
		})
		time.Sleep(time.Second)
		two.Send([]*raftpb.Message{message(2, 1, 1, 10)})
		synctest.Wait()
		if !two.Connected(1) || one.Connected(2) || one.delivered() != 0 {
			t.Errorf("connected %v and %v, %d messages", two.Connected(1), one.Connected(2), one.delivered())
		}
	})
}

// Who does not say how often its folder was started is not let in.
func TestMissingStartIsNoPermission(t *testing.T) {
	if _, err := New(Config{Identity: members(1)[0], Listener: newMemNet().listen("n1"), Checkpoints: &checkpoints{}}); err == nil {
		t.Error("a transport without a start")
	}
	_, err := freshness.NewMemory(nil, nil, nil).Admit(1, freshness.Claim{})
	if e := new(freshness.UnknownError); !errors.As(err, &e) {
		t.Errorf("a claim without a start: %v", err)
	}
}

func TestStandingSurvivesTheWire(t *testing.T) {
	s := standing{
		Standing: replica.Standing{Index: 1, Hash: 2, Promise: freshness.Promise{Term: 3, Vote: 4, Index: 5, IndexTerm: 6}},
		known: map[uint64]freshness.Known{
			7: {Start: freshness.Start{Count: 8, Nonce: 9}, Before: freshness.Promise{Term: 10}, Now: freshness.Promise{Vote: 11}},
			2: {Start: freshness.Start{Count: 1, Nonce: 1}},
		},
	}
	encoded := s.append(nil)
	if got, err := parseStanding(encoded); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range encoded {
		if _, err := parseStanding(encoded[:n]); err == nil {
			t.Errorf("%d bytes were taken for a standing", n)
		}
	}
}
