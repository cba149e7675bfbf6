package tenure_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Rule 8: an alarm is followed at once, not at the next probe's time.
func TestStandbyFollowsAnAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		untimed := func(c *tenure.Config) { c.TTL = 0 }
		a := startHolder(t, r, "c1", untimed)
		time.Sleep(time.Second)
		var gone atomic.Bool
		alarm := make(chan struct{}, 1)
		b := startHolder(t, r, "c22", func(c *tenure.Config) {
			untimed(c)
			c.Alarm, c.ProbeEvery = alarm, 10*time.Second
			c.Probe = func(context.Context, *rootv1.Tenure) tenure.Health {
				if gone.Load() {
					return tenure.HealthRefused
				}
				return tenure.HealthServing
			}
		})
		time.Sleep(200 * time.Millisecond)
		alarm <- struct{}{}
		synctest.Wait()
		if b.Status().Era != 0 {
			t.Fatal("a false alarm took the era of a holder that serves")
		}
		time.Sleep(50 * time.Millisecond)
		gone.Store(true)
		alarm <- struct{}{}
		time.Sleep(10 * time.Millisecond)
		if era := b.Status().Era; era != 2 {
			t.Errorf("10 ms after the alarm the standby has era %d", era)
		}
		a.stop()
		b.stop()
	})
}
