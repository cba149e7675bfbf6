package spread_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"testing"

	"github.com/nokv/nokv/internal/bench/spread"
)

func config() spread.Config {
	return spread.Config{Members: []int{3, 10, 40}, PerMember: 50, Zipf: 0.6, Points: 150, Bound: 1250, Runs: 3}
}

// The planner is no less even than rings are, and has no more moved, in clusters of every size.
func TestA44R08R09PlannerBesideRings(t *testing.T) {
	out, err := spread.Measure(config())
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * 3 * len(spread.Strategies); len(out.Rows) != want {
		t.Fatalf("%d rows, want %d", len(out.Rows), want)
	}
	by := map[string]map[int]spread.Row{}
	for _, r := range out.Rows {
		if key := r.Loads + r.Strategy; by[key] == nil {
			by[key] = map[int]spread.Row{r.Members: r}
		} else {
			by[key][r.Members] = r
		}
	}
	for _, n := range config().Members {
		if r := by["same"+spread.Balanced][n]; r.Imbalance != 1 || r.Evened != 0 || r.JoinMoved > 1 || r.LeaveMoved != 1 || r.JoinImbalance > 1.03 || r.LeaveImbalance > 1.03 {
			t.Errorf("%d members with the same loads: %+v", n, r)
		}
		r := by["zipf 0.6"+spread.Balanced][n]
		most := max(r.Least, 1.2)
		if r.Imbalance > most || r.JoinImbalance > most || r.LeaveImbalance > most || r.JoinMoved > 1.1 || r.LeaveMoved > 1.1 || r.Evened > 0.1 {
			t.Errorf("%d members with loads by zipf: %+v", n, r)
		}
		if bounded := by["zipf 0.6"+spread.Bounded][n]; bounded.Imbalance > max(r.Least, 1.25)+0.001 {
			t.Errorf("%d members: the bound does not hold: %+v", n, bounded)
		}
		if ring := by["zipf 0.6"+spread.Ring][n]; ring.LeaveMoved != 1 || ring.Imbalance < r.Imbalance {
			t.Errorf("%d members: a ring has %+v", n, ring)
		}
	}
}

// The same bytes every time, and a picture that programs can read.
func TestSameReportSamePicture(t *testing.T) {
	c := config()
	c.Members, c.Runs = []int{3, 10}, 1
	var first []byte
	for range 2 {
		out, err := spread.Measure(c)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		all := append(text, out.Draw()...)
		if first != nil && !bytes.Equal(first, all) {
			t.Error("two reports differ")
		}
		first = all
		for d := xml.NewDecoder(bytes.NewReader(out.Draw())); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("the picture: %v", err)
			}
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for name, change := range map[string]func(*spread.Config){
		"no members":    func(c *spread.Config) { c.Members = nil },
		"one member":    func(c *spread.Config) { c.Members = []int{1} },
		"negative":      func(c *spread.Config) { c.PerMember = -1 },
		"very many":     func(c *spread.Config) { c.Members = []int{1 << 40} },
		"many in all":   func(c *spread.Config) { c.Members, c.PerMember, c.Runs = []int{10_000, 10_000}, 100, 100 },
		"zipf":          func(c *spread.Config) { c.Zipf = -1 },
		"no points":     func(c *spread.Config) { c.Points = 0 },
		"bound below 1": func(c *spread.Config) { c.Bound = 900 },
		"no runs":       func(c *spread.Config) { c.Runs = 0 },
	} {
		c := config()
		if change(&c); c.Validate() == nil {
			t.Errorf("%s: %+v is fine", name, c)
		} else if _, err := spread.Measure(c); err == nil {
			t.Errorf("%s is measured", name)
		}
	}
}
