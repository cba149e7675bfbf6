package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/mtls"
	_ "github.com/nokv/nokv/test/hermetic"
)

// What begins in the warm-up or ends behind the end is not counted: each
// caller of 10 ms calls has a hundred in a second, less the one at its edge.
func TestOnlyTheMeasuredTimeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Concurrency: 3, Warmup: time.Second, Duration: time.Second}
		r, _ := c.measure(t.Context(), func(context.Context, int) (uint64, error) {
			time.Sleep(10 * time.Millisecond)
			return 2, nil
		})
		if r.Ops != 2*3*100 || r.Errors != 0 || r.OpsPerSec != 600 || r.P50Us < 9_000 || r.P50Us > 11_000 {
			t.Errorf("%+v", r)
		}
		failed := errors.New("no")
		r, _ = c.measure(t.Context(), func(context.Context, int) (uint64, error) { time.Sleep(time.Millisecond); return 1, failed })
		if r.Ops != 0 || r.Errors != 3000 || !errors.Is(r.LastErr, failed) {
			t.Errorf("%+v, %v", r, r.LastErr)
		}
	})
}

// Calls that hang are errors when ctx ends them behind the end, also those that began
// in the warm-up; ending it before leaves nothing to show.
func TestCallsThatHangAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		hang := func(ctx context.Context, worker int) (uint64, error) {
			since := time.Since(begun)
			if worker == 0 && since < 100*time.Millisecond || worker == 1 && since < time.Second+500*time.Millisecond {
				time.Sleep(10 * time.Millisecond)
				return 1, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		c := Config{Concurrency: 2, Warmup: time.Second, Duration: time.Second}
		for limit, want := range map[time.Duration]uint64{3 * time.Second: 2, 1900 * time.Millisecond: 0} {
			begun = time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			r, err := c.measure(ctx, hang)
			cancel()
			if took := time.Since(begun); took != limit {
				t.Errorf("within %v: it took %v", limit, took)
			}
			switch {
			case want == 0 && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("within %v: %+v, %v", limit, r, err)
			case want != 0 && (err != nil || r.Errors != want || r.Ops != 50):
				t.Errorf("within %v: %+v, %v; want %d errors", limit, r, err, want)
			}
		}
	})
}

// When certificates are refused no call can be made, and nothing is measured.
func TestRefusalsEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		c := Config{Concurrency: 2, Warmup: time.Second, Duration: time.Minute}
		refusal := &mtls.Refusal{Sentence: "our own certificate ended"}
		r, err := c.measure(t.Context(), func(ctx context.Context, worker int) (uint64, error) {
			if worker == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			time.Sleep(time.Millisecond)
			if time.Since(begun) < 10*time.Second {
				return 1, nil
			}
			return 0, fmt.Errorf("tso: %w", refusal)
		})
		if !errors.Is(err, refusal) || time.Since(begun) > 11*time.Second {
			t.Errorf("%+v, %v after %v", r, err, time.Since(begun))
		}
	})
}

func TestValidate(t *testing.T) {
	good := Config{Workload: "route", Duration: time.Second, Concurrency: 1, Batch: 1, Regions: 1, Mode: "batch"}
	for want, change := range map[string]func(*Config){
		"":                 func(*Config) {},
		"workload":         func(c *Config) { c.Workload = "x" },
		"concurrency 0":    func(c *Config) { c.Concurrency = 0 },
		"batch of 1":       func(c *Config) { c.Batch = 0 },
		"duration above 0": func(c *Config) { c.Duration = 0 },
		"regions 0":        func(c *Config) { c.Regions = 0 },
		"mode \"merged\"":  func(c *Config) { c.Mode = "merged" },
		"use echo or etcd=HOST:PORT or redis=HOST:PORT": func(c *Config) { c.Against = "pd=a:1" },
		"publish has none":         func(c *Config) { c.Workload = "publish" },
		"want HOST:PORT":           func(c *Config) { c.Workload, c.Mode, c.Against = "publish", "", "etcd=a" },
		"use pd=HOST:PORT":         func(c *Config) { c.Workload, c.Mode, c.Against = "id", "", "echo" },
		"batch 1048576: want 1 to": func(c *Config) { c.Workload, c.Mode, c.Batch = "tso", "single", 1<<20 },
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
