package explorer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// unit is the length of a unit of the model's local clocks for a real Core.
const unit = 100 * time.Millisecond

// lockstep is a random walk through worlds, with a real tenure.Core beside
// each coordinator. What a Core does of its own accord the model must allow,
// and does; what the model lets happen to a coordinator the Core is told.
type lockstep struct {
	*model
	w     world
	rng   *rand.Rand
	lives []*life
	// holders are those that eras were given to.
	holders [maxEras + 1]holder
	// took counts the steps by kind.
	took map[action]int
	err  error
}

// holder is who an era was given to.
type holder struct {
	id          string
	incarnation uint64
}

// life is the Core of one process.
type life struct {
	core        *tenure.Core
	counters    *tenure.Counters
	incarnation uint64
	now         clock.Instant
	// seqs are the numbers of its flights, tickets those that calls wait for.
	seqs    []uint64
	tickets [maxCalls]uint64
	// claim is open at the Core; retired is what it asked to retire.
	claim   *rootv1.TenureClaimed
	retired uint64
}

var errLost = errors.New("no answer")

// TestModelIsTheCore walks at random and compares the model with real Cores.
func TestModelIsTheCore(t *testing.T) {
	took := map[action]int{}
	for _, ttl := range []uint8{0, 4} {
		for seed := range uint64(150) {
			c := config{
				processes: 2, calls: 2, ttl: ttl, eras: maxEras, values: 12, window: 2, flights: 2,
				mandate: stamps, eager: true,
			}
			l := &lockstep{model: newModel(c), rng: rand.New(rand.NewPCG(seed, uint64(ttl))), took: took}
			l.w = l.first()
			for i := range c.processes {
				l.lives = append(l.lives, l.newLife(i))
			}
			for n := 0; n < 400 && l.err == nil; n++ {
				l.walk()
			}
			if l.err != nil {
				t.Fatalf("ttl %d, seed %d: %v", ttl, seed, l.err)
			}
		}
	}
	for _, a := range []action{
		electLeader, passTime, crash, shutDown, drained, sendClaim, commitClaim, hearGrant, hearOver,
		sendConfirm, hearConfirm, loseConfirm, hearWindow, checkValue, hearReply,
	} {
		if took[a] < 50 {
			t.Errorf("step %d was taken only %d times", a, took[a])
		}
	}
	t.Log(took)
}

func (l *lockstep) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

func (l *lockstep) newLife(i int) *life {
	f := &life{counters: new(tenure.Counters), incarnation: l.rng.Uint64() | 1, now: 1}
	f.core = tenure.NewCore(tenure.Settings{
		ID: fmt.Sprint("c", i), Incarnation: f.incarnation, Address: "c:1", TTL: time.Duration(l.ttl) * unit,
		Mandates: []rootv1.Mandate{l.mandate}, HandoverDeadline: 1000 * time.Hour,
	}, f.counters)
	return f
}

// tenure is the Tenure of an era, as the root shows it.
func (l *lockstep) tenure(era uint8, retired bool) *rootv1.Tenure {
	if era == 0 {
		return nil
	}
	h := l.holders[era]
	return &rootv1.Tenure{
		Era: uint64(era), HolderId: h.id, HolderAddress: "c:1", HolderIncarnation: h.incarnation, Retired: retired,
		TtlMillis: uint64((time.Duration(l.ttl) * unit).Milliseconds()),
	}
}

func (l *lockstep) rootTenure() *rootv1.Tenure {
	r := l.root(&l.w)
	return l.tenure(r.era, r.retired)
}

// walk takes one step, and what follows from it.
func (l *lockstep) walk() {
	if l.rng.IntN(8) == 0 {
		l.passTime()
		return
	}
	var may []successor
	for _, s := range l.successors(&l.w) {
		if l.allowed(s.step) {
			may = append(may, s)
		}
	}
	if len(may) == 0 {
		l.passTime()
		return
	}
	s := may[l.rng.IntN(len(may))]
	before := l.w
	l.w = s.world
	l.took[s.step.do]++
	l.mirror(&before, s.step)
	l.follow()
	l.compare(s.step)
}

func (l *lockstep) allowed(s step) bool {
	switch s.do {
	case passTime, sendConfirm:
		return false // The walk's own, the Core's own.
	case crash, shutDown, electLeader:
		return l.rng.IntN(10) == 0
	case hearGrant:
		return uint64(l.w.processes[s.who].grant) > l.lives[s.who].core.Tenure().GetEra()
	}
	return true
}

// passTime lets every clock count at a rate of its own.
func (l *lockstep) passTime() {
	l.took[passTime]++
	rate := func() uint8 { return uint8(slow + l.rng.IntN(fast-slow+1)) }
	if l.ttl > 0 {
		l.w.since = min(l.w.since+rate(), l.wait())
	}
	for i, f := range l.lives {
		r := rate()
		f.now = f.now.Add(time.Duration(r) * unit)
		if l.ttl > 0 {
			l.w.processes[i].tick(r, l.ttl)
		}
		f.core.Tick(f.now)
	}
	l.follow()
	l.compare(step{do: passTime})
}

// mirror tells the Cores what the step did to them.
func (l *lockstep) mirror(before *world, s step) {
	f, p, was := l.lives[s.who], &l.w.processes[s.who], &before.processes[s.who]
	switch s.do {
	case crash:
		l.lives[s.who] = l.newLife(int(s.who))
	case electLeader:
		for i, f := range l.lives {
			if before.processes[i].claim != noClaim && f.claim != nil {
				f.claim = nil
				f.core.OnClaimed(nil, errLost, f.now)
			}
		}
	case commitClaim:
		l.holders[p.grant] = holder{fmt.Sprint("c", s.who), f.incarnation}
	case commitOrphan:
		l.holders[l.root(&l.w).era] = holder{"gone", 2}
	case sendClaim:
		l.makeClaim(before, f)
	case hearGrant:
		l.grant(f, was)
	case hearOver:
		f.core.OnView(tenure.Authority{Tenure: l.rootTenure()}, f.now)
	case hearConfirm:
		l.answer(before, f, s)
	case loseConfirm:
		seq := f.seqs[s.at]
		f.seqs = slices.Delete(f.seqs, int(s.at), int(s.at)+1)
		f.core.OnConfirmed(uint64(was.held), seq, nil, errLost, f.now)
	case shutDown:
		f.core.Shutdown(f.now)
	case drained:
		f.core.OnDrained(f.now)
	case hearWindow:
		if was.ask == askOver {
			f.core.OnEraOver(uint64(was.askEra), f.now)
		} else if was.fenced == 0 && p.fenced != 0 {
			f.core.OnFenced(uint64(p.held), f.now)
		}
	case checkValue:
		if l.w.calls[s.at].is == waiting {
			f.tickets[s.at] = f.core.Want(f.now)
		} else if f.now >= f.core.Until() {
			l.fail("the model serves a value that is not confirmed")
		}
	}
}

// makeClaim has the Core claim over the root's era.
func (l *lockstep) makeClaim(before *world, f *life) {
	era := uint64(l.root(before).era)
	for range 100 {
		if f.claim != nil && f.claim.ExpectedEra == era {
			return
		}
		if f.claim != nil {
			f.claim = nil
			f.core.OnClaimed(&rootv1.ClaimTenureResponse{Result: &rootv1.CommandResult{
				Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ERA_STALE, Era: era},
			}}, nil, f.now)
		}
		f.core.OnView(tenure.Authority{Tenure: l.rootTenure()}, f.now)
		f.core.OnHolderSuspect(era, f.now)
		f.now = f.now.Add(unit)
		f.core.Tick(f.now)
		l.follow()
	}
	l.fail("the Core does not claim over era %d", era)
}

// grant tells a Core that it has an era, as an answer, or through the view when
// there will be none: before, it does not begin.
func (l *lockstep) grant(f *life, was *process) {
	t := l.tenure(was.grant, false)
	if f.claim == nil || f.claim.ExpectedEra+1 != t.Era || l.rng.IntN(2) == 0 {
		f.core.OnView(tenure.Authority{Tenure: t}, f.now)
		if f.claim != nil {
			f.claim = nil
			f.core.OnClaimed(nil, errLost, f.now)
		}
		return
	}
	f.claim = nil
	f.core.OnClaimed(&rootv1.ClaimTenureResponse{Result: &rootv1.CommandResult{
		Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Tenure: t}},
	}}, nil, f.now)
}

// answer tells the outcome of a confirmation, and compares whom it serves.
func (l *lockstep) answer(before *world, f *life, s step) {
	was := &before.processes[s.who]
	seq := f.seqs[s.at]
	f.seqs = slices.Delete(f.seqs, int(s.at), int(s.at)+1)
	if was.flights[s.at].is == answeredOver {
		f.core.OnConfirmed(uint64(was.held), seq, &rootv1.ConfirmTenureResponse{Tenure: l.rootTenure()}, nil, f.now)
		return
	}
	r := &rootv1.ConfirmTenureResponse{Active: true, Tenure: l.tenure(was.held, false)}
	f.core.OnConfirmed(uint64(was.held), seq, r, nil, f.now)
	for k := range l.calls {
		c := &before.calls[k]
		if c.is != waiting || c.process != s.who {
			continue
		}
		serves := f.core.Confirmed() >= f.tickets[k] || f.now < f.core.Until()
		if served := l.w.calls[k].is == served; served != serves {
			l.fail("confirmation %d serves ticket %d: the Core says %v, the model %v", seq, f.tickets[k], serves, served)
		}
	}
}

// follow takes the steps in the model that the Cores take of their own accord.
func (l *lockstep) follow() {
	for i := 0; i < l.processes; i++ {
		f, p := l.lives[i], &l.w.processes[i]
		if era := f.core.Era(); era != uint64(p.held) && era != 0 && era == uint64(p.grant) {
			l.take(step{do: hearGrant, who: uint8(i)})
			i = -1
			continue
		}
		actions := f.core.Actions()
		for _, a := range actions {
			l.act(i, f, a)
		}
		if len(actions) > 0 {
			i = -1
		}
	}
}

func (l *lockstep) act(i int, f *life, a tenure.Action) {
	p := &l.w.processes[i]
	switch a.Kind {
	case tenure.Claim:
		f.claim = a.Claim
	case tenure.Confirm:
		if a.Era != f.core.Era() {
			return // It ended in the same breath.
		}
		l.take(step{do: sendConfirm, who: uint8(i), at: 0})
		f.seqs = append(f.seqs, a.Seq)
	case tenure.Begin:
		f.seqs = nil
	case tenure.End:
		f.seqs = nil
	case tenure.Advance:
		target := rootv1.HandoverStage_HANDOVER_STAGE_OPEN
		if p.confirmed != 0 {
			target += 1 + rootv1.HandoverStage(p.fenced)
		}
		if a.To != target {
			l.fail("the Core advances to %v, the model to %v", a.To, target)
		}
		f.core.OnAdvanced(a.Era, a.To, nil, f.now)
	case tenure.Retire:
		f.retired = a.Era
		if p.retire != uint8(a.Era) {
			l.fail("the Core retires era %d, the model %d", a.Era, p.retire)
		}
	}
}

// take takes a step that the model must allow.
func (l *lockstep) take(want step) {
	for _, s := range l.successors(&l.w) {
		if s.step.do == want.do && s.step.who == want.who {
			l.w = s.world
			l.took[want.do]++
			return
		}
	}
	l.fail("the Core takes step %d, which the model does not allow", want.do)
}

// compare looks at every coordinator from both sides.
func (l *lockstep) compare(after step) {
	phases := map[tenure.Phase]phase{
		tenure.Standby: standby, tenure.Holding: holding, tenure.Draining: draining, tenure.Stopped: stopped,
	}
	for i, f := range l.lives {
		p := &l.w.processes[i]
		left := uint8(0)
		if d := f.core.Until().Sub(f.now); p.held != 0 && d > 0 {
			left = uint8(d / unit)
		}
		if phases[f.core.Phase()] != p.phase || f.core.Era() != uint64(p.held) || left != p.left || len(f.seqs) != int(p.flying()) {
			l.fail("after step %v coordinator %d: the Core is in phase %d, era %d, for %d units, with %d flights; the model %d, %d, %d, %d",
				after, i, f.core.Phase(), f.core.Era(), left, len(f.seqs), p.phase, p.held, p.left, p.flying())
		}
		if n := f.counters.Violations.Total(); n != 0 {
			l.fail("after step %v the Core of coordinator %d counts %d violations", after, i, n)
		}
	}
}
