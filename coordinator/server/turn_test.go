package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Whoever waits for the turn to encode a snapshot goes when its reader or the
// coordinator does, and the turn is passed on whatever becomes of who has it.
func TestSnapshotTurnIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{snapshots: make(chan struct{}, snapshotsAtOnce)}
		of := func(ctx context.Context) *watch {
			return &watch{server: s, live: &live{ctx: ctx, end: make(chan struct{})}, scope: &scope{}}
		}
		var has snapshotTurn
		if err := has.take(of(t.Context())); err != nil {
			t.Fatal(err)
		}
		gone, hangUp := context.WithCancel(t.Context())
		stopped, stays, errStop := of(t.Context()), of(t.Context()), errors.New("stop")
		ends := make(chan error, 3)
		wait := func(w *watch) {
			var turn snapshotTurn
			defer turn.pass()
			ends <- turn.take(w)
		}
		go wait(of(gone))
		go wait(stopped)
		go wait(stays)
		synctest.Wait()
		hangUp()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("whose reader hung up: %v", err)
		}
		stopped.live.cut(errStop)
		if err := <-ends; !errors.Is(err, errStop) {
			t.Errorf("at the stop: %v", err)
		}
		has.pass()
		if err := <-ends; err != nil {
			t.Errorf("who stays: %v", err)
		}
		synctest.Wait()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a snapshot of no state was made")
				}
			}()
			_ = stays.snapshot(served{server: s})
		}()
		has.pass() // twice is once
		if len(s.snapshots) != 0 {
			t.Error("somebody who is gone has the turn")
		}
	})
}
