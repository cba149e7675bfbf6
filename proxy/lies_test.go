package proxy_test

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// rawly sends bytes to a server and returns all that it says, until it ends the connection.
func rawly(t *testing.T, addr, said string, closeWrite bool) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	return rawlyBy(t, c, said, closeWrite)
}

func rawlyBy(t *testing.T, c net.Conn, said string, closeWrite bool) string {
	t.Helper()
	got, _ := untilItEnds(t, c, said, closeWrite)
	return got
}

// untilItEnds is what came behind what was said, and why no more: nil when the other side ended it.
func untilItEnds(t *testing.T, c net.Conn, said string, closeWrite bool) (string, error) {
	t.Helper()
	_, err := io.WriteString(c, said)
	must(t, err)
	if closeWrite {
		must(t, c.(*net.TCPConn).CloseWrite())
	}
	must(t, c.SetReadDeadline(time.Now().Add(proctest.Patience)))
	got, err := io.ReadAll(c)
	return string(got), err
}

// A caller who says nothing more is not told that it went well: its request was given up.
func TestP81AnAbandonedRequestIsNotASuccess(t *testing.T) {
	waits := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	w := start(t, waits)
	for name, h := range map[string]http.Handler{
		"a member was asked": w.proxy(proxy.Config{}).Lookup(),
		"nobody was": w.proxy(proxy.Config{}).Via(func(r *http.Request) (router.Target, error) {
			<-r.Context().Done()
			return router.Target{}, r.Context().Err()
		}),
	} {
		t.Run(name, func(t *testing.T) {
			front := serve(t, h)
			for _, head := range []string{"GET / HTTP/1.1\r\nHost: h\r\nK: k\r\n\r\n", "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 0\r\n\r\n"} {
				if got := rawly(t, front.Listener.Addr().String(), head, true); got != "" {
					t.Errorf("%.4s: a caller who closed its half is told %q", head, got)
				}
			}
		})
	}
	if r := w.last(4); r.Tag != proxy.Canceled || r.Status != 0 {
		t.Errorf("the result is %q with status %d", r.Tag, r.Status)
	}
}

// What is no answer of HTTP is told as that, and never as a success.
func TestP81OddStatusesOfMembersAreErrors(t *testing.T) {
	var asked atomic.Int64
	odd := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		c, _, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		_, _ = fmt.Fprintf(c, "HTTP/1.1 %s X\r\nUpgrade: odd\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n", strings.TrimPrefix(r.URL.Path, "/"))
	})
	w := start(t, odd)
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for _, status := range []string{"000", "099", "101"} {
		for _, method := range []string{"GET", "POST"} {
			asked.Store(0)
			request := fmt.Sprintf("%s /%s HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", method, status)
			got := rawly(t, front.Listener.Addr().String(), request, false)
			if !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, "Nokv-Reason: upstream_error\r\n") || asked.Load() != 1 {
				t.Errorf("%s, status %s: the caller is told %q, and the member was asked %d times", method, status, got, asked.Load())
			}
		}
	}
	if r := w.last(6); r.Tag != proxy.UpstreamError || r.Status != http.StatusBadGateway {
		t.Errorf("the result is %q with status %d", r.Tag, r.Status)
	}
}

// A body that is no HTTP is the fault of who sent it.
func TestP81BrokenBodiesAreTheCallers(t *testing.T) {
	reads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	front := serve(t, start(t, reads).proxy(proxy.Config{}).Lookup())
	for _, chunks := range []string{"zz\r\n", "2\r\nhix\r\n0\r\n\r\n", "2;" + strings.Repeat("x", 1<<14) + "\r\nhi\r\n0\r\n\r\n"} {
		got := rawly(t, front.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"+chunks, false)
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "Nokv-Reason: invalid_request\r\n") {
			t.Errorf("%.20q: the caller is told %.400q", chunks, got)
		}
	}
}

// What a caller keeps from the member does not make a request idempotent.
func TestP76AnIdempotencyKeyThatIsNotPassedOnCountsForNothing(t *testing.T) {
	var asked atomic.Int64
	dies := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	})
	front := serve(t, start(t, dies).proxy(proxy.Config{}).Lookup())
	got := rawly(t, front.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nIdempotency-Key: a\r\nContent-Length: 0\r\nConnection: close, Idempotency-Key\r\n\r\n", false)
	if !strings.Contains(got, "outcome_unknown") || asked.Load() != 1 {
		t.Errorf("it was run %d times, and the caller is told %q", asked.Load(), got)
	}
}

// The head of a refusal says all; what comes behind it, or not, holds nobody up. The reason
// is the proxy's word, and no member's.
func TestP76ARefusalIsKnownByItsHead(t *testing.T) { synctest.Test(t, knownByItsHead) }

func knownByItsHead(t *testing.T) {
	var asked atomic.Int64
	drips := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			w.Header().Set(proxy.HeaderReason, "not_found")
			return
		}
		c, _, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 421 X\r\nNokv-Refused: not_owned\r\nContent-Length: 100\r\n\r\nx")
		_, _ = bufio.NewReader(c).ReadByte() // until the proxy ends it
	})
	w := startInMemory(t, drips)
	front := serveAt(t, w.lan, w.proxy(proxy.Config{Timeout: time.Hour}).Lookup())
	got := rawlyBy(t, w.lan.connect(t, front), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", false)
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || strings.Contains(got, proxy.HeaderReason) || asked.Load() != 2 {
		t.Errorf("%q behind %d tries, want the answer of the second without a reason", got, asked.Load())
	}
}

// An application that answers 421 has run the request: its answer passes, and the request is not run again.
func TestA421OfTheApplicationPasses(t *testing.T) {
	var asked atomic.Int64
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		rw.Header()[router.HeaderRefused] = r.Header["Words"]
		rw.WriteHeader(http.StatusMisdirectedRequest)
		_, _ = io.WriteString(rw, "no such host")
	}))
	front := serve(t, w.proxy(proxy.Config{Hold: 100 * time.Millisecond}).Lookup())
	for i, words := range []string{"", "Words: not_owned\r\nWords: not_owned\r\n"} {
		asked.Store(0)
		got := rawly(t, front.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\n"+words+"Content-Length: 0\r\nConnection: close\r\n\r\n", false)
		if !strings.HasPrefix(got, "HTTP/1.1 421 ") || !strings.HasSuffix(got, "no such host") || strings.Contains(got, router.HeaderRefused) || asked.Load() != 1 {
			t.Errorf("it was run %d times, and the caller is told %q", asked.Load(), got)
		}
		if r := w.last(i + 1); r.Tag != proxy.Hit || r.Status != http.StatusMisdirectedRequest || r.Tries != 1 {
			t.Errorf("the result is %q with status %d behind %d tries", r.Tag, r.Status, r.Tries)
		}
	}
}

// A member that ends within the head of its answer has answered nothing, wherever it ends: that
// is told as a lost answer, and what is idempotent is asked again. A line that is whole, and
// wrong, is garbage.
func TestP76HalfAHeadIsNoAnswer(t *testing.T) {
	var asked atomic.Int64
	var said atomic.Pointer[string]
	ends := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			_, _ = io.WriteString(rw, "whole")
			return
		}
		c, _, _ := rw.(http.Hijacker).Hijack()
		defer c.Close()
		_, _ = io.WriteString(c, *said.Load())
	})
	front := serve(t, start(t, ends).proxy(proxy.Config{}).Lookup())
	for _, row := range []struct {
		head  string
		again bool
	}{
		{"H", true},
		{"HTTP/1.1 20", true},
		{"HTTP/1.1 200 OK\r", true},
		{"HTTP/1.1 200 OK\r\n", true},
		{"HTTP/1.1 200 OK\r\nContent-Le", true},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5", true},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", true},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", true},
		{"no HTTP\r\n", false},
		{"HTTP/1.1 200 OK\r\nno header\r\n\r\n", false},
	} {
		said.Store(&row.head)
		for _, c := range []struct{ method, want string }{{"POST", "502 outcome_unknown"}, {"GET", "200 "}} {
			asked.Store(0)
			want, tries := c.want, int64(1)
			if !row.again {
				want = "502 upstream_error"
			} else if c.method == "GET" {
				tries = 2
			}
			code, h, body := ask(t, c.method, front.URL, "k", "")
			if got := fmt.Sprint(code, " ", h.Get(proxy.HeaderReason)); got != want || asked.Load() != tries {
				t.Errorf("%s, the member says %q: %s %s behind %d tries, want %s behind %d", c.method, row.head, got, body, asked.Load(), want, tries)
			}
		}
	}
}

// A member that is stopped keeps its connections: what waits there goes to the next owner when it is
// said to have failed, if that does no harm, and is told that it may have been run if not. What only
// takes its time is waited for, also when its key goes elsewhere meanwhile.
func TestP84P85AStoppedMemberIsNotWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name, method  string
		failed, moved bool
		signals       []string
		want          string
	}{
		{"stopped, may be repeated", "GET", true, true, nil, "200 second"},
		{"stopped, may have been run", "POST", true, true, nil, "502 outcome_unknown"},
		{"slow, in a planned move", "POST", false, true, nil, "200 first"},
		{"slow, and nobody else has its key", "GET", true, false, nil, "200 first"},
		{"slow, of one that drained and ends", "POST", true, true, []string{rooted.DrainedSignal}, "200 first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const failedWithin = 20 * time.Millisecond
				asked, goes := make(chan struct{}), make(chan struct{})
				w := startInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(asked)
					select {
					case <-goes:
					case <-r.Context().Done():
					}
					_, _ = io.WriteString(w, "first")
				}), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "second") }))
				front, by := serveAt(t, w.lan, w.proxy(proxy.Config{Timeout: time.Hour, FailedWithin: failedWithin}).Lookup()), w.lan.client(t)
				answer := make(chan string, 1)
				go func() {
					code, h, body := askBy(t, by, c.method, front.URL, "k", "")
					answer <- fmt.Sprint(code, " ", cmp.Or(h.Get(proxy.HeaderReason), body))
				}()
				<-asked
				if c.failed {
					m := w.member(0, failed)
					m.Member.Signals = c.signals
					w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{m}})
				}
				if c.moved {
					w.move(1)
				}
				w.heard()
				if strings.HasSuffix(c.want, "first") {
					time.Sleep(10 * failedWithin) // it is given up by then, if it is
					close(goes)
				}
				if got := <-answer; got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			})
		})
	}
}

// Nothing looks any more whether a member has failed when its answer has begun, which may go on for days.
func TestP84AnAnswerThatHasBegunIsNotLookedAfter(t *testing.T) {
	goes, ends := make(chan struct{}), make(chan struct{})
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		<-goes
		_ = http.NewResponseController(rw).Flush()
		<-ends
	}))
	defer close(ends)
	front := serve(t, w.proxy(proxy.Config{FailedWithin: time.Millisecond}).Lookup())
	looks := func() bool {
		buf := make([]byte, 1<<20)
		return bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("proxy.(*Proxy).unlessFailed"))
	}
	await := func(want bool, what string) {
		for end := time.Now().Add(proctest.Patience); looks() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: looked after: %t", what, !want)
			}
		}
	}
	begun := make(chan *http.Response, 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
	must(t, err)
	req.Header.Set("K", "k")
	go func() {
		resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed below
		if err != nil {
			t.Error(err)
		}
		begun <- resp
	}()
	await(true, "a request that waits")
	close(goes)
	resp := <-begun
	if resp == nil {
		return
	}
	defer resp.Body.Close()
	await(false, "an answer that has begun")
}
