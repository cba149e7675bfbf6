package simulation

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// contrasts are rules left out, and which promises may be found broken then:
// otherwise the checkers would prove nothing. Each begins at a seed known to bite.
var contrasts = []struct {
	variant  variant
	promises []string
	from     uint64
}{
	{checkThenGenerate, []string{"Silence", "Inheritance", "Tso order"}, 1},
	{countsFromReply, []string{"Silence", "Inheritance", "Tso order"}, 1},
	{clocksBeyondBound, []string{"Silence", "Inheritance", "Tso order"}, 1},
	{successorBelowFence, []string{"Inheritance", "AllocID", "Tso order"}, 1},
	{servesBeforeFence, []string{"Inheritance", "AllocID", "Tso order"}, 1},
	{windowsReused, []string{"Inheritance", "AllocID", "Tso order"}, 1},
	{retiresBeforeEnd, []string{"Silence", "Inheritance", "AllocID", "Tso order"}, 1},
	{earlierConfirmation, []string{"Silence", "Inheritance", "Tso order"}, 1},
	{viewOlderThanToken, []string{"Freshness"}, 1},
	{strongWithoutRead, []string{"Freshness"}, 1},
	{boundIgnored, []string{"Freshness"}, 2},
	{tailSkipsEntry, []string{"Tail", "Freshness"}, 1},
	{appendsUnsynced, []string{"Durability"}, 1},
	{pastsLetIn, []string{"Keyspaces"}, 1},
}

// TestContrast leaves one rule out at a time: a checker of the right name must
// find it within a few hundred seeds.
func TestContrast(t *testing.T) {
	for _, c := range contrasts {
		t.Run(string(c.variant), func(t *testing.T) {
			for seed := c.from; seed < c.from+300; seed++ {
				found := ""
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					_, errs := simulate(t, knobsOf(seed, c.variant))
					found = promiseOf(errs, c.promises)
				})
				if found != "" {
					t.Logf("seed %d: %s", seed, found)
					return
				}
			}
			t.Error("no checker found it")
		})
	}
}

// promiseOf is the first of errs about one of the promises.
func promiseOf(errs []error, promises []string) string {
	text := errors.Join(errs...)
	if text == nil {
		return ""
	}
	for _, line := range strings.Split(text.Error(), "\n") {
		for _, p := range promises {
			if strings.HasPrefix(line, p+":") {
				return line
			}
		}
	}
	return ""
}
