package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Headers that members get, besides router.HeaderEpoch. Those of callers are taken away.
const (
	HeaderKeyspace = "Nokv-Keyspace"
	HeaderRegion   = "Nokv-Region"
)

// Bounds of connections to members.
const (
	maxIdle         = 4096
	maxIdleAMember  = 256
	idleFor         = 90 * time.Second
	maxHeaderBytes  = 64 << 10
	maxWholeAnswer  = 32 << 10 // of an idempotent request: read before it is passed on
	continueTimeout = time.Second
	refusalWithin   = time.Second // the text of a refusal, which is for people
)

// transports are the ways to ask members.
func (p *Proxy) transports() {
	connect := p.cfg.dial
	if connect == nil {
		connect = (&net.Dialer{Timeout: p.cfg.Dial}).DialContext
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := connect(ctx, network, addr)
		if err != nil {
			return nil, notSent{router.NotSent(err)}
		}
		return c, nil
	}
	common := func(t *http.Transport) *http.Transport {
		t.Proxy, t.DisableCompression, t.MaxIdleConns, t.MaxIdleConnsPerHost = nil, true, maxIdle, maxIdleAMember
		t.IdleConnTimeout, t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = idleFor, p.cfg.Timeout, maxHeaderBytes
		t.ExpectContinueTimeout = continueTimeout
		return t
	}
	if p.cfg.TLS != nil {
		t := common(&http.Transport{DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.Dial)
			defer cancel()
			member, address := memberOf(addr)
			c, err := p.cfg.TLS.DialHTTP(ctx, network, address, mtls.Peer{Role: principal.Member, Name: member})
			if err != nil {
				return nil, notSent{router.NotSent(err)}
			}
			return &memberConn{Conn: c}, nil
		}})
		p.one, p.two = t, t
		return
	}
	p.one = common(&http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &memberConn{Conn: c}, nil
	}})
	two := common(&http.Transport{DialContext: dial, Protocols: new(http.Protocols)})
	two.Protocols.SetUnencryptedHTTP2(true)
	p.two = two
}

// hostOf is the host of a member's URL. With certificates the transport keeps its connections by member and
// address, so that one to a member that was there before is no other member's: memberOf reads it, behind the port
// that the transport adds.
func (p *Proxy) hostOf(t router.Target) string {
	if p.cfg.TLS == nil {
		return t.Address
	}
	return hex.EncodeToString([]byte(string(t.Member) + " " + t.Address))
}

func memberOf(host string) (member, address string) {
	host, _, _ = strings.Cut(host, ":")
	raw, _ := hex.DecodeString(host)
	at := bytes.LastIndexByte(raw, ' ') // an address has none
	return string(raw[:max(at, 0)]), string(raw[at+1:])
}

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
	if x.fixed {
		resp, err := p.try(out, x, x.target)
		if err != nil && x.gone != nil && unsent(err) {
			err = x.gone(out.Context(), x.target, err)
		}
		return resp, err
	}
	var resp *http.Response
	held := false
	err := p.cfg.Router.Do(out.Context(), x.key, x.options, func(_ context.Context, t router.Target) (err error) {
		if resp, err = p.try(out, x, t); err != nil && !held {
			held = true
			p.holding.Add(1)
		}
		return err
	})
	if held {
		p.holding.Add(-1)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// try asks one member.
func (p *Proxy) try(out *http.Request, x *exchange, t router.Target) (*http.Response, error) {
	x.tries++
	x.target = t
	x.reassigned = x.reassigned || t.Reassigned
	if host, _, err := net.SplitHostPort(t.Address); err != nil || host == "" || strings.ContainsAny(t.Address, "/@?# ") {
		return nil, notSent{router.NotSent(fmt.Errorf("member %q has the address %.200q, which is not HOST:PORT", t.Member, t.Address))}
	}
	req := *out
	u := *out.URL
	u.Scheme, u.Host = p.cfg.TLS.Scheme(), p.hostOf(t)
	req.URL, req.Host = &u, cmp.Or(out.Host, t.Address)
	if x.tries > 1 { // the one before may still be read
		req.Header = out.Header.Clone()
	}
	address(req.Header, x, t)
	if !x.options.Idempotent {
		once(req.Header)
	}
	x.trailers(out, &req)
	body := x.bodyOf(out, &req)
	transport := p.one
	if (p.cfg.H2C || strings.HasPrefix(out.Header.Get("Content-Type"), "application/grpc")) && out.Header.Get("Upgrade") == "" {
		transport = p.two
	}
	var conn *memberConn
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(g httptrace.GotConnInfo) {
		connected = true
		conn, _ = g.Conn.(*memberConn)
	}}
	ctx, answered := p.unlessFailed(req.Context(), x, t)
	resp, err := transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err != nil && conn != nil && conn.broke.Load() && !timedOut(err) {
		err = fmt.Errorf("the connection ended within the head of an answer: %w", io.ErrUnexpectedEOF)
	}
	if err == nil {
		err = p.judge(&req, x, resp)
	}
	if !answered() {
		if err == nil {
			_ = resp.Body.Close()
		}
		if err = (errFailed{p.cfg.FailedWithin}); !connected {
			err = notSent{router.NotSent(err)}
		}
	}
	if err == nil {
		return resp, nil
	}
	if touched := body.detach(); touched || out.Context().Err() != nil || timedOut(err) && !unsent(err) {
		return nil, &final{err}
	}
	return nil, err
}

// errFailed is no answer of a member that has failed: the connection is given up.
type errFailed struct{ within time.Duration }

func (e errFailed) Error() string {
	return fmt.Sprintf("the member has failed and another one has the key; it has not answered for %v since", e.within)
}

// Is says that the answer is lost.
func (errFailed) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// unlessFailed is a context that ends when a member has failed, another has the key, and it has not answered for
// FailedWithin since: one that is stopped, or cut off, keeps its connections. answered is told of its answer, and
// false if that is too late. It begins to look after FailedWithin, which most requests do not take.
func (p *Proxy) unlessFailed(ctx context.Context, x *exchange, t router.Target) (_ context.Context, answered func() bool) {
	if x.fixed {
		return ctx, func() bool { return true }
	}
	ctx, cancel := context.WithCancel(ctx)
	looking, end := context.WithCancel(ctx)
	var over atomic.Bool
	o := x.options
	o.ReassignOrphans, o.ClaimOnMiss = false, false
	look := time.AfterFunc(p.cfg.FailedWithin, func() {
		err := p.cfg.Router.Follow(looking, x.key, o, func(now router.Target, err error) bool {
			return err != nil || !t.Failed() || !ended(now, err, t)
		})
		if err != nil {
			return // it has answered, or the request is over
		}
		select {
		case <-time.After(p.cfg.FailedWithin):
			if over.CompareAndSwap(false, true) {
				cancel()
			}
		case <-looking.Done():
		}
	})
	return ctx, func() bool {
		look.Stop()
		end()
		return over.CompareAndSwap(false, true)
	}
}

// memberConn is a connection of HTTP/1.1 to a member that knows whether it ended within a line. What comes
// of a head is half a line then, which reads as one that is wrong.
type memberConn struct {
	net.Conn
	within bool // of the one who reads: the last byte is not the end of a line
	broke  atomic.Bool
}

// Read implements io.Reader.
func (c *memberConn) Read(buf []byte) (int, error) {
	n, err := c.Conn.Read(buf)
	if n > 0 {
		c.within = buf[n-1] != '\n'
	}
	if err != nil && c.within {
		c.broke.Store(true)
	}
	return n, err
}

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

// once keeps the transport from sending a request again by itself, which it does where it
// finds one of these names, with any value: on the wire they are the same in lower case.
func once(h http.Header) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
}

// judge finds out whether an answer is one, and reads it whole where that is wanted.
func (p *Proxy) judge(req *http.Request, x *exchange, resp *http.Response) error {
	if resp.StatusCode < 100 {
		_ = resp.Body.Close()
		return fmt.Errorf("the member answered with status %03d, which HTTP does not have", resp.StatusCode)
	}
	refused := len(resp.Header[router.HeaderRefused]) == 1
	whole := x.options.Idempotent && resp.ContentLength > 0 && resp.ContentLength <= maxWholeAnswer && req.Method != http.MethodHead
	if !refused && !whole {
		return nil
	}
	within := p.cfg.Timeout
	if refused {
		within = min(within, refusalWithin)
	}
	late := time.AfterFunc(within, func() { _ = resp.Body.Close() })
	defer late.Stop()
	if refused {
		if no := router.FromHTTP(resp); no != nil {
			_ = resp.Body.Close()
			return no
		}
		return nil
	}
	raw := make([]byte, resp.ContentLength)
	_, err := io.ReadFull(resp.Body, raw)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1)) // its end, with the trailers
	}
	_ = resp.Body.Close()
	switch {
	case err != nil && !late.Stop():
		return &final{fmt.Errorf("half an answer came in %v: %w", p.cfg.Timeout, context.DeadlineExceeded)}
	case err != nil:
		return fmt.Errorf("half an answer came: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	return nil
}

// bodyOf gives a try the body of the request; the answer is how to take it back.
func (x *exchange) bodyOf(out, req *http.Request) *tryBody {
	switch {
	case x.kept != nil:
		req.Body = io.NopCloser(bytes.NewReader(x.kept))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.kept)), nil }
	case out.Body != nil && out.Body != http.NoBody:
		b := &tryBody{r: out.Body, came: out.Trailer, trailer: req.Trailer}
		req.Body = b
		return b
	}
	return nil
}

// tryBody is a body that is passed on as it comes, to one try at a time.
type tryBody struct {
	r io.Reader
	// trailer gets of those that came, at the end of the body, the values.
	came, trailer http.Header
	mu            sync.Mutex
	// Guarded by mu.
	touched, detached bool
}

// Read implements io.Reader.
func (b *tryBody) Read(buf []byte) (int, error) {
	b.mu.Lock()
	if b.detached {
		b.mu.Unlock()
		return 0, errors.New("the request is tried elsewhere")
	}
	b.touched = true
	b.mu.Unlock()
	n, err := b.r.Read(buf)
	if err == io.EOF {
		fill(b.trailer, b.came)
	}
	_, long := errors.AsType[*http.MaxBytesError](err)
	_, said := errors.AsType[*badRequest](err)
	if err != nil && err != io.EOF && !long && !said {
		err = &badRequest{http.StatusBadRequest, fmt.Sprintf("the body broke off: %s", err)}
	}
	return n, err
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
