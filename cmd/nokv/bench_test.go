package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/bench"
)

// The time for a whole run has to have room for what is measured.
func TestBenchTimeoutHoldsWhatIsMeasured(t *testing.T) {
	code, _, stderr := runHere(t, "bench", "tso", "--coordinator-addr", "127.0.0.1:1", "--warmup", "1s", "--duration", "10s", "--timeout", "11s")
	if code != exitUsage || !strings.Contains(stderr, "timeout 11s: want more than --warmup and --duration together, 11s") {
		t.Errorf("exit status %d\n%s", code, stderr)
	}
}

// A time that nothing was done in is no failure of the cluster's, and is said as what it is.
func TestBenchOfTooShortATime(t *testing.T) {
	for want, out := range map[string]*bench.Result{
		"": {Ops: 1, Errors: 1},
		"nothing was done in the time: give more, --duration": {},
		"nothing succeeded: 2 errors, the last one: gone":     {Errors: 2, LastErr: errors.New("gone")},
	} {
		if err := nothingDone(out); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
