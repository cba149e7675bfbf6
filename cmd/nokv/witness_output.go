package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// witnessOutput is what `nokv witness -o json` prints. The field names stay.
type witnessOutput struct {
	// Verdict on everything: holds, broken, cannot tell.
	Verdict  string `json:"verdict"`
	Headline string `json:"headline"`
	Source   string `json:"source"`
	// Token is the position judged.
	Token         string            `json:"token"`
	Freshness     string            `json:"freshness"`
	ClusterID     string            `json:"cluster_id"`
	Incarnation   uint64            `json:"incarnation"`
	Guarantees    []guaranteeOutput `json:"guarantees"`
	Eras          []eraOutput       `json:"eras"`
	ForgottenEras uint64            `json:"forgotten_eras"`
	IDFence       uint64            `json:"id_fence"`
	TSOFence      uint64            `json:"tso_fence"`
	IDWindow      *windowOutput     `json:"id_window,omitempty"`
	TSOWindow     *windowOutput     `json:"tso_window,omitempty"`
	Anomalies     []anomalyOutput   `json:"anomalies"`
	Compared      []comparedOutput  `json:"compared,omitempty"`
	Audit         *auditOutput      `json:"audit,omitempty"`
	History       *historyOutput    `json:"history,omitempty"`
	Disclosure    *disclosureOutput `json:"disclosure,omitempty"`
}

type guaranteeOutput struct {
	Guarantee string `json:"guarantee"`
	Verdict   string `json:"verdict"`
	Numbers   string `json:"numbers"`
}

type eraOutput struct {
	Era         uint64 `json:"era"`
	Holder      string `json:"holder"`
	Incarnation string `json:"holder_incarnation"`
	Stage       string `json:"stage"`
	// Where the handover reached its stages, and where the era ended; "": not yet.
	OpenedAt    string          `json:"opened_at"`
	ConfirmedAt string          `json:"confirmed_at"`
	ClosedAt    string          `json:"closed_at"`
	EndedAt     string          `json:"ended_at"`
	End         string          `json:"end"`
	Inherited   frontiersOutput `json:"inherited"`
	Consumed    frontiersOutput `json:"consumed"`
	// Exact: consumed is what was served, not an upper bound.
	Exact bool `json:"exact"`
}

type frontiersOutput struct {
	AllocID uint64 `json:"alloc_id"`
	TSO     uint64 `json:"tso"`
}

type windowOutput struct {
	Era  uint64 `json:"era"`
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

type anomalyOutput struct {
	Kind      string `json:"kind"`
	Guarantee string `json:"guarantee"`
	Era       uint64 `json:"era"`
	// Region that it is about.
	Region uint64 `json:"region,omitempty"`
	// Token is where the log shows it; empty: only records do.
	Token   string `json:"token,omitempty"`
	Note    bool   `json:"note"`
	Numbers string `json:"numbers"`
}

type auditOutput struct {
	// FromToken is the position of the records that the audit began with; empty:
	// it began with the first entry.
	FromToken   string `json:"from_token,omitempty"`
	Entries     uint64 `json:"entries"`
	Uncommitted uint64 `json:"uncommitted"`
}

func (p *proof) output() *witnessOutput {
	r := p.report
	out := &witnessOutput{
		Verdict: r.Verdict().String(), Source: p.source, Token: r.Token.String(), Freshness: p.freshness,
		ClusterID: fmt.Sprintf("%016x", r.ClusterID), Incarnation: r.Incarnation, ForgottenEras: r.Forgotten,
		IDFence: r.Fences.ID, TSOFence: r.Fences.TSO, IDWindow: showWindow(r.IDWindow), TSOWindow: showWindow(r.TSOWindow),
		Eras: []eraOutput{}, Anomalies: []anomalyOutput{},
	}
	for _, f := range r.Findings {
		out.Guarantees = append(out.Guarantees, guaranteeOutput{f.Guarantee.String(), f.Verdict.String(), f.Numbers})
	}
	for _, e := range r.Eras {
		out.Eras = append(out.Eras, showEra(e))
	}
	for _, a := range r.Anomalies {
		out.Anomalies = append(out.Anomalies, anomalyOutput{string(a.Kind), a.Guarantee.String(), a.Era, uint64(a.Region), tokenOrNone(a.At), a.Note, a.Numbers})
	}
	if a := p.audit; a != nil {
		out.Audit = &auditOutput{tokenOrNone(a.From), a.Entries, a.Uncommitted}
	}
	if p.disclosure != nil {
		d := showDisclosure(p.disclosure)
		out.Disclosure = &d
	}
	out.Headline = out.headline()
	if out.Compared = p.compared; differing(p.compared) {
		out.Verdict, out.Headline = witness.Broken.String(), "The states of two root peers differ. "+out.Headline
	}
	return out
}

func showWindow(w *rootv1.Window) *windowOutput {
	if w == nil {
		return nil
	}
	return &windowOutput{w.GetEra(), w.GetFrom(), w.GetTo()}
}

func showEra(e witness.Era) eraOutput {
	return eraOutput{
		Era: e.Era, Holder: e.Holder, Incarnation: fmt.Sprintf("%016x", e.Incarnation), Stage: word(e.Stage.String(), "HANDOVER_STAGE_"),
		OpenedAt: e.Opened.String(), ConfirmedAt: tokenOrNone(e.Confirmed), ClosedAt: tokenOrNone(e.Closed), EndedAt: tokenOrNone(e.Ended),
		End:       string(e.End),
		Inherited: frontiersOutput{e.Inherited.ID, e.Inherited.TSO}, Consumed: frontiersOutput{e.Consumed.ID, e.Consumed.TSO}, Exact: e.Exact,
	}
}

func tokenOrNone(t rooted.Token) string {
	if t.Index == 0 {
		return ""
	}
	return t.String()
}

// headline says who holds what since when, and whether that is proven.
func (o *witnessOutput) headline() string {
	who := "Nobody has held authority yet."
	if len(o.Eras) > 0 {
		switch e := o.Eras[0]; {
		case e.End == string(witness.Active):
			who = fmt.Sprintf("%s holds era %d since log position %s%s.", e.Holder, e.Era, e.OpenedAt, about(e.Inherited.TSO))
		default:
			who = fmt.Sprintf("Nobody holds authority: %s retired era %d, no successor yet.", e.Holder, e.Era)
		}
	}
	byVerdict := map[string][]string{}
	for _, g := range o.Guarantees {
		byVerdict[g.Verdict] = append(byVerdict[g.Verdict], g.Guarantee)
	}
	broken, unknown := byVerdict[witness.Broken.String()], byVerdict[witness.CannotTell.String()]
	switch {
	case len(broken) > 0:
		return "BROKEN: " + strings.Join(broken, ", ") + ". " + who
	case len(unknown) == len(o.Guarantees):
		return "CANNOT TELL whether the guarantees hold. Last known: " + who
	case len(unknown) > 0:
		return "CANNOT TELL whether " + strings.Join(unknown, ", ") + " holds. " + who
	default:
		return who + " All five guarantees hold."
	}
}

// about tells the time that a timestamp tells.
func about(tso uint64) string {
	if tso == 0 {
		return ""
	}
	return ", timestamps after " + clockText(tso) + " UTC"
}

// clockText is a timestamp's time, in UTC; "-" for none.
func clockText(tso uint64) string {
	if tso == 0 {
		return "-"
	}
	return time.UnixMilli(int64(tso >> state.TSOLogicalBits)).UTC().Format("2006-01-02T15:04:05.000")
}

func (o *witnessOutput) table(w *tabwriter.Writer) {
	row(w, o.Headline)
	row(w, fmt.Sprintf("Judged at token %s from %s: %s.", o.Token, o.Source, o.Freshness))
	if a := o.Audit; a != nil {
		row(w, a.text())
	}
	for _, c := range o.Compared {
		row(w, c.text())
	}
	row(w)
	row(w, "GUARANTEE", "VERDICT", "WHAT SHOWS IT")
	for _, g := range o.Guarantees {
		row(w, g.Guarantee, loud(g.Verdict), g.Numbers)
	}
	o.eraTable(w)
	if len(o.Anomalies) > 0 {
		row(w)
		row(w, "ANOMALY", "BREAKS", "ERA", "AT TOKEN", "NUMBERS")
		for _, a := range o.Anomalies {
			breaks := a.Guarantee
			if a.Note {
				breaks = "nothing (note)"
			}
			at := a.Token
			if at == "" {
				at = "records only"
			}
			if i := witness.Kind(a.Kind).Invariant(); i > 0 && !a.Note {
				breaks += fmt.Sprintf(", I%d", i)
			}
			era := "-"
			if a.Era > 0 {
				era = fmt.Sprint(a.Era)
			}
			row(w, a.Kind, breaks, era, at, a.Numbers)
		}
	}
	if o.History != nil {
		o.History.table(w)
	}
}

func (a *auditOutput) text() string {
	b := fmt.Sprintf("Audited: each of %d log entries from the first one on", a.Entries)
	if a.FromToken != "" {
		b = fmt.Sprintf("Audited: the records at %s and each of %d log entries behind them", a.FromToken, a.Entries)
	}
	if a.Uncommitted > 0 {
		b += fmt.Sprintf("; not judged: %d at the end, of which this peer does not know whether they were committed", a.Uncommitted)
	}
	return b + "."
}

func (o *witnessOutput) eraTable(w *tabwriter.Writer) {
	if len(o.Eras) == 0 {
		return
	}
	row(w)
	row(w, "ERA", "HOLDER", "PROCESS", "BEGAN AT", "CONFIRMED", "CLOSED", "ENDED", "IDS ABOVE", "IDS UP TO", "TIMESTAMPS ABOVE", "TIMESTAMPS UP TO")
	for _, e := range o.Eras {
		ended := e.End
		if e.EndedAt != "" {
			ended += " " + e.EndedAt
		}
		bound := "<= "
		if e.Exact {
			bound = ""
		}
		upTo := clockText(e.Consumed.TSO)
		if upTo != "-" {
			upTo = bound + upTo
		}
		row(w, e.Era, e.Holder, e.Incarnation, e.OpenedAt, orDash(e.ConfirmedAt), orDash(e.ClosedAt), ended,
			e.Inherited.AllocID, fmt.Sprint(bound, e.Consumed.AllocID), clockText(e.Inherited.TSO), upTo)
	}
	if o.ForgottenEras > 0 {
		row(w, fmt.Sprintf("1-%d", o.ForgottenEras), "cannot tell: forgotten")
	}
	row(w)
	row(w, "BEGAN, CONFIRMED, CLOSED: the handover's stages, as positions in the root's log. ABOVE: what the era inherited, it served nothing up to there.")
	row(w, "UP TO: how far it may have served; <= is the rooted fence, an upper bound. Timestamps are shown as the time they tell, UTC; -o json has the numbers.")
}

// loud makes what needs attention stand out.
func loud(verdict string) string {
	if verdict == witness.Holds.String() {
		return verdict
	}
	return strings.ToUpper(verdict)
}
