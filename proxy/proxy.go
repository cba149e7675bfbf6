package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Proxy makes handlers that pass requests on to the owners of their keys.
type Proxy struct {
	cfg Config
	// pool keeps connections to members, by HTTP/1.1. fresh makes one for each request.
	pool, fresh *http.Transport
	reverse     *httputil.ReverseProxy
	keyspace    []string
	kept        atomic.Int64 // bytes of bodies
	holding     atomic.Int64 // requests that failed once and are tried again
	sockets     sockets
}

// New makes a Proxy. Close ends what it has.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg.withDefaults()}
	p.transports()
	state := p.cfg.Router.State()
	name := p.cfg.Keyspace
	if name == "" {
		name = state[0].Keyspace
	}
	found := false
	for _, s := range state {
		found = found || s.Keyspace == name
	}
	if !found {
		return nil, fmt.Errorf("proxy config: the Router does not follow keyspace %.80q: name it in router.Config.Keyspaces", name)
	}
	p.keyspace = []string{name}
	p.sockets.all = map[*socket]struct{}{}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: hop{p}, BufferPool: buffers{}, ModifyResponse: p.answered, ErrorHandler: p.failed,
		ErrorLog: p.cfg.Logger.Named("proxy").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return p, nil
}

// Close ends upgraded connections, with code 1001 where they are WebSockets, and idle
// ones to members. It is for when the listener takes no more requests.
func (p *Proxy) Close() error {
	p.sockets.close()
	p.pool.CloseIdleConnections()
	return nil
}

// Waiting is how many requests wait for their owner: they failed once, and are tried again.
func (p *Proxy) Waiting() int { return int(p.holding.Load()) }

// hop is a Proxy as the RoundTripper that finds owners.
type hop struct{ p *Proxy }

// buffers are what answers are copied with.
type buffers struct{}

var spare = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Get implements httputil.BufferPool.
func (buffers) Get() []byte { return spare.Get().(*[32 << 10]byte)[:] }

// Put implements httputil.BufferPool.
func (buffers) Put(b []byte) { spare.Put((*[32 << 10]byte)(b)) }

// exchange is one request and what becomes of it.
type exchange struct {
	http.ResponseWriter
	reverse    httputil.ReverseProxy // of this request alone
	options    router.Options
	key        []byte
	keyspace   []string
	in         *http.Request       // as it came
	who        principal.Principal // of the caller
	caller     []string            // its name, for the member; nil: nobody judges who asks
	kept       []byte              // the body; nil: it is passed on as it comes
	paced      *paced              // the one that is passed on; nil: it may take its time, or is kept
	fixed      bool                // target is asked, and nobody else
	target     router.Target
	left       time.Duration   // for answers
	attempt    *router.Attempt // the last one; nil: no member was asked
	tries      int
	reassigned bool
	socket     *socket // nil: it was not upgraded
	hijacked   bool    // what is written is no HTTP any more
	head       bool    // the answer has no body
	deaf       bool    // the caller takes nothing more
	status     int
	bytes      atomic.Int64
	err        error
	tag        Tag
	// gone, if set, says what it means that nothing could be sent to a fixed target.
	gone func(context.Context, router.Target, error) error
	// answered, if set, looks at the answer before it is passed on.
	answered func(*http.Response) error
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if status < 200 {
		maps.DeleteFunc(x.Header(), reserved) // of the member, before its answer
	} else if x.status == 0 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	n, err := x.ResponseWriter.Write(b)
	if !x.head {
		x.bytes.Add(int64(n))
	}
	x.deaf = x.deaf || err != nil && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrContentLength)
	return n, err
}

// Hijack implements http.Hijacker: from here on the connection is the socket's.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err == nil {
		x.hijacked, x.status = true, http.StatusSwitchingProtocols
	}
	return c, rw, err
}

// serve runs one request to its end, and tells of it.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, do func(x *exchange, r *http.Request) error) {
	begun := time.Now()
	x := &exchange{ResponseWriter: w, in: r, keyspace: p.keyspace, head: r.Method == http.MethodHead}
	x.options = router.Options{Keyspace: p.keyspace[0], ReassignOrphans: true, Hold: p.cfg.Hold}
	defer func() {
		broke := recover()
		if x.attempt != nil {
			x.attempt.End(nil)
		}
		if x.socket != nil {
			_ = x.socket.Close()
		}
		if broke == http.ErrAbortHandler && x.err == nil {
			x.err, x.tag = errHalf, UpstreamError
		}
		if (x.deaf || r.Context().Err() != nil) && x.err != nil && x.status != http.StatusRequestTimeout {
			x.tag = Canceled
		}
		if p.cfg.OnResult != nil {
			p.cfg.OnResult(Result{
				Request: r, Tag: x.tag, Key: x.key, Caller: strings.Join(x.caller, ""), Target: x.target, Status: x.status, Tries: x.tries, Bytes: x.bytes.Load(), Duration: time.Since(begun), Err: x.err,
			})
		}
		if broke != nil {
			panic(broke)
		}
	}()
	err := takes(r)
	if err == nil {
		err = p.admit(x, r, rootv1.Verb_VERB_READ)
	}
	if err == nil {
		err = do(x, r)
	}
	if err != nil {
		p.fail(x, r, err)
	}
}

// MaxHeaderBytes are those of a request, from its first line to the end of its headers. A listener takes some more,
// so that a request that has too many is told so.
const MaxHeaderBytes = 64 << 10

// takes says what is wrong with a request of any kind.
func takes(r *http.Request) error {
	if isGRPC(r) {
		return &badRequest{http.StatusUnsupportedMediaType, "gRPC does not go through this proxy: call members by package grpcroute (docs/callers.md)"}
	}
	n := len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	if n > MaxHeaderBytes {
		return &badRequest{http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers have %d bytes, more than %d", n, MaxHeaderBytes)}
	}
	return nil
}

// isGRPC says whether a caller speaks gRPC, and understands nothing else.
func isGRPC(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	const grpc = "application/grpc"
	return len(kind) >= len(grpc) && strings.EqualFold(kind[:len(grpc)], grpc)
}

// errHalf is an answer that broke off.
var errHalf = errors.New("the answer of the member broke off, or the caller went away")

// errNoPin is a request without one.
var errNoPin = errors.New("the request shows no pin: send it in the header " + HeaderPin + ", or the cookie " + CookiePin)

// idempotent says whether a request may be run twice.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// pass passes a request on to whom x says.
func (p *Proxy) pass(x *exchange, r *http.Request) error {
	if r.Method == http.MethodConnect {
		return &badRequest{http.StatusMethodNotAllowed, "CONNECT asks for a tunnel, and this is no proxy of that kind"}
	}
	if strings.Contains(r.RequestURI, "#") {
		return &badRequest{http.StatusBadRequest, "the address of a request has no #: members would read another query than this proxy"}
	}
	release, err := p.keep(x, r)
	defer release()
	if err != nil {
		return err
	}
	x.reverse = *p.reverse
	x.reverse.ServeHTTP(x, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	return nil
}

// keep reads a body that may have to be sent again.
func (p *Proxy) keep(x *exchange, r *http.Request) (release func(), err error) {
	release = func() {}
	if p.cfg.MaxBody > 0 {
		if r.ContentLength > p.cfg.MaxBody {
			return release, &badRequest{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has %d bytes, more than %d", r.ContentLength, p.cfg.MaxBody)}
		}
		if r.ContentLength != 0 && r.Body != nil {
			r.Body = http.MaxBytesReader(x.ResponseWriter, r.Body, p.cfg.MaxBody)
		}
	}
	control := http.NewResponseController(x.ResponseWriter)
	n := r.ContentLength
	if n <= 0 || n > p.cfg.MaxReplay || p.kept.Load() >= p.cfg.MaxReplayTotal || r.Header.Get("Expect") != "" || len(r.Trailer) > 0 {
		x.pace(r, control, p.cfg.BodySilence)
		return release, nil
	}
	timed := control.SetReadDeadline(time.Now().Add(p.cfg.BodyWithin)) == nil
	kept, err := p.take(r.Body, n)
	release = func() { p.kept.Add(-int64(len(kept))) }
	switch {
	case errors.Is(err, errNoRoom):
		_ = control.SetReadDeadline(time.Time{}) // of HTTP/2 it counts before anybody reads on
		x.pace(r, control, p.cfg.BodySilence)
		r.Body = &begunBody{io.MultiReader(bytes.NewReader(kept), r.Body), r.Body}
		return release, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return release, &badRequest{http.StatusRequestTimeout, fmt.Sprintf("the body did not come in %v", p.cfg.BodyWithin)}
	case err != nil:
		return release, &badRequest{http.StatusBadRequest, fmt.Sprintf("the body broke off: %s", err)}
	}
	if timed {
		_ = control.SetReadDeadline(time.Time{}) // it could be set before
	}
	x.kept = kept
	return release, nil
}

// begunBody is a body of which some was read.
type begunBody struct {
	io.Reader
	io.Closer
}

// errNoRoom says that bodies of other requests take all the room.
var errNoRoom = errors.New("no more bytes of bodies are kept")

// take reads a body of n bytes. What it returns is counted in p.kept, as it has come: a caller who sends little takes
// little of the room that there is for all.
func (p *Proxy) take(body io.Reader, n int64) ([]byte, error) {
	const step = 4 << 10
	kept := make([]byte, 0, min(n, step))
	for int64(len(kept)) < n {
		if len(kept) == cap(kept) {
			kept = append(make([]byte, 0, min(n, 2*int64(len(kept)))), kept...)
		}
		got, err := body.Read(kept[len(kept):cap(kept)])
		kept = kept[:len(kept)+got]
		full := p.kept.Add(int64(got)) > p.cfg.MaxReplayTotal
		switch {
		case int64(len(kept)) == n:
		case err == io.EOF:
			return kept, io.ErrUnexpectedEOF
		case err != nil:
			return kept, err
		case full:
			return kept, errNoRoom
		}
	}
	return kept, nil
}

// rewrite makes the request to the member.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	exchangeOf(r.Out).options.Idempotent = idempotent(r.Out) // by what the member is told
	r.Out.URL.RawQuery = r.In.URL.RawQuery                   // as it came, not as it was understood
	r.Out.Trailer = r.In.Trailer                             // into which the values come behind the body
	maps.DeleteFunc(r.Out.Header, forged)
	if p.cfg.Callers != nil {
		p.cfg.Callers.Hide(r.Out.Header)
	}
	if p.cfg.TrustForwarded {
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	}
	r.SetXForwarded()
}

// answered looks at an answer before it is passed on.
func (p *Proxy) answered(resp *http.Response) error {
	x := exchangeOf(resp.Request)
	if x.answered != nil {
		if err := x.answered(resp); err != nil {
			return err
		}
	}
	if x.paced != nil && (x.paced.shared || resp.StatusCode == http.StatusSwitchingProtocols) {
		x.paced.free()
	}
	h := resp.Header
	maps.DeleteFunc(h, reserved)
	if maps.DeleteFunc(resp.Trailer, reserved); resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &answerBody{resp.Body, resp, x.attempt}
	}
	if x.paced != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		x.paced.answered(resp)
	}
	h.Set(router.HeaderMember, string(x.target.Member))
	if x.target.Epoch != (rooted.Epoch{}) {
		h.Set(router.HeaderEpoch, x.target.Epoch.String())
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.attempt.End(nil) // the socket looks after it
		body, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			return errors.New("the member switched protocols on a connection that cannot be written")
		}
		s, err := p.sockets.add(p, x, body, strings.EqualFold(resp.Header.Get("Upgrade"), "websocket"))
		if err != nil {
			return err
		}
		x.socket, resp.Body = s, s
	}
	return nil
}

// failed is for the ReverseProxy.
func (p *Proxy) failed(_ http.ResponseWriter, out *http.Request, err error) {
	p.fail(exchangeOf(out), out, err)
}

// fail answers a request that no member answered.
func (p *Proxy) fail(x *exchange, r *http.Request, err error) {
	err = cause(err)
	if x.paced != nil && r.Context().Err() != nil {
		err = x.paced.cause(err)
	}
	q := problemOf(err, x.target.Member)
	x.err = err
	if x.tag == "" || q.tag != UpstreamError {
		x.tag = q.tag
	}
	p.cfg.Logger.Debug("a request was not answered by a member", "member", x.target.Member, "tries", x.tries, "err", err)
	if x.hijacked {
		return // nobody would understand
	}
	if r.Context().Err() != nil && q.Status != http.StatusRequestTimeout {
		// The caller has gone, or has closed its half only: then to return would tell it 200.
		panic(http.ErrAbortHandler)
	}
	if isGRPC(r) {
		q.writeGRPC(x)
		return
	}
	q.write(x)
}

// Lookup passes requests on to the owner of their key. 404: there is none.
func (p *Proxy) Lookup() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, func(x *exchange, r *http.Request) (err error) {
			if x.key, err = p.keyOf(r); err != nil {
				return err
			}
			if p.cfg.ClaimOnMiss {
				err := p.admit(x, r, rootv1.Verb_VERB_CLAIM)
				if _, denied := errors.AsType[*Denied](err); err != nil && !denied {
					return err
				}
				x.options.ClaimOnMiss = err == nil
			}
			if err := p.pass(x, r); err != nil {
				return err
			}
			if x.err == nil {
				x.tag = Hit
				if x.reassigned {
					x.tag = OrphanReassigned
				}
			}
			return nil
		})
	})
}

// Via passes requests on to the member that resolve finds, once: the ready-made handlers
// in general. Its errors are told as those of a router are.
func (p *Proxy) Via(resolve func(*http.Request) (router.Target, error)) http.Handler {
	return p.via(resolve, nil)
}

func (p *Proxy) via(resolve func(*http.Request) (router.Target, error), gone func(context.Context, router.Target, error) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, func(x *exchange, r *http.Request) (err error) {
			if x.target, err = resolve(r); err != nil {
				return err
			}
			x.fixed, x.gone = true, gone
			if err := p.pass(x, r); err != nil {
				return err
			}
			if x.err == nil {
				x.tag = Hit
			}
			return nil
		})
	})
}

// LookupLockAndProxy passes requests on to the member that their pin names. 404: there is
// no such pin, or its member has ended, and with it what was begun there.
func (p *Proxy) LookupLockAndProxy() http.Handler {
	if p.cfg.Pins == nil {
		return p.Via(func(*http.Request) (router.Target, error) { return router.Target{}, unset("Pins") })
	}
	gone := func(_ context.Context, _ router.Target, err error) error { return err }
	if g, ok := p.cfg.Pins.(interface {
		Gone(context.Context, router.Target, error) error
	}); ok {
		gone = g.Gone
	}
	return p.via(p.cfg.Pins.Find, gone)
}

// unset is the error of a handler that lacks a part.
func unset(field string) error {
	return &client.Error{Op: "Proxy", Reason: rootv1.Reason_REASON_PERMISSION_DENIED, Cause: fmt.Errorf("this proxy has no %s: set proxy.Config.%[1]s", field)}
}
