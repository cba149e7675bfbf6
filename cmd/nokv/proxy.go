package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/debugvars"
	open "github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

func proxyCommand() *command {
	return &command{
		name: "proxy", args: "--keyspace K --key-header H | --key-path PATTERN | --key-query Q [flags]", summary: "pass HTTP requests on to the owners of their keys",
		long: `
For callers in any language: each request goes to the member that owns its key, with the
epoch in the header Nokv-Epoch, across failovers and moves. What a member refuses, or what
nothing of was sent, is held for --hold and tried again; what may have been run only if it
is idempotent, by its method or with an Idempotency-Key. gRPC does not go through here:
package grpcroute has its callers.

  nokv proxy --keyspace games --key-header X-Game --addr 127.0.0.1:8080
  curl -H 'X-Game: g1' http://127.0.0.1:8080/move

A PATTERN is a path with {key} in it, such as /games/{key}/...: * is any segment, and
/... whatever follows. With certificates, of the role proxy, members are asked by them, and
the listener is https, for callers who have one of the cluster; with --plain, on this
machine, it is http. What the grants do not give a caller, a proxy does not do for it;
members are told who asks, in Nokv-Caller. With --callers token callers need no certificate
and may show a token of nokv token, in "Authorization: Bearer TOKEN", which members do not
see; with --callers nobody, as with --plain alone, all of them are nobody.

A request with a pin, in the header Nokv-Pin or the cookie nokv-pin, goes to the process
that the pin names and to no other, and needs no key.

A line of JSON for each request goes to standard output; a reader that stops costs lines,
not requests. Ctrl-C or SIGTERM lets requests come to their end, for --drain at most.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := &proxyServer{flags: f}
			f.StringVar(&s.keyspace, "keyspace", "", "`name` of the keyspace (required)")
			f.StringVar(&s.header, "key-header", "", "`header` that has the key")
			f.StringVar(&s.path, "key-path", "", "`pattern` of paths, with {key} in it")
			f.StringVar(&s.query, "key-query", "", "`parameter` of the query that has the key")
			f.StringVar(&s.addr, "addr", "127.0.0.1:8080", "`address` to listen on")
			f.StringVar(&s.metricsAddr, "metrics-addr", "", "`address` for /debug/vars, /healthz and /readyz (default none)")
			f.BoolVar(&s.claim, "claim", false, "have regions made of keys that have none")
			f.StringVar(&s.known, "callers", "", "what callers are known by: `certificate, token or nobody` (default certificate; with --plain nobody)")
			f.BoolVar(&s.plain, "plain", false, "listen without TLS, on this machine, though there are certificates")
			f.BoolVar(&s.insecure, "insecure", false, "let anybody in: listen without certificates on addresses that other machines reach")
			f.BoolVar(&s.trust, "trust-forwarded", false, "keep X-Forwarded-For of callers: another proxy is in front")
			f.BoolVar(&s.quiet, "no-access-log", false, "write no line for each request")
			f.Int64Var(&s.maxBody, "max-body", 64<<20, "longest body of a request in `bytes`; -1: any")
			s.timeout = f.duration("timeout", 30*time.Second, "`time` that answers of members are waited for, in all")
			s.silence = f.duration("body-silence", 30*time.Second, "`time` that the next bytes of a body are waited for")
			s.hold = f.duration("hold", 5*time.Second, "`time` that a request that was not run is held while its region moves")
			s.drain = f.duration("drain", 10*time.Second, "`time` that requests have to come to their end when this process ends")
			f.StringVar(&s.level, "log-level", "warn", "`trace, debug, info, warn, error or off`")
			s.ends = f.endpoints()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return s.run(ctx, e)
			}
		},
	}
}

// proxyServer is nokv proxy.
type proxyServer struct {
	flags                                *flags
	keyspace, header, path, query        string
	addr, metricsAddr, level, known      string
	claim, plain, insecure, trust, quiet bool
	maxBody                              int64
	timeout, silence, hold, drain        *time.Duration
	ends                                 endpointFlags

	proxy    *proxy.Proxy
	router   *router.Router
	listener *open.Listener
	tags     map[proxy.Tag]*atomic.Uint64
	retries  atomic.Uint64
	open     atomic.Int64
	ending   atomic.Bool
}

// Words of --callers.
const (
	byCertificate = "certificate"
	byToken       = "token"
	byNobody      = "nobody"
)

// key is what the flags say of keys.
func (s *proxyServer) key() (proxy.Key, error) {
	n := 0
	for _, said := range []string{s.header, s.path, s.query} {
		if said != "" {
			n++
		}
	}
	switch {
	case s.keyspace == "":
		return nil, usagef("--keyspace is required: whose keys requests have")
	case n != 1:
		return nil, usagef("say where the key is, once: --key-header X-Game, --key-path /games/{key}/... or --key-query game")
	case *s.timeout == 0 || *s.silence == 0 || *s.hold == 0:
		return nil, usagef("--timeout, --body-silence and --hold: want more than 0")
	case s.maxBody < -1 || s.maxBody == 0:
		return nil, usagef("--max-body %d: want bytes, or -1", s.maxBody)
	case hclog.LevelFromString(s.level) == hclog.NoLevel:
		return nil, usagef("log-level %q: use trace, debug, info, warn, error or off", s.level)
	case proxy.Reserved(s.header):
		return nil, usagef("--key-header %.80q: headers of Nokv- are those that the proxy sets: callers cannot say them", s.header)
	case s.header != "":
		return proxy.Header(s.header), nil
	case s.query != "":
		return proxy.Query(s.query), nil
	}
	key, err := proxy.Path(s.path)
	if err != nil {
		return nil, usagef("--key-path: %s", err)
	}
	return key, nil
}

// secure judges the listener: with certificates it has TLS, and without it is for this
// machine, unless it was told otherwise.
func (s *proxyServer) secure(certs *mtls.Source) (tls bool, err error) {
	if err := checkAddr(s.addr); err != nil {
		return false, usagef("--addr %s", err)
	}
	given := s.known != ""
	if !given {
		s.known = map[bool]string{false: byCertificate, true: byNobody}[s.plain]
	}
	switch {
	case s.known != byCertificate && s.known != byToken && s.known != byNobody:
		return false, usagef("--callers %q: use certificate, token or nobody", s.known)
	case given && certs == nil:
		return false, usagef("--callers %s: without certificates of its own (--certs DIR) this process judges nobody", s.known)
	case s.plain && s.known == byCertificate:
		return false, usagef("--callers certificate: nobody shows one with --plain: use token or nobody")
	case certs != nil && s.insecure:
		return false, usagef("--insecure means without certificates, and %s has some: leave out one of them", certs.Dir())
	case s.plain && !loopback(s.addr):
		return false, usagef("--plain is for this machine, and --addr %s can be reached from others", s.addr)
	case certs != nil && !s.plain:
		return true, nil
	}
	for name, addr := range map[string]string{"--addr": s.addr, "--metrics-addr": s.metricsAddr} {
		if addr != "" && !loopback(addr) && !s.insecure && (certs == nil || name == "--addr") {
			return false, usagef("%s %s can be reached from other machines, and this process has no certificates: give it some with --certs DIR (nokv cert --help), or let anybody in with --insecure", name, addr)
		}
	}
	return false, nil
}

func (s *proxyServer) run(ctx context.Context, e *env) error {
	key, err := s.key()
	if err != nil {
		return err
	}
	errs := newSink(e.stderr)
	defer errs.close()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: hclog.LevelFromString(s.level), Output: errs, JSONFormat: e.output == "json"})
	t, err := s.ends.resolve(logger)
	if err != nil {
		return err
	}
	tls, err := s.secure(t.certs)
	if err != nil {
		return err
	}
	if t.certs != nil && t.certs.Principal().Role != principal.Proxy {
		return usagef("the certificate in %s is that of %s, not of a proxy: nokv cert issue --role proxy --name NAME --host NAME.OF.THIS.MACHINE makes one, which callers can verify", t.certs.Dir(), t.certs.Principal())
	}
	e.tuneGC()
	c, err := client.New(client.Config{Endpoints: t.addrs, TLS: t.certs, Logger: logger.Named("client")})
	if err != nil {
		return usagef("%s", err)
	}
	defer c.Close()
	if s.router, err = router.New(router.Config{Client: c, Keyspaces: []string{s.keyspace}, Hold: *s.hold, Logger: logger.Named("router")}); err != nil {
		return usagef("%s", err)
	}
	var callers proxy.Callers
	switch {
	case t.certs == nil: // there are no grants
	case s.known == byCertificate:
		callers = proxy.NewCallers(c, t.certs)
	case s.known == byToken:
		callers = proxy.NewTokenCallers(c, t.certs)
	default:
		callers = proxy.NewCallers(c, nil)
	}
	lines := newSink(e.stdout)
	defer lines.close()
	s.tags = map[proxy.Tag]*atomic.Uint64{}
	for _, tag := range proxy.Tags {
		s.tags[tag] = new(atomic.Uint64)
	}
	if s.proxy, err = proxy.New(proxy.Config{
		Router: s.router, Key: key, Pins: proxy.NewPins(s.router, s.keyspace), Callers: callers, ClaimOnMiss: s.claim, TLS: t.certs, Timeout: *s.timeout, BodySilence: *s.silence, Hold: *s.hold, MaxBody: s.maxBody,
		TrustForwarded: s.trust, OnResult: func(r proxy.Result) { s.over(lines, r) }, Logger: logger,
	}); err != nil {
		return usagef("%s", err)
	}
	lis, err := listen("proxy", s.addr)
	if err != nil {
		return err
	}
	defer lis.Close()
	var metrics net.Listener
	if s.metricsAddr != "" {
		if metrics, err = listen("metrics", s.metricsAddr); err != nil {
			return err
		}
		defer metrics.Close()
	}
	logger.Info("proxy starts", "addr", lis.Addr(), "keyspace", s.keyspace)
	source := debugvars.Source{Vars: s.vars, Healthy: func(context.Context) error { return nil }, Ready: s.ready, TLS: t.certs, Logger: logger}
	return serveMetrics(ctx, metrics, source, func(ctx context.Context) error { return s.serve(ctx, lis, t.certs, tls, logger) })
}

// Bounds of a caller's connection.
const (
	proxyHeaders     = 5 * time.Second
	proxyIdle        = 2 * time.Minute
	proxyHeaderBytes = 4 * proxy.MaxHeaderBytes // the handler refuses with a reason
)

// serve follows the keyspace and answers until ctx ends, and then what is under way.
func (s *proxyServer) serve(ctx context.Context, lis net.Listener, certs *mtls.Source, tls bool, logger hclog.Logger) error {
	routes, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	h := http.Handler(http.HandlerFunc(s.count))
	server := &http.Server{
		ReadHeaderTimeout: proxyHeaders, IdleTimeout: proxyIdle, MaxHeaderBytes: proxyHeaderBytes, Protocols: new(http.Protocols),
		ErrorLog: logger.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	server.Protocols.SetHTTP1(true)
	secured := func(l net.Listener) net.Listener { return l }
	if tls {
		h, secured = certs.HandlerOpen(h), certs.HTTPOpen
		if s.known == byCertificate {
			h, secured = certs.Handler(h), certs.HTTP
		}
		server.Protocols.SetHTTP2(true) // which HTTP offers: a caller that speaks it takes it
	} else {
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	server.Handler = h
	s.listener = open.Limit(lis, open.Connections()/2) // the other half is for members
	var beside sync.WaitGroup
	defer beside.Wait()
	failed := make(chan error, 2)
	beside.Go(func() {
		if err := s.router.Run(routes); err != nil {
			failed <- err
		}
	})
	beside.Go(func() {
		if err := server.Serve(secured(s.listener)); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve on %s: %w", lis.Addr(), err)
		}
	})
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.ending.Store(true)
	until, cancel := context.WithTimeout(context.WithoutCancel(ctx), *s.drain)
	defer cancel()
	if server.Shutdown(until) != nil {
		_ = server.Close()
	}
	_ = s.proxy.Close()
	stop()
	return err
}

func (s *proxyServer) count(w http.ResponseWriter, r *http.Request) {
	s.open.Add(1)
	defer s.open.Add(-1)
	if proxy.HasPin(r) {
		s.proxy.LookupLockAndProxy().ServeHTTP(w, r)
		return
	}
	s.proxy.Lookup().ServeHTTP(w, r)
}

// ready says whether requests should come here.
func (s *proxyServer) ready(ctx context.Context) error {
	if s.ending.Load() {
		return errors.New("this process ends")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.router.Wait(ctx)
}

// proxyLine is a line of the access log. The field names stay.
type proxyLine struct {
	Time      time.Time `json:"time"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status"`
	Result    string    `json:"result"`
	Key       string    `json:"key,omitempty"`
	Caller    string    `json:"caller,omitempty"`
	Member    string    `json:"member,omitempty"`
	Epoch     string    `json:"epoch,omitempty"`
	Tries     int       `json:"tries"`
	Micros    int64     `json:"micros"`
	BytesSent int64     `json:"bytes_sent"`
	Remote    string    `json:"remote,omitempty"`
	Error     string    `json:"error,omitempty"`
}

// maxLogged is the most that is logged of a text of a caller.
const maxLogged = 256

func logged(text string) string { return text[:min(len(text), maxLogged)] }

// over counts a request that is over, and writes its line.
func (s *proxyServer) over(lines io.Writer, r proxy.Result) {
	if n := s.tags[r.Tag]; n != nil {
		n.Add(1)
	}
	if r.Tries > 1 {
		s.retries.Add(uint64(r.Tries - 1))
	}
	if s.quiet {
		return
	}
	line := proxyLine{
		Time: time.Now(), Method: logged(r.Request.Method), Path: logged(r.Request.URL.EscapedPath()), Status: r.Status, Result: string(r.Tag),
		Key: logged(showKey(r.Key)), Caller: r.Caller, Member: string(r.Target.Member), Tries: r.Tries, Micros: r.Duration.Microseconds(), BytesSent: r.Bytes, Remote: r.Request.RemoteAddr,
	}
	if r.Target.Epoch != (rooted.Epoch{}) {
		line.Epoch = r.Target.Epoch.String()
	}
	if r.Err != nil {
		line.Error = logged(r.Err.Error())
	}
	raw, _ := json.Marshal(line) // numbers and texts
	_, _ = lines.Write(append(raw, '\n'))
}

// proxyVars are the numbers of a proxy at /debug/vars.
type proxyVars struct {
	Keyspace string            `json:"keyspace"`
	Results  map[string]uint64 `json:"results"`
	Retries  uint64            `json:"retries"`
	Open     int64             `json:"open"`
	Waiting  int               `json:"waiting"`
	Upgraded int               `json:"upgraded"`
	Regions  int               `json:"regions"`
	AgeMs    int64             `json:"age_millis"` // -1: not known
}

func (s *proxyServer) vars() any {
	v := proxyVars{
		Keyspace: s.keyspace, Results: map[string]uint64{}, Retries: s.retries.Load(), Open: s.open.Load(), Waiting: s.proxy.Waiting(), Upgraded: s.proxy.Upgraded(), AgeMs: -1,
	}
	for tag, n := range s.tags {
		v.Results[string(tag)] = n.Load()
	}
	state := s.router.State()[0]
	v.Regions = state.Regions
	if !state.AsOf.IsZero() {
		v.AgeMs = time.Since(state.AsOf).Milliseconds()
	}
	return v
}
