package coordinator_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Each guarantee has its name in the metrics of a process: the Witness's verdict on it, and how
// often it was found broken. Beside them stands what counts eras, handovers and gates.
func TestN35N99MetricsNameTheGuarantees(t *testing.T) {
	c, err := coordinator.New(valid())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(c.Vars())
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Authority  map[string]uint64 `json:"authority"`
		Violations map[string]uint64 `json:"guarantee_violations"`
		Verdicts   map[string]string `json:"guarantees"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		t.Fatal(err)
	}
	var names []string
	for n, name := range coordinatorv1.Guarantee_name {
		if n != 0 {
			names = append(names, strings.ToLower(strings.TrimPrefix(name, "GUARANTEE_")))
		}
	}
	slices.Sort(names)
	for _, name := range []string{"primacy", "inheritance", "silence", "finality"} {
		if !slices.Contains(names, name) {
			t.Errorf("there is no guarantee %s", name)
		}
	}
	if got := slices.Sorted(maps.Keys(said.Violations)); !slices.Equal(got, names) {
		t.Errorf("violations are counted of %v, want %v", got, names)
	}
	if got := slices.Sorted(maps.Keys(said.Verdicts)); !slices.Equal(got, names) {
		t.Errorf("verdicts are on %v, want %v", got, names)
	}
	for _, name := range []string{"era_transitions", "handover_steps", "gate_rejections"} {
		if _, ok := said.Authority[name]; !ok {
			t.Errorf("%s is not counted: %v", name, said.Authority)
		}
	}
	for name, n := range said.Violations {
		if n != 0 {
			t.Errorf("%s is broken %d times before anything began", name, n)
		}
	}
}
