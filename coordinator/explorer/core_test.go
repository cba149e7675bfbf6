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

// lockstep is a random walk through worlds, with a real tenure.RawHolder beside
// each coordinator. What a RawHolder does of its own accord the model must allow,
// and does; what the model lets happen to a coordinator the RawHolder is told.
type lockstep struct {
	*model
	w     world
	rng   *rand.Rand
	lives []*life
	// runs are what the calls have taken, waits what those wait for that are not
	// confirmed.
	runs  [maxCalls]tenure.Run
	waits [maxCalls]*tenure.Confirmation
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

// life is the RawHolder of one process.
type life struct {
	raw         *tenure.RawHolder
	counters    *tenure.Counters
	incarnation uint64
	now         clock.Instant
	// era is the one that confirms and windows were sent in; they and claim are not
	// answered. retired is what it asked to retire.
	era      uint64
	confirms []*tenure.Message
	windows  []*tenure.Message
	claim    *tenure.Message
	retired  uint64
	// kept is a request that keeps an orderly end waiting, as a Run once it has values.
	kept    *tenure.Reservation
	keptRun *tenure.Run
}

var errLost = errors.New("no answer")

// TestModelIsTheHolder walks at random and compares the model with real RawHolders.
func TestModelIsTheHolder(t *testing.T) {
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
		sendConfirm, hearConfirm, loseConfirm, hearWindow, takeValue, checkValue, hearReply,
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
	f.raw = tenure.NewRaw(tenure.RawConfig{
		Settings: tenure.Settings{
			ID: fmt.Sprint("c", i), Incarnation: f.incarnation, Address: "c:1", TTL: time.Duration(l.ttl) * unit,
			Mandates: []rootv1.Mandate{ids, stamps}, HandoverDeadline: 1000 * time.Hour,
		},
		Wall: func() uint64 { return 1 },
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
		TtlMillis: uint64((time.Duration(l.ttl) * unit).Milliseconds()), Inherited: &rootv1.Frontiers{AllocId: uint64(era) << 32, Tso: uint64(era) << 32},
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
		return uint64(l.w.processes[s.who].grant) > l.lives[s.who].raw.Tenure().GetEra()
	case drained:
		// Otherwise its time must pass first.
		return !slices.ContainsFunc(l.w.calls[:], func(c call) bool {
			return (c.is == generated || c.is == waiting) && c.process == s.who
		})
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
		f.raw.Tick(f.now)
	}
	l.follow()
	l.compare(step{do: passTime})
}

// mirror tells the RawHolders what the step did to them.
func (l *lockstep) mirror(before *world, s step) {
	f, p, was := l.lives[s.who], &l.w.processes[s.who], &before.processes[s.who]
	switch s.do {
	case crash:
		l.lives[s.who] = l.newLife(int(s.who))
	case electLeader:
		for i, f := range l.lives {
			if before.processes[i].claim != noClaim {
				f.answerClaim(tenure.Answer{Err: errLost})
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
		f.raw.OnView(tenure.Authority{Tenure: l.rootTenure()}, f.now)
	case hearConfirm:
		l.answer(before, f, s)
	case loseConfirm:
		f.answerConfirm(int(s.at), tenure.Answer{Err: errLost})
	case shutDown:
		f.keep()
		f.raw.Shutdown(f.now)
	case drained:
		f.letGo()
	case hearWindow:
		l.hearWindowAt(f, was)
	case takeValue:
		run, ok := f.raw.Take(ids, 1)
		if !ok {
			l.fail("the model takes a value, the RawHolder of coordinator %d has none", s.who)
			return
		}
		l.runs[s.at] = run
	case checkValue:
		l.check(f, s.at)
	}
}

// check asks whether the value of call k may be served.
func (l *lockstep) check(f *life, k uint8) {
	run, waits := l.runs[k], l.w.calls[k].is == waiting
	if good := run.Good(f.now); good == waits {
		l.fail("the model waits for a confirmation: %v; the RawHolder serves at once: %v", waits, good)
		return
	}
	if !waits {
		run.Close()
		return
	}
	c, err := f.raw.Confirm(run, f.now)
	if err != nil {
		l.fail("a value of era %d can not be confirmed: %v", run.Era(), err)
		return
	}
	l.waits[k] = c
}

// keep has a request wait, so that an orderly end lasts until letGo.
func (f *life) keep() {
	if f.raw.Status(f.now).Phase != tenure.Holding {
		return
	}
	if run, ok := f.raw.Take(ids, 1); ok {
		f.keptRun = &run
	} else if w, err := f.raw.Reserve(ids, 1, f.now); err == nil {
		f.kept = w
	}
}

func (f *life) letGo() {
	if f.kept != nil && !f.raw.Cancel(f.kept, f.now) {
		if run, err := f.kept.Result(); err == nil {
			f.keptRun = &run
		}
	}
	if f.keptRun != nil {
		f.keptRun.Close()
	}
	f.kept, f.keptRun = nil, nil
	f.raw.Tick(f.now)
}

func (f *life) answerClaim(a tenure.Answer) {
	if m := f.claim; m != nil {
		f.claim = nil
		f.raw.OnAnswer(m, a, f.now)
	}
}

func (f *life) answerConfirm(n int, a tenure.Answer) {
	m := f.confirms[n]
	f.confirms = slices.Delete(f.confirms, n, n+1)
	f.raw.OnAnswer(m, a, f.now)
}

// hearWindowAt tells the judgement about a window.
func (l *lockstep) hearWindowAt(f *life, was *process) {
	windows := f.windows
	f.windows = nil
	switch {
	case was.ask == askOver && len(windows) == 0:
		f.raw.OnView(tenure.Authority{Tenure: l.rootTenure()}, f.now)
	case was.ask == askOver:
		f.raw.OnAnswer(windows[0], tenure.Answer{Result: &rootv1.CommandResult{
			Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ERA_STALE},
		}}, f.now)
	case was.ask == askGiven:
		for _, m := range windows {
			e := m.Command.Events[0].GetFenceExtended()
			w := &rootv1.Window{Era: m.Era, From: max(e.Floor, m.Era<<32)}
			w.To = w.From + e.Size
			f.raw.OnAnswer(m, tenure.Answer{Result: &rootv1.CommandResult{
				Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Window: w}},
			}}, f.now)
		}
	default:
		f.windows = windows
	}
}

// makeClaim has the RawHolder claim over the root's era.
func (l *lockstep) makeClaim(before *world, f *life) {
	era := uint64(l.root(before).era)
	for range 100 {
		if f.claim != nil && f.claim.Claim.ExpectedEra == era {
			return
		}
		f.answerClaim(tenure.Answer{Claim: &rootv1.ClaimTenureResponse{Result: &rootv1.CommandResult{
			Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ERA_STALE, Era: era},
		}}})
		f.raw.OnView(tenure.Authority{Tenure: l.rootTenure()}, f.now)
		f.raw.OnHolderSuspect(era, f.now)
		f.now = f.now.Add(unit)
		f.raw.Tick(f.now)
		l.follow()
	}
	l.fail("the RawHolder does not claim over era %d", era)
}

// grant tells a RawHolder that it has an era, as an answer, or through the view when
// there will be none: before, it does not begin.
func (l *lockstep) grant(f *life, was *process) {
	t := l.tenure(was.grant, false)
	if f.claim == nil || f.claim.Claim.ExpectedEra+1 != t.Era || l.rng.IntN(2) == 0 {
		f.raw.OnView(tenure.Authority{Tenure: t}, f.now)
		f.answerClaim(tenure.Answer{Err: errLost})
		return
	}
	f.answerClaim(tenure.Answer{Claim: &rootv1.ClaimTenureResponse{Result: &rootv1.CommandResult{
		Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Tenure: t}},
	}}})
}

// answer tells the outcome of a confirmation, and compares whom it serves.
func (l *lockstep) answer(before *world, f *life, s step) {
	was := &before.processes[s.who]
	if was.flights[s.at].is == answeredOver {
		f.answerConfirm(int(s.at), tenure.Answer{Confirm: &rootv1.ConfirmTenureResponse{Tenure: l.rootTenure()}})
		return
	}
	f.answerConfirm(int(s.at), tenure.Answer{Confirm: &rootv1.ConfirmTenureResponse{Active: true, Tenure: l.tenure(was.held, false)}})
	for k := range l.calls {
		c := &before.calls[k]
		if c.is != waiting || c.process != s.who {
			continue
		}
		serves := false
		select {
		case <-l.waits[k].Done():
			serves = l.waits[k].Err() == nil
			l.runs[k].Close()
		default:
		}
		if served := l.w.calls[k].is == served; served != serves {
			l.fail("confirmation %d serves call %d: the RawHolder says %v, the model %v", s.at, k, serves, served)
		}
	}
}

// follow takes the steps in the model that the RawHolders take of their own accord.
func (l *lockstep) follow() {
	for i := 0; i < l.processes; i++ {
		f, p := l.lives[i], &l.w.processes[i]
		status := f.raw.Status(f.now)
		if status.Era != f.era {
			f.era, f.confirms, f.windows = status.Era, nil, nil
		}
		if status.Era != uint64(p.held) && status.Era != 0 && status.Era == uint64(p.grant) {
			l.take(step{do: hearGrant, who: uint8(i)})
			i = -1
			continue
		}
		if status.Phase == tenure.Stopped && p.phase == draining && p.retire == 0 {
			l.take(step{do: drained, who: uint8(i)})
			i = -1
			continue
		}
		messages := f.raw.Messages()
		for _, m := range messages {
			l.send(i, f, m)
		}
		if len(messages) > 0 {
			i = -1
		}
	}
}

// send takes a message that a RawHolder sends.
func (l *lockstep) send(i int, f *life, m *tenure.Message) {
	p := &l.w.processes[i]
	ended := m.Era != 0 && m.Era != f.era // It ended in the same breath.
	switch {
	case m.Claim != nil:
		f.claim = m
	case ended:
	case m.Confirm != nil:
		l.take(step{do: sendConfirm, who: uint8(i)})
		f.confirms = append(f.confirms, m)
	case m.Command.Events[0].GetFenceExtended() != nil:
		f.windows = append(f.windows, m)
	case m.Command.Events[0].GetTenureRetired() != nil:
		f.retired = m.Command.Events[0].GetTenureRetired().Era
		if p.retire != uint8(f.retired) {
			l.fail("the RawHolder retires era %d, the model %d", f.retired, p.retire)
		}
	default:
		target := rootv1.HandoverStage_HANDOVER_STAGE_OPEN
		if p.confirmed != 0 {
			target += 1 + rootv1.HandoverStage(p.fenced)
		}
		to := m.Command.Events[len(m.Command.Events)-1].GetHandoverAdvanced().Stage
		if to != target {
			l.fail("the RawHolder advances to %v, the model to %v", to, target)
		}
		f.raw.OnAnswer(m, tenure.Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED}}, f.now)
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
	l.fail("the RawHolder takes step %d, which the model does not allow", want.do)
}

// compare looks at every coordinator from both sides.
func (l *lockstep) compare(after step) {
	phases := map[tenure.Phase]phase{
		tenure.Standby: standby, tenure.Holding: holding, tenure.Draining: draining, tenure.Stopped: stopped,
	}
	for i, f := range l.lives {
		p := &l.w.processes[i]
		left, status := uint8(0), f.raw.Status(f.now)
		if d := f.raw.Until().Sub(f.now); p.held != 0 && d > 0 {
			left = uint8(d / unit)
		}
		if phases[status.Phase] != p.phase || status.Era != uint64(p.held) || left != p.left || len(f.confirms) != int(p.flying()) {
			l.fail("after step %v coordinator %d: the RawHolder is in phase %d, era %d, for %d units, with %d flights; the model %d, %d, %d, %d",
				after, i, status.Phase, status.Era, left, len(f.confirms), p.phase, p.held, p.left, p.flying())
		}
		if n := f.counters.Violations.Total(); n != 0 {
			l.fail("after step %v the RawHolder of coordinator %d counts %d violations", after, i, n)
		}
	}
}
