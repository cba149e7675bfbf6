package main

import (
	"strings"
	"testing"
)

// The time for a whole run has to have room for what is measured.
func TestBenchTimeoutHoldsWhatIsMeasured(t *testing.T) {
	code, _, stderr := runHere(t, "bench", "tso", "--coordinator-addr", "127.0.0.1:1", "--warmup", "1s", "--duration", "10s", "--timeout", "11s")
	if code != exitUsage || !strings.Contains(stderr, "timeout 11s: want more than --warmup and --duration together, 11s") {
		t.Errorf("exit status %d\n%s", code, stderr)
	}
}
