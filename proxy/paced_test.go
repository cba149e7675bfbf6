package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/proxy"
)

// A caller who begins a body and says no more of it is told so, and holds neither a connection
// here nor one to the member.
func TestP81ABodyThatStopsEndsItsConnection(t *testing.T) { synctest.Test(t, bodiesThatStop) }

func bodiesThatStop(t *testing.T) {
	begun := make(chan struct{}, 8)
	w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			c, _, _ := rw.(http.Hijacker).Hijack()
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")
			_, _ = io.Copy(io.Discard, c) // until the proxy ends it
			return
		}
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	front := serveAt(t, w.lan, w.proxy(proxy.Config{BodySilence: 30 * time.Second, BodyWithin: 10 * time.Second, MaxReplay: 10}).Lookup())
	for _, row := range []struct {
		name, path, body, want string
		behind                 time.Duration
	}{
		{"of a length", "/", "Content-Length: 100\r\n\r\nx", "HTTP/1.1 408 ", 30 * time.Second},
		{"of which nothing came", "/", "Content-Length: 100\r\n\r\n", "HTTP/1.1 408 ", 30 * time.Second},
		{"that is kept", "/kept", "Content-Length: 10\r\n\r\nx", "HTTP/1.1 408 ", 10 * time.Second},
		{"in chunks", "/", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", "HTTP/1.1 408 ", 30 * time.Second},
		{"longer than what is thrown away", "/", "Content-Length: 1000000\r\n\r\nx", "HTTP/1.1 408 ", 30 * time.Second},
		{"that the member does not read", "/early", "Content-Length: 100\r\n\r\nx", "HTTP/1.1 200 ", 30 * time.Second},
		{"without an owner", "/", "K: zz\r\nContent-Length: 100\r\n\r\nx", "HTTP/1.1 404 ", 30 * time.Second},
	} {
		head := "POST " + row.path + " HTTP/1.1\r\nHost: h\r\n"
		if !strings.Contains(row.body, "K: ") {
			head += "K: k\r\n"
		}
		begin := time.Now()
		got, err := untilItEnds(t, w.lan.connect(t, front), head+row.body, false)
		if err != nil || !strings.HasPrefix(got, row.want) || !strings.Contains(got, "\r\nConnection: close\r\n") {
			t.Errorf("a body %s: the caller is told %q %v, want %sand the end of the connection", row.name, got, err, row.want)
		}
		if took := time.Since(begin); took < row.behind || took > row.behind+2*time.Second { // which net/http waits for what is on its way
			t.Errorf("a body %s: the connection ends behind %v, want %v", row.name, took, row.behind)
		}
	}
	synctest.Wait()
	if n := len(begun); n != 4 {
		t.Errorf("the member was asked %d times, want 4", n)
	}
	if r := w.last(7); r.Tag != proxy.NotFound {
		t.Errorf("the last result is %q", r.Tag)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.results {
		if r.Status == http.StatusRequestTimeout && (r.Tag != proxy.BadRequest || r.Err == nil) {
			t.Errorf("the result of a body that stopped is %+v", r)
		}
	}
}

// A member that answers while the body still comes gets all of it, whichever protocol the caller
// speaks, who hears it meanwhile. Where that is HTTP/1.1, the connection ends behind it: what
// is left of a body is never read as a request.
func TestP11AnAnswerBeforeTheBodyIsWhole(t *testing.T) {
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		_ = control.EnableFullDuplex() // HTTP/2 is without
		rw.WriteHeader(200)
		_ = control.Flush()
		if r.URL.Path == "/deaf" {
			_, _ = io.WriteString(rw, "no")
			return
		}
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			if _, e := rw.Write(buf[:n]); err != nil || e != nil {
				return
			}
			_ = control.Flush()
		}
	}))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for _, two := range []bool{false, true} {
		c := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
		c.Transport.(*http.Transport).Protocols.SetHTTP1(!two)
		c.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(two)
		t.Cleanup(c.CloseIdleConnections)
		ask := func(path string, body io.Reader, length int64) *http.Response {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), "POST", front.URL+path, body)
			must(t, err)
			req.Header.Set("K", "k")
			req.ContentLength = length
			resp, err := c.Do(req)
			must(t, err)
			t.Cleanup(func() { _ = resp.Body.Close() })
			return resp
		}
		want := make([]byte, 3<<20)
		for i := range want {
			want[i] = byte(i >> 10) // so that no part is like another
		}
		got, err := io.ReadAll(ask("/", bytes.NewReader(want), int64(len(want))).Body)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("callers by HTTP/2 %t: %d bytes of %d came back, %v", two, len(got), len(want), err)
		}
		in, out := io.Pipe()
		go func() { _, _ = io.WriteString(out, "one\n") }()
		turns := ask("/", in, -1)
		if turns.Close == two {
			t.Errorf("callers by HTTP/2 %t: the connection ends: %t", two, turns.Close)
		}
		answer := bufio.NewReader(turns.Body)
		for _, line := range []string{"one\n", "two\n", "three\n"} { // in turns
			if line != "one\n" {
				_, err := io.WriteString(out, line)
				must(t, err)
			}
			if got, err := answer.ReadString('\n'); err != nil || got != line {
				t.Errorf("callers by HTTP/2 %t: %q %v, want %q", two, got, err, line)
			}
		}
		must(t, out.Close())
		if rest, err := io.ReadAll(answer); err != nil || len(rest) > 0 {
			t.Errorf("behind the end came %q %v", rest, err)
		}
	}
	c, err := net.Dial("tcp", front.Listener.Addr().String())
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "POST /deaf HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 1000000\r\n\r\n")
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(proctest.Patience)))
	answer := bufio.NewReader(c)
	resp, err := http.ReadResponse(answer, nil)
	must(t, err)
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "no" || !resp.Close {
		t.Errorf("a member that does not read answers %q %v, and the connection ends: %t", got, err, resp.Close)
	}
	_, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: h\r\nK: k\r\n\r\n", 100))
	if half, ok := c.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	if rest, _ := io.ReadAll(answer); len(rest) > 0 {
		t.Errorf("the rest of a body was answered: %.100q", rest)
	}
}

// A caller whose answer has begun hears at once that the member has ended, though it may go on with its
// body for as long as it likes.
func TestP11AnAnswerThatBreaksOffUnderABody(t *testing.T) {
	broken := make(chan struct{})
	w := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		_ = control.EnableFullDuplex()
		_, _ = io.WriteString(rw, "begun")
		_ = control.Flush()
		<-broken
		if c, _, err := control.Hijack(); err == nil { // HTTP/1, whose server would wait for the body
			_ = c.Close()
			return
		}
		panic(http.ErrAbortHandler)
	}))
	type reader struct {
		what string
		body io.Reader
	}
	var answers []reader
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for _, two := range []bool{false, true} {
		for kind, length := range map[string]int64{"text/plain": -1, "text/html": 1 << 20} {
			c := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
			c.Transport.(*http.Transport).Protocols.SetHTTP1(!two)
			c.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(two)
			t.Cleanup(c.CloseIdleConnections)
			in, out := io.Pipe()
			t.Cleanup(func() { _ = out.Close() })
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			t.Cleanup(cancel)
			req, err := http.NewRequestWithContext(ctx, "POST", front.URL, in)
			must(t, err)
			req.Header.Set("K", "k")
			req.Header.Set("Content-Type", kind)
			req.ContentLength = length
			resp, err := c.Do(req)
			must(t, err)
			t.Cleanup(func() { _ = resp.Body.Close() })
			must(t, readFull(resp.Body, "begun"))
			answers = append(answers, reader{fmt.Sprintf("%s of %d bytes, callers by HTTP/2 %t", kind, length, two), resp.Body})
		}
	}
	close(broken)
	for _, a := range answers {
		if rest, err := io.ReadAll(a.body); err == nil || errors.Is(err, context.DeadlineExceeded) || len(rest) > 0 {
			t.Errorf("%s: the answer goes on with %q and ends with %v", a.what, rest, err)
		}
	}
}

// readFull reads so much, and says if it is something else.
func readFull(r io.Reader, want string) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		return fmt.Errorf("came %q, %w, want %q", got, err, want)
	}
	return nil
}

// What advances is not cut, however long it takes, and neither is a stream on which the member
// has its turn. The same connection serves the next request as ever.
func TestP11BodiesThatAdvanceTakeTheirTime(t *testing.T) {
	for name, does := range map[string]func(*testing.T, *pacing){
		"slowly":            slowly,
		"behind the answer": func(t *testing.T, p *pacing) { p.late(t, "/turns", "text/plain") },
		"not on HTTP/2 before the answer": func(t *testing.T, p *pacing) {
			in, out := io.Pipe()
			defer out.Close()
			resp := p.post(t, "/stops", "text/plain", in)
			if resp.StatusCode != http.StatusRequestTimeout {
				t.Errorf("%d, want 408", resp.StatusCode)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { does(t, startPacing(t)) }) })
	}
}

// silence is what a proxy of pacing bears.
const silence = 2 * time.Second

// pacing is a member that echoes, a proxy, and a caller by HTTP/2.
type pacing struct {
	w     *world
	front string
	two   *http.Client
}

func startPacing(t *testing.T) *pacing {
	w := startInMemory(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/turns" { // answers, and then hears
			must(t, http.NewResponseController(rw).EnableFullDuplex())
			rw.WriteHeader(200)
			_ = http.NewResponseController(rw).Flush()
		}
		got, err := io.ReadAll(r.Body)
		if err != nil && r.URL.Path != "/stops" {
			t.Errorf("the member reads %q %v", got, err)
		}
		_, _ = rw.Write(got)
	}))
	p := &pacing{w: w, front: serveAt(t, w.lan, w.proxy(proxy.Config{BodySilence: silence, MaxReplay: -1}).Lookup()).Listener.Addr().String()}
	p.two = &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols), DialContext: w.lan.dial}}
	p.two.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(p.two.CloseIdleConnections)
	return p
}

func (p *pacing) post(t *testing.T, path, kind string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.front+path, body)
	must(t, err)
	req.Header.Set("K", "k")
	req.Header.Set("Content-Type", kind)
	resp, err := p.two.Do(req)
	must(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// late sends a body that begins behind the silence.
func (p *pacing) late(t *testing.T, path, kind string) {
	in, out := io.Pipe()
	go func() {
		time.Sleep(silence + silence/2)
		_, _ = io.WriteString(out, "x")
		_ = out.Close()
	}()
	resp := p.post(t, path, kind, in)
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || string(got) != "x" {
		t.Errorf("%d %q %v, want the echo", resp.StatusCode, got, err)
	}
}

func slowly(t *testing.T, p *pacing) {
	c, err := p.w.lan.dial(t.Context(), "", p.front)
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nTransfer-Encoding: chunked\r\n\r\n")
	must(t, err)
	want := ""
	for begun := time.Now(); time.Since(begun) < 10*silence; time.Sleep(silence - silence/10) {
		_, err = io.WriteString(c, "1\r\nx\r\n")
		must(t, err)
		want += "x"
	}
	_, err = io.WriteString(c, "0\r\n\r\n")
	must(t, err)
	b := bufio.NewReader(c)
	for range 2 {
		resp, err := http.ReadResponse(b, nil)
		must(t, err)
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || string(got) != want {
			t.Errorf("%d %q %v, want %q", resp.StatusCode, got, err, want)
		}
		time.Sleep(silence + silence/4) // a deadline of the body would have passed
		_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 1\r\n\r\ny")
		must(t, err)
		want = "y"
	}
}
