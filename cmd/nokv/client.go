package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errInterrupted ends a command that a signal stopped; it prints nothing.
var errInterrupted = errors.New("interrupted")

// clientFlags are the flags of every command that talks to a coordinator.
type clientFlags struct {
	flags   *flags
	ends    endpointFlags
	timeout *time.Duration
	verbose *bool
	// why is said of every change; nil: the command changes nothing.
	why *string
}

// changing is client for commands that change something.
func (f *flags) changing() *clientFlags {
	c := f.client()
	c.why = f.why()
	return c
}

// why declares --why.
func (f *flags) why() *string {
	return f.text("why", state.MaxWhyBytes, "that says why, 256 bytes at most: nokv root events shows it beside the change")
}

// text declares a flag whose words the root keeps, which takes what checkText of it does.
func (f *flags) text(name string, most int, usage string) *string {
	text := new(string)
	f.Func(name, "`text` "+usage, func(s string) error {
		if len(s) > most || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("want one line of UTF-8 text, at most %d bytes, without control characters", most)
		}
		*text = s
		return nil
	})
	return text
}

func (f *flags) client() *clientFlags {
	return &clientFlags{
		flags:   f,
		ends:    f.endpoints(),
		timeout: f.duration("timeout", 10*time.Second, "`time` for the whole command; unless it is given, 2s while nobody listens at any address"),
		verbose: f.Bool("v", false, "log retries to standard error"),
	}
}

// open makes a client and a context that ends with the command's timeout.
func (c *clientFlags) open(ctx context.Context) (*client.Client, context.Context, func(), error) {
	if *c.timeout == 0 {
		return nil, nil, nil, usagef("timeout 0: want more")
	}
	wait := min(patience, *c.timeout)
	if c.flags.given("timeout") {
		wait = *c.timeout
	}
	callCtx, cancel := context.WithTimeout(ctx, *c.timeout)
	cl, err := c.ends.dial(callCtx, wait, *c.verbose)
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = errInterrupted
		}
		return nil, nil, nil, err
	}
	return cl, callCtx, func() { cancel(); _ = cl.Close() }, nil
}

// dial makes a client for the coordinators that are meant, when one of them lets
// this process in within so long.
func (f endpointFlags) dial(ctx context.Context, within time.Duration, verbose bool) (*client.Client, error) {
	t, err := f.resolve(f.env.logger(verbose))
	if err != nil {
		return nil, err
	}
	if err := t.letsIn(ctx, principal.Coordinator, within); err != nil {
		return nil, err
	}
	cl, err := client.New(client.Config{Endpoints: t.addrs, TLS: t.certs, Logger: f.env.logger(verbose)})
	if err != nil {
		return nil, usagef("%s", err)
	}
	return cl, nil
}

// call opens a client, runs fn with it and explains its error.
func (c *clientFlags) call(ctx context.Context, fn func(ctx context.Context, cl *client.Client) error) error {
	cl, callCtx, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if c.why != nil {
		callCtx = client.WithWhy(callCtx, *c.why)
	}
	err = fn(callCtx, cl)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// logger is of what a client does, which is told when it is asked for.
func (e *env) logger(verbose bool) hclog.Logger {
	level := hclog.Off
	if verbose {
		level = hclog.Debug
	}
	return hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: level, Output: e.stderr})
}

// reasonOf is the reason of a refusal, whoever made it.
func reasonOf(err error) rootv1.Reason {
	if ce, ok := errors.AsType[*client.Error](err); ok {
		return ce.Reason
	}
	return reason.Of(err)
}

// unavailable says whether err means that nobody answered, rather than that
// somebody refused.
func unavailable(err error) bool {
	if _, ok := errors.AsType[*mtls.Refusal](err); ok {
		return false
	}
	switch reasonOf(err) {
	case rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_TENURE_NOT_HELD,
		rootv1.Reason_REASON_OVERLOADED, rootv1.Reason_REASON_NOT_LEADER:
		return true
	case rootv1.Reason_REASON_REQUIRED_TOKEN, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED:
		return false // an answer, also when it was asked for until the deadline
	}
	if errors.Is(err, errDegraded) || errors.Is(err, errNoLeader) || errors.Is(err, errCannotTell) || errors.Is(err, errNobody) || errors.Is(err, client.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}
