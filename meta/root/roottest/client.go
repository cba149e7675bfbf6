package roottest

import (
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
	// peer is the index of the peer to try next.
	peer int
}

// NewLink makes a link from a place.
func (c *Cluster) NewLink(place Place) *Link {
	return &Link{cluster: c, place: place, peer: c.World.Rand.IntN(len(c.Peers))}
}

// Peer is the peer that the next request goes to.
func (l *Link) Peer() *Peer { return l.cluster.Peers[l.peer] }

// Rotate chooses another peer: the hinted one when it is known.
func (l *Link) Rotate(hint uint64) {
	if hint >= 1 && hint <= uint64(len(l.cluster.Peers)) && int(hint)-1 != l.peer {
		l.peer = int(hint) - 1
		return
	}
	l.peer = (l.peer + 1) % len(l.cluster.Peers)
}

// Ask sends one request to the current peer. done is called once: with the
// answered request, or with nil after timeout.
func (l *Link) Ask(request replica.Request, timeout time.Duration, done func(replica.Request)) {
	answered := false
	finish := func(r replica.Request) {
		if !answered {
			answered = true
			done(r)
		}
	}
	to, sent := l.Peer(), false
	l.cluster.Net.Send(l.place, to.Place, func() {
		// A repeated message meets a server that has the request already.
		if sent {
			return
		}
		sent = true
		to.submit(request, func(r replica.Request) {
			l.cluster.Net.Send(to.Place, l.place, func() { finish(r) })
		})
	})
	l.cluster.World.After(timeout, func() { finish(nil) })
}

// Propose sends commands until their outcome is known or limit has passed,
// going from peer to peer. The commands are the same each time. done gets nil
// when the outcome is unknown.
func (l *Link) Propose(commands []*rootv1.Command, limit time.Duration, done func([]state.Result)) {
	deadline := l.cluster.World.Now().Add(limit)
	var try func()
	try = func() {
		left := deadline.Sub(l.cluster.World.Now())
		if left <= 0 {
			done(nil)
			return
		}
		p, err := replica.NewProposal(commands)
		if err != nil {
			panic(err)
		}
		l.Ask(p, min(left, 300*time.Millisecond), func(r replica.Request) {
			if r != nil && Refusal(r) == nil {
				done(p.Results)
				return
			}
			l.Rotate(reason.From(Refusal(r)).GetLeaderId())
			l.cluster.World.After(l.cluster.World.Between(time.Millisecond, 20*time.Millisecond), try)
		})
	}
	try()
}

// Refusal is why a request was answered without a result; nil when it has one.
func Refusal(r replica.Request) error {
	switch r := r.(type) {
	case *replica.Proposal:
		return r.Err
	case *replica.Read:
		return r.Err
	case *replica.Confirm:
		return r.Err
	case *replica.Claim:
		return r.Err
	case *replica.Transfer:
		return r.Err
	}
	return nil
}
