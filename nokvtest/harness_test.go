package nokvtest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/member"
)

// app notes what it is asked.
type app struct {
	mu  sync.Mutex
	log []string
}

func (a *app) note(call string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, call)
}

func (a *app) Acquire(_ context.Context, r member.Region) error {
	a.note("acquire " + r.Start)
	return nil
}

func (a *app) Release(_ context.Context, r member.Region) ([]byte, error) {
	a.note("release " + r.Start)
	return []byte("f"), nil
}

func (a *app) calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.log)
}

// nothing is a request that does nothing.
func nothing(context.Context, member.Region) error { return nil }

// everywhere runs a test in real and in virtual time.
func everywhere(t *testing.T, test func(t *testing.T)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t)
	})
	t.Run("virtual", func(t *testing.T) { synctest.Test(t, test) })
}

// aside is a test in a test: it notes how it fails, and ends when told.
type aside struct {
	testing.TB
	failed   string
	cleanups []func()
}

// inside runs what may fail, and the end of it.
func inside(t testing.TB, fn func(*aside)) (failed string) {
	a := &aside{TB: t}
	var ended sync.WaitGroup
	ended.Go(func() { fn(a) }) // Fatalf ends its goroutine
	ended.Wait()
	for _, end := range slices.Backward(a.cleanups) {
		end()
	}
	return a.failed
}

func (a *aside) Cleanup(fn func())               { a.cleanups = append(a.cleanups, fn) }
func (a *aside) Errorf(format string, of ...any) { a.failed += fmt.Sprintf(format, of...) }

func (a *aside) Fatalf(format string, of ...any) {
	a.Errorf(format, of...)
	a.SkipNow()
}
