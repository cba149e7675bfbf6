package roottest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	holderTTL = 300 * time.Millisecond
	// vouchFor is how old what a peer takes for the present may be: it finds that
	// its leader is gone after two election timeouts at the latest, by ticks, of
	// which it loses some in turns that are long and yet not too long.
	vouchFor = 1300 * time.Millisecond
)

// promises judges, while a cluster runs, what its peers tell those that ask.
type promises struct {
	t *testing.T
	w *roottest.World
	c *roottest.Cluster
	// acked are the positions acknowledged to anybody, ever higher, and when.
	acked []ack
	// good is until when the holder of an era may believe in it, began when the era
	// was first seen to be applied.
	good, began map[uint64]clock.Instant
	asked       map[string]int
}

type ack struct {
	at    clock.Instant
	index uint64
}

func newPromises(t *testing.T, w *roottest.World, c *roottest.Cluster) *promises {
	p := &promises{t: t, w: w, c: c, good: map[uint64]clock.Instant{}, began: map[uint64]clock.Instant{}, asked: map[string]int{}}
	c.AfterTurn = p.afterTurn
	return p
}

// afterTurn judges what a peer says at the end of a turn: an era begins only when its
// predecessor's holder has stopped believing.
func (p *promises) afterTurn(peer *roottest.Peer) {
	era := peer.View().State.Tenure().GetEra()
	if _, ok := p.began[era]; era == 0 || ok {
		return
	}
	p.began[era] = p.w.Now()
	if late := p.good[era-1].Sub(p.w.Now()); late > 0 {
		p.t.Errorf("era %d began %v before the holder of era %d stopped believing", era, late, era-1)
	}
	if era > 1 {
		p.asked["successors"]++
	}
}

func (p *promises) believe(era uint64, since clock.Instant, ttlMillis uint64) {
	until := since.Add(time.Duration(ttlMillis) * time.Millisecond)
	if began, ok := p.began[era+1]; ok && until > began {
		p.t.Errorf("era %d was confirmed until %v after era %d began", era, until.Sub(began), era+1)
	}
	p.good[era] = max(p.good[era], until)
}

func (p *promises) acknowledged(index uint64) {
	if index > p.floor(p.w.Now()) {
		p.acked = append(p.acked, ack{p.w.Now(), index})
	}
}

// floor is the highest index acknowledged at a time.
func (p *promises) floor(at clock.Instant) uint64 {
	for i := len(p.acked) - 1; i >= 0; i-- {
		if p.acked[i].at <= at {
			return p.acked[i].index
		}
	}
	return 0
}

// vouch asks, again and again, that a peer that says that it is informed is:
// readers of its tail take what it knows for the present.
func (p *promises) vouch(active *bool) {
	if !*active {
		return
	}
	for _, peer := range p.c.Peers {
		v := peer.View()
		if v == nil || v.LeaderlessSince != 0 || !peer.Runs() {
			continue
		}
		p.asked["vouched"]++
		if floor := p.floor(p.w.Now() - clock.Instant(vouchFor)); max(v.Known, v.Commit) < floor {
			p.t.Errorf("root %d vouches for %d at %v: %d was acknowledged %v before", peer.ID, max(v.Known, v.Commit), p.w.Now(), floor, vouchFor)
			*active = false
		}
	}
	p.w.After(20*time.Millisecond, func() { p.vouch(active) })
}

// asker reads, claims and confirms at whatever peer it comes to.
func (p *promises) ask(link *roottest.Link, active *bool) {
	if !*active {
		return
	}
	begun, floor := p.w.Now(), p.floor(p.w.Now())
	var tenure *rootv1.Tenure
	if v := link.Peer().View(); v != nil {
		tenure = v.State.Tenure()
	}
	link.Ask(p.request(tenure), 300*time.Millisecond, func(r replica.Request) {
		if r != nil && roottest.Refusal(r) == nil {
			p.judge(r, begun, floor)
		}
		link.Rotate(0)
		p.w.After(p.w.Between(0, 20*time.Millisecond), func() { p.ask(link, active) })
	})
}

func (p *promises) request(tenure *rootv1.Tenure) replica.Request {
	switch p.w.Rand.IntN(3) {
	case 0:
		return replica.NewRead()
	case 1:
		return replica.NewConfirm(&rootv1.ConfirmTenureRequest{
			Era: tenure.GetEra(), HolderId: tenure.GetHolderId(), HolderIncarnation: tenure.GetHolderIncarnation(),
		})
	}
	claim := &rootv1.TenureClaimed{
		HolderId: fmt.Sprint("h", p.w.Rand.IntN(3)), HolderIncarnation: p.w.Rand.Uint64() | 1, HolderAddress: "h:1",
		ExpectedEra: tenure.GetEra(), Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID}, TtlMillis: uint64(holderTTL.Milliseconds()),
	}
	if p.w.Chance(0.5) {
		claim.TtlMillis = 0
	}
	c, err := replica.NewClaim(claim)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *promises) judge(r replica.Request, begun clock.Instant, floor uint64) {
	switch r := r.(type) {
	case *replica.Read:
		p.asked["reads"]++
		if r.Token.Index < floor {
			p.t.Errorf("a read at %d, and %d was acknowledged before it began", r.Token.Index, floor)
		}
	case *replica.Confirm:
		if r.Response.GetActive() {
			p.asked["confirmations"]++
			p.believe(r.Request.GetEra(), begun, r.Response.GetTenure().GetTtlMillis())
		}
	case *replica.Claim:
		if r.Response.GetResult().GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED {
			p.asked["claims"]++
			p.believe(r.Request.GetExpectedEra()+1, begun, r.Request.GetTtlMillis())
		}
	}
}
