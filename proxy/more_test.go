package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/router"
)

func refused(why rootv1.Reason) error {
	return &client.Error{Op: "Test", Reason: why, Cause: fmt.Errorf("it is %s", why)}
}

func TestP80KeysOfRequests(t *testing.T) {
	for _, c := range []struct{ pattern, path, want string }{
		{"/tables/{key}", "/tables/a", "a"},
		{"/tables/{key}", "/tables/a%2Fb", "a/b"},
		{"/tables/{key}", "/tables/a/b", "!"},
		{"/tables/{key}", "/tables", "!"},
		{"/tables/{key}/...", "/tables/a/b/c", "a"},
		{"/{key...}", "/a/b/c", "a/b/c"},
		{"/*/{key}", "/x/y", "y"},
		{"/tables/{key}/...", "/tables/a/../b", "!"},
		{"/tables/{key}/...", "/tables/a/%2e%2e/b", "!"},
		{"/tables/{key}/...", "/tables/a%2f..%2fb/b", "!"},
		{"/other/{key}", "/tables/a", "!"},
	} {
		of, err := proxy.Path(c.pattern)
		must(t, err)
		r := httptest.NewRequest("GET", c.path, nil)
		key, err := of(r)
		if err != nil {
			key = []byte("!")
		}
		if string(key) != c.want {
			t.Errorf("%s of %s: %q %v, want %q", c.pattern, c.path, key, err, c.want)
		}
	}
	for _, pattern := range []string{"", "tables/{key}", "/tables", "/{key}/{key}", "/{key...}/x", "/.../{key}", "/{table}"} {
		if _, err := proxy.Path(pattern); err == nil {
			t.Errorf("pattern %q is taken", pattern)
		}
	}
	for query, want := range map[string]string{"q=a%26b": "a&b", "q=1&q=2": "!", "": "!", "q=%zz": "!"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.RawQuery = query
		key, err := proxy.Query("q")(r)
		if err != nil {
			key = []byte("!")
		}
		if string(key) != want {
			t.Errorf("query %q: %q %v, want %q", query, key, err, want)
		}
	}
}

// webSocket greets, and ends when it is told to.
func webSocket(end chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x02hi")
		if end != nil {
			<-end
			return
		}
		_, _ = io.Copy(io.Discard, c)
	})
}

// upgraded is a WebSocket through a proxy, asked for with these lines too.
func upgraded(t *testing.T, c net.Conn, lines ...string) *bufio.Reader {
	t.Helper()
	_, err := io.WriteString(c, strings.Join(append([]string{"GET / HTTP/1.1\r\nHost: h\r\nK: k\r\nConnection: Upgrade\r\nUpgrade: websocket"}, lines...), "\r\n")+"\r\n\r\n")
	must(t, err)
	b := bufio.NewReader(c)
	resp, err := http.ReadResponse(b, nil)
	must(t, err)
	if resp.StatusCode != 101 {
		t.Fatalf("got %s, want 101", resp.Status)
	}
	frame := make([]byte, 4)
	_, err = io.ReadFull(b, frame)
	must(t, err)
	if string(frame) != "\x81\x02hi" {
		t.Fatalf("got %q, want hi", frame)
	}
	return b
}

func TestP84WebSocketsAreClosedWithACode(t *testing.T) { synctest.Test(t, closedWithACode) }

func closedWithACode(t *testing.T) {
	end := make(chan struct{})
	w := startInMemory(t, webSocket(nil), webSocket(end))
	p := w.proxy(proxy.Config{})
	front := serveAt(t, w.lan, p.Lookup())
	closed := func(b *bufio.Reader, code string) {
		t.Helper()
		rest, _ := io.ReadAll(b)
		if len(rest) < 4 || rest[0] != 0x88 || string(rest[2:4]) != code || int(rest[1]) != len(rest)-2 {
			t.Errorf("the end is %q, want a close frame with code %q", rest, code)
		}
	}
	c := upgraded(t, w.lan.connect(t, front))
	w.move(1)
	closed(c, "\x03\xf4")
	c = upgraded(t, w.lan.connect(t, front))
	close(end) // the member goes
	closed(c, "\x03\xf4")
	w.move(0)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the router hears of it by itself
		if to, err := w.router.Resolve(t.Context(), []byte("k"), router.Options{}); err == nil && to.Member == "m0" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the router is not told")
		}
	}
	c = upgraded(t, w.lan.connect(t, front))
	go p.Close()
	closed(c, "\x03\xe9")
}

// BenchmarkProxy is a request through the proxy and through the one of the standard
// library, in turn in one run.
func BenchmarkProxy(b *testing.B) {
	w := start(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a short answer") }))
	to, _ := url.Parse(w.members[0].URL)
	bare := httputil.NewSingleHostReverseProxy(to)
	bare.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	p, err := proxy.New(proxy.Config{Router: w.router, Key: proxy.Header("K")})
	must(b, err)
	defer p.Close()
	for name, h := range map[string]http.Handler{"bare": bare, "nokv": p.Lookup()} {
		front := serve(b, h)
		b.Run(name, func(b *testing.B) {
			c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, _ := http.NewRequest("GET", front.URL+"/x", strings.NewReader(""))
					req.Header.Set("K", "k")
					resp, err := c.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		})
	}
}

// BenchmarkUpgrade is a WebSocket made through the proxy, of which 300 stay; what it allocates is, for the most part,
// what a connection holds at its two ends and in the proxy.
func BenchmarkUpgrade(b *testing.B) {
	w := start(b, webSocket(nil))
	front := serve(b, w.proxy(proxy.Config{}).Lookup())
	open := make(chan net.Conn, 300)
	b.ReportAllocs()
	for b.Loop() {
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		must(b, err)
		_, err = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\nK: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		must(b, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(b, err)
		if resp.StatusCode != http.StatusSwitchingProtocols {
			b.Fatal(resp.Status)
		}
		open <- c
		if len(open) == cap(open) {
			_ = (<-open).Close()
		}
	}
	close(open)
	for c := range open {
		_ = c.Close()
	}
}

// The owner that the route names has not heard of its grant yet: it is asked again, though
// the route stays as it is.
func TestP84AnOwnerThatIsBehindItsRouteIsAskedAgain(t *testing.T) {
	var asked atomic.Int64
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 4 {
			(&router.Refusal{Kind: router.NotOwned}).WriteHTTP(rw)
			return
		}
		_, _ = io.WriteString(rw, "late")
	}))
	front := serve(t, w.proxy(proxy.Config{Hold: time.Minute}).Lookup())
	if code, _, body := ask(t, "POST", front.URL, "k", "x"); code != 200 || body != "late" || asked.Load() != 4 {
		t.Errorf("%d %q behind %d requests", code, body, asked.Load())
	}
}

// With certificates, members are asked by https, and only who is a member of the cluster gets
// a request: another process at its address hears nothing of it.
func TestP11MembersAreAskedWithCertificates(t *testing.T) {
	ours, theirs := authority(t, "prod"), authority(t, "prod")
	for name, c := range map[string]struct {
		at   *mtls.Source
		code int
	}{
		"a member":        {certs(t, ours, principal.Member, "m0"), 200},
		"another member":  {certs(t, ours, principal.Member, "m1"), 503},
		"a client":        {certs(t, ours, principal.Client, "m0"), 503},
		"of another root": {certs(t, theirs, principal.Member, "m0"), 503},
		"in plain text":   {nil, 503},
	} {
		t.Run(name, func(t *testing.T) {
			var heard atomic.Int64
			w := startWith(t, func(int) *mtls.Source { return c.at }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				heard.Add(1)
				if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].URIs[0].String() != "nokv://prod/proxy/proxy" {
					t.Errorf("the proxy does not say who it is: %+v", r.TLS)
				}
				says("first").ServeHTTP(w, r)
			}))
			front := serve(t, w.proxy(proxy.Config{TLS: certs(t, ours, principal.Proxy, "proxy"), Hold: 50 * time.Millisecond}).Lookup())
			code, h, body := ask(t, "POST", front.URL, "k", "x")
			if code != c.code || heard.Load() > 0 != (code == 200) {
				t.Errorf("%d %v %s, heard %d, want %d", code, h, body, heard.Load(), c.code)
			}
		})
	}
}

// What waits for a connection to a member that is stopped was not sent: it goes to the next owner, whatever it is.
func TestP84P85AConnectionToAStoppedMemberIsNotWaitedFor(t *testing.T) {
	ours := authority(t, "prod")
	w := startWith(t, own(t, ours), says("first"), says("second"))
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer stopped.Close()
	first := w.member(0, active)
	first.Member.Address = stopped.Addr().String()
	w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{first}})
	w.heard()
	front := serve(t, w.proxy(proxy.Config{TLS: certs(t, ours, principal.Proxy, "proxy"), Dial: time.Hour, Timeout: time.Hour}).Lookup())
	answer := make(chan string, 1)
	go func() {
		code, _, body := ask(t, "POST", front.URL, "k", "x")
		answer <- fmt.Sprint(code, " ", body)
	}()
	c, err := stopped.Accept() // nobody shakes hands
	must(t, err)
	defer c.Close()
	first.Member.State = failed
	w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{first}})
	w.move(1)
	if got := <-answer; !strings.HasPrefix(got, "200 second POST") {
		t.Errorf("got %s", got)
	}
}

// Where one member was, another one registers: what is asked of it does not go to the one before, which still
// runs there, by a connection that was kept.
func TestAKeptConnectionIsOfTheMemberThatIsMeant(t *testing.T) {
	ours := authority(t, "prod")
	var heard atomic.Int64
	w := startWith(t, own(t, ours), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard.Add(1)
		says("first").ServeHTTP(w, r)
	}))
	front := serve(t, w.proxy(proxy.Config{TLS: certs(t, ours, principal.Proxy, "proxy"), Hold: 50 * time.Millisecond}).Lookup())
	if code, _, body := ask(t, "POST", front.URL, "k", "x"); code != 200 {
		t.Fatalf("the first member: %d %s", code, body)
	}
	next := w.member(0, active)
	next.Member.Id = "m1"
	w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{next}})
	w.move(1)
	w.heard()
	if code, _, body := ask(t, "POST", front.URL, "k", "x"); code != 503 || heard.Load() != 1 {
		t.Errorf("the next member: %d %s, and the first one was asked %d times", code, body, heard.Load())
	}
}

// own gives each member a certificate of its own name.
func own(t *testing.T, a *ca.Authority) func(int) *mtls.Source {
	made := map[int]*mtls.Source{}
	return func(i int) *mtls.Source {
		if made[i] == nil {
			made[i] = certs(t, a, principal.Member, name(i))
		}
		return made[i]
	}
}

func authority(t *testing.T, cluster string) *ca.Authority {
	a, err := ca.New(cluster, time.Now(), time.Hour)
	must(t, err)
	return a
}

func certs(t *testing.T, a *ca.Authority, role principal.Role, name string) *mtls.Source {
	pair, err := a.Issue(ca.Request{Role: role, Name: name}, time.Now())
	must(t, err)
	dir := t.TempDir()
	must(t, pair.Save(dir))
	s, err := mtls.Open(dir, mtls.Options{})
	must(t, err)
	return s
}

// A request that may not be run twice is not, by nobody: the transport of the standard
// library has a word of its own for what may, and repeats that by itself on a connection
// that was used before.
func TestP76WhatIsNotIdempotentIsSentOnce(t *testing.T) {
	for _, row := range []struct{ name, header, value, body string }{
		{"another name", "X-Idempotency-Key", "1", ""},
		{"another name, with a body", "X-Idempotency-Key", "1", "x"},
		{"an empty key", "Idempotency-Key", "", ""},
		{"an empty key, with a body", "Idempotency-Key", "", "x"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var asked atomic.Int64
			var seen atomic.Pointer[[]string]
			w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Header.Get("Warm") != "" {
					return
				}
				values := r.Header.Values(row.header)
				seen.Store(&values)
				asked.Add(1)
				c, _, err := rw.(http.Hijacker).Hijack()
				must(t, err)
				_ = c.Close()
			}))
			front := serve(t, w.proxy(proxy.Config{}).Lookup())
			for _, warm := range []string{"1", ""} {
				req, err := http.NewRequest("POST", front.URL, strings.NewReader(row.body))
				must(t, err)
				req.Header.Set("K", "k")
				if req.Header.Set(row.header, row.value); warm != "" {
					req.Header.Set("Warm", warm)
				}
				resp, err := http.DefaultClient.Do(req)
				must(t, err)
				_ = resp.Body.Close()
				if want := map[bool]int{true: 200, false: 502}[warm != ""]; resp.StatusCode != want {
					t.Errorf("warm %q: %d, want %d", warm, resp.StatusCode, want)
				}
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("the member ran it %d times", n)
			}
			if got := seen.Load(); got == nil || len(*got) != 1 || (*got)[0] != row.value {
				t.Errorf("the member saw %s as %v", row.header, got)
			}
		})
	}
}

// A WebSocket of a pin has no key that could move. It ends with the member, also where that is stopped and keeps its
// connections.
func TestAPinnedWebSocketEndsWithItsMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, webSocket(nil), says("second"))
		p := w.proxy(proxy.Config{})
		front := serveAt(t, w.lan, p.Via(func(*http.Request) (router.Target, error) {
			return router.Target{Member: "m0", Address: w.address(0), Incarnation: 1}, nil
		}))
		b := upgraded(t, w.lan.connect(t, front))
		w.move(1)
		time.Sleep(time.Minute)
		if n := p.Upgraded(); n != 1 {
			t.Errorf("%d are open behind a move of the region", n)
		}
		begun := time.Now()
		w.at(0, failed)
		rest, _ := io.ReadAll(b)
		if len(rest) < 4 || rest[0] != 0x88 || string(rest[2:4]) != "\x03\xf4" || time.Since(begun) > 10*time.Second {
			t.Errorf("after %v the end is %q, want a close frame with code 1012", time.Since(begun), rest)
		}
	})
}
