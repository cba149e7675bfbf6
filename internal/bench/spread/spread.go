package spread

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
)

// Config says what is compared.
type Config struct {
	// Members are the sizes of the clusters, PerMember how many regions each has for a member.
	Members   []int `json:"members"`
	PerMember int   `json:"regions_per_member"`
	// Zipf is the exponent of the loads that are not all the same.
	Zipf float64 `json:"zipf"`
	// Points are those of a member on the rings, Bound how many of 1,000 of its fair part one has at
	// most on the bounded one.
	Points int    `json:"vnodes"`
	Bound  uint64 `json:"bound_permille"`
	// Runs is over how many keyspaces each figure is the median.
	Runs int `json:"runs"`
}

// Bounds of a Config: the regions of one cluster, and all that are placed.
const (
	MaxRegions = 1_000_000
	MaxPlaced  = 20_000_000
	MaxRuns    = 100
)

// Validate says what cannot be compared.
func (c *Config) Validate() error {
	if len(c.Members) == 0 || c.PerMember < 1 {
		return errors.New("want numbers of members, and regions for each")
	}
	all := 0
	for _, n := range c.Members {
		if n < 2 || n > MaxRegions/c.PerMember {
			return fmt.Errorf("%d members of %d regions: want 2 members or more, and %d regions at most", n, c.PerMember, MaxRegions)
		}
		all += n * c.PerMember
	}
	switch {
	case !(c.Zipf > 0 && c.Zipf <= 2):
		return fmt.Errorf("zipf %v: want above 0, and 2 at most", c.Zipf)
	case c.Points < 1 || c.Points > 10_000:
		return fmt.Errorf("%d points: want 1 to 10,000", c.Points)
	case c.Bound < 1001 || c.Bound > 10_000:
		return fmt.Errorf("bound %d permille: want 1,001 to 10,000", c.Bound)
	case c.Runs < 1 || c.Runs > MaxRuns || c.Runs*all > MaxPlaced:
		return fmt.Errorf("%d runs of %d regions: want 1 to %d, and %d regions at most in all", c.Runs, all, MaxRuns, MaxPlaced)
	}
	return nil
}

// Report is what was measured.
type Report struct {
	Config Config `json:"config"`
	Rows   []Row  `json:"rows"`
}

// Row is one strategy in clusters of one size: medians.
type Row struct {
	Loads    string `json:"loads"`
	Strategy string `json:"strategy"`
	Members  int    `json:"members"`
	Regions  int    `json:"regions"`
	// Least is what the hottest region has by the mean, if that is above 1: no placement is more
	// even. Imbalance is the highest load by the mean; Evened is the part of all load that was
	// moved to get there.
	Least     float64 `json:"least"`
	Imbalance float64 `json:"imbalance"`
	Evened    float64 `json:"evened"`
	// JoinMoved is what moves when a member joins, by its fair part of the load, LeaveMoved what
	// moves when one leaves, by what that one has. And the imbalance then.
	JoinMoved      float64 `json:"join_moved"`
	JoinImbalance  float64 `json:"join_imbalance"`
	LeaveMoved     float64 `json:"leave_moved"`
	LeaveImbalance float64 `json:"leave_imbalance"`
}

// The strategies, in the order of the rows.
const (
	Balanced = "balanced"
	Ring     = "ring"
	Bounded  = "ring, bounded load"
)

// Strategies are those that are compared.
var Strategies = []string{Balanced, Ring, Bounded}

// same are loads that are all one.
const same = "same"

// Measure compares.
func Measure(c Config) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	out := &Report{Config: c}
	for _, exponent := range []float64{0, c.Zipf} {
		name := same
		if exponent > 0 {
			name = fmt.Sprintf("zipf %v", exponent)
		}
		for _, members := range c.Members {
			for _, strategy := range Strategies {
				var runs []Row
				for run := range c.Runs {
					cl := newCluster(state.KeyspaceID(run+1), members, zipf(members*c.PerMember, exponent, uint64(run)))
					runs = append(runs, cl.measure(c.placer(strategy)))
				}
				row := median(runs)
				row.Loads, row.Strategy, row.Members, row.Regions = name, strategy, members, members*c.PerMember
				out.Rows = append(out.Rows, row)
			}
		}
	}
	return out, nil
}

// zipf are n loads that are load.One on average, in any order.
func zipf(n int, exponent float64, seed uint64) []load.Amount {
	weights, sum := make([]float64, n), 0.0
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -exponent)
		sum += weights[i]
	}
	loads := make([]load.Amount, n)
	for i, w := range weights {
		loads[i] = load.Amount(w / sum * float64(n) * float64(load.One))
	}
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(n, func(i, j int) { loads[i], loads[j] = loads[j], loads[i] })
	return loads
}

// median is that of each figure.
func median(runs []Row) (m Row) {
	for _, of := range []func(*Row) *float64{
		func(r *Row) *float64 { return &r.Least }, func(r *Row) *float64 { return &r.Imbalance }, func(r *Row) *float64 { return &r.Evened },
		func(r *Row) *float64 { return &r.JoinMoved }, func(r *Row) *float64 { return &r.JoinImbalance },
		func(r *Row) *float64 { return &r.LeaveMoved }, func(r *Row) *float64 { return &r.LeaveImbalance },
	} {
		var all []float64
		for i := range runs {
			all = append(all, *of(&runs[i]))
		}
		slices.Sort(all)
		*of(&m) = math.Round(all[len(all)/2]*1000) / 1000
	}
	return m
}
