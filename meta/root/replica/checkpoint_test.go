package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Background work takes a tenth of the time, and ends at once with
// its context.
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		p := throttle{ctx: ctx}
		begun, worked := time.Now(), time.Duration(0)
		for range 1000 {
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(300 * time.Microsecond) // the work
			worked += 300 * time.Microsecond
		}
		if took := time.Since(begun); took < 8*worked || took > 12*worked {
			t.Errorf("%v of work took %v", worked, took)
		}
		time.AfterFunc(time.Millisecond, cancel)
		time.Sleep(time.Hour) // a spell that took long
		begun = time.Now()
		if err := p.wait(); err == nil || time.Since(begun) > maxPause {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}
