package roottest

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Link is how a process other than a root peer reaches the peers: requests and
// answers travel over the network and may not arrive.
type Link struct {
	cluster *Cluster
	place   Place
	// peer is the one to try next.
	peer   *Peer
	closed bool
	// run calls back into the process.
	run func(func())
}

// NewLink makes a link from a place.
func (c *Cluster) NewLink(place Place) *Link {
	return &Link{cluster: c, place: place, peer: c.Peers[c.World.Rand.IntN(len(c.Peers))], run: func(fn func()) { fn() }}
}

// Within makes every call back go through run: a process that stands still
// hears of answers and timeouts when it goes on.
func (l *Link) Within(run func(func())) { l.run = run }

// Close ends the link with its process: nobody is called back any more.
func (l *Link) Close() { l.closed = true }

// Peer is the peer that the next request goes to.
func (l *Link) Peer() *Peer { return l.peer }

// Rotate chooses another peer: the hinted one when it is known.
func (l *Link) Rotate(hint uint64) {
	if hint >= 1 && hint <= uint64(len(l.cluster.machines)) && hint != l.peer.ID {
		l.peer = l.cluster.peer(hint)
		return
	}
	peers := l.cluster.Peers
	l.peer = peers[(slices.Index(peers, l.peer)+1)%len(peers)]
}

// Ask sends one request to the current peer. done is called once: with the
// answered request, or with nil after timeout or when the peer is down.
func (l *Link) Ask(request replica.Request, timeout time.Duration, done func(replica.Request)) {
	answered := false
	finish := func(r replica.Request) {
		if !answered && !l.closed {
			answered = true
			l.run(func() { done(r) })
		}
	}
	to, sent := l.Peer(), false
	l.cluster.Net.Send(l.place, to.Place, func() {
		// A repeated message meets a server that has the request already.
		if sent {
			return
		}
		sent = true
		reply := func(r replica.Request) { l.cluster.Net.Send(to.Place, l.place, func() { finish(r) }) }
		if to.core == nil {
			reply(nil)
			return
		}
		to.submit(request, reply)
	})
	l.cluster.World.After(timeout, func() { finish(nil) })
}

// AskUntil asks until the answer is final or limit has passed, going from peer
// to peer; request makes the same request for each attempt. done gets nil when
// the outcome is unknown.
func (l *Link) AskUntil(limit time.Duration, request func() replica.Request, done func(replica.Request)) {
	deadline := l.cluster.World.Now().Add(limit)
	var try func()
	try = func() {
		left := deadline.Sub(l.cluster.World.Now())
		if l.closed {
			return
		}
		if left <= 0 {
			done(nil)
			return
		}
		l.Ask(request(), min(left, askTimeout), func(r replica.Request) {
			if r != nil && !passing(Refusal(r)) {
				done(r)
				return
			}
			l.Rotate(reason.From(Refusal(r)).GetLeaderId())
			l.cluster.World.After(l.cluster.World.Between(time.Millisecond, 20*time.Millisecond), func() { l.run(try) })
		})
	}
	try()
}

// askTimeout is the patience with one peer.
const askTimeout = 300 * time.Millisecond

// passing says whether another attempt may have another answer.
func passing(err error) bool {
	switch reason.Of(err) {
	case rootv1.Reason_REASON_NOT_LEADER, rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_OVERLOADED,
		rootv1.Reason_REASON_ROOT_UNAVAILABLE:
		return true
	}
	return false
}

// Propose sends commands until their outcome is known or limit has passed,
// going from peer to peer. The commands are the same each time. done gets nil
// when the outcome is unknown.
func (l *Link) Propose(commands []*rootv1.Command, limit time.Duration, done func([]state.Result)) {
	l.AskUntil(limit, func() replica.Request {
		p, err := replica.NewProposal(commands)
		if err != nil {
			panic(err)
		}
		return p
	}, func(r replica.Request) {
		if r == nil || Refusal(r) != nil {
			done(nil)
			return
		}
		done(r.(*replica.Proposal).Results)
	})
}

// Refusal is why a request was answered without a result; nil when it has one.
func Refusal(r replica.Request) error {
	if r == nil {
		return nil
	}
	return r.Refusal()
}
