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
	"time"

	"github.com/nokv/nokv/coordinator/client"
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

// upgraded is a WebSocket through a proxy.
func upgraded(t *testing.T, at string) *bufio.Reader {
	t.Helper()
	c, err := net.Dial("tcp", at)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nK: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
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

func TestP84WebSocketsAreClosedWithACode(t *testing.T) {
	end := make(chan struct{})
	w := start(t, webSocket(nil), webSocket(end))
	p := w.proxy(proxy.Config{})
	front := serve(t, p.Lookup())
	closed := func(b *bufio.Reader, code string) {
		t.Helper()
		rest, _ := io.ReadAll(b)
		if len(rest) < 4 || rest[0] != 0x88 || string(rest[2:4]) != code || int(rest[1]) != len(rest)-2 {
			t.Errorf("the end is %q, want a close frame with code %q", rest, code)
		}
	}
	c := upgraded(t, front.Listener.Addr().String())
	w.move(1)
	closed(c, "\x03\xf4")
	c = upgraded(t, front.Listener.Addr().String())
	close(end) // the member goes
	closed(c, "\x03\xf4")
	w.move(0)
	for range 3 {
		if p.Upgraded() == 0 {
			break
		}
	}
	c = upgraded(t, front.Listener.Addr().String())
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
