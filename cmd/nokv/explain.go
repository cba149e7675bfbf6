package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// explain is an error in one line for people: what a server said, or why no
// server said anything, without the layers that the error came through. What stands behind
// what the server said is the way out, and stays.
func explain(err error) string {
	if refused, ok := errors.AsType[*mtls.Refusal](err); ok {
		return refused.Sentence
	}
	var ce *client.Error
	if !errors.As(err, &ce) {
		return plain(err.Error())
	}
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case ce.Detail != nil && !late:
		_, wayOut, _ := strings.Cut(err.Error(), ce.Error())
		return (&reason.Error{Detail: ce.Detail}).Error() + plain(wayOut)
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
	if refused, ok := mtls.RefusalOf(errors.New(s)); ok {
		return refused.Sentence
	}
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

// letsIn returns nil as soon as one of the addresses takes a connection of this
// process, and an error for people when none does in time, or all refuse it: a
// refusal does not pass by itself.
func (t target) letsIn(ctx context.Context, role principal.Role, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var errs []error
	for {
		now := t.knockAll(ctx, role)
		if now == nil {
			return nil
		}
		if deadline, _ := ctx.Deadline(); errs == nil || time.Now().Before(deadline) {
			errs = now // what the end of the wait cuts off says nothing
		}
		if !slices.ContainsFunc(errs, func(err error) bool { _, refused := mtls.RefusalOf(err); return !refused }) {
			return errs[0]
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w at %s. %s", errNobody, strings.ReplaceAll(errors.Join(errs...).Error(), "\n", ", "), t.hint)
		}
	}
}

// knockAll returns nil when one address takes a connection; otherwise what is wrong
// with each.
func (t target) knockAll(ctx context.Context, role principal.Role) []error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, len(t.addrs))
	var knocking sync.WaitGroup
	defer func() { cancel(); knocking.Wait() }()
	for _, addr := range t.addrs {
		knocking.Go(func() { answers <- t.knock(ctx, addr, role) })
	}
	var errs []error
	for range t.addrs {
		err := <-answers
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// answerWithin is how long a process that takes connections may take to say whether
// it talks with this one: one that hangs is left to who asks it something.
const answerWithin = 250 * time.Millisecond

// opening is what an HTTP/2 client says first, with no settings.
const opening = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// knock returns nil unless nobody listens at an address or who does refuses this
// process, which it may say behind the handshake.
func (t target) knock(ctx context.Context, addr string, role principal.Role) error {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("%s (%s)", addr, rootCause(err))
	}
	defer func() { _ = raw.Close() }()
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_ = raw.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })()
	conn, _, err := t.certs.Client(mtls.Peer{Role: role}).ClientHandshake(ctx, addr, raw)
	if err == nil {
		defer func() { _ = conn.Close() }()
		if _, err = io.WriteString(conn, opening); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	if refused, ok := mtls.RefusalOf(err); ok {
		return refused
	}
	return nil
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
