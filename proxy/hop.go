package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/headers"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Headers that members get, besides router.HeaderEpoch. Those of callers are taken away.
const (
	HeaderKeyspace = "Nokv-Keyspace"
	HeaderRegion   = "Nokv-Region"
)

// Bounds of answers that are read before they are passed on.
const (
	maxWholeAnswer = 32 << 10    // of an idempotent request
	refusalWithin  = time.Second // the text of a refusal, which is for people
)

// flushWithin is how long what came of an answer waits for the next bytes before it is passed on without them.
const flushWithin = 50 * time.Millisecond

// final is an error behind which nothing is tried.
type final struct{ err error }

func (e *final) Error() string { return e.err.Error() }

// cause is what an error is about.
func cause(err error) error {
	if f, ok := errors.AsType[*final](err); ok {
		return f.err
	}
	return err
}

// RoundTrip asks the owner, and whoever is it next, until one has answered.
func (h hop) RoundTrip(out *http.Request) (*http.Response, error) {
	p, x := h.p, exchangeOf(out)
	x.left = p.cfg.Timeout
	if x.fixed {
		resp, err := p.try(out, x, x.target)
		if err != nil && x.gone != nil && unsent(err) {
			err = x.gone(out.Context(), x.target, err)
		}
		return resp, err
	}
	t, err := p.cfg.Router.Resolve(out.Context(), x.key, x.options)
	if err != nil {
		return nil, err
	}
	resp, err := p.try(out, x, t)
	if err == nil {
		return resp, nil
	}
	p.holding.Add(1)
	defer p.holding.Add(-1)
	tries := p.cfg.Router.Tries(x.key, x.options)
	for {
		var again bool
		if t, again = tries.Next(out.Context(), t, err); !again {
			return nil, err
		}
		if resp, err = p.try(out, x, t); err == nil {
			return resp, nil
		}
	}
}

// try asks one member.
func (p *Proxy) try(out *http.Request, x *exchange, t router.Target) (*http.Response, error) {
	first := x.target.Member == "" || x.fixed
	x.target = t
	x.reassigned = x.reassigned || t.Reassigned
	if host, _, err := net.SplitHostPort(t.Address); err != nil || host == "" || strings.ContainsAny(t.Address, "/@?# ") {
		return nil, notSent{router.NotSent(fmt.Errorf("member %q has the address %.200q, which is not HOST:PORT", t.Member, t.Address))}
	}
	t.Begin()
	defer t.End()
	req := *out
	u := *out.URL
	u.Scheme, u.Host = p.cfg.TLS.Scheme(), p.hostOf(t)
	req.URL, req.Host = &u, cmp.Or(out.Host, t.Address)
	if !first { // the one before may still be read
		req.Header = out.Header.Clone()
	}
	address(req.Header, x, t)
	x.trailers(out, &req)
	resp, stale, err := p.send(p.pool, out, &req, x)
	if stale {
		resp, _, err = p.send(p.fresh, out, &req, x)
	}
	return resp, err
}

// send sends a request to x.target once. stale: nothing was, because the connection had ended while nobody used it.
func (p *Proxy) send(by *http.Transport, out, req *http.Request, x *exchange) (_ *http.Response, stale bool, _ error) {
	ctx, a := p.cfg.Router.WhileOwner(out.Context(), x.key, x.options, x.target)
	x.attempt = a
	a.Waiting()
	s := &sending{attempt: a}
	begun := time.Now()
	late := time.AfterFunc(x.left, func() { a.End(errLate{p.cfg.Timeout}) })
	body := x.bodyOf(out, req, late)
	resp, err := by.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, s.trace())))
	wrote := s.wrote.Load()
	if wrote {
		x.tries++
	}
	switch {
	case err == nil:
		if err = p.judge(req, x, resp, body == nil); err == nil {
			err = context.Cause(ctx) // nil, if it is in time
		}
		if err == nil {
			late.Stop()
			x.left -= time.Since(begun)
			a.Waited(true)
			return resp, false, nil
		}
		_ = resp.Body.Close()
	case wrote && s.conn.broke() && !timedOut(err) && out.Context().Err() == nil:
		err = errEnded
	}
	late.Stop()
	x.left -= time.Since(begun)
	ended := !a.End(nil)
	switch why := context.Cause(ctx); {
	case body.failed() != nil:
		err = body.failed()
	case ended && why == errTwice: //nolint:errorlint // it is that
		err, ended = errEnded, false
	case ended:
		err = why
	}
	touched := body.detach()
	if s.asked && !wrote {
		stale = s.reused && !ended && !touched && out.Context().Err() == nil
		err = notSent{router.NotSent(err)}
	}
	if touched || out.Context().Err() != nil || x.left <= 0 || timedOut(err) && !unsent(err) {
		return nil, stale, &final{err}
	}
	return nil, stale, err
}

// errEnded is a connection that the member ended.
var errEnded = fmt.Errorf("the connection ended before an answer, or within its head: %w", io.ErrUnexpectedEOF)

// errLate is no answer in all of the time.
type errLate struct{ within time.Duration }

func (e errLate) Error() string { return fmt.Sprintf("no answer came within %v", e.within) }

// Is says that the time is over.
func (errLate) Is(target error) bool { return target == context.DeadlineExceeded }

// address says to the member what the request is for.
func address(h http.Header, x *exchange, t router.Target) {
	h.Del(router.HeaderEpoch)
	h.Del(HeaderRegion)
	if t.Epoch != (rooted.Epoch{}) {
		h.Set(router.HeaderEpoch, t.Epoch.String())
	}
	if t.Region != nil {
		h.Set(HeaderRegion, strconv.FormatUint(uint64(t.Region.ID), 10))
	}
	h[HeaderKeyspace] = x.keyspace
	if x.caller != nil {
		h[router.HeaderCaller] = x.caller
	}
}

// judge finds out whether an answer is one, and reads it whole where half of it would be asked for again: a request whose
// body is kept, or that has none.
func (p *Proxy) judge(req *http.Request, x *exchange, resp *http.Response, again bool) error {
	if resp.StatusCode < 100 {
		return fmt.Errorf("the member answered with status %03d, which HTTP does not have", resp.StatusCode)
	}
	x.reverse.FlushInterval = flushWithin
	refused := len(resp.Header[router.HeaderRefused]) == 1
	whole := again && x.options.Idempotent && resp.ContentLength > 0 && resp.ContentLength <= maxWholeAnswer && req.Method != http.MethodHead
	if !refused && !whole {
		return nil
	}
	if refused {
		late := time.AfterFunc(refusalWithin, func() { _ = resp.Body.Close() })
		defer late.Stop()
		if no := router.FromHTTP(resp); no != nil {
			return no
		}
		return nil
	}
	raw := make([]byte, resp.ContentLength)
	_, err := io.ReadFull(resp.Body, raw)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1)) // its end, with the trailers
	}
	if err != nil {
		return fmt.Errorf("half an answer came: %w", err)
	}
	_ = resp.Body.Close()
	resp.Body, x.reverse.FlushInterval = io.NopCloser(bytes.NewReader(raw)), 0
	return nil
}

// bodyOf gives a try the body of the request; the answer is how to take it back. Where the body comes from the caller, the time
// until the answer is counted from its end, by the transport.
func (x *exchange) bodyOf(out, req *http.Request, late *time.Timer) *tryBody {
	switch {
	case x.kept != nil:
		req.Body = io.NopCloser(bytes.NewReader(x.kept))
	case out.Body != nil && out.Body != http.NoBody:
		b := &tryBody{r: out.Body, late: late, came: out.Trailer, trailer: req.Trailer}
		req.Body = b
		return b
	}
	return nil
}

// tryBody is a body that is passed on as it comes, to one try at a time.
type tryBody struct {
	r    io.Reader
	late *time.Timer
	// trailer gets of those that came, at the end of the body, the values.
	came, trailer http.Header
	mu            sync.Mutex
	// Guarded by mu. err is the caller's fault.
	touched, detached bool
	err               error
}

// Read implements io.Reader.
func (b *tryBody) Read(buf []byte) (int, error) {
	b.mu.Lock()
	if b.detached {
		b.mu.Unlock()
		return 0, errors.New("the request is tried elsewhere")
	}
	if !b.touched {
		b.late.Stop()
	}
	b.touched = true
	b.mu.Unlock()
	n, err := b.r.Read(buf)
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		headers.Fill(b.trailer, b.came)
		return n, err
	}
	_, long := errors.AsType[*http.MaxBytesError](err)
	if _, said := errors.AsType[*badRequest](err); !long && !said {
		err = &badRequest{http.StatusBadRequest, fmt.Sprintf("the body broke off: %s", err)}
	}
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	return n, err
}

// failed is why the body did not come to its end, if that is the caller's fault.
func (b *tryBody) failed() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Close leaves the body to the next try; it is closed with the exchange.
func (*tryBody) Close() error { return nil }

// detach ends reading; touched: some was read, and there is no next try.
func (b *tryBody) detach() (touched bool) {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detached = true
	return b.touched
}
