package explorer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// beside is a random walk through worlds beside a real root: what the model's
// leader decides, a real replica.Core decides too.
type beside struct {
	*model
	w   world
	rng *rand.Rand
	q   *quorum
	// incarnations are those of the processes now, holders those that eras were
	// given to.
	incarnations [maxProcesses]uint64
	holders      [maxEras + 1]uint64
	// pending is the claim under way, by claimant.
	pending  *replica.Claim
	claimant uint64
	took     map[action]int
	held     int
	refused  int
}

// TestModelIsTheLeader walks at random and compares the model with real
// replicas.
func TestModelIsTheLeader(t *testing.T) {
	took := map[action]int{}
	held, refused := 0, 0
	for _, ttl := range []uint8{0, 4} {
		for seed := range uint64(60) {
			c := config{
				processes: 2, ttl: ttl, eras: maxEras, values: 12, window: 2, flights: 1, mandate: ids, eager: true, again: true,
			}
			q, err := newQuorum(seed)
			if err != nil {
				t.Fatal(err)
			}
			b := &beside{model: newModel(c), rng: rand.New(rand.NewPCG(seed, uint64(ttl))), q: q, took: took}
			b.w = b.first()
			for i := range b.incarnations {
				b.incarnations[i] = b.rng.Uint64() | 1
			}
			for range 250 {
				if err := b.walk(); err != nil {
					t.Fatalf("ttl %d, seed %d: %v", ttl, seed, err)
				}
			}
			held, refused = held+b.held, refused+b.refused
		}
	}
	for _, a := range []action{electLeader, passTime, giveUp, sendClaim, repeatClaim, commitClaim, commitOrphan, judgeConfirm, judgeWindow, commitRetire} {
		if took[a] < 20 {
			t.Errorf("step %d was taken only %d times", a, took[a])
		}
	}
	if held < 20 || refused < 20 {
		t.Errorf("only %d confirmations were held, %d claims refused", held, refused)
	}
	t.Log(took, held, refused)
}

func (b *beside) walk() error {
	if b.rng.IntN(6) == 0 {
		b.passTime()
	}
	var may []successor
	for _, s := range b.successors(&b.w) {
		if b.allowed(s.step) {
			may = append(may, s)
		}
	}
	if len(may) == 0 {
		b.passTime()
		return nil
	}
	s := may[b.rng.IntN(len(may))]
	before := b.w
	b.w = s.world
	b.took[s.step.do]++
	if err := b.mirror(&before, s.step); err != nil {
		return fmt.Errorf("step %v: %w", s.step, err)
	}
	if err := b.probe(); err != nil {
		return fmt.Errorf("after step %v: %w", s.step, err)
	}
	return nil
}

func (b *beside) allowed(s step) bool {
	switch s.do {
	case passTime:
		return false
	case crash, shutDown, giveUp, electLeader:
		return b.rng.IntN(5) == 0
	case sendClaim, repeatClaim, judgeWindow, commitRetire:
		return b.pending == nil // Entries commit in order.
	}
	return true
}

func (b *beside) passTime() {
	b.took[passTime]++
	rate := func() uint8 { return uint8(slow + b.rng.IntN(fast-slow+1)) }
	leader := rate()
	b.q.pass(leader)
	if b.ttl == 0 {
		return
	}
	b.w.since = min(b.w.since+leader, b.wait())
	for i := range b.processes {
		b.w.processes[i].tick(rate(), b.ttl)
	}
}

func (b *beside) newClaim(incarnation uint64, era uint8) *replica.Claim {
	c, err := replica.NewClaim(&rootv1.TenureClaimed{
		HolderId: "c", HolderIncarnation: incarnation, HolderAddress: "c:1", ExpectedEra: uint64(era),
		TtlMillis: uint64((time.Duration(b.ttl) * unit).Milliseconds()), Mandates: []rootv1.Mandate{b.mandate},
		RetireDigest: digestOf(secretOf(uint8(incarnation))),
	})
	if err != nil {
		panic(err)
	}
	return c
}

func outcomeOf(c *replica.Claim) rootv1.Outcome { return c.Response.GetResult().GetOutcome() }

// mirror asks the real root what the model's root was asked.
func (b *beside) mirror(before *world, s step) error {
	was, r := &before.processes[s.who], b.root(before)
	switch s.do {
	case crash:
		b.incarnations[s.who] = b.rng.Uint64() | 1
	case electLeader:
		return b.elect()
	case sendClaim:
		b.q.hold = true
		b.pending, b.claimant = b.newClaim(b.incarnations[s.who], r.era), b.incarnations[s.who]
		if answered, err := b.q.ask(b.pending); answered || err != nil {
			return fmt.Errorf("a claim that the model proposes was answered: %v, %w", b.pending.Response, err)
		}
	case commitClaim, commitOrphan:
		return b.commit()
	case repeatClaim:
		c := b.newClaim(b.incarnations[s.who], r.era-1)
		if _, err := b.q.ask(c); err != nil || outcomeOf(c) != rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
			return fmt.Errorf("a repeated claim: %v, %w", c.Response, err)
		}
	case judgeConfirm:
		active := b.w.processes[s.who].flights[s.at].is == answeredActive
		c := b.newConfirm(was.held, b.incarnations[s.who])
		if _, err := b.q.ask(c); err != nil || !b.q.done[c] || c.Err != nil || c.Response.GetActive() != active {
			return fmt.Errorf("era %d: the model confirms %v, the leader %v, %v, %w", was.held, active, c.Response, c.Err, err)
		}
	case judgeWindow:
		q := &b.w.processes[s.who]
		// A window that nobody waits for any more leaves no answer to compare.
		return b.propose(command{kind: extendFence, a: was.askEra, b: was.askFrom, c: was.askUpTo}, 0, q.ask != noAsk, q.ask == askGiven)
	case commitRetire:
		return b.propose(command{kind: retireTenure, a: was.retire, c: was.retireAt}, b.incarnations[s.who], true, b.w.root != before.root || r.retired && r.holds(was, was.retire))
	}
	return nil
}

func (b *beside) newConfirm(era uint8, incarnation uint64) *replica.Confirm {
	return replica.NewConfirm(&rootv1.ConfirmTenureRequest{Era: uint64(era), HolderId: "c", HolderIncarnation: incarnation})
}

// elect loses the claim under way.
func (b *beside) elect() error {
	lost := b.pending
	b.pending = nil
	if err := b.q.elect(); err != nil {
		return err
	}
	if lost != nil && (!b.q.done[lost] || lost.Err == nil) {
		return fmt.Errorf("the old leader's claim was answered with %v", lost.Response)
	}
	return nil
}

func (b *beside) commit() error {
	c := b.pending
	b.pending, b.q.hold = nil, false
	if err := b.q.beat(); err != nil {
		return err
	}
	if !b.q.done[c] || c.Err != nil || outcomeOf(c) != rootv1.Outcome_OUTCOME_APPLIED {
		return fmt.Errorf("a claim that the model commits: answered %v with %v, %v", b.q.done[c], c.Response, c.Err)
	}
	b.holders[b.root(&b.w).era] = b.claimant
	return nil
}

// propose asks the real root for a command of the model, and compares the
// judgement when there is one to compare.
func (b *beside) propose(c command, incarnation uint64, judged, applies bool) error {
	events := b.roots.events(b.root(&b.w), c)
	if t := events[0].GetTenureRetired(); t != nil {
		t.HolderIncarnation, t.RetireSecret = incarnation, secretOf(uint8(incarnation))
	}
	p, err := replica.NewProposal([]*rootv1.Command{{Events: events}})
	if err != nil {
		return err
	}
	if _, err := b.q.ask(p); err != nil || !b.q.done[p] || p.Err != nil {
		return fmt.Errorf("a proposal was not judged: %v, %w", p.Err, err)
	}
	if ok := p.Results[0].Outcome != rootv1.Outcome_OUTCOME_REJECTED; judged && ok != applies {
		return fmt.Errorf("%v: the model applies it: %v; the root: %v %v", c, applies, p.Results[0].Outcome, p.Results[0].Reject)
	}
	return nil
}

// probe compares what is rooted, and asks for what the leader must not give.
func (b *beside) probe() error {
	r := b.root(&b.w)
	t := b.q.state().Tenure()
	if t.GetEra() != uint64(r.era) || t.GetRetired() != r.retired || t.GetHolderIncarnation() != b.holders[r.era] {
		return fmt.Errorf("the root has %v, the model era %d of %d, retired %v", t, r.era, b.holders[r.era], r.retired)
	}
	if r.era == 0 || r.retired || b.rng.IntN(3) != 0 {
		return nil
	}
	stranger := b.newConfirm(r.era, b.rng.Uint64()|1)
	if _, err := b.q.ask(stranger); err != nil || !b.q.done[stranger] || stranger.Response.GetActive() {
		return fmt.Errorf("era %d was confirmed to a stranger: %v, %w", r.era, stranger.Response, err)
	}
	if b.w.fencedByClaim() {
		c := b.newConfirm(r.era, b.holders[r.era])
		if answered, err := b.q.ask(c); answered || b.q.done[c] || err != nil {
			return fmt.Errorf("era %d was confirmed while a claim over it is under way: %v, %w", r.era, c.Response, err)
		}
		b.held++
		return nil
	}
	if b.pending == nil && !b.expired(&b.w) {
		c := b.newClaim(b.rng.Uint64()|1, r.era)
		if _, err := b.q.ask(c); err != nil || outcomeOf(c) != rootv1.Outcome_OUTCOME_REJECTED || c.Response.GetRetryAfterMillis() == 0 {
			return fmt.Errorf("a claim over era %d, which is not expired: %v, %w", r.era, c.Response, err)
		}
		b.refused++
	}
	return nil
}
