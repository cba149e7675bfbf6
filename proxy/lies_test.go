package proxy_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
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
		how           string // the request came to the member
		want          string
	}{
		{"stopped, may be repeated", "GET", true, true, nil, "", "200 second"},
		{"stopped, may have been run", "POST", true, true, nil, "", "502 outcome_unknown"},
		{"slow, in a planned move", "POST", false, true, nil, "", "200 first"},
		{"slow, and nobody else has its key", "GET", true, false, nil, "", "200 first"},
		{"slow, of one that drained and ends", "POST", true, true, []string{rooted.DrainedSignal}, "", "200 first"},
		{"stopped, by a pin", "GET", true, false, nil, "pin", "502 outcome_unknown"},
		{"slow, by a pin", "GET", false, true, nil, "pin", "200 first"},
		{"slow, by a pin, of one that drained and ends", "GET", true, true, []string{rooted.DrainedSignal}, "pin", "200 first"},
		{"stopped, named by another member", "GET", true, true, nil, "named", "200 second"},
		{"slow, named by another member", "POST", false, false, nil, "named", "200 first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, goes := make(chan struct{}), make(chan struct{})
				w := startInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(asked)
					select {
					case <-goes:
					case <-r.Context().Done():
					}
					_, _ = io.WriteString(w, "first")
				}), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "second") }), http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
					(&router.Refusal{Kind: router.Moved, Member: "m0", Epoch: rooted.Epoch{Version: 1, ConfVersion: 9}}).WriteHTTP(rw)
				}))
				p := w.proxy(proxy.Config{Timeout: time.Hour})
				handler := p.Lookup()
				switch c.how {
				case "pin":
					handler = p.Via(func(*http.Request) (router.Target, error) {
						return router.Target{Member: "m0", Address: w.address(0), Incarnation: 1}, nil
					})
				case "named":
					w.move(2)
					w.heard()
					w.revision = 9
				}
				front, by := serveAt(t, w.lan, handler), w.lan.client(t)
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

// An answer that has begun ends when its member is said to have failed, another one has the key, and it has said nothing for a
// while since. One that goes on is nobody's to end, and neither is one of a planned move. Of a member that drained and left more
// silence is borne.
func TestAnAnswerThatHasBegunEndsWithItsOwner(t *testing.T) {
	for _, c := range []struct {
		name          string
		failed, moved bool
		signals       []string
		talks         time.Duration // every; 0: it says nothing more
		ends          time.Duration // within; 0: not at all
	}{
		{"stopped", true, true, nil, 0, 4 * failedWithin},
		{"failed, and it goes on", true, true, nil, failedWithin / 4, 0},
		{"failed, and nobody else has the key", true, false, nil, 0, 0},
		{"a planned move", false, true, nil, 0, 0},
		{"drained and left", true, true, []string{rooted.DrainedSignal}, 0, 2 * time.Minute},
		{"drained and left, and it goes on", true, true, []string{rooted.DrainedSignal}, 10 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ends := make(chan struct{})
				defer close(ends)
				w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					for control := http.NewResponseController(rw); ; {
						_, _ = io.WriteString(rw, "data: x\n\n")
						_ = control.Flush()
						var talk <-chan time.Time
						if c.talks > 0 {
							talk = time.After(c.talks)
						}
						select {
						case <-talk:
						case <-r.Context().Done():
							return
						case <-ends:
							return
						}
					}
				}), says("second"))
				front := serveAt(t, w.lan, w.proxy(proxy.Config{}).Lookup())
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
				must(t, err)
				req.Header.Set("K", "k")
				resp, err := w.lan.client(t).Do(req)
				must(t, err)
				defer resp.Body.Close()
				must(t, readFull(resp.Body, "data: x\n\n"))
				over := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, resp.Body)
					over <- err
				}()
				if c.failed {
					m := w.member(0, failed)
					m.Member.Signals = c.signals
					w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{m}})
				}
				if c.moved {
					w.move(1)
				}
				w.heard()
				begun := time.Now()
				select {
				case err := <-over:
					if took := time.Since(begun); err == nil || c.ends == 0 || took > c.ends {
						t.Errorf("the answer ends after %v with %v, want %v", took, err, c.ends)
					}
					if r := w.last(1); r.Tag != proxy.UpstreamError || r.Err == nil {
						t.Errorf("the result is %+v", r)
					}
				case <-time.After(max(100*failedWithin, 30*c.talks, 2*c.ends)):
					if c.ends != 0 {
						t.Errorf("the answer goes on, want its end within %v", c.ends)
					}
				}
			})
		})
	}
}

// A caller that takes its answer slowly has all of it, though its member is gone meanwhile: that owes nothing while nobody reads.
func TestTheAnswerOfASlowCallerIsWhole(t *testing.T) {
	const size = 1 << 20
	for name, signals := range map[string][]string{"failed": nil, "drained and left": {rooted.DrainedSignal}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
					// The proxy flushes at the head, by a timer that waits for a mutex while something is written; behind
					// that, where no length is said, as it writes.
					_, _ = rw.Write(make([]byte, 1))
					_ = http.NewResponseController(rw).Flush()
					time.Sleep(time.Second)
					_, _ = rw.Write(make([]byte, size-1))
				}), says("second"))
				front := serveAt(t, w.lan, w.proxy(proxy.Config{}).Lookup())
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
				must(t, err)
				req.Header.Set("K", "k")
				resp, err := w.lan.client(t).Do(req)
				must(t, err)
				defer resp.Body.Close()
				time.Sleep(2 * time.Second) // the proxy waits for its caller by then
				m := w.member(0, failed)
				m.Member.Signals = signals
				w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{m}})
				w.move(1)
				w.heard()
				time.Sleep(2 * time.Minute)
				if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
					t.Errorf("%d of %d bytes come: %v", n, size, err)
				}
			})
		})
	}
}

// A member names another one, and nobody says where that is but the root: a request, with all that its caller shows, goes
// to no address that a member made up.
func TestNobodyAimsTheProxy(t *testing.T) {
	aimed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer aimed.Close()
	reached := make(chan struct{}, 100)
	go func() {
		for {
			c, err := aimed.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			reached <- struct{}{}
		}
	}()
	for _, c := range []struct{ member, want string }{{"m1", "200 second"}, {"m9", "503 epoch_stale"}, {"", "503 epoch_stale"}} {
		w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			(&router.Refusal{Kind: router.Moved, Member: rooted.MemberID(c.member), Address: aimed.Addr().String(), Epoch: rooted.Epoch{Version: 1, ConfVersion: 9}}).WriteHTTP(rw)
		}), http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "second") }))
		front := serve(t, w.proxy(proxy.Config{Hold: 200 * time.Millisecond}).Lookup())
		code, h, body := ask(t, "GET", front.URL, "k", "", "Cookie", "secret=1")
		if got := fmt.Sprint(code, " ", cmp.Or(h.Get(proxy.HeaderReason), body)); got != c.want {
			t.Errorf("member %q: %s, want %s", c.member, got, c.want)
		}
	}
	if len(reached) > 0 {
		t.Error("a request went where a member said, and the root does not")
	}
}
