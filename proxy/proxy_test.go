package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

const (
	active = rootv1.MemberState_MEMBER_STATE_ACTIVE
	failed = rootv1.MemberState_MEMBER_STATE_FAILED
)

// says answers with a name, what it was sent, and the header that is asked for.
func says(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s", name, r.Method, r.URL.RequestURI(), body, r.Header.Get(r.URL.Query().Get("header")))
	})
}

func ask(t testing.TB, method, url, key, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	return askBy(t, http.DefaultClient, method, url, key, body, headers...)
}

func askBy(t testing.TB, by *http.Client, method, url, key, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	var from io.Reader
	if body != "" {
		from = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, from)
	must(t, err)
	if key != "" {
		req.Header.Set("K", key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := by.Do(req)
	must(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, resp.Header, string(got)
}

func TestP06P07P11P76LookupPassesRequestsOnToTheOwner(t *testing.T) {
	w := start(t, says("first"))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	code, h, body := ask(t, "POST", front.URL+"/x/y?header=Nokv-Epoch", "k", "payload", "Nokv-Epoch", "9.9")
	if code != 200 || body != "first POST /x/y?header=Nokv-Epoch payload 1.1" || h.Get("Nokv-Member") != "m0" || h.Get("Nokv-Epoch") != "1.1" {
		t.Errorf("got %d %q %v, want the owner's answer, at epoch 1.1", code, body, h)
	}
	if r := w.last(1); r.Tag != proxy.Hit || r.Tries != 1 || r.Status != 200 || string(r.Key) != "k" {
		t.Errorf("the result is %+v", r)
	}
	for header, want := range map[string]string{"Traceparent": "00-1-2-01", "X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "", "Nokv-Keyspace": "default", "Connection": "", "Nokv-Region": "1"} {
		sent := "00-1-2-01"
		if _, _, got := ask(t, "GET", front.URL+"/?header="+header, "k", "", header, sent); got != "first GET /?header="+header+"  "+want {
			t.Errorf("header %s arrives as %q, want %q", header, got, want)
		}
	}
}

func TestP76WhatHasNoOwnerIsAProblemWithAReason(t *testing.T) {
	w := start(t, says("first"))
	front := serve(t, w.proxy(proxy.Config{MaxBody: 10}).Lookup())
	long := strings.Repeat("k", rooted.MaxKeyBytes+1)
	for i, c := range []struct {
		key, body, reason string
		code              int
		tag               proxy.Tag
	}{
		{"zz", "", "not_found", 404, proxy.NotFound},
		{"", "", "invalid_request", 400, proxy.BadRequest},
		{long, "", "invalid_request", 400, proxy.BadRequest},
		{"k", "longer than ten", "body_too_large", 413, proxy.BadRequest},
	} {
		code, h, body := ask(t, "POST", front.URL, c.key, c.body)
		var q proxy.Problem
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Fatal(err, body)
		}
		if code != c.code || q.Reason != c.reason || h.Get(proxy.HeaderReason) != c.reason || q.Detail == "" || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("key %.10q: %d %q, want %d %s", c.key, code, body, c.code, c.reason)
		}
		if r := w.last(i + 1); r.Tag != c.tag {
			t.Errorf("key %.10q: tag %s, want %s", c.key, r.Tag, c.tag)
		}
	}
	w.members[0].Close()
	front = serve(t, w.proxy(proxy.Config{Hold: 50 * time.Millisecond}).Lookup())
	for _, state := range []rootv1.MemberState{active, failed} {
		w.at(0, state)
		if code, h, body := ask(t, "POST", front.URL, "k", "x"); code != 503 || h.Get("Retry-After") == "" {
			t.Errorf("no owner lives (%s): %d %s, want 503 to be tried again", state, code, body)
		}
	}
}

func TestP76RefusalsAreRepairedOnce(t *testing.T) {
	var w *world
	var refusals atomic.Int64
	old := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		refusals.Add(1)
		(&router.Refusal{Kind: router.Moved, Member: "m1", Address: w.address(1), Epoch: rooted.Epoch{Version: 1, ConfVersion: 2}}).WriteHTTP(rw)
	})
	w = start(t, old, says("second"))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	// A POST was not run: it is repeated with its body.
	if code, _, body := ask(t, "POST", front.URL+"/?header=Nokv-Epoch", "k", "payload"); code != 200 || body != "second POST /?header=Nokv-Epoch payload 1.2" {
		t.Errorf("got %d %q, want the next owner's answer", code, body)
	}
	if r := w.last(1); r.Tries != 2 || refusals.Load() != 1 || r.Tag != proxy.OrphanReassigned {
		t.Errorf("%d tries, %d refusals, %s", r.Tries, refusals.Load(), r.Tag)
	}
	// One whose body was passed on as it came cannot be.
	req, _ := http.NewRequest("POST", front.URL, io.MultiReader(strings.NewReader("payload")))
	req.Header.Set("K", "k")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get(proxy.HeaderReason) != "epoch_stale" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %v, want 503 epoch_stale, to be asked again", resp.StatusCode, resp.Header)
	}
}

// What a member may have run is repeated only where that does no harm.
func TestP76OnlyIdempotentRequestsAreRepeated(t *testing.T) {
	var asked atomic.Int64
	var half atomic.Bool
	breaks := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 0 {
			_, _ = io.WriteString(w, "whole")
			return
		}
		c, _, _ := w.(http.Hijacker).Hijack()
		if half.Load() {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf")
		}
		_ = c.Close()
	})
	w := start(t, breaks)
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	if code, h, body := ask(t, "POST", front.URL, "k", "x"); code != 502 || h.Get(proxy.HeaderReason) != "outcome_unknown" || h.Get("Retry-After") != "" {
		t.Errorf("POST: %d %v %s, want 502 outcome_unknown", code, h, body)
	}
	for method, header := range map[string]string{"POST": "Idempotency-Key", "PUT": "X"} {
		asked.Store(0)
		if code, _, body := ask(t, method, front.URL, "k", "x", header, "1"); code != 200 || body != "whole" {
			t.Errorf("%s with %s: %d %s, want the second answer", method, header, code, body)
		}
	}
	half.Store(true)
	asked.Store(0)
	if code, _, body := ask(t, "GET", front.URL, "k", ""); code != 200 || body != "whole" {
		t.Errorf("GET of half an answer: %d %s, want the second answer", code, body)
	}
}

func TestP81GarbageSilenceAndHalfAnswersHaveAStatus(t *testing.T) {
	block := make(chan struct{})
	bad := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			<-block
		case "/garbage":
			c, _, _ := w.(http.Hijacker).Hijack()
			_, _ = io.WriteString(c, "\x00\x01 what is this\r\n\r\n")
			_ = c.Close()
		case "/half":
			c, _, _ := w.(http.Hijacker).Hijack()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\nhalf")
			_ = c.Close()
		case "/huge":
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}
	})
	w := start(t, bad)
	front := serve(t, w.proxy(proxy.Config{Timeout: proctest.Patience}).Lookup())
	hurried := serve(t, w.proxy(proxy.Config{Timeout: 50 * time.Millisecond}).Lookup())
	defer close(block)
	for url, want := range map[string]string{hurried.URL + "/silent": "504 upstream_timeout", front.URL + "/garbage": "502 upstream_error", front.URL + "/huge": "502 upstream_error"} {
		code, h, body := ask(t, "POST", url, "k", "x")
		if got := fmt.Sprint(code, " ", h.Get(proxy.HeaderReason)); got != want {
			t.Errorf("%s: %s %s, want %s", url, got, body, want)
		}
	}
	req, _ := http.NewRequest("GET", front.URL+"/half", nil)
	req.Header.Set("K", "k")
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		t.Errorf("half an answer ends with %v, want that it is half", err)
	}
	if r := w.last(4); r.Tag != proxy.UpstreamError || r.Err == nil {
		t.Errorf("the result of half an answer is %+v", r)
	}
}

// Under load a member is killed, and its region goes to another one a while later.
func TestP84P85NoIdempotentRequestFailsWhenAMemberIsKilled(t *testing.T) {
	synctest.Test(t, killedUnderLoad)
}

func killedUnderLoad(t *testing.T) {
	w := startInMemory(t, says("first"), says("second"))
	front := serveAt(t, w.lan, w.proxy(proxy.Config{Hold: 5 * time.Second}).Lookup())
	load := newLoad(t, w.lan.client(t), front.URL, "GET", 8)
	load.after(50)
	w.members[0].Listener.Close()
	w.members[0].CloseClientConnections()
	load.during(30 * time.Millisecond)
	w.at(0, failed)
	load.during(30 * time.Millisecond)
	w.move(1)
	load.after(50)
	load.end()
}

// A planned move: who had it refuses, before the next one is known to all.
func TestP84NoRequestFailsInAPlannedMove(t *testing.T) { synctest.Test(t, movedUnderLoad) }

func movedUnderLoad(t *testing.T) {
	var w *world
	var moved atomic.Bool
	old := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if moved.Load() {
			(&router.Refusal{Kind: router.NotOwned}).WriteHTTP(rw)
			return
		}
		says("first").ServeHTTP(rw, r)
	})
	w = startInMemory(t, old, says("second"))
	front := serveAt(t, w.lan, w.proxy(proxy.Config{Hold: 5 * time.Second}).Lookup())
	load := newLoad(t, w.lan.client(t), front.URL, "POST", 8)
	load.after(50)
	moved.Store(true)
	load.during(50 * time.Millisecond)
	w.move(1)
	load.after(50)
	load.end()
}

// load is callers that ask one after another.
type load struct {
	t    *testing.T
	stop chan struct{}
	wg   sync.WaitGroup
	done atomic.Int64
	bad  atomic.Int64
}

func newLoad(t *testing.T, by *http.Client, url, method string, callers int) *load {
	l := &load{t: t, stop: make(chan struct{})}
	for range callers {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				req, _ := http.NewRequest(method, url, bytes.NewReader([]byte("x")))
				req.Header.Set("K", "k")
				resp, err := by.Do(req)
				if err != nil || resp.StatusCode != 200 {
					l.bad.Add(1)
					t.Errorf("request %d failed: %v %+v", l.done.Load(), err, resp)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				l.done.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	return l
}

// after waits for so many more answers.
func (l *load) after(n int64) {
	l.t.Helper()
	for want, end := l.done.Load()+n, time.Now().Add(time.Minute); l.done.Load() < want && l.bad.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatal("no answers come")
		}
	}
}

// during lets requests come for a while: that is what is tested, not how long it takes.
func (l *load) during(d time.Duration) { time.Sleep(d) }

func (l *load) end() {
	close(l.stop)
	l.wg.Wait()
}

func TestP77P78P79P80HandlersAndTheirTags(t *testing.T) {
	member := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := 0
		fmt.Sscan(r.URL.Query().Get("code"), &code)
		w.WriteHeader(code)
		if code == 201 {
			_, _ = io.WriteString(w, `{"id":"k7"}`)
		}
	})
	w := start(t, member)
	g := &registry{w: w, alive: true}
	p := w.proxy(proxy.Config{Registry: g, Pins: g})
	create, remove, pin := serve(t, p.PickAndRegister(proxy.Made{})), serve(t, p.LookupAndDeregister(0)), serve(t, p.LookupLockAndProxy())
	n := 0
	check := func(url, key string, code int, tag proxy.Tag, did string) {
		t.Helper()
		g.did = ""
		got, _, body := ask(t, "POST", url, key, "")
		n++
		if r := w.last(n); got != code || r.Tag != tag || g.did != did {
			t.Errorf("%s: %d %s %s %q, want %d %s %q", url, got, r.Tag, body, g.did, code, tag, did)
		}
	}
	check(create.URL+"?code=201", "", 201, proxy.Spawned, "bind k7 m0")
	check(create.URL+"?code=409", "", 409, proxy.UpstreamError, "")
	g.alive = false
	check(create.URL+"?code=201", "", 503, proxy.Unavailable, "")
	g.alive = true
	check(remove.URL+"?code=204", "k", 204, proxy.Deregistered, "unbind k m0")
	check(remove.URL+"?code=500", "k", 500, proxy.UpstreamError, "")
	check(remove.URL+"?code=204", "zz", 404, proxy.NotFound, "")
	check(pin.URL+"?code=200", "pin", 200, proxy.Hit, "")
	check(pin.URL+"?code=200", "other", 404, proxy.NotFound, "")
	w.at(0, failed)
	proxyTold(t, w)
	check(remove.URL+"?code=204", "k", 204, proxy.DeregisteredDeadPod, "unbind k ")
}

// proxyTold waits until the router knows that no owner lives.
func proxyTold(t *testing.T, w *world) {
	for end := time.Now().Add(proctest.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := w.router.Resolve(t.Context(), []byte("k"), router.Options{}); err != nil {
			return
		}
	}
	t.Fatal("the router is not told")
}

// registry is one that only says what it was asked.
type registry struct {
	w     *world
	alive bool
	did   string
}

func (g *registry) Pick(context.Context, string) (router.Target, error) {
	if !g.alive {
		return router.Target{}, refused(rootv1.Reason_REASON_NO_ACTIVE_MEMBERS)
	}
	return router.Target{Member: "m0", Address: g.w.address(0), Incarnation: 1}, nil
}

func (g *registry) Bind(_ context.Context, _ string, key []byte, to router.Target) error {
	g.did = fmt.Sprintf("bind %s %s", key, to.Member)
	return nil
}

func (g *registry) Unbind(_ context.Context, _ string, key []byte, from router.Target) error {
	g.did = fmt.Sprintf("unbind %s %s", key, from.Member)
	return nil
}

func (g *registry) Find(r *http.Request) (router.Target, error) {
	if r.Header.Get("K") != "pin" {
		return router.Target{}, refused(rootv1.Reason_REASON_PIN_LOST)
	}
	return g.Pick(r.Context(), "")
}

// A request that says its length twice is passed on with one.
func TestP12RequestsAreFramedAnew(t *testing.T) {
	w := start(t, says("first"))
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	for request, want := range map[string]string{
		"POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde":                                                "400",
		"POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n": "first POST / abc",
		"POST / HTTP/1.1\r\nHost: h\r\nK: k\r\nK: l\r\nContent-Length: 0\r\nConnection: close\r\n\r\n":                                             "there are 2",
	} {
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		must(t, err)
		_, err = io.WriteString(c, request)
		must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		if got := resp.Status + string(body); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q in it", request, got, want)
		}
		c.Close()
	}
}

func TestP11AnswersStreamAndCancellationReachesTheMember(t *testing.T) {
	canceled := make(chan struct{})
	stream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(canceled)
	})
	w := start(t, stream)
	front := serve(t, w.proxy(proxy.Config{}).Lookup())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", front.URL, nil)
	req.Header.Set("K", "k")
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	resp, err := transport.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line != "data: 1\n" || resp.ProtoMajor != 2 {
		t.Errorf("%q %v HTTP/%d, want the first event while the answer goes on", line, err, resp.ProtoMajor)
	}
	cancel()
	select {
	case <-canceled:
	case <-time.After(proctest.Patience):
		t.Error("the member does not hear that the caller went away")
	}
}
