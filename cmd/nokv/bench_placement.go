package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/internal/bench/spread"
)

func benchPlacement() *command {
	return &command{
		name: "placement", args: "[flags]", summary: "compare how evenly the planner, a ring, and a ring with bounded load place regions",
		long: `
Nothing is started, and nobody is asked: members and regions are numbers, and the same
flags give the same figures on every machine. For each size of a cluster regions are
placed, once with the same load each and once with loads by Zipf; then a member joins,
then another one leaves. Rings name owners anew each time, as those do that root none;
the planner goes on from the owners that there are, within its usual budgets.

IMBALANCE is the highest load by the mean, LEAST what it cannot be below because one
region has so much, EVENED what part of all load was moved to get there. JOIN MOVED is
by the joiner's fair part, LEAVE MOVED by what the member had that leaves.

    nokv bench placement --svg placement.svg
    nokv bench placement --members 3,100 --regions-per-member 1000 -o json`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var c spread.Config
			members := f.String("members", "3,10,30,100,300,1000", "`sizes` of clusters: N[,N...]")
			f.IntVar(&c.PerMember, "regions-per-member", 100, "regions for each member")
			f.Float64Var(&c.Zipf, "zipf", 0.6, "`exponent` of the loads that differ, above 0 to 2")
			f.IntVar(&c.Points, "vnodes", 150, "points of a member on a ring, 1 to 10,000")
			f.Uint64Var(&c.Bound, "bound", 1250, "most that a member has with bounded load, in thousandths of its fair part")
			f.IntVar(&c.Runs, "runs", 5, "figures are the median of so many, 1 to 100")
			svg := f.String("svg", "", "draw it to this `file`")
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				for _, word := range strings.Split(*members, ",") {
					n, err := strconv.Atoi(strings.TrimSpace(word))
					if err != nil {
						return usagef("--members %q: want whole numbers with commas between them, such as 3,10,100", *members)
					}
					c.Members = append(c.Members, n)
				}
				if err := c.Validate(); err != nil {
					return usagef("%s", err)
				}
				out, err := spread.Measure(c)
				if err != nil {
					return err
				}
				if *svg != "" {
					if err := os.WriteFile(*svg, out.Draw(), 0o644); err != nil {
						return err
					}
				}
				return e.print(out, func(w *tabwriter.Writer) { placementTable(out, w) })
			}
		},
	}
}

func placementTable(out *spread.Report, w *tabwriter.Writer) {
	row(w, "LOADS", "MEMBERS", "REGIONS", "STRATEGY", "LEAST", "IMBALANCE", "EVENED", "JOIN MOVED", "IMBALANCE", "LEAVE MOVED", "IMBALANCE")
	for _, r := range out.Rows {
		f := func(x float64) string { return fmt.Sprintf("%.2f", x) }
		row(w, r.Loads, r.Members, r.Regions, r.Strategy, f(r.Least), f(r.Imbalance), f(r.Evened), f(r.JoinMoved), f(r.JoinImbalance), f(r.LeaveMoved), f(r.LeaveImbalance))
	}
}
