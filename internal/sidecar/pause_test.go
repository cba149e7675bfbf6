package sidecar

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An answer to a sidecar of before, which the process still works at, answers nothing of this one.
func TestC06AnswersToAnotherSidecarAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []Call
		ctx, cancel := context.WithCancel(t.Context())
		var last *polls
		for range 2 {
			last = newPolls(time.Now)
			go func() {
				if a, err := last.ask(ctx, Call{Call: "release"}); err == nil {
					t.Errorf("it was answered: %+v", a)
				}
			}()
			c, _, _ := last.next(t.Context(), false)
			calls = append(calls, c)
		}
		if _, err := last.done(calls[0].ID, Answer{Idle: true}); !errors.Is(err, errNoCall) {
			t.Errorf("call %s of the one before was answered to this one, whose is %s: %v", calls[0].ID, calls[1].ID, err)
		}
		cancel()
		synctest.Wait()
	})
}

// Behind a poll that waited without a call there is time for the next one.
func TestC06SilenceBeginsWhenAPollEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolls(time.Now)
		ctx, cancel := context.WithTimeout(t.Context(), pollTime)
		defer cancel()
		if _, ok, err := p.next(ctx, false); ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(pollSilence / 2)
		if err := p.answers(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(pollSilence)
		if err := p.answers(t.Context()); err == nil {
			t.Error("it lives, and asks no more")
		}
	})
}

// looked is a process that says how each look at it ends.
type looked func(ctx context.Context, n int) error

type lookedAt struct {
	caller
	looked
	n int
}

func (l *lookedAt) answers(ctx context.Context) error {
	l.n++
	return l.looked(ctx, l.n)
}

// A sidecar that was stopped has not listened: the process is not ended for that.
func TestC06ItsOwnPauseIsNotTheSilenceOfTheProcess(t *testing.T) {
	for name, c := range map[string]struct {
		looks looked
		lost  bool
	}{
		"stopped while it looked": {func(_ context.Context, n int) error {
			if n != 3 {
				return nil
			}
			time.Sleep(time.Minute)
			return context.DeadlineExceeded
		}, false},
		"it hangs": {func(ctx context.Context, n int) error {
			if n < 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sidecar{cfg: Config{Hang: 10 * time.Second}, process: &process{}, lost: make(chan error, 1)}
				s.handler = &handler{caller: &lookedAt{looked: c.looks}}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				begun := time.Now()
				s.watch(ctx)
				took := time.Since(begun)
				select {
				case err := <-s.lost:
					if !c.lost || !errors.Is(err, errHangs) || took < 10*time.Second || took > 20*time.Second {
						t.Errorf("lost after %v: %v", took, err)
					}
				default:
					if c.lost {
						t.Error("it is not lost")
					}
				}
			})
		})
	}
}
