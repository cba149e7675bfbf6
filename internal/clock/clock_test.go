package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

// The machine sleeps for an hour: the boot-time clock counts it, the monotonic
// clock does not. Without a boot-time clock the monotonic one is what there is.
func TestElapsedTimeCountsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept time.Duration
		begun := time.Now()
		c := newSystem(func() int64 { return int64(time.Hour + time.Since(begun) + slept) })
		still := newSystem(func() int64 { return 0 })
		at, stillAt := c.Now(), still.Now()
		time.Sleep(time.Second)
		if d := c.Now().Sub(at); d != time.Second {
			t.Errorf("a second was %v", d)
		}
		slept = time.Hour
		if d := c.Now().Sub(at); d != time.Hour+time.Second {
			t.Errorf("a second and an hour asleep were %v", d)
		}
		if d := still.Now().Sub(stillAt); d != time.Second {
			t.Errorf("without a boot-time clock a second was %v", d)
		}
	})
}

func TestSystemClockOfThisMachine(t *testing.T) {
	if bootNanos() <= 0 {
		t.Fatal("there is no boot-time clock: elapsed time would not count sleep")
	}
	c := NewSystem()
	last := c.Now()
	for range 10_000 {
		now := c.Now()
		if now < last {
			t.Fatalf("%d came after %d", now, last)
		}
		last = now
	}
	if a, b := c.Wall(), uint64(time.Now().UnixMilli()); b-a > 60_000 {
		t.Errorf("wall time is %d, package time says %d", a, b)
	}
}
