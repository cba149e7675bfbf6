package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
)

// connecting is a coordinator whose streams open as a test says.
type connecting struct {
	coordinatorv1.CoordinatorClient
	open func() error
}

func (c connecting) PublishStream(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[publishRequest, publishResponse], error) {
	return nil, c.open()
}

// TestAStreamCountsOnceItIsOpen: a batch that is launched while a stream is being opened
// does not take it for one that it may have been sent on before; one that did not open never counts.
func TestAStreamCountsOnceItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{}
		connect := func(fails error) (context.CancelFunc, error) {
			ctx, end := context.WithCancel(t.Context())
			before := p.opened.Load()
			_, err := p.connect(ctx, &endpoint{rpc: connecting{open: func() error {
				if now := p.opened.Load(); now != before {
					t.Errorf("a stream that is being opened counts: %d, before it %d", now, before)
				}
				return fails
			}}})
			return end, err
		}
		failed := errors.New("refused")
		for i, step := range []struct {
			fails      error
			live, gone int64
		}{{failed, 0, 0}, {nil, 3, 2}, {failed, 2, 2}, {nil, 5, 4}} {
			end, err := connect(step.fails)
			if got := p.opened.Load(); got != step.live || !errors.Is(err, step.fails) {
				t.Errorf("step %d: %d, %v, want %d", i, got, err, step.live)
			}
			end()
			synctest.Wait()
			if got := p.opened.Load(); got != step.gone {
				t.Errorf("step %d: %d when it has ended, want %d", i, got, step.gone)
			}
		}
	})
}
