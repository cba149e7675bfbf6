package demo

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A command of nokv that Ctrl-C ended says that, and not how it was ended.
func TestACommandIsEndedWithTheDemo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := &Demo{nokv: "sleep"}
	ended := make(chan error, 1)
	go func() {
		_, err := d.NoKV(ctx, "60")
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it says %v", err)
	}
}

// What Ctrl-C ended is no failure.
func TestWhatWasEndedIsNoFailure(t *testing.T) {
	for said, row := range map[string]struct {
		err    error
		status int
	}{
		"done":                    {nil, 0},
		"ended":                   {fmt.Errorf("open: %w", context.Canceled), 0},
		"ended in a call":         {fmt.Errorf("open: %w", status.Error(codes.Canceled, "context canceled")), 0},
		"a call took too long":    {status.Error(codes.DeadlineExceeded, "late"), 1},
		"something that is wrong": {errors.New("wrong"), 1},
	} {
		if got := Main(func(context.Context) error { return row.err }); got != row.status {
			t.Errorf("%s: exit status %d, want %d", said, got, row.status)
		}
	}
}
