package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// roundOutput is how a keyspace was evened out last, in JSON. The field names stay.
type roundOutput struct {
	Keyspace  string `json:"keyspace"`
	AgeMillis uint64 `json:"age_millis"`
	// Trigger is interval, members, moves, settings, saturated or era.
	Trigger string `json:"trigger"`
	// What the fullest member had, and has when all is done, of 1,000 of its fair part.
	BeforePermille uint64 `json:"imbalance_before_permille"`
	AfterPermille  uint64 `json:"imbalance_after_permille"`
	// By is what was compared: load or count.
	By      string          `json:"by"`
	Begun   []begunOutput   `json:"begun"`
	Refused []refusedOutput `json:"refused"`
}

type begunOutput struct {
	Operation string `json:"operation"`
	Reason    string `json:"reason"`
	Count     uint64 `json:"count"`
}

type refusedOutput struct {
	Why    string `json:"why"`
	Count  uint64 `json:"count"`
	Region uint64 `json:"region,omitempty"`
	Member string `json:"member,omitempty"`
	// Wants are labels that nobody has.
	Wants string `json:"wants,omitempty"`
}

func showRound(r *coordinatorv1.BalanceRound) roundOutput {
	out := roundOutput{
		Keyspace: r.GetKeyspace(), AgeMillis: r.GetAgeMillis(), Trigger: r.GetTrigger(), By: "load",
		BeforePermille: r.GetImbalanceBeforePermille(), AfterPermille: r.GetImbalanceAfterPermille(),
		Begun: []begunOutput{}, Refused: []refusedOutput{},
	}
	if r.GetByCount() {
		out.By = "count"
	}
	for _, b := range r.GetBegun() {
		out.Begun = append(out.Begun, begunOutput{b.GetOperation(), word(b.GetReason().String(), "OPERATION_REASON_"), b.GetCount()})
	}
	for _, f := range r.GetRefused() {
		out.Refused = append(out.Refused, refusedOutput{f.GetWhy(), f.GetCount(), f.GetRegionId(), f.GetMemberId(), f.GetWants()})
	}
	return out
}

func roundsTable(w *tabwriter.Writer, rounds ...roundOutput) {
	row(w, "EVENED OUT", "AGO", "FOR", "BY", "FULLEST / FAIR", "BEGUN", "REFUSED")
	for _, r := range rounds {
		var begun, refused []string
		for _, b := range r.Begun {
			begun = append(begun, fmt.Sprintf("%d %s %s", b.Count, b.Operation, b.Reason))
		}
		for _, f := range r.Refused {
			refused = append(refused, fmt.Sprintf("%d %s", f.Count, f.Why))
		}
		row(w, r.Keyspace, (time.Duration(r.AgeMillis) * time.Millisecond).Round(time.Second), r.Trigger, r.By,
			fmt.Sprintf("%.2f -> %.2f", float64(r.BeforePermille)/1000, float64(r.AfterPermille)/1000),
			orDash(strings.Join(begun, ", ")), orDash(strings.Join(refused, ", ")))
	}
}

// lastRound asks the coordinators, of which one assigns, how a keyspace was evened out;
// nil: none says so.
func lastRound(ctx context.Context, cl *client.Client, k *rootv1.Keyspace) *roundOutput {
	if k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		return nil
	}
	for _, a := range askEach(ctx, cl, cl.Status) {
		for _, r := range a.said.GetRounds() { // who does not answer does not assign, as far as anybody can tell
			if r.GetKeyspace() == k.GetName() {
				out := showRound(r)
				return &out
			}
		}
	}
	return nil
}
