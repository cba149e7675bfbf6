package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	names "github.com/nokv/nokv/internal/headers"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/router"
)

// Bounds of callers' connections, and of those to the process: one that nobody uses is kept for less time
// than programs keep theirs, which would else end while a request is on its way.
const (
	callerHeaders     = 5 * time.Second
	callerIdle        = 2 * time.Minute
	callerHeaderBytes = 64 << 10
	keptFor           = time.Second
	maxKept           = 256
	// lastWords is the time that answers have to leave when the process is dead.
	lastWords = time.Second
)

// listenForCallers ends TLS for the process: callers come here with certificates, and what they ask is passed on
// to it in plain text on this machine. It ends with the process.
func (s *sidecar) listenForCallers() (end func(), err error) {
	certs := s.cfg.Member.TLS
	lis, err := net.Listen("tcp", s.cfg.Serve)
	if err != nil {
		return nil, fmt.Errorf("listen for callers: %w", err)
	}
	server := &http.Server{
		Handler: certs.HandlerOpen(s.guarded(certs, s.pass(certs))), ReadHeaderTimeout: callerHeaders, IdleTimeout: callerIdle, MaxHeaderBytes: callerHeaderBytes,
		ErrorLog: s.log.Named("callers").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(certs.HTTPOpen(listen.Limit(lis, listen.Connections()/2))) // the other half is to the process
	}()
	s.log.Info("callers are taken by TLS", "addr", lis.Addr(), "process", s.base.Host)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastWords)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-done
	}, nil
}

// guarded keeps callers from what is the sidecar's to ask, and lets none in without a certificate of the cluster.
// Whether the process is ready is told to everybody: probes of platforms have no certificate. The process is asked just that: a
// query, headers or another spelling of the path would make a request of its own of it.
func (s *sidecar) guarded(certs *mtls.Source, h http.Handler) http.Handler {
	own, known := path.Join("/", s.base.Path, "nokv"), certs.Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asks := r.Method == http.MethodGet || r.Method == http.MethodHead; {
		case asks && r.URL.Path == own+"/ready":
			bare := &http.Request{
				Method: r.Method, URL: &url.URL{Path: own + "/ready"}, Header: http.Header{}, Body: http.NoBody, Host: s.base.Host,
				RemoteAddr: r.RemoteAddr, TLS: r.TLS,
			}
			h.ServeHTTP(w, bare.WithContext(r.Context()))
		case strings.HasPrefix(path.Clean("/"+r.URL.Path)+"/", own+"/"):
			http.NotFound(w, r)
		default:
			known.ServeHTTP(w, r)
		}
	})
}

// pass passes requests on to the process, with the name of whoever asks.
func (s *sidecar) pass(certs *mtls.Source) http.Handler {
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     newToProcess(),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", s.base.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came, not as it was understood
			trailers(r)
			if certs.OpenerOf(r.In).Role == principal.Proxy { // it has judged whose request this is
				r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			}
			maps.DeleteFunc(r.Out.Header, func(name string, _ []string) bool { return mtls.NamesCaller(name, nil) || names.Forwarded(name) })
			r.Out.Header.Set(router.HeaderCaller, cmp.Or(certs.CallerOf(r.In).Actor(), "nobody"))
			r.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.log.Debug("a caller has no answer of the process", "path", r.URL.Path, "err", err)
			if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
				(&router.Refusal{Kind: router.NotOwned, Said: "the process does not listen: it is about to, or has ended"}).WriteHTTP(w)
				return
			}
			panic(http.ErrAbortHandler) // as where the process itself breaks the connection off: what became of it is not known
		},
		ErrorLog: s.log.Named("callers").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
}

// toProcess asks the process. What has this header is repeated by package http, whatever its method is, where a connection that
// was used before breaks off: it goes by a connection of its own, because a caller says by Idempotency-Key alone that a request may be run twice.
type toProcess struct{ kept, own *http.Transport }

const repeatedHeader = "X-Idempotency-Key"

func newToProcess() toProcess {
	kept := &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, DisableCompression: true, MaxResponseHeaderBytes: callerHeaderBytes,
		IdleConnTimeout: keptFor, MaxIdleConnsPerHost: maxKept,
	}
	own := kept.Clone()
	own.MaxIdleConnsPerHost = -1
	return toProcess{kept, own}
}

// RoundTrip implements http.RoundTripper.
func (t toProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header[repeatedHeader] != nil {
		return t.own.RoundTrip(r)
	}
	return t.kept.RoundTrip(r)
}

// trailers passes on those of a request which the process may not take for what the sidecar tells it. The transport may still read
// the names when the values come, behind the body, so that there is a map of its own.
func trailers(r *httputil.ProxyRequest) {
	if len(r.In.Trailer) == 0 || r.Out.Body == nil || r.Out.Body == http.NoBody {
		r.Out.Trailer = nil
		return
	}
	r.Out.Trailer = r.In.Trailer.Clone()
	maps.DeleteFunc(r.Out.Trailer, func(name string, _ []string) bool { return mtls.NamesCaller(name, nil) || names.ForwardedTrailer(name) })
	if len(r.Out.Trailer) > 0 {
		// HTTP/1.1 has trailers behind chunks only. That is said, because the transport else reads the beginning of some bodies
		// beside itself to find out, and the trailers of an empty one with it.
		r.Out.ContentLength, r.Out.TransferEncoding = -1, []string{"chunked"}
		r.Out.Body = &trailed{r.Out.Body, r.Out.Trailer, r.In.Trailer}
	}
}

// trailed is a body behind which trailers come.
type trailed struct {
	io.ReadCloser
	to, from http.Header
}

// Read implements io.Reader.
func (b *trailed) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	if err == io.EOF {
		names.Fill(b.to, b.from)
	}
	return n, err
}
