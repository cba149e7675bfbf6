package sidecar

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/router"
)

// fronted is a process behind a sidecar that takes callers for it, and is asked by others' programs.
type fronted struct {
	t       *testing.T
	certs   *proctest.Certificates
	process *httptest.Server
	url     string
}

func front(t *testing.T, process http.HandlerFunc) *fronted {
	t.Helper()
	f := &fronted{t: t, certs: proctest.NewCertificates(t, "prod"), process: httptest.NewServer(process)}
	t.Cleanup(f.process.Close)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = lis.Close()
	base, err := url.Parse(f.process.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{base: base, log: hclog.NewNullLogger(), cfg: Config{Serve: lis.Addr().String(), Member: member.Config{TLS: f.certs.Open(principal.Member, "m1")}}}
	end, err := s.listenForCallers()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	f.url = "https://" + s.cfg.Serve
	return f
}

// tls is the configuration of a caller; an empty name: it shows nothing.
func (f *fronted) tls(certs *proctest.Certificates, role principal.Role, name string) *tls.Config {
	f.t.Helper()
	cfg := &tls.Config{RootCAs: f.certs.Roots(), ServerName: "localhost"}
	if name != "" {
		folder := certs.Of(role, name)
		pair, err := tls.LoadX509KeyPair(filepath.Join(folder, mtls.CertFile), filepath.Join(folder, mtls.KeyFile))
		if err != nil {
			f.t.Fatal(err)
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return cfg
}

func (f *fronted) by(cfg *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: cfg}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// asks is the status and the body of an answer; no status: there was none.
func (f *fronted) asks(c *http.Client, method, path string, headers ...string) (int, string, http.Header) {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(raw), resp.Header
}

// The process is told who asks: of a proxy what that says, of everybody else what the certificate says, and of
// what callers say of themselves nothing.
func TestTheProcessIsToldWhoAsks(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q %v %s", r.Header[router.HeaderCaller], r.Header["Nokv_caller"], r.URL.RawQuery)
	})
	forged := []string{"Nokv-Caller", "client/ann", "Nokv_caller", "client/ann", "nokv_Caller", "client/ann"}
	web, proxy := f.by(f.tls(f.certs, principal.Client, "web")), f.by(f.tls(f.certs, principal.Proxy, "p"))
	for _, c := range []struct {
		by      *http.Client
		headers []string
		want    string
	}{
		{web, nil, `["client/web"] [] a;b&c=%zz`},
		{web, forged, `["client/web"] [] a;b&c=%zz`},
		{proxy, nil, `["proxy/p"] [] a;b&c=%zz`},
		{proxy, forged[:2], `["client/ann"] [] a;b&c=%zz`},
		{proxy, forged[2:], `["proxy/p"] [] a;b&c=%zz`},
	} {
		if code, body, _ := f.asks(c.by, http.MethodGet, "/move?a;b&c=%zz", c.headers...); code != http.StatusOK || body != c.want {
			t.Errorf("said %v: %d %s, want %s", c.headers, code, body, c.want)
		}
	}
}

// What callers say of themselves reaches the process as no trailer either, which some servers take for headers; other trailers do.
func TestTheProcessIsToldNothingByTrailers(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%q %v %v %v", r.Header[router.HeaderCaller], r.Trailer, r.Header["X_forwarded_for"], r.Header["X-Real-Ip"])
	})
	for _, role := range []principal.Role{principal.Client, principal.Proxy} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "https://"), f.tls(f.certs, role, "web"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX_Forwarded_For: 1.2.3.4\r\nX-Real-Ip: 1.2.3.4\r\nTransfer-Encoding: chunked\r\n"+
			"Trailer: Own, Nokv-Caller, nokv_caller, X-Forwarded-For, X_Real_Ip\r\n\r\n1\r\nx\r\n0\r\n"+
			"Own: own\r\nNokv-Caller: operator/o\r\nnokv_caller: operator/o\r\nX-Forwarded-For: 1.2.3.4\r\nX_Real_Ip: 1.2.3.4\r\nForwarded: for=a\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = conn.Close()
		if want := fmt.Sprintf(`["%v/web"] map[Own:[own]] [] []`, role); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}

// Who shows no certificate of the cluster is told whether the process is ready, and nothing else; and what is the
// sidecar's to ask of the process is nobody's from outside.
func TestStrangersGetToNothingOfTheProcess(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.Path, " ", r.Header[router.HeaderCaller])
	})
	foreign := proctest.NewCertificates(t, "prod")
	nobody, web := f.by(f.tls(nil, 0, "")), f.by(f.tls(f.certs, principal.Client, "web"))
	for _, c := range []struct {
		by           *http.Client
		method, path string
		code         int
		says         string
	}{
		{nobody, http.MethodGet, "/nokv/ready", http.StatusOK, "/nokv/ready [nobody]"},
		{nobody, http.MethodPost, "/nokv/ready", http.StatusNotFound, ""},
		{nobody, http.MethodGet, "/", http.StatusForbidden, "nokv cert issue"},
		{f.by(f.tls(foreign, principal.Client, "web")), http.MethodGet, "/nokv/ready", 0, "certificate"},
		{web, http.MethodGet, "/nokvs", http.StatusOK, "/nokvs [client/web]"},
		{web, http.MethodPost, "/nokv/acquire", http.StatusNotFound, ""},
		{web, http.MethodPost, "/%6eokv/acquire", http.StatusNotFound, ""},
		{web, http.MethodPost, "/x/..//nokv/./acquire", http.StatusNotFound, ""},
		{web, http.MethodGet, "/nokv", http.StatusNotFound, ""},
	} {
		if code, body, _ := f.asks(c.by, c.method, c.path); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, code, body, c.code, c.says)
		}
	}
}

// Who shows no certificate of the cluster says nothing to the process: it is asked whether it is ready, whatever else the request says.
func TestStrangersSayNothingToTheProcess(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %q %q %q", r.Method, r.RequestURI, r.Header["X-Game"], r.Header[router.HeaderEpoch], r.Header["Upgrade"])
	})
	nobody := f.by(f.tls(nil, 0, ""))
	for _, path := range []string{"/nokv/ready", "/nokv/ready?game=g1", "/nokv%2Fready", "/nokv/%72eady"} {
		code, body, _ := f.asks(nobody, http.MethodGet, path, "X-Game", "g1", router.HeaderEpoch, "1.1", "Connection", "Upgrade", "Upgrade", "websocket")
		if want := "GET /nokv/ready [] [] []"; code != http.StatusOK || body != want {
			t.Errorf("GET %s: %d %s, want %s", path, code, body, want)
		}
	}
}

// A process that does not listen has run nothing, and says so by the word of members; one that breaks off is a
// connection that breaks off.
func TestTheEndOfTheProcessIsPassedOn(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dies" {
			panic(http.ErrAbortHandler)
		}
	})
	web := f.by(f.tls(f.certs, principal.Client, "web"))
	if code, body, _ := f.asks(web, http.MethodPost, "/dies"); code != 0 || !strings.Contains(body, "EOF") {
		t.Errorf("it breaks off: %d %s", code, body)
	}
	f.process.Close()
	code, body, h := f.asks(web, http.MethodPost, "/")
	if no := router.FromHTTP(&http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(body))}); no == nil || no.Kind != router.NotOwned || no.Ran {
		t.Errorf("it does not listen: %d %v %s", code, h, body)
	}
}

// A request that the process breaks off behind its work is run once, also with a header by which package http repeats it.
func TestThePassedRequestIsRunOnce(t *testing.T) {
	var ran atomic.Int64
	f := front(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			ran.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	web := f.by(f.tls(f.certs, principal.Client, "web"))
	for i, headers := range [][]string{nil, {"X-Idempotency-Key", "1"}} {
		if code, body, _ := f.asks(web, http.MethodGet, "/"); code != http.StatusOK { // behind which there is a connection to the process
			t.Fatal(code, body)
		}
		once := f.by(f.tls(f.certs, principal.Client, "web")) // by a new connection: the caller repeats nothing either
		if code, _, _ := f.asks(once, http.MethodPost, "/", headers...); code != 0 || ran.Load() != int64(i)+1 {
			t.Errorf("%v: status %d, run %d times, want %d", headers, code, ran.Load(), i+1)
		}
	}
}

// What comes bit by bit, and what is a protocol of its own, passes as it comes.
func TestStreamsPassTheSidecar(t *testing.T) {
	f := front(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Content-Length", "100") // what has a length is not sent at once by itself
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // which is when the caller has read it, and goes
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	cfg := f.tls(f.certs, principal.Client, "web")
	resp, err := f.by(cfg).Get(f.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 1\n" {
		t.Errorf("the first line is %q, %v", line, err)
	}
	_ = resp.Body.Close()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "https://"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	switched, err := http.ReadResponse(r, nil)
	if err != nil || switched.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", switched, err)
	}
	_, _ = io.WriteString(conn, "ping")
	if got := make([]byte, 4); true {
		if _, err := io.ReadFull(r, got); string(got) != "ping" {
			t.Errorf("it says %q, %v", got, err)
		}
	}
}
