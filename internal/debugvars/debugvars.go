// Package debugvars serves a process's numbers over HTTP: expvar JSON at
// /debug/vars, health at /healthz and profiles at /debug/pprof.
//
// A process that has more to serve over HTTP gives it an API: see coordinator/rest.
//
// It promises: (1) several components of one process can each have a server of
// their own with their own variables; (2) /healthz answers 200 only when the
// component's own check passed within its bound, and answers everybody; (3) with
// certificates the rest is for those that allowed names, by certificate or token, and
// nothing is served but that it ended when the own one has; (4) without, on loopback, what is
// not health is for who asks by an address or a name of this machine; (5) numbers and
// profiles are for no page of somebody else's that is open in a browser.
package debugvars

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

const (
	// healthTimeout bounds one health check.
	healthTimeout = 2 * time.Second
	// Bounds of a connection: what may be sent before anything is known, the time
	// for the headers, for a request with its answer, and between two. Profiles take 30 s.
	maxHeaderBytes = 16 << 10
	headersWithin  = 5 * time.Second
	answeredWithin = time.Minute
	idleFor        = time.Minute
	// maxConnections are held open, maxAPIConnections where there is an API, or an eighth
	// of what the process may accept.
	maxConnections    = 64
	maxAPIConnections = 1024
)

// Source is a component that shows its numbers.
type Source struct {
	// Vars returns what stands under "nokv"; it must marshal to JSON.
	Vars func() any
	// Healthy returns nil when the component serves; the error is shown.
	Healthy func(ctx context.Context) error
	// Ready says at /readyz whether requests should be sent here. Nil: that is not served.
	Ready func(ctx context.Context) error
	// TLS are the certificates of the process; nil: it has none, and everybody on
	// this machine may see everything.
	TLS *mtls.Source
	// Verify is whose a bearer token is. With certificates it stands for one; without,
	// it would be read on the way and is not asked for. Nil: there are none.
	Verify func(token string) (principal.Principal, error)
	// API is served beside these at Paths, and judges its callers itself. Nil: nothing is.
	API   http.Handler
	Paths []string
	// Hosts are names by which it is asked where it has no certificates and listens on loopback,
	// beside addresses and localhost. Requests for others are refused.
	Hosts []string
	// Logger hears of connections that fail, at Debug. Nil: nothing is logged.
	Logger hclog.Logger
}

// Caller is who asks: nobody in particular where there are no certificates.
func (s *Source) Caller(r *http.Request) (principal.Principal, error) {
	if s.TLS == nil {
		return principal.Principal{}, nil
	}
	return s.caller(r)
}

// allowed says who may see what is not for everybody. It is the one place that
// judges callers of this port.
func (s *Source) allowed(r *http.Request) (bool, error) {
	if s.TLS == nil {
		return true, nil
	}
	p, err := s.caller(r)
	switch p.Role {
	case principal.Operator, principal.Root, principal.Coordinator:
		return true, nil
	}
	return false, err
}

// caller is who asks, where there are certificates: by the token of the request, or,
// if it has none, by the certificate of the connection.
func (s *Source) caller(r *http.Request) (principal.Principal, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if s.Verify != nil && strings.EqualFold(scheme, "Bearer") {
		return s.Verify(strings.TrimSpace(token))
	}
	return s.TLS.Caller(r.TLS), nil
}

// guard lets those in that allowed names.
func (s *Source) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if page, is := foreign(r); is { // a browser shows certificates, and is on this machine, without being asked
			refuse(w, fmt.Sprintf("a page of %.128q may not ask for this", page), "open the address itself, or ask without a browser")
			return
		}
		switch ok, err := s.allowed(r); {
		case err != nil:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case !ok:
			http.Error(w, "this is for operators: show a client certificate of role operator, or the token of one", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// Handler serves /debug/vars and /healthz of a source.
func Handler(s Source) http.Handler {
	mux, inner := http.NewServeMux(), http.NewServeMux()
	mux.Handle("/", s.guard(inner))
	s.profiles(inner)
	inner.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		own, err := json.Marshal(s.Vars())
		whole, _ := json.Marshal(readProcess()) // numbers
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintf(w, "{\n\"nokv\": %s,\n\"process\": %s", own, whole)
		expvar.Do(func(kv expvar.KeyValue) { fmt.Fprintf(w, ",\n%q: %s", kv.Key, kv.Value) })
		fmt.Fprint(w, "\n}\n")
	})
	mux.HandleFunc("GET /healthz", answering(s.Healthy))
	for _, path := range s.Paths {
		mux.Handle(path, s.API)
	}
	if s.Ready != nil {
		mux.HandleFunc("GET /readyz", answering(s.Ready))
	}
	return mux
}

// answering is a check as a page: 200, or 503 with what is wrong.
func answering(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// Serve serves a source on lis until ctx ends, and closes lis.
func Serve(ctx context.Context, lis net.Listener, s Source) error {
	if s.Logger == nil {
		s.Logger = hclog.NewNullLogger()
	}
	handler := Handler(s)
	if s.TLS == nil && onLoopback(lis) {
		handler = byName(s.Hosts, handler)
	}
	server := &http.Server{
		Handler: s.TLS.HandlerOpen(handler), ReadHeaderTimeout: headersWithin, ReadTimeout: headersWithin, WriteTimeout: answeredWithin,
		IdleTimeout: idleFor, MaxHeaderBytes: maxHeaderBytes, ConnState: markBusy,
		ErrorLog: s.Logger.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close()
	}()
	most := maxConnections
	if s.API != nil {
		most = maxAPIConnections
	}
	err := server.Serve(s.TLS.HTTPOpen(listen.Limit(lis, min(most, listen.Connections()/8))))
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve metrics on %s: %w", lis.Addr(), err)
}
