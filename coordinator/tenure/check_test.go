package tenure_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestCheck: what is made under an era may be served while that era is confirmed, at
// once within a confirmation's ttl, behind one where no clock is trusted, and never of
// another era, of none, or behind the end of one.
func TestCheck(t *testing.T) {
	for _, ttl := range []time.Duration{200 * time.Millisecond, 0} {
		synctest.Test(t, func(t *testing.T) {
			r := newTestRoot(time.Millisecond)
			r.cut["c1"] = true
			h := startHolder(t, r, "c1", func(cfg *tenure.Config) { cfg.TTL = ttl })
			check := func(era uint64, want rootv1.Reason) {
				t.Helper()
				if err := h.Check(within(time.Second), era); reason.Of(err) != want || (err == nil) != (want == 0) {
					t.Fatalf("ttl %v: check of era %d: %v, want %v", ttl, era, err, want)
				}
			}
			check(1, rootv1.Reason_REASON_TENURE_NOT_HELD)
			r.inspect(func(*machine) { delete(r.cut, "c1") })
			time.Sleep(time.Second)
			synctest.Wait()
			at := time.Now()
			check(1, 0)
			if waited := time.Since(at); (waited == 0) != (ttl > 0) {
				t.Errorf("ttl %v: a check waited %v", ttl, waited)
			}
			check(2, rootv1.Reason_REASON_ERA_STALE)
			check(0, rootv1.Reason_REASON_ERA_STALE)
			r.inspect(func(*machine) { r.cut["c1"] = true })
			time.Sleep(ttl + time.Second)
			if err := h.Check(within(time.Second), 1); err == nil {
				t.Errorf("ttl %v: an era that nobody confirms was checked", ttl)
			}
			h.stop()
			check(1, rootv1.Reason_REASON_TENURE_NOT_HELD)
		})
	}
}
