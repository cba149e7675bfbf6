package tenure

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A holder whose view lags further than the root remembers still gets windows: the
// refusal says how far the log is, and nobody else can tell it.
func TestWindowsWhileTheViewLags(t *testing.T) {
	r := NewRaw(rawConfig(), new(Counters))
	begin(t, r, asGiven)
	now, forgotten, given := clock.Instant(2), uint64(1_000_000), 0
	for range 20 {
		if _, ok := r.Take(rootv1.Mandate_MANDATE_ALLOC_ID, 1); ok && r.Due() {
			r.Tick(now)
		}
		r.Tick(now)
		for _, m := range r.Messages() {
			if m.Command == nil {
				continue
			}
			f := m.Command.Events[0].GetFenceExtended()
			switch {
			case f == nil:
			case m.Command.GetIdentity().GetKnownIndex() < forgotten: // as state.identified does
				r.OnAnswer(m, Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{
					Reason: rootv1.Reason_REASON_OUTCOME_UNKNOWN, CurrentToken: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: forgotten + 1},
				}}}, now)
			default:
				given++
				r.OnAnswer(m, Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{
					Window: &rootv1.Window{Era: 1, From: 1000, To: 1000 + f.GetSize()},
				}}}}, now)
			}
		}
		now = now.Add(40 * time.Millisecond)
	}
	if given == 0 {
		t.Errorf("no window in %v, whatever the refusals say: %d ids left", time.Duration(now), r.Status(now).IDsLeft)
	}
}
