package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/witness"
)

// historyOutput is what `nokv witness --history` adds. The field names stay.
type historyOutput struct {
	Calls int `json:"calls"`
	// Grants are the calls that gave out ids or timestamps, Values how many.
	Grants int    `json:"grants"`
	Values uint64 `json:"values"`
	// Unjudged are grants of eras that are not known.
	Unjudged int             `json:"unjudged"`
	Promises []promiseOutput `json:"promises"`
}

type promiseOutput struct {
	Promise string `json:"promise"`
	Verdict string `json:"verdict"`
	Numbers string `json:"numbers"`
}

// promises are those that history checks, with what each means to a client.
var promises = []struct{ name, means string }{
	{"Primacy", "each reply came from the process whose era it names"},
	{"Inheritance", "nothing was served at or below what an era inherited, or above what the next one did"},
	{"Silence", "no era replied to a call that began after a higher one had replied"},
	{"AllocID", "no id was given out twice"},
	{"Tso order", "no timestamp was given out twice, and each call got one above all that had returned before it"},
}

// readHistory reads a recorded history; none for "".
func readHistory(name string) (calls []history.Call, err error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if calls, err = history.Read(f); err != nil {
		return nil, fmt.Errorf("history %s: %w", name, err)
	}
	return calls, nil
}

// judge checks what clients were told against the truth of p, and adds that to
// the verdict.
func (o *witnessOutput) judge(p *proof, calls []history.Call) {
	h := history.FromCalls(calls)
	h.Tenures, h.Unfinished = p.tenures, !p.ends
	if len(p.tenures) > 0 {
		h.Forgotten = p.tenures[0].GetEra() - 1
	}
	if p.audit != nil {
		h.RootIDs = p.audit.RootIDs
	}
	out := &historyOutput{Calls: len(calls), Grants: len(h.Grants), Unjudged: h.Unjudged()}
	for _, g := range h.Grants {
		out.Values += g.Count
	}
	found := map[string]string{}
	for _, v := range h.Check() {
		found[v.Promise] = v.Err.Error()
	}
	var broken []string
	for _, promise := range promises {
		line := promiseOutput{promise.name, witness.Holds.String(), promise.means}
		switch wrong := found[promise.name]; {
		case wrong != "":
			line.Verdict, line.Numbers = witness.Broken.String(), wrong
			broken = append(broken, promise.name)
		case len(h.Grants) == 0:
			line.Verdict, line.Numbers = witness.CannotTell.String(), "the history has no reply with ids or timestamps"
		case out.Unjudged > 0 && (promise.name == "Primacy" || promise.name == "Inheritance"):
			line.Verdict, line.Numbers = witness.CannotTell.String(),
				fmt.Sprintf("%d of %d replies are of eras that this truth does not have: it has %s", out.Unjudged, len(h.Grants), erasText(h))
		}
		out.Promises = append(out.Promises, line)
	}
	o.History = out
	switch {
	case len(broken) > 0:
		o.Verdict = witness.Broken.String()
		o.Headline = "BROKEN in the recorded history: " + strings.Join(broken, ", ") + ". By the root's records: " + o.Headline
	case o.Verdict == witness.Holds.String() && (len(h.Grants) == 0 || out.Unjudged > 0):
		o.Verdict = witness.CannotTell.String()
		o.Headline = "CANNOT TELL whether the recorded history is right. " + o.Headline
	default:
		o.Headline += fmt.Sprintf(" The recorded history agrees: %d calls.", out.Calls)
	}
}

func erasText(h *history.History) string {
	if len(h.Tenures) == 0 {
		return "none"
	}
	return fmt.Sprintf("eras %d to %d", h.Forgotten+1, h.Forgotten+uint64(len(h.Tenures)))
}

func (o *historyOutput) table(w *tabwriter.Writer) {
	row(w)
	row(w, fmt.Sprintf("Recorded history: %d calls, %d of them gave out %d ids and timestamps.", o.Calls, o.Grants, o.Values))
	row(w)
	row(w, "PROMISE", "VERDICT", "WHAT WAS CHECKED, OR WHAT CONTRADICTS IT")
	for _, p := range o.Promises {
		row(w, p.Promise, loud(p.Verdict), p.Numbers)
	}
}
