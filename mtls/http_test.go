package mtls_test

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// listening serves at a port of its own, with TLS by secured, until the test ends.
func listening(t testing.TB, secured func(net.Listener) net.Listener, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	l := s.Listener
	s.Listener = secured(l)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refusals
	s.Start()
	t.Cleanup(s.Close)
	return "https://" + l.Addr().String()
}

// gets is the status and the text of an answer; an error has no status.
func gets(c *http.Client, url string) (int, string) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(raw)
}

// A member that is built as the documents say answers nobody without a certificate: not in the handshake, not
// where the listener's configuration is the open one or none at all, and not behind the caller's end on a connection that is kept.
func TestAnHTTPMemberAnswersNobodyWithoutACertificate(t *testing.T) {
	c := new(clock)
	a := newAuthority(t, "prod", c.now())
	s := open(t, a.issue(t, principal.Member, "m1", 90*day), c.o())
	h := s.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, s.CallerOf(r).String()) }))
	by := func(dir string, shown bool) *http.Client {
		transport := &http.Transport{TLSClientConfig: browser(t, dir, shown)}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	closed, opened := listening(t, s.HTTP, h), listening(t, s.HTTPOpen, h)
	plain := httptest.NewServer(h)
	t.Cleanup(plain.Close)
	web := a.issue(t, principal.Client, "web", day)
	known := by(web, true)
	for _, url := range []string{closed, opened} {
		if code, text := gets(known, url); code != http.StatusOK || text != "client/web" {
			t.Errorf("who has one is answered %d %s", code, text)
		}
	}
	if code, text := gets(by(web, false), closed); code != 0 || !strings.Contains(text, "certificate required") {
		t.Errorf("without one, at a listener of HTTP: %d %s", code, text)
	}
	for what, url := range map[string]string{"HTTPOpen": opened, "plain text": plain.URL} {
		if code, text := gets(by(web, false), url); code != http.StatusForbidden || !strings.Contains(text, "nokv cert issue") {
			t.Errorf("without one, at a listener of %s: %d %s", what, code, text)
		}
	}
	c.add(2 * day) // the connection is open; the one who opened it is nobody now
	if code, text := gets(known, closed); code != http.StatusForbidden {
		t.Errorf("behind its end: %d %s", code, text)
	}
}

// Who asks is the name in the certificate, whatever a request says in headers and trailers; on the connection of a proxy it is
// whom that names, in the one spelling.
func TestNobodySaysForHimselfWhoAsks(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	s := open(t, a.issue(t, principal.Member, "m1", day), mtls.Options{})
	addr := strings.TrimPrefix(listening(t, s.HTTP, s.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%v by %v:", s.CallerOf(r), s.OpenerOf(r))
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for _, name := range slices.Sorted(maps.Keys(h)) {
				if name != "X" && name != "Connection" {
					fmt.Fprintf(w, " %s %s", name, h[name])
				}
			}
		}
	}))), "https://")
	const all = "Nokv-Caller: client/ann\r\nnokv_caller: client/ann\r\nNOKV.CALLER: client/ann\r\n"
	for _, c := range []struct {
		role                 principal.Role
		name, said, trailers string
		want                 string
	}{
		{principal.Client, "web", all, "X", "client/web by client/web:"},
		{principal.Client, "web", all, "X, Nokv-Caller, nokv_caller", "client/web by client/web:"},
		{principal.Operator, "o", all, "X", "operator/o by operator/o:"},
		{principal.Proxy, "p", "", "X, Nokv-Caller", "proxy/p by proxy/p:"},
		{principal.Proxy, "p", all, "X, Nokv-Caller", "client/ann by proxy/p: Nokv-Caller [client/ann]"},
		{principal.Proxy, "p", "nokv_caller: client/ann\r\n", "X", "proxy/p by proxy/p:"},
		{principal.Proxy, "p", "Nokv-Caller: nobody\r\n", "X", "somebody without a certificate by proxy/p: Nokv-Caller [nobody]"},
		{principal.Proxy, "p", "Nokv-Caller: client/ann\r\nNokv-Caller: client/bob\r\n", "X", "somebody without a certificate by proxy/p: Nokv-Caller [client/ann client/bob]"},
	} {
		conn, err := tls.Dial("tcp", addr, browser(t, a.issue(t, c.role, c.name, day), true))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n%sTrailer: %s\r\n\r\n1\r\nx\r\n0\r\nX: x\r\n%s\r\n", c.said, c.trailers, all)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = conn.Close()
		if err != nil || string(got) != c.want {
			t.Errorf("%v/%s said %q, trailers %s: %s, %v, want %s", c.role, c.name, c.said, c.trailers, got, err, c.want)
		}
	}
}

// A ClientConn with several sides wants of each the name that its address has, and of none the name of another one.
func TestAddressesHaveNames(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	client := open(t, a.issue(t, principal.Client, "web", day), mtls.Options{})
	m1, m2 := serve(t, open(t, a.issue(t, principal.Member, "m1", day), mtls.Options{}).Server()), serve(t, open(t, a.issue(t, principal.Member, "m2", day), mtls.Options{}).Server())
	for _, o := range []struct{ address, name, refused string }{
		{m1, "m1", ""},
		{m2, "m2", ""},
		{m2, "m1", m2 + " has a certificate of member/m2, want member/m1"},
		{m1, "", ""},
	} {
		at := resolver.Address{Addr: o.address}
		if o.name != "" {
			at.Attributes = mtls.Named(nil, o.name)
		}
		r := manual.NewBuilderWithScheme("test")
		r.InitialState(resolver.State{Endpoints: []resolver.Endpoint{{Addresses: []resolver.Address{at}}}})
		conn, err := grpc.NewClient("test:///", grpc.WithResolvers(r), grpc.WithTransportCredentials(client.Client(mtls.Peer{Role: principal.Member})))
		if err != nil {
			t.Fatal(err)
		}
		err = conn.Invoke(t.Context(), "/x.X/X", new(emptypb.Empty), new(wrapperspb.StringValue))
		_ = conn.Close()
		if said, _ := mtls.RefusalOf(err); (err != nil) != (o.refused != "") || err != nil && said.Sentence != o.refused {
			t.Errorf("%s where %q is meant: %v, want %q", o.address, o.name, err, cmp.Or(o.refused, "no refusal"))
		}
	}
}

// ongoing answers with a byte and goes on until the connection ends; /hijacked does so below HTTP, as WebSockets do.
func ongoing(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if r.URL.Path != "/hijacked" {
		_, _ = w.Write([]byte("x"))
		_ = control.Flush()
		<-r.Context().Done()
		return
	}
	c, rw, err := control.Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nx")
	_, _ = io.Copy(io.Discard, rw)
}

// pipes is a listener in memory.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// What is under way at an HTTP listener ends with the certificate that the connection was opened with.
func TestRequestsEndWithTheirCertificate(t *testing.T) {
	a := newAuthority(t, "prod", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	own, web := a.issue(t, principal.Member, "m1", 90*day), a.issue(t, principal.Client, "web", 10*time.Minute)
	for _, path := range []string{"/hijacked", "/stream"} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, own, mtls.Options{})
			l := &pipes{make(chan net.Conn), make(chan struct{})}
			server := &http.Server{Handler: s.Handler(http.HandlerFunc(ongoing))}
			served := make(chan error, 1)
			go func() { served <- server.Serve(s.HTTP(l)) }()
			near, far := net.Pipe()
			l.made <- far
			begun, c := time.Now(), tls.Client(near, browser(t, web, true))
			if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: m1\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 ") || strings.Contains(line, "403") {
				t.Fatalf("%q, %v", line, err)
			}
			time.AfterFunc(time.Hour, func() { _ = c.Close() })
			_, _ = io.Copy(io.Discard, c)
			if life := time.Since(begun); life > 10*time.Minute || life < 10*time.Minute-30*time.Second {
				t.Errorf("%s by a certificate of 10 minutes ends after %v", path, life)
			}
			_ = c.Close()
			_ = server.Close()
			<-served
		})
	}
}

// An HTTP member with certificates, and a caller of it. The caller means the member by its name: who has another one's
// certificate, at that address, is not asked.
func Example() {
	member := func(folder string, l net.Listener) error {
		certs, err := mtls.Open(folder, mtls.Options{})
		if err != nil {
			return err
		}
		moves := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello, %s", certs.CallerOf(r)) })
		server := &http.Server{Handler: certs.Handler(moves), ReadHeaderTimeout: 5 * time.Second}
		return server.Serve(certs.HTTP(l))
	}
	caller := func(folder, name, address string) (*http.Response, error) {
		certs, err := mtls.Open(folder, mtls.Options{})
		if err != nil {
			return nil, err
		}
		c := &http.Client{Transport: certs.Transport(mtls.Peer{Role: principal.Member, Name: name})}
		return c.Get(certs.Scheme() + "://" + address + "/moves")
	}
	_, _ = member, caller
}
