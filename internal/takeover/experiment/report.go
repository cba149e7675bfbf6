package experiment

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
)

// Report is what `nokv bench failover -o json` prints. The field names stay.
type Report struct {
	// Action is kill, hang or restart, Victim to whom: holder, leader, both, or
	// restart for each in turn.
	Action string `json:"action"`
	Victim string `json:"victim"`
	Rounds int    `json:"rounds"`
	// The longest time without a timestamp of any client, over the rounds.
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
	// Violations counts broken promises; each is described in Broken.
	Violations int      `json:"violations"`
	Broken     []string `json:"broken,omitempty"`

	TenureTTLMs float64 `json:"tenure_ttl_ms"`
	// Gaps are the same by kind of call: tso, id and route. Steady is the
	// longest time without a timestamp before each action: what the machine does
	// to callers without one.
	Gaps   map[string]Quantiles `json:"gaps"`
	Steady Quantiles            `json:"steady"`
	// Parts are what the gaps of timestamps are made of, in order.
	Parts []PartSummary `json:"parts"`
	// Calls and FailedCalls count all calls; one that has no answer within
	// Config.Timeout has failed.
	Calls       int `json:"calls"`
	FailedCalls int `json:"failed_calls"`
	// Errors are what failed calls said, each text once, ten at most.
	Errors []string `json:"errors,omitempty"`
	// Each is a line for each round.
	Each []Round `json:"each"`
}

// Quantiles are quantiles over rounds, in milliseconds.
type Quantiles struct {
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
}

// PartSummary is one part of the gaps of one victim.
type PartSummary struct {
	Victim string  `json:"victim"`
	Part   string  `json:"part"`
	P50Ms  float64 `json:"p50_ms"`
	MaxMs  float64 `json:"max_ms"`
}

// Round is one round.
type Round struct {
	Victim  string  `json:"victim"`
	Process string  `json:"process"`
	GapMs   float64 `json:"gap_ms"`
	// BeganMs is when the gap began, counted from the action: above 0 it is not
	// that that began it, but what followed.
	BeganMs float64 `json:"began_ms"`
	// Parts in the order in which they happened, in milliseconds.
	Parts []RoundPart `json:"parts"`
}

// RoundPart is one part of a round's gap.
type RoundPart struct {
	Part string  `json:"part"`
	Ms   float64 `json:"ms"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func showQuantiles(all []time.Duration) Quantiles {
	q := takeover.Summary(all)
	return Quantiles{ms(q.P50), ms(q.P99), ms(q.Max)}
}

// report sums the rounds up.
func (x *Experiment) report() *Report {
	out := &Report{
		Action: string(x.c.Action), Victim: cmp.Or(string(x.c.Victim), string(x.c.Action)), Rounds: len(x.rounds),
		Violations: len(x.broken), Broken: x.broken, TenureTTLMs: ms(x.c.TTL),
		Gaps: make(map[string]Quantiles), Calls: x.calls, FailedCalls: x.failed, Errors: x.load.errors(),
	}
	var steady []time.Duration
	gaps := make(map[string][]time.Duration)
	parts := newPartSums(takeover.PartNames)
	for _, r := range x.rounds {
		steady = append(steady, r.steady)
		for op, g := range r.gaps {
			gaps[op] = append(gaps[op], g.Length())
		}
		g := r.gaps[history.OpTSO]
		show := Round{Victim: string(r.Victim), Process: strings.Join(r.Victims, ","), GapMs: ms(g.Length()), BeganMs: ms(g.From - r.At)}
		for _, p := range r.parts {
			show.Parts = append(show.Parts, RoundPart{p.Name, ms(p.Length())})
			parts.add(r.Victim, p)
		}
		out.Each = append(out.Each, show)
	}
	for op, all := range gaps {
		out.Gaps[op] = showQuantiles(all)
	}
	tso := out.Gaps[history.OpTSO]
	out.P50Ms, out.P99Ms, out.MaxMs = tso.P50Ms, tso.P99Ms, tso.MaxMs
	out.Steady, out.Parts = showQuantiles(steady), parts.show()
	return out
}

// partSums collects parts by victim and name.
type partSums struct {
	names []string // in order
	order []PartSummary
	all   map[PartSummary][]time.Duration
}

func newPartSums(names []string) *partSums {
	return &partSums{names: names, all: make(map[PartSummary][]time.Duration)}
}

func (s *partSums) add(v takeover.Victim, p takeover.Part) {
	key := PartSummary{Victim: string(v), Part: p.Name}
	if _, ok := s.all[key]; !ok {
		s.order = append(s.order, key)
	}
	s.all[key] = append(s.all[key], p.Length())
}

func (s *partSums) show() []PartSummary {
	slices.SortStableFunc(s.order, func(a, b PartSummary) int { // a round may lack a part
		return cmp.Or(cmp.Compare(a.Victim, b.Victim), cmp.Compare(slices.Index(s.names, a.Part), slices.Index(s.names, b.Part)))
	})
	var out []PartSummary
	for _, key := range s.order {
		q := takeover.Summary(s.all[key])
		out = append(out, PartSummary{key.Victim, key.Part, ms(q.P50), ms(q.Max)})
	}
	return out
}
