package replica_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
)

// askers answers questions for terms between the Replicas of one process.
type askers struct {
	mu sync.Mutex
	// asked are the peers that were asked, in order; how says how a peer answers.
	asked []uint64
	how   map[uint64]string
	peers *running
}

func (a *askers) from(me uint64) func(node, id uint64) bool {
	return func(node, id uint64) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked = append(a.asked, node)
		term := a.peers.peer(node).Term()
		switch a.how[node] {
		case "away":
			return false
		case "silent":
			return true
		case "later":
			term++
		case "confused":
			a.peers.peer(me).PeerTerm(node, id+1, term) // of another question
			a.peers.peer(me).PeerTerm(node+5, id, term) // of somebody who was not asked
			return true
		}
		a.peers.peer(me).PeerTerm(node, id, term)
		return true
	}
}

func (a *askers) all() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

// serveEra runs peers, of which one leads and has given era 1 to "a", with a ttl.
func serveEra(t *testing.T, n int, ttl time.Duration) (*askers, *running, *replica.Replica, []uint64) {
	a := &askers{how: map[uint64]string{}}
	a.mu.Lock() // until there are peers
	a.peers = run(t, n, memLogs, func(cfg *replica.Config) { cfg.AskTerm = a.from(cfg.NodeID) })
	a.mu.Unlock()
	var ids []uint64
	for id := range uint64(n) {
		ids = append(ids, id+1)
	}
	l := a.peers.leader(ids...)
	if resp, err := l.Claim(deadline(t, time.Second), claim(t, "a", 0, ttl).Request); err != nil || !applied(resp) {
		t.Fatalf("claim %v, %v", resp, err)
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id uint64) bool { return id == a.peers.idOf(l) })
	return a, a.peers, l, others
}

// confirms asks for a confirmation and returns how long that took.
func confirms(t *testing.T, l *replica.Replica) time.Duration {
	t.Helper()
	began := time.Now()
	resp, err := l.Confirm(deadline(t, time.Second), confirm(1, "a").Request)
	if err != nil || !resp.GetActive() || resp.GetTenure().GetEra() != 1 || resp.GetToken().GetIndex() == 0 {
		t.Fatalf("confirm %v, %v", resp, err)
	}
	return time.Since(began)
}

// A confirmation without a ttl asks as many others as make a quorum, and no
// Turn: messages of raft are lost here.
func TestConfirmationByWords(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			a, r, l, others := serveEra(t, n, 0)
			r.lose.Store(true)
			for range 5 {
				if d := confirms(t, l); d != 0 {
					t.Errorf("%d peers: took %v", n, d)
				}
				if got := a.all(); !slices.Equal(got, others[:n/2]) {
					t.Errorf("%d peers: asked %v of %v", n, got, others)
				}
			}
			// Another process of the holder is none of this word's business.
			if resp, err := l.Confirm(deadline(t, 10*time.Millisecond), confirm(1, "b").Request); n > 1 && err == nil {
				t.Errorf("confirmed to a stranger: %v", resp)
			}
			if got := a.all(); len(got) != 0 {
				t.Errorf("asked %v about a stranger", got)
			}
			r.lose.Store(false)
			r.stop(append(others, r.idOf(l))...)
		})
	}
}

// Whatever the peer does that is asked first: the confirmation comes, by a Turn
// then, and the next one asks somebody else and waits for nothing.
func TestConfirmationWithoutAWord(t *testing.T) {
	const most = 6 * time.Millisecond // twice roundPause
	for how, late := range map[string]time.Duration{"away": 0, "silent": most, "later": 0, "confused": most} {
		synctest.Test(t, func(t *testing.T) {
			a, r, l, others := serveEra(t, 3, 0)
			a.how[others[0]] = how
			if d := confirms(t, l); d > late {
				t.Errorf("%s: took %v", how, d)
			}
			if got := a.all(); !slices.Equal(got, others[:1]) {
				t.Errorf("%s: asked %v of %v", how, got, others)
			}
			if how == "later" {
				r.stop(append(others, r.idOf(l))...)
				return // it has answered, and is asked again
			}
			r.lose.Store(true)
			if d := confirms(t, l); d != 0 {
				t.Errorf("%s: the next one took %v", how, d)
			}
			if got := a.all(); !slices.Equal(got, others[1:]) {
				t.Errorf("%s: then asked %v of %v", how, got, others)
			}
			r.lose.Store(false)
			r.stop(append(others, r.idOf(l))...)
		})
	}
}

// A peer of a later term has voted: with it there is no confirmation, however
// often it is asked.
func TestWordOfALaterTermConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r, l, others := serveEra(t, 3, 0)
		a.how[others[0]], a.how[others[1]] = "later", "later"
		r.lose.Store(true)
		for range 3 {
			if resp, err := l.Confirm(deadline(t, 10*time.Millisecond), confirm(1, "a").Request); err == nil {
				t.Errorf("confirmed: %v", resp)
			}
		}
		if got := a.all(); len(got) != 3 {
			t.Errorf("asked %v", got)
		}
		r.lose.Store(false)
		r.stop(append(others, r.idOf(l))...)
	})
}

// The leader must know when it confirmed an era with a ttl: that takes a Turn.
func TestConfirmationWithTTLTakesATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r, l, others := serveEra(t, 3, testTTL)
		confirms(t, l)
		if got := a.all(); len(got) != 0 {
			t.Errorf("asked %v", got)
		}
		r.stop(append(others, r.idOf(l))...)
	})
}
