package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
)

// explain is an error in one line for people: what a server said, or why no
// server said anything, without the layers that the error came through.
func explain(err error) string {
	var ce *client.Error
	if !errors.As(err, &ce) {
		return plain(err.Error())
	}
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case ce.Detail != nil && !late:
		return (&reason.Error{Detail: ce.Detail}).Error()
	case len(ce.Tries) == 0:
		return plain(err.Error())
	}
	var said []string
	for _, t := range ce.Tries {
		said = append(said, t.Endpoint+" says "+plain(t.Said))
	}
	what := "no coordinator could answer: "
	switch {
	case !unavailable(err): // they answered, and the deadline ended the retries
		what = ""
	case late:
		what = "no answer in time: "
	}
	return what + strings.Join(said, "; ")
}

// plain takes gRPC's wrapping off a sentence.
func plain(s string) string {
	for _, prefix := range []string{"rpc error: code = ", "connection error: desc = "} {
		before, rest, found := strings.Cut(s, prefix)
		if !found {
			continue
		}
		if _, desc, ok := strings.Cut(rest, " desc = "); ok && prefix == "rpc error: code = " {
			rest = desc
		}
		s = before + rest
	}
	s = strings.TrimPrefix(s, "unavailable: ")
	s = strings.ReplaceAll(s, "\n", "; ") // errors that were joined
	if before, rest, found := strings.Cut(s, `"transport: Error while dialing: `); found {
		s = before + strings.Replace(rest, `"`, "", 1)
	}
	return strings.Join(strings.Fields(s), " ")
}

// errNobody: no process accepts connections where one should be.
var errNobody = errors.New("nobody listens")

// patience is how long a command waits for somebody to listen, unless
// --timeout was given: a wrong address should not cost ten seconds.
const patience = 2 * time.Second

// someoneListens returns nil as soon as one of the addresses accepts a
// connection, and an error for people when none does in time.
func someoneListens(ctx context.Context, addrs []string, within time.Duration, hint string) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var errs []string
	for {
		now := dialAll(ctx, addrs)
		if now == nil {
			return nil
		}
		if deadline, _ := ctx.Deadline(); errs == nil || time.Now().Before(deadline) {
			errs = now // what the end of the wait cuts off says nothing
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w at %s. %s", errNobody, strings.Join(errs, ", "), hint)
		}
	}
}

// dialAll returns nil when one address accepts a connection; otherwise each
// address with what is wrong with it.
func dialAll(ctx context.Context, addrs []string) []string {
	errs := make([]string, len(addrs))
	var dials sync.WaitGroup
	for i, addr := range addrs {
		dials.Go(func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				errs[i] = fmt.Sprintf("%s (%s)", addr, rootCause(err))
				return
			}
			_ = conn.Close()
		})
	}
	dials.Wait()
	for _, e := range errs {
		if e == "" {
			return nil
		}
	}
	return errs
}

// rootCause is the innermost error: "connection refused", not the steps to it.
func rootCause(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
