package chaos

import (
	"context"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// lateRound is one takeover from a stopped holder.
type lateRound struct {
	*late
	s lateScript
	// holder and successor are members, era the holder's.
	holder, successor int
	era               uint64
	// old and next are the two as the caller reaches them.
	old, next coordinatorv1.CoordinatorClient
	stream    *lateStream
	// aware is to see the successor's era before the late reply, unaware is not.
	aware, unaware *client.Client

	// inside is what was asked before the takeover, after what was asked over
	// the wire when the successor had answered.
	inside, after []*ask
	// before is the holder when nobody asked.
	before    holderVars
	stopped   *active
	stoppedAt time.Time
	// standby is the successor while it may not claim.
	standby *active
	// void is why a round that took too long shows nothing: nobody knows whose
	// values are lawful. "": it may show something.
	void string
	// resumedAt is on the clock of the calls.
	resumedAt time.Duration
}

// holderVars is what a coordinator shows of its authority.
type holderVars struct {
	TenureEra     uint64 `json:"tenure_era"`
	Holding       bool   `json:"holding"`
	IDWindowLeft  uint64 `json:"id_window_left"`
	TSOWindowLeft uint64 `json:"tso_window_left"`
	Authority     struct {
		Confirmations  uint64 `json:"confirmations"`
		GateRejections uint64 `json:"gate_rejections"`
		IDs            uint64 `json:"ids"`
		Timestamps     uint64 `json:"timestamps"`
	} `json:"authority"`
}

// round plays a script once. It reports whether what it is for was seen.
func (l *late) round(s lateScript) (shown bool) {
	r := &lateRound{late: l, s: s}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.until("everybody is served by one holder", func() bool { return r.begins(ctx) })
	defer r.unaware.Close()
	defer r.aware.Close()
	s.stop(r)
	r.takeOver()
	r.askAgain()
	r.resume()
	return r.verdict()
}

// roots and callers as links of the holder.
func (r *lateRound) toRoot() []way   { return outOf(r.holder, otherRoots(-1)) }
func (r *lateRound) fromRoot() []way { return into(r.holder, otherRoots(-1)) }
func (r *lateRound) toCallers() []way {
	return outOf(r.holder, []string{latePlace, lateGoPlace})
}

func (r *lateRound) fromCallers() []way {
	return into(r.holder, []string{latePlace, lateGoPlace})
}

func (r *lateRound) set(c proctest.Condition, links ...[]way) {
	for _, ways := range links {
		for _, w := range ways {
			r.c.net.Set(w[0], w[1], c)
		}
	}
}

func (r *lateRound) cutOff(links ...[]way) { r.set(proctest.Condition{Cut: true}, links...) }
func (r *lateRound) mend(links ...[]way)   { r.set(proctest.Condition{}, links...) }

func (r *lateRound) bytes(ways []way) (n uint64) {
	for _, w := range ways {
		n += r.c.net.Counts(w[0], w[1]).Bytes
	}
	return n
}

// until asks other processes again and again: there is nothing to wait on.
func (r *lateRound) until(what string, ok func() bool) {
	r.t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			r.t.Fatalf("%s: not within %s: %s", r.s.name, patience, what)
		}
	}
}

func (r *lateRound) vars() (v holderVars) {
	r.t.Helper()
	if err := r.c.vars(r.holder, &v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

// roomy is how many timestamps a window has left when no other one is asked for.
const roomy = 1600 << 18

// questions are what everybody asks, rotated.
func (r *lateRound) questions(rotated int) []question {
	byGo := func(who asker, cl *client.Client) []question {
		return []question{
			{who, history.OpTSO, 2, func() answers { return goTso(cl, 2) }},
			{who, history.OpID, 4, func() answers { return goIDs(cl, 4) }},
		}
	}
	all := slices.Concat(r.overWire(wire), byGo(unaware, r.unaware), byGo(aware, r.aware))
	return slices.Concat(all[rotated:], all[:rotated])
}

func (r *lateRound) overWire(who asker) []question {
	return []question{
		{who, history.OpTSO, 3, func() answers { return tsoOf(r.old, 3) }},
		{who, history.OpID, 7, func() answers { return idsOf(r.old, 7) }},
		{who, history.OpTSO, 5, func() answers { return r.stream.tso(5) }},
	}
}

// begins connects everybody to the holder, which has windows that it need not
// extend, and stops the standby, which may find a busy holder suspect. It
// reports whether there was one holder all the time.
func (r *lateRound) begins(ctx context.Context) bool {
	r.t.Helper()
	r.holder, r.successor = r.c.pair("holder", "standby")
	r.old, r.next = r.caller.nodes[r.holder-roots], r.caller.nodes[r.successor-roots]
	r.aware, r.unaware = r.goClient(r.successor-roots, r.holder-roots), r.goClient(r.successor-roots, r.holder-roots)
	stream, err := r.old.TsoStream(ctx)
	r.stream = newLateStream(stream)
	for _, q := range r.questions(0) {
		if err == nil {
			err = r.begin(q).over().err
		}
	}
	if err == nil {
		r.standby = r.pauseNow(r.successor)
		r.before = r.vars()
		for err == nil && r.before.Holding && r.before.TSOWindowLeft <= roomy {
			err = r.begin(r.questions(0)[0]).over().err // moves the window on
			r.before = r.vars()
		}
		r.era = r.before.TenureEra
		if err == nil && r.before.Holding && uint64(r.aware.Era()) == r.era && uint64(r.unaware.Era()) == r.era {
			return true
		}
		r.standby.end()
	}
	_ = r.aware.Close()
	_ = r.unaware.Close()
	return false
}

// askAll asks everything there is to ask, one after the other; each question
// has got where proof says before the next one.
func (r *lateRound) askAll(proof func(a *ask, before sight)) {
	r.t.Helper()
	r.inside = r.ask(r.questions(r.s.first), proof)
	for _, a := range r.inside[:r.s.covered] {
		a.covered = true
	}
}

func (r *lateRound) ask(questions []question, proof func(a *ask, before sight)) (all []*ask) {
	r.t.Helper()
	for _, q := range questions {
		before := sight{sent: r.bytes(r.fromCallers())}
		if r.stopped == nil {
			before.holderVars = r.vars()
		}
		a := r.begin(q)
		all = append(all, a)
		proof(a, before)
	}
	return all
}

// sight is what was seen before something was asked.
type sight struct {
	holderVars
	sent uint64 // bytes from callers to the holder
}

// takeOver has the standby go on and find nobody at the holder's door, and waits
// until it has answered, and the aware client has heard of it.
func (r *lateRound) takeOver() {
	r.t.Helper()
	r.standby.end()
	r.c.net.Close(place(r.holder))
	r.set(proctest.Condition{Broken: true}, []way{{callersGo, place(r.holder)}})
	for _, q := range []question{
		{successor, history.OpTSO, 2, func() answers { return tsoOf(r.next, 2) }},
		{successor, history.OpID, 2, func() answers { return idsOf(r.next, 2) }},
	} {
		r.until("the successor answers", func() bool {
			a := r.begin(q).over()
			return a.err == nil && a.note.Era > r.era
		})
	}
	r.until("the client hears of the next era", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		for range r.aware.ListCoordinators(ctx) { // any answer tells the era
		}
		return uint64(r.aware.Era()) > r.era
	})
}

// askAgain asks the stopped holder when its successor has answered.
func (r *lateRound) askAgain() {
	r.t.Helper()
	r.after = r.ask(r.overWire(again), r.delivered)
}

// resume lets the holder go on and waits for all answers.
func (r *lateRound) resume() {
	r.t.Helper()
	all := slices.Concat(r.inside, r.after)
	if r.s.newsFirst {
		r.mend(r.toRoot(), r.fromRoot())
	}
	r.resumedAt = r.load.now()
	r.longest = max(r.longest, time.Since(r.stoppedAt))
	r.stopped.end()
	r.mend(r.toCallers())
	if !r.s.newsFirst {
		// What was asked last is generated too, and nobody confirms it.
		r.until("the rest is generated", func() bool {
			return r.vars().IDWindowLeft == r.before.IDWindowLeft-idsAsked(all) || anyEnded(r.after)
		})
		r.noValue("asked after the takeover, and not confirmed", r.after)
	}
	if r.s.either {
		r.mend(r.fromRoot())
	}
	r.until("the late values are read", func() bool {
		late := r.load.now()-r.resumedAt > inTime
		return late || r.aware.Stats().LowerEras >= r.unfit() && !slices.ContainsFunc(r.inside, func(a *ask) bool {
			return a.covered && a.who != aware && !a.ended()
		})
	})
	r.mend(r.toRoot(), r.fromRoot(), []way{{callersGo, place(r.holder)}})
	r.c.net.Open(place(r.holder))
	for _, a := range all {
		a.over()
	}
	var v holderVars
	r.until("the old holder knows its successor", func() bool {
		v = r.vars()
		return v.TenureEra > r.era
	})
	r.unserved += int(v.Authority.GateRejections - r.before.Authority.GateRejections)
}

// inTime is when an answer that was not read will not be: its caller, the
// holder, gives the root a second.
const inTime = 1500 * ms

// unfit is how many values the aware client is to discard.
func (r *lateRound) unfit() (n uint64) {
	for _, a := range r.inside {
		if a.covered && a.who == aware {
			n++
		}
	}
	return n
}

// verdict judges what came late, and reports whether it was what the script is for.
func (r *lateRound) verdict() (shown bool) {
	r.t.Helper()
	missed := 0
	for _, a := range slices.Concat(r.inside, r.after) {
		lawful := (a.covered || r.void != "") && a.who != aware && a.who != again
		switch {
		case time.Duration(a.note.ReturnNS) < r.resumedAt && r.void == "":
			r.t.Errorf("%s: answered while the holder was stopped: %s", r.s.name, a)
		case lawful && a.of(r.era):
			r.values++
		case a.overWire() && a.refused():
			r.refusals++
			fallthrough
		case !a.overWire() && a.above(r.era):
			if lawful {
				missed++
			}
		default:
			r.t.Errorf("%s: of the ended era %d, neither lawful nor refused: %s", r.s.name, r.era, a)
		}
	}
	seen := r.aware.Stats()
	r.discarded += seen.LowerEras
	if n := seen.OrderViolations + r.unaware.Stats().OrderViolations; n > 0 {
		r.t.Errorf("%s: the Go clients counted %d timestamps out of order", r.s.name, n)
	}
	if seen.LowerEras > r.unfit() && r.void == "" {
		r.t.Errorf("%s: a Go client was sent %d values of the ended era, %d were confirmed", r.s.name, seen.LowerEras, r.unfit())
	}
	if !r.s.either && (missed > 0 || seen.LowerEras < r.unfit()) {
		r.spoil("what lay in a socket was not read in time")
	}
	if r.void != "" {
		r.t.Logf("%s: once more: %s", r.s.name, r.void)
	}
	return r.void == ""
}
