package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever waits for the time to be sent more of a snapshot goes when its reader or the
// coordinator does, and what was sent before is what is waited for.
func TestOpeningWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o opening
		o.watches.Store(1)
		of := func(ctx context.Context) *watch {
			return &watch{live: &live{ctx: ctx, end: make(chan struct{})}}
		}
		begun := time.Now()
		if err := o.wait(of(t.Context()), 100<<20); err != nil || time.Since(begun) > 0 {
			t.Fatalf("the first waited for %v: %v", time.Since(begun), err)
		}
		if err := o.wait(of(t.Context()), 0); err != nil || time.Since(begun) > 0 {
			t.Fatalf("one that opens alone waited for %v: %v", time.Since(begun), err)
		}
		o.watches.Store(100)
		if err := o.wait(of(t.Context()), 100<<20); err != nil || time.Since(begun) > 0 {
			t.Fatalf("the first of many waited for %v: %v", time.Since(begun), err)
		}
		gone, hangUp := context.WithCancel(t.Context())
		stopped, errStop := of(t.Context()), errors.New("stop")
		ends := make(chan error)
		wait := func(w *watch) { ends <- o.wait(w, 0) }
		go wait(of(gone))
		synctest.Wait()
		hangUp()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("whose reader hung up: %v", err)
		}
		go wait(stopped)
		synctest.Wait()
		stopped.live.cut(errStop)
		if err := <-ends; !errors.Is(err, errStop) {
			t.Errorf("at the stop: %v", err)
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("they went after %v", took)
		}
		go wait(of(t.Context()))
		if err, took := <-ends, time.Since(begun); err != nil || took < snapshotShare*costOf(100<<20) || took > 2*time.Second {
			t.Errorf("behind 100 MB after %v: %v", took, err)
		}
	})
}
