package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// scalingOutput is how many members a keyspace wants, in JSON. The field names stay.
type scalingOutput struct {
	Keyspace string `json:"keyspace"`
	// ID is the wish's, as its hook is told; empty: nothing is wished for.
	ID           string `json:"id,omitempty"`
	Active       uint64 `json:"active"`
	Desired      uint64 `json:"desired"`
	Reason       string `json:"reason"`
	Victim       string `json:"victim,omitempty"`
	Drained      bool   `json:"drained,omitempty"`
	FullPermille uint64 `json:"full_permille"`
	AgeMillis    uint64 `json:"age_millis"`
	// Delivered: the hook took it. Failures is how often it did not, Problem why it did not last.
	Delivered bool   `json:"delivered"`
	Failures  uint64 `json:"failures"`
	Problem   string `json:"problem,omitempty"`
}

func showScaling(s *coordinatorv1.ScalingSignal) scalingOutput {
	return scalingOutput{
		Keyspace: s.GetKeyspace(), ID: s.GetId(), Active: s.GetActive(), Desired: s.GetDesired(), Reason: s.GetReason(), Victim: s.GetVictim(),
		Drained: s.GetDrained(), FullPermille: s.GetFullPermille(), AgeMillis: s.GetAgeMillis(), Delivered: s.GetDelivered(),
		Failures: s.GetFailures(), Problem: s.GetProblem(),
	}
}

func scalingTable(w *tabwriter.Writer, all []scalingOutput) {
	row(w, "SCALING", "MEMBERS", "WANTED", "FULL", "WHY", "VICTIM", "FOR", "HOOK")
	for _, s := range all {
		victim, since, hook := "-", "-", "-"
		switch {
		case s.Drained:
			victim = s.Victim + ", has drained"
		case s.Victim != "":
			victim = s.Victim + ", drains"
		}
		if s.ID != "" {
			since = (time.Duration(s.AgeMillis) * time.Millisecond).Round(time.Second).String()
			switch {
			case s.Delivered:
				hook = "took it"
			case s.Failures > 0:
				hook = fmt.Sprintf("%s, %d times", s.Problem, s.Failures)
			}
		}
		row(w, s.Keyspace, s.Active, s.Desired, fmt.Sprintf("%.1f%%", float64(s.FullPermille)/10), s.Reason, victim, since, hook)
	}
}
