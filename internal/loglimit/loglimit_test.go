package loglimit_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/loglimit"
	"github.com/nokv/nokv/internal/testing/written"
)

// Each kind is said at once, then once a minute with the number of those that were not; each time
// at Debug.
func TestLinesOfAKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log written.Text
		var lines loglimit.Lines
		logger := log.Logger(hclog.Debug)
		for range 5 * 60 {
			lines.Warn(logger, "release", "fails", "call", "release")
			lines.Warn(logger, "acquire", "fails", "call", "acquire")
			time.Sleep(time.Second)
		}
		for _, of := range []string{"release", "acquire"} {
			said := strings.Count(log.String(), "[WARN]  fails: call="+of+"\n")
			again := strings.Count(log.String(), "[WARN]  fails: call="+of+" more=59\n")
			if n := strings.Count(log.String(), "fails: call="+of); said != 1 || again != 4 || n != 300 {
				t.Errorf("of %s %d lines, %d without and %d with a number, want 300, 1 and 4", of, n, said, again)
			}
		}
	})
}
