package simulation

import (
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// read is a read that was asked for and, when answered, its answer.
type read struct {
	client    int
	key       string
	freshness coordinatorv1.Freshness
	called    time.Duration
	// required is the position asked for; known the newest one that anybody had
	// been told of at the call of a strong read.
	required state.Token
	known    uint64
	maxLag   uint64
	maxAge   time.Duration

	// The answer.
	node   string
	token  state.Token
	region *state.Region
	lag    uint64
	sent   time.Duration
	// late: its client had given up, and does not count it.
	late bool
}

// read answers as the coordinator's service does; answer gets nil for a refusal.
func (n *node) read(q *read, answer func(*read)) {
	f, strong := &n.view, q.freshness == coordinatorv1.Freshness_FRESHNESS_STRONG
	switch {
	case strong && n.r.k.variant != strongWithoutRead:
		n.readIndex(func(at state.Token, ok bool) {
			if !ok {
				answer(nil)
				return
			}
			f.core.OnKnown(at)
			f.await(at, func() { n.answer(q, answer) })
		})
	case !f.core.View().Loaded():
		answer(nil)
	case q.required.Index != 0:
		f.await(q.required, func() { n.answer(q, answer) })
	default:
		n.answer(q, answer)
	}
}

// readIndex asks the root for a position after which a read is strong.
func (n *node) readIndex(done func(at state.Token, ok bool)) {
	n.link.AskUntil(askLimit, func() replica.Request { return replica.NewRead() }, func(r replica.Request) {
		if r == nil || roottest.Refusal(r) != nil {
			done(state.Token{}, false)
			return
		}
		done(r.(*replica.Read).Token, true)
	})
}

// answer looks the key up in the view of the moment.
func (n *node) answer(q *read, answer func(*read)) {
	v, now := n.view.core.View(), n.now()
	if q.freshness == coordinatorv1.Freshness_FRESHNESS_BOUNDED && n.r.k.variant != boundIgnored {
		if age, ok := v.Age(now); !ok || age > q.maxAge || v.Lag() > q.maxLag {
			n.r.count.bounded++
			answer(nil)
			return
		}
	}
	looked := v.State
	if n.r.k.variant == viewOlderThanToken && n.view.previous != nil {
		looked = n.view.previous.State
	}
	a := *q
	a.node, a.token, a.lag, a.sent = n.name, v.Token, v.Lag(), n.r.now()
	a.region = looked.RegionAt(state.DefaultKeyspace, q.key)
	if v.Lag() > 0 {
		n.r.count.staleViews++
	}
	answer(&a)
}

// ack is an index that somebody was told of.
type ack struct {
	at    time.Duration
	index uint64
}

func lastAcknowledged(acknowledged []ack) uint64 {
	if len(acknowledged) == 0 {
		return 0
	}
	return acknowledged[len(acknowledged)-1].index
}
