package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errInterrupted ends a command that a signal stopped; it prints nothing.
var errInterrupted = errors.New("interrupted")

// clientFlags are the flags of every command that talks to a coordinator.
type clientFlags struct {
	addr    *string
	timeout *time.Duration
	verbose *bool
}

func (f *flags) client() *clientFlags {
	return &clientFlags{
		addr:    f.coordinatorFlag(),
		timeout: f.duration("timeout", 10*time.Second, "`time` to wait for the whole command"),
		verbose: f.Bool("v", false, "log retries to standard error"),
	}
}

// open makes a client and a context that ends with the command's timeout.
func (c *clientFlags) open(ctx context.Context) (*client.Client, context.Context, func(), error) {
	if *c.timeout == 0 {
		return nil, nil, nil, usagef("timeout 0: want more")
	}
	endpoints, err := coordinators(*c.addr)
	if err != nil {
		return nil, nil, nil, err
	}
	cl, err := client.New(client.Config{Endpoints: endpoints, Logger: cliLogger(*c.verbose)})
	if err != nil {
		return nil, nil, nil, usagef("%s", err)
	}
	callCtx, cancel := context.WithTimeout(ctx, *c.timeout)
	return cl, callCtx, func() { cancel(); _ = cl.Close() }, nil
}

// call opens a client, runs fn with it and explains its error.
func (c *clientFlags) call(ctx context.Context, fn func(ctx context.Context, cl *client.Client) error) error {
	cl, callCtx, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = fn(callCtx, cl)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

func cliLogger(verbose bool) hclog.Logger {
	level := hclog.Off
	if verbose {
		level = hclog.Debug
	}
	return hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: level, Output: os.Stderr})
}

// unavailable says whether err means that nobody answered, rather than that
// somebody refused.
func unavailable(err error) bool {
	switch reason.Of(err) {
	case rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_TENURE_NOT_HELD,
		rootv1.Reason_REASON_OVERLOADED, rootv1.Reason_REASON_NOT_LEADER:
		return true
	}
	if errors.Is(err, errDegraded) || errors.Is(err, client.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var ce *client.Error
	if errors.As(err, &ce) {
		switch ce.Reason {
		case rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_OUTCOME_UNKNOWN,
			rootv1.Reason_REASON_TENURE_NOT_HELD, rootv1.Reason_REASON_OVERLOADED:
			return true
		}
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}
