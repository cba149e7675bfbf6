package witness

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Report is what can be said of the guarantees at one position.
type Report struct {
	// Token is the position; ClusterID and Incarnation are the cluster's.
	Token                  state.Token
	ClusterID, Incarnation uint64
	// Findings are the verdicts, one a Guarantee, in their order.
	Findings [Guarantees]Finding
	// Eras are those known, newest first.
	Eras []Era
	// Forgotten is how many eras were before them: of eras 1 to Forgotten
	// nothing is known.
	Forgotten uint64
	// Fences are the highest values that may have been served.
	Fences Frontiers
	// IDWindow and TSOWindow are the last windows given; nil: none was.
	IDWindow, TSOWindow *rootv1.Window
	// Anomalies are what was found, in the order of the log where it is known.
	Anomalies []Anomaly
}

// Judge reports on the records of one position.
func Judge(t Truth) *Report {
	var f findings
	f.records(&t)
	return report(&t, f.all)
}

// Verdict is the worst of all: Broken, else CannotTell, else Holds.
func (r *Report) Verdict() Verdict {
	worst := Holds
	for _, f := range r.Findings {
		if f.Verdict == Broken || f.Verdict == CannotTell && worst == Holds {
			worst = f.Verdict
		}
	}
	return worst
}

func report(t *Truth, found []Anomaly) *Report {
	if t.Placed != nil {
		all := findings{all: found}
		for _, a := range t.Placed.Found {
			all.put(a)
		}
		found = all.all
	}
	r := &Report{
		Token: t.Token, ClusterID: t.Cluster.GetClusterId(), Incarnation: t.Cluster.GetIncarnation(),
		Fences:   Frontiers{t.Allocators.GetIdFence(), t.Allocators.GetTsoFence()},
		IDWindow: t.Allocators.GetLastIdWindow(), TSOWindow: t.Allocators.GetLastTsoWindow(),
		Eras: erasOf(t), Anomalies: found,
	}
	if n := len(r.Eras); n > 0 && r.Eras[n-1].Era > 0 {
		r.Forgotten = r.Eras[n-1].Era - 1
	}
	for g := range Guarantees {
		r.Findings[g] = r.finding(g, t)
	}
	return r
}

// erasOf lists the eras, newest first.
func erasOf(t *Truth) []Era {
	var eras []Era
	for i, h := range t.Handovers {
		e := Era{
			Era: h.GetEra(), Holder: h.GetSuccessorId(), Incarnation: h.GetSuccessorIncarnation(), Stage: h.GetStage(),
			Opened: state.TokenFromProto(h.GetOpenedAt()), Confirmed: state.TokenFromProto(h.GetConfirmedAt()),
			Closed: state.TokenFromProto(h.GetClosedAt()), Inherited: frontiers(h.GetInherited()),
		}
		if i+1 < len(t.Handovers) {
			next := t.Handovers[i+1]
			l := next.GetLegacy()
			e.Ended, e.Consumed, e.Exact = state.TokenFromProto(l.GetEndedAt()), frontiers(l.GetConsumed()), l.GetExact()
			e.End = EndOf(next)
		} else {
			current(&e, t)
		}
		eras = append(eras, e)
	}
	slices.Reverse(eras)
	return eras
}

// EndOf says how the era ended that a handover follows.
func EndOf(h *rootv1.Handover) End {
	switch l := h.GetLegacy(); {
	case l.GetExact():
		return Retired
	case l.GetHolderId() == h.GetSuccessorId() && l.GetHolderIncarnation() == h.GetSuccessorIncarnation():
		return GivenUp
	}
	return Expired
}

// current completes the era that no other has followed.
func current(e *Era, t *Truth) {
	e.End = Active
	e.Consumed = Frontiers{t.Allocators.GetIdFence(), t.Allocators.GetTsoFence()}
	if !t.Tenure.GetRetired() {
		return
	}
	e.End, e.Exact = Retired, true
	if w := t.Allocators.GetLastIdWindow(); w.GetEra() == e.Era {
		e.Consumed.ID = w.GetTo()
	}
	if w := t.Allocators.GetLastTsoWindow(); w.GetEra() == e.Era {
		e.Consumed.TSO = w.GetTo()
	}
}

// finding is the verdict on one guarantee.
func (r *Report) finding(g Guarantee, t *Truth) Finding {
	out := Finding{Guarantee: g}
	var broken, notes []string
	for _, a := range r.Anomalies {
		switch {
		case a.Guarantee != g:
		case a.Note:
			notes = append(notes, a.Numbers)
		default:
			broken = append(broken, a.Numbers)
		}
	}
	switch {
	case len(broken) > 0:
		out.Verdict, out.Numbers = Broken, strings.Join(broken, "; ")
	case t.Unknown != "":
		out.Verdict, out.Numbers = CannotTell, t.Unknown
	case t.Token.Index == 0 || t.Cluster == nil:
		out.Verdict, out.Numbers = CannotTell, "no rooted truth was found: the cluster is not bootstrapped, or nothing was loaded yet"
	case g == Placement && t.Placed == nil:
		out.Verdict, out.Numbers = CannotTell, "what was asked has no regions, or did not show them in time"
	case g == Placement:
		out.Verdict, out.Numbers = Holds, t.Placed.numbers()
	case len(r.Eras) == 0:
		out.Verdict, out.Numbers = Holds, "no era has begun, no id and no timestamp was given to a holder"
	case g == Finality && r.openUnknown(t):
		out.Verdict, out.Numbers = CannotTell, fmt.Sprintf(
			"the handover of era %d is %s since %s, for how long is not known; the deadline is %s: ask again",
			r.Eras[0].Era, stageName(r.Eras[0].Stage), r.Eras[0].Opened, HandoverDeadline)
	default:
		out.Verdict, out.Numbers = Holds, r.numbers(g, t, notes)
	}
	return out
}

// openUnknown: the current handover is open, and nobody knows for how long.
func (r *Report) openUnknown(t *Truth) bool {
	return r.Eras[0].Stage < closed && r.Eras[0].End == Active && t.OpenFor == 0
}

// numbers is the sentence that shows that g holds.
func (r *Report) numbers(g Guarantee, t *Truth, notes []string) string {
	first, last := r.Eras[len(r.Eras)-1], r.Eras[0]
	var b strings.Builder
	switch g {
	case Primacy:
		fmt.Fprintf(&b, "%s, none skipped, one holder each; %s", span(first.Era, last.Era), r.active())
	case Inheritance:
		r.inheritance(&b)
	case Silence:
		fmt.Fprintf(&b, "last id window %s, last timestamp window %s: nothing was given to an ended era; replies are judged with --history",
			windowText(r.IDWindow), windowText(r.TSOWindow))
	case Finality:
		done, cut := 0, 0
		for _, e := range r.Eras {
			switch {
			case e.Stage >= closed:
				done++
			case e.End != Active:
				cut++
			}
		}
		fmt.Fprintf(&b, "%d of %s closed", done, plural(len(r.Eras), "handover", "handovers"))
		if cut > 0 {
			fmt.Fprintf(&b, ", %d cut short by the next one", cut)
		}
		if last.Stage < closed && last.End == Active {
			fmt.Fprintf(&b, ", era %d's %s for %s of at most %s", last.Era, stageName(last.Stage), t.OpenFor, HandoverDeadline)
		} else if last.Stage >= closed {
			b.WriteString(", none open")
		}
	}
	if r.Forgotten > 0 && g != Silence {
		fmt.Fprintf(&b, "; %s: cannot tell, forgotten (the root keeps %d handovers)", span(1, r.Forgotten), state.MaxHandovers)
	}
	for _, n := range notes {
		b.WriteString("; note: " + n)
	}
	return b.String()
}

func (r *Report) active() string {
	if e := r.Eras[0]; e.End == Active {
		return fmt.Sprintf("active: era %d only", e.Era)
	}
	return fmt.Sprintf("active: none, era %d has retired", r.Eras[0].Era)
}

// inheritance says how close successors came to what they inherited.
func (r *Report) inheritance(b *strings.Builder) {
	last := r.Eras[0]
	fmt.Fprintf(b, "era %d starts above id %d, timestamp %d", last.Era, last.Inherited.ID, last.Inherited.TSO)
	if len(r.Eras) == 1 {
		b.WriteString(": the first one known, no predecessor to compare with")
		return
	}
	p := r.Eras[1]
	bound := "at most "
	if p.Exact {
		bound = ""
	}
	fmt.Fprintf(b, "; era %d consumed %s%d, %s%d; %s", p.Era, bound, p.Consumed.ID, bound, p.Consumed.TSO,
		plural(len(r.Eras)-1, "handover covers what came before", "handovers cover what came before"))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// span names eras: "era 7", "eras 7 to 9".
func span(first, last uint64) string {
	if first == last {
		return fmt.Sprintf("era %d", first)
	}
	return fmt.Sprintf("eras %d to %d", first, last)
}

func windowText(w *rootv1.Window) string {
	if w == nil {
		return "none"
	}
	return fmt.Sprintf("(%d, %d] of era %d", w.GetFrom(), w.GetTo(), w.GetEra())
}
