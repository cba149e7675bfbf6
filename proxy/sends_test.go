package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A member reads requests on connections that were used before, and ends them: each time that it got one is a try that is
// counted, and what may not be run twice is sent once.
func TestNobodyBelowRepeatsARequest(t *testing.T) {
	const idle = 3
	var runs atomic.Int64
	var warm sync.WaitGroup
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/warm" {
			warm.Done()
			warm.Wait() // so that each has a connection of its own
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		runs.Add(1)
		panic(http.ErrAbortHandler)
	}))
	front := serve(t, w.proxy(proxy.Config{Hold: 100 * time.Millisecond}).Lookup())
	n := 0
	for _, row := range []struct {
		method, body string
		headers      []string
		again        bool
	}{
		{method: "POST"},
		{method: "POST", body: "x"},
		{method: "POST", headers: []string{"X-Idempotency-Key", "1"}}, // which the transport takes for one
		{method: "POST", headers: []string{"Idempotency-Key", "1"}, again: true},
		{method: "GET", again: true},
		{method: "PUT", body: "x", again: true},
	} {
		warm.Add(idle)
		var all sync.WaitGroup
		for range idle {
			all.Go(func() { ask(t, "GET", front.URL+"/warm", "k", "") })
		}
		all.Wait()
		runs.Store(0)
		code, h, body := ask(t, row.method, front.URL, "k", row.body, row.headers...)
		n += idle + 1
		r := w.last(n)
		if code != 502 || h.Get(proxy.HeaderReason) != "outcome_unknown" || int64(r.Tries) != runs.Load() || row.again != (r.Tries > 1) {
			t.Errorf("%s %v: the member ran it %d times, and %d tries are counted: %d %s", row.method, row.headers, runs.Load(), r.Tries, code, body)
		}
	}
}

// However many members are asked, and however often, all answers together are waited for as long as one.
func TestOneDeadlineForAllTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		w := startInMemory(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(timeout * 9 / 10):
				panic(http.ErrAbortHandler)
			case <-r.Context().Done():
			}
		}))
		front := serveAt(t, w.lan, w.proxy(proxy.Config{Timeout: timeout, Hold: time.Minute}).Lookup())
		begun := time.Now()
		code, h, body := askBy(t, w.lan.client(t), "GET", front.URL, "k", "")
		took := time.Since(begun)
		if code != 504 || h.Get(proxy.HeaderReason) != "upstream_timeout" || took < timeout || took > timeout+timeout/10 || w.last(1).Tries != 2 {
			t.Errorf("%d %s after %v and %d tries, want 504 after %v", code, body, took, w.last(1).Tries, timeout)
		}
	})
}

// Half an answer that is not read whole, because nobody could be asked for the rest, passes as it comes, however short it is.
func TestHalfAnAnswerPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(rw, "hello")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}))
		front, by := serveAt(t, w.lan, w.proxy(proxy.Config{Timeout: time.Second}).Lookup()), w.lan.client(t)
		for method, body := range map[string]io.Reader{
			http.MethodPut:    io.MultiReader(strings.NewReader("x")), // of no known length: it is passed on as it comes
			http.MethodDelete: io.MultiReader(strings.NewReader("x")),
			http.MethodPost:   strings.NewReader("x"),
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			req, err := http.NewRequestWithContext(ctx, method, front.URL, body)
			must(t, err)
			req.Header.Set("K", "k")
			begun := time.Now()
			resp, err := by.Do(req)
			if err != nil {
				t.Errorf("%s: no head after %v: %v", method, time.Since(begun), err)
				cancel()
				continue
			}
			if err := readFull(resp.Body, "hello"); err != nil || resp.StatusCode != http.StatusOK || time.Since(begun) > 100*time.Millisecond {
				t.Errorf("%s: %s and %v after %v", method, resp.Status, err, time.Since(begun))
			}
			_ = resp.Body.Close()
			cancel()
		}
	})
}

// Nobody uses a connection that its member may be about to end.
func TestIdleConnectionsEndBeforeMembersEndThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startInMemory(t, says("first"))
		var dials atomic.Int64
		cfg := proxy.Config{Router: w.router, Key: proxy.Header("K")}
		cfg.DialBy(func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return w.lan.dial(ctx, network, addr)
		})
		p, err := proxy.New(cfg)
		must(t, err)
		defer p.Close()
		front, by := serveAt(t, w.lan, p.Lookup()), w.lan.client(t)
		for _, row := range []struct {
			pause time.Duration
			dials int64
		}{{0, 1}, {time.Second, 1}, {1900 * time.Millisecond, 2}} { // gunicorn ends them after 2 s
			time.Sleep(row.pause)
			if code, _, body := askBy(t, by, "POST", front.URL, "k", "x"); code != 200 || dials.Load() != row.dials {
				t.Errorf("after a pause of %v: %d %s, %d connections, want %d", row.pause, code, body, dials.Load(), row.dials)
			}
		}
	})
}

// dying is a connection that takes one request, and nothing of the next.
type dying struct {
	net.Conn
	used atomic.Bool
}

func (d *dying) Write(b []byte) (int, error) {
	if d.used.Swap(true) {
		return 0, syscall.EPIPE
	}
	return d.Conn.Write(b)
}

// A connection that ended while nobody used it costs nothing: not one byte of the request was written, so that
// it goes by a new one, once, whatever it is.
func TestAConnectionThatEndedIdleCostsNobody(t *testing.T) {
	var runs atomic.Int64
	w := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs.Add(1) }))
	cfg := proxy.Config{}
	cfg.DialBy(func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &dying{Conn: c}, err
	})
	p := w.proxy(cfg)
	byKey := serve(t, p.Lookup())
	byName := serve(t, p.Via(func(*http.Request) (router.Target, error) { // which asks nobody else
		return router.Target{Member: "m0", Address: w.address(0), Incarnation: 1}, nil
	}))
	for i := range 40 {
		front := byKey
		if i >= 20 {
			front = byName
		}
		method, body := []string{"POST", "GET"}[i/2%2], []string{"", "x"}[i/4%2]
		if code, _, said := ask(t, method, front.URL, "k", body); code != 200 {
			t.Errorf("request %d, %s: %d %s", i, method, code, said)
		}
		if r := w.last(i + 1); r.Tries != 1 || runs.Load() != int64(i+1) {
			t.Errorf("request %d, %s: %d tries, %d runs in all", i, method, r.Tries, runs.Load())
		}
	}
}

// A caller of gRPC is told in gRPC that it has to take another way, and its call reaches no member.
func TestGRPCIsToldToGoElsewhere(t *testing.T) {
	var asked atomic.Int64
	w := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	conn, err := grpc.NewClient("passthrough:///"+front.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	c := testgrpc.NewTestServiceClient(conn)
	for _, ctx := range []context.Context{t.Context(), metadata.AppendToOutgoingContext(t.Context(), "K", "k")} { // without a key, and with one
		_, err = c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), "grpcroute") {
			t.Errorf("a call ends with %v", err)
		}
		s, err := c.FullDuplexCall(ctx)
		must(t, err)
		if _, err = s.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("a stream ends with %v", err)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("a member was asked %d times", asked.Load())
	}
	if r := w.last(4); r.Tag != proxy.BadRequest || r.Tries != 0 {
		t.Errorf("the result is %+v", r)
	}
}

// Callers who say that a body comes, and send little of it, take little of the room for bodies that may be sent again.
func TestSlowBodiesTakeNoRoomOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 60 << 10
		var asked atomic.Int64
		w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			got, _ := io.ReadAll(r.Body)
			if asked.Add(1)%2 == 1 {
				(&router.Refusal{Kind: router.Busy}).WriteHTTP(rw)
				return
			}
			_, _ = fmt.Fprint(rw, len(got), " ", strings.Count(string(got), "x"))
		}))
		front, by := serveAt(t, w.lan, w.proxy(proxy.Config{MaxReplayTotal: 128 << 10, BodyWithin: time.Minute}).Lookup()), w.lan.client(t)
		begins := func(bytes int) {
			_, err := fmt.Fprintf(w.lan.connect(t, front), "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 65536\r\n\r\n%s", strings.Repeat("x", bytes))
			must(t, err)
			synctest.Wait()
		}
		for range 20 {
			begins(1)
		}
		if code, _, body := askBy(t, by, "POST", front.URL, "k", strings.Repeat("x", long)); code != 200 || body != fmt.Sprint(long, " ", long) || w.last(1).Tries != 2 {
			t.Errorf("a body that was refused once: %d %q behind %d tries", code, body, w.last(1).Tries)
		}
		// Where the bytes are there, there is no room: what comes then is passed on as it comes, whole.
		begins(64000)
		begins(64000)
		asked.Store(1)
		if code, _, body := askBy(t, by, "POST", front.URL, "k", strings.Repeat("x", long)); code != 200 || body != fmt.Sprint(long, " ", long) || w.last(2).Tries != 1 {
			t.Errorf("a body without room: %d %q behind %d tries", code, body, w.last(2).Tries)
		}
		asked.Store(0)
		if code, h, body := askBy(t, by, "POST", front.URL, "k", strings.Repeat("x", long)); code != 503 || h.Get(proxy.HeaderReason) != "overloaded" {
			t.Errorf("a body without room that was refused: %d %q", code, body)
		}
	})
}

// A body for which the room ended while it was read has as much time as one that is passed on from its beginning, while its
// request is held too.
func TestABodyWithoutRoomIsHeldWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := strings.Repeat("x", 8<<10)
		w := startInMemory(t, http.NotFoundHandler(), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(rw, len(got), " ", err)
		}))
		w.at(0, rootv1.MemberState_MEMBER_STATE_FAILED)
		w.heard()
		front := serveAt(t, w.lan, w.proxy(proxy.Config{MaxReplayTotal: 1 << 10, BodyWithin: 10 * time.Second, BodySilence: 30 * time.Second, Hold: time.Minute}).Lookup())
		by := &http.Client{Transport: &http.Transport{DialContext: w.lan.dial, Protocols: new(http.Protocols)}}
		by.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
		defer by.CloseIdleConnections()
		body, rest := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, body)
		must(t, err)
		req.ContentLength = int64(2 * len(half))
		req.Header.Set("K", "k")
		go func() {
			_, _ = io.WriteString(rest, half)
			time.Sleep(12 * time.Second)
			_, _ = io.WriteString(rest, half)
			_ = rest.Close()
		}()
		time.AfterFunc(15*time.Second, func() { w.move(1) })
		resp, err := by.Do(req)
		must(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		must(t, err)
		if want := fmt.Sprint(2*len(half), " ", nil); resp.StatusCode != http.StatusOK || string(got) != want {
			t.Errorf("%s %q, want %q", resp.Status, got, want)
		}
	})
}

// Headers that are too long are refused with a reason, and counted.
func TestHeadersThatAreTooLongHaveAReason(t *testing.T) {
	w := start(t, says("first"))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for i, two := range []bool{false, true} {
		by := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
		by.Transport.(*http.Transport).Protocols.SetHTTP1(!two)
		by.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(two)
		defer by.CloseIdleConnections()
		code, h, body := askBy(t, by, "GET", front.URL, "k", "", "X-Long", strings.Repeat("x", proxy.MaxHeaderBytes))
		if code != 431 || h.Get(proxy.HeaderReason) != "headers_too_large" || !strings.Contains(body, "more than 65536") {
			t.Errorf("HTTP/2 %t: %d %s", two, code, body)
		}
		if r := w.last(2*i + 1); r.Tag != proxy.BadRequest || r.Status != 431 || r.Tries != 0 {
			t.Errorf("the result is %+v", r)
		}
		if code, _, body := askBy(t, by, "GET", front.URL, "k", "", "X-Long", strings.Repeat("x", proxy.MaxHeaderBytes-1000)); code != 200 {
			t.Errorf("HTTP/2 %t: headers that fit: %d %s", two, code, body)
		}
	}
}

// What is told of a request is what went out: the bytes of a WebSocket too, none of an answer without a body, and not
// what a caller did not take.
func TestResultsCountWhatWentOut(t *testing.T) {
	end := make(chan struct{})
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/socket":
			webSocket(end).ServeHTTP(rw, r)
		case "/gone":
			for r.Context().Err() == nil {
				_, _ = rw.Write(make([]byte, 1<<20))
			}
		default:
			rw.Header().Set("Content-Length", "1000")
			rw.WriteHeader(404)
			_, _ = rw.Write(make([]byte, 1000))
		}
	}))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	ask(t, "GET", front.URL, "k", "")
	if r := w.last(1); r.Bytes != 1000 || r.Status != 404 || r.Tag != proxy.Hit {
		t.Errorf("GET: %+v", r)
	}
	for i, key := range []string{"k", "zz"} { // the member's answer, and the proxy's
		ask(t, "HEAD", front.URL, key, "")
		if r := w.last(2 + i); r.Bytes != 0 || r.Status != 404 {
			t.Errorf("HEAD of %s: %d bytes with status %d", key, r.Bytes, r.Status)
		}
	}
	c, err := net.Dial("tcp", front.Listener.Addr().String())
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET /socket HTTP/1.1\r\nHost: h\r\nK: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	must(t, err)
	b := bufio.NewReader(c)
	_, err = http.ReadResponse(b, nil)
	must(t, err)
	close(end)
	got, _ := io.ReadAll(b)
	if r := w.last(4); r.Status != 101 || r.Bytes != int64(len(got)) || len(got) < 4 {
		t.Errorf("a WebSocket: %d bytes came, and %d are told, with status %d", len(got), r.Bytes, r.Status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", front.URL+"/gone", nil)
	must(t, err)
	req.Header.Set("K", "k")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	must(t, readFull(resp.Body, "\x00"))
	cancel()
	resp.Body.Close()
	if r := w.last(5); r.Tag != proxy.Canceled || r.Err == nil {
		t.Errorf("a caller that went away: %+v", r)
	}
}

// Members may read a key in every spelling of its header, and in trailers: a request whose key they could read in another
// way than this proxy reaches nobody.
func TestAKeyIsTheSameForAll(t *testing.T) {
	var asked atomic.Int64
	w := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	front := serve(t, w.proxy(proxy.Config{Key: proxy.Header("X-Game")}).Lookup())
	const chunked = "Transfer-Encoding: chunked\r\nTrailer: "
	for lines, want := range map[string]string{
		"X_Game: b\r\n\r\n": "400",
		"x.game: b\r\n\r\n": "400",
		"X-Game: b\r\n\r\n": "400",
		chunked + "X-Game\r\n\r\n1\r\nx\r\n0\r\nX-Game: b\r\n\r\n": "400",
		chunked + "X_Game\r\n\r\n1\r\nx\r\n0\r\nX_Game: b\r\n\r\n": "400",
		chunked + "Sum\r\n\r\n1\r\nx\r\n0\r\nSum: b\r\n\r\n":       "200",
		"X-Games: b\r\nX_Gam: b\r\n\r\n":                           "200",
	} {
		asked.Store(0)
		got := rawly(t, front.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: h\r\nX-Game: k\r\nConnection: close\r\n"+lines, false)
		if !strings.HasPrefix(got, "HTTP/1.1 "+want) || asked.Load() == 1 != (want == "200") {
			t.Errorf("%q: %.300q, and the member was asked %d times", lines, got, asked.Load())
		}
	}
}
