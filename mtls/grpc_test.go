package mtls_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// serve runs a gRPC server that answers every call with who asked.
func serve(t *testing.T, creds credentials.TransportCredentials) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(creds), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(principal.FromContext(stream.Context()).String()))
	}))
	go s.Serve(l) // ends with Stop
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func call(t *testing.T, addr string, creds credentials.TransportCredentials) (asWhom string, with *peer.Peer, err error) {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	with = new(peer.Peer)
	var out wrapperspb.StringValue
	err = c.Invoke(ctx, "/x.X/X", new(emptypb.Empty), &out, grpc.Peer(with))
	return out.GetValue(), with, err
}

// A gRPC call knows both sides; one that cannot be made says why, whatever the
// sides speak.
func TestGRPC(t *testing.T) {
	a, stranger := newAuthority(t, "prod", time.Now()), newAuthority(t, "prod", time.Now().Add(-time.Hour)) // whose names tell when they were made
	s := open(t, a.issue(t, principal.Coordinator, "c1", day), mtls.Options{})
	c := open(t, a.issue(t, principal.Member, "m1", day), mtls.Options{})
	dir := stranger.issue(t, principal.Member, "m1", day)
	write(t, dir, mtls.CAFile, append(read(t, stranger.dir, mtls.CAFile), read(t, a.dir, mtls.CAFile)...))
	unknown := open(t, dir, mtls.Options{})
	var none *mtls.Source

	secure, open := serve(t, s.Server()), serve(t, none.Server())
	who, with, err := call(t, secure, c.Client(mtls.Peer{Role: principal.Coordinator}))
	if info, ok := with.AuthInfo.(principal.Info); err != nil || who != "member/m1" || !ok || info.Principal != s.Principal() || info.SecurityLevel != credentials.PrivacyAndIntegrity {
		t.Errorf("%v, %v, %v", who, with.AuthInfo, err)
	}
	if who, _, err := call(t, open, none.Client(mtls.Peer{Role: principal.Coordinator})); err != nil || who != "somebody without a certificate" {
		t.Errorf("plain: %v, %v", who, err)
	}
	for name, o := range map[string]struct {
		addr  string
		creds credentials.TransportCredentials
		says  string
	}{
		"wrong role":     {secure, c.Client(mtls.Peer{Role: principal.Root}), secure + " has a certificate of coordinator/c1, want a root"},
		"unknown CA":     {secure, unknown.Client(mtls.Peer{Role: principal.Coordinator}), secure + " refused our certificate of member/m1 in " + dir + ": no CA that is in ca.crt there and valid has signed it (remote error: tls: unknown certificate authority)"},
		"plain to TLS":   {secure, none.Client(mtls.Peer{Role: principal.Coordinator}), secure + " speaks TLS: it needs a certificate to be called (a folder of nokv cert issue, named by --certs or NOKV_CERTS)"},
		"TLS to plain":   {open, c.Client(mtls.Peer{Role: principal.Coordinator}), open + " does not speak TLS: start it with certificates, or leave ours away (tls: first record does not look like a TLS handshake)"},
		"TLS to nowhere": {proctest.Addrs(t, 1)[0], c.Client(mtls.Peer{Role: principal.Coordinator}), ""},
	} {
		_, _, err := call(t, o.addr, o.creds)
		r, refused := mtls.RefusalOf(err)
		if status.Code(err) != codes.Unavailable || refused != (o.says != "") || refused && r.Sentence != o.says {
			t.Errorf("%s: %v\ngives %v\nwant  %s", name, err, r, o.says)
		}
	}
}

// A caller of an open port needs no certificate; one that is shown has to be good, and says
// who calls until it ends or its CA is no longer believed.
func TestHTTP(t *testing.T) {
	c := new(clock)
	a, other := newAuthority(t, "prod", c.now()), newAuthority(t, "test", c.now())
	s := open(t, a.issue(t, principal.Root, "1", 30*day), c.o())
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, s.Caller(r.TLS).String())
	}))
	l := h.Listener
	h.Listener = s.HTTPOpen(l)
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // refusals
	h.Start()
	t.Cleanup(h.Close)
	cas := x509.NewCertPool()
	cas.AddCert(a.Believed[0])
	client := func(dir string) *http.Client {
		cfg := &tls.Config{RootCAs: cas} // as a browser does: by host name
		if dir != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, mtls.CertFile), filepath.Join(dir, mtls.KeyFile))
			if err != nil {
				t.Fatal(err)
			}
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	get := func(c *http.Client) (string, error) {
		resp, err := c.Get("https://" + l.Addr().String())
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		return string(raw), err
	}
	operator := client(a.issue(t, principal.Operator, "o1", day))
	for _, o := range []struct {
		client *http.Client
		want   string // empty: refused
	}{
		{client(""), "somebody without a certificate"},
		{operator, "operator/o1"},
		{client(other.issue(t, principal.Operator, "o1", day)), ""},
		{client(a.forge(t, func(c *x509.Certificate) { c.URIs = []*url.URL{uri(t, "nokv://test/operator/o1")} })), ""},
	} {
		got, err := get(o.client)
		if got != o.want || (err != nil) != (o.want == "") {
			t.Errorf("%q, %v; want %q", got, err, o.want)
		}
	}
	stays := client(a.issue(t, principal.Operator, "o1", day))
	c.add(time.Second)
	next := newAuthority(t, "prod", c.now())
	cas.AddCert(next.Believed[0])
	for _, o := range []struct {
		client *http.Client
		by     *authority
		want   string
	}{{operator, a, "operator/o1"}, {stays, a, "operator/o1"}, {stays, next, "somebody without a certificate"}, {stays, a, "operator/o1"}} {
		// The own certificate is one that every CA signed: only who is believed changes.
		write(t, s.Dir(), mtls.CAFile, read(t, o.by.dir, mtls.CAFile))
		o.by.issueTo(t, s.Dir(), principal.Root, "1", 30*day)
		c.add(2 * time.Second)
		if got, err := get(o.client); got != o.want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, o.want)
		}
	}
	c.add(2 * day)
	if got, err := get(operator); err != nil || got != "somebody without a certificate" {
		t.Errorf("a certificate that ended is that of %v, %v", got, err)
	}
}

// Whoever asks a port whose own certificate has ended hears that, whether it looks at
// certificates or not; the log says it now and then.
func TestHTTPBehindTheOwnEnd(t *testing.T) {
	c, said := new(clock), new(written.Text)
	a := newAuthority(t, "prod", c.now())
	s := open(t, a.issue(t, principal.Root, "1", day), mtls.Options{Logger: said.Logger(hclog.Info), Now: c.now})
	h := httptest.NewUnstartedServer(s.HandlerOpen(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })))
	l := h.Listener
	h.Listener = s.HTTPOpen(l)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.Start()
	t.Cleanup(h.Close)
	get := func(cfg *tls.Config) string {
		transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.Status + ": " + string(raw)
	}
	cas := x509.NewCertPool()
	cas.AddCert(a.Believed[0])
	looks, late := &tls.Config{RootCAs: cas, Time: c.now}, &tls.Config{RootCAs: cas} // the clock of the second is behind
	for _, o := range []*tls.Config{looks, late} {
		if got := get(o.Clone()); got != "200 OK: served" {
			t.Errorf("before its end: %s", got)
		}
	}
	c.add(2 * day)
	said.Take()
	for what, o := range map[string]*tls.Config{"certificate has expired": looks, "our own certificate of root/1 in ": late} {
		for range 3 {
			if got := get(o.Clone()); !strings.Contains(got, what) || strings.Contains(got, "served") {
				t.Errorf("behind its end: %s, want %q", got, what)
			}
		}
	}
	if got := said.Take(); strings.Count(got, "refused a connection") != 1 || !strings.Contains(got, "our own certificate of root/1") {
		t.Errorf("the log says %s", got)
	}
}
