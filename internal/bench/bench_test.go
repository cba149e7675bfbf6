package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What begins in the warm-up or ends behind the end is not counted: each
// caller of 10 ms calls has a hundred in a second, less the one at its edge.
func TestOnlyTheMeasuredTimeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Concurrency: 3, Warmup: time.Second, Duration: time.Second}
		r := c.measure(t.Context(), func(context.Context, int) (uint64, error) {
			time.Sleep(10 * time.Millisecond)
			return 2, nil
		})
		if r.Ops != 2*3*100 || r.Errors != 0 || r.OpsPerSec != 600 || r.P50Us < 9_000 || r.P50Us > 11_000 {
			t.Errorf("%+v", r)
		}
		failed := errors.New("no")
		r = c.measure(t.Context(), func(context.Context, int) (uint64, error) { time.Sleep(time.Millisecond); return 1, failed })
		if r.Ops != 0 || r.Errors != 3000 || !errors.Is(r.LastErr, failed) {
			t.Errorf("%+v, %v", r, r.LastErr)
		}
	})
}

func TestValidate(t *testing.T) {
	good := Config{Workload: "route", Duration: time.Second, Concurrency: 1, Batch: 1, Regions: 1, Mode: "batch"}
	for want, change := range map[string]func(*Config){
		"":                           func(*Config) {},
		"workload":                   func(c *Config) { c.Workload = "x" },
		"concurrency 0":              func(c *Config) { c.Concurrency = 0 },
		"batch of 1":                 func(c *Config) { c.Batch = 0 },
		"duration above 0":           func(c *Config) { c.Duration = 0 },
		"regions 0":                  func(c *Config) { c.Regions = 0 },
		"mode \"merged\"":            func(c *Config) { c.Mode = "merged" },
		"use echo or etcd=HOST:PORT": func(c *Config) { c.Against = "pd=a:1" },
		"publish has none":           func(c *Config) { c.Workload = "publish" },
		"want HOST:PORT":             func(c *Config) { c.Workload, c.Mode, c.Against = "publish", "", "etcd=a" },
		"use pd=HOST:PORT":           func(c *Config) { c.Workload, c.Mode, c.Against = "id", "", "echo" },
		"batch 1048576: want 1 to":   func(c *Config) { c.Workload, c.Mode, c.Batch = "tso", "single", 1<<20 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestKeysAreInOrder(t *testing.T) {
	for i, want := range map[int]string{0: "key-00000000", 7: "key-00000007", 12345678: "key-12345678"} {
		if got := string(Key(i)); got != want || len(got) != keyBytes {
			t.Errorf("key %d is %s, want %s", i, got, want)
		}
	}
}
