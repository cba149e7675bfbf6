package shorten

import (
	"bytes"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// However much others found in the same request, who asked for a window is told of
// it: a holder that is told of none gives its era up. 900 completions and 122
// commands of 700 tombstones each are 0.8 MB and fit one request.
func TestWindowsAreAlwaysTold(t *testing.T) {
	var results []*rootv1.CommandResult
	for range 900 { // completions done already, 1,024 of which fit 25 KB
		region := &rootv1.Region{Id: 1, StartKey: bytes.Repeat([]byte{'k'}, 4096), EndKey: bytes.Repeat([]byte{'l'}, 4096), Frontier: bytes.Repeat([]byte{'f'}, 3500)}
		results = append(results, &rootv1.CommandResult{Events: []*rootv1.EventResult{{Region: region, Transition: &rootv1.Transition{Id: "split-123456-1.1"}}}})
	}
	for range 122 {
		r := &rootv1.CommandResult{}
		for range 700 {
			r.Events = append(r.Events, &rootv1.EventResult{})
		}
		results = append(results, r)
	}
	results = append(results, &rootv1.CommandResult{Events: []*rootv1.EventResult{{Window: &rootv1.Window{Era: 3, From: 10_000_000, To: 10_010_000}}}})
	Results(results)
	if w := results[len(results)-1].GetEvents()[0].GetWindow(); w == nil {
		t.Errorf("the window is left out: %v", results[len(results)-1])
	}
}
