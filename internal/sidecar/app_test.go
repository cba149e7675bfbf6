package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// program is a process that listens, and answers as a test says.
type program struct {
	handler *handler
	died    context.CancelFunc

	mu     sync.Mutex
	asked  []string
	answer func(call string, w http.ResponseWriter, r *http.Request)
}

func startProgram(t *testing.T, answer func(call string, w http.ResponseWriter, r *http.Request)) *program {
	t.Helper()
	p := &program{answer: answer}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := strings.TrimPrefix(r.URL.Path, "/nokv/")
		p.mu.Lock()
		p.asked = append(p.asked, call)
		p.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s came without the token", call)
		}
		p.answer(call, w, r)
	}))
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	life, died := context.WithCancel(context.Background())
	p.died = died
	t.Cleanup(func() {
		died()
		server.CloseClientConnections()
		server.Close()
	})
	p.handler = &handler{caller: newApp(base, "secret"), life: life, pause: time.Millisecond, logger: hclog.NewNullLogger()}
	return p
}

func (p *program) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

var point = member.Region{ID: 1<<63 + 1, Keyspace: "games", Start: "g1", End: "g1\x00", Epoch: rooted.Epoch{Version: 1, ConfVersion: 2}, Frontier: "17"}

// What is no clean answer leaves nothing behind: an acquisition of which nobody knows the
// outcome is undone, until that is known, before it can be asked again.
func TestC06AcquireIsUndoneWhenItsOutcomeIsNotKnown(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		undone bool
		says   string
	}{
		"refused":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "the disk is full", 500) }, false, "the disk is full"},
		"said no":      {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"error": "not now"}`) }, false, "not now"},
		"not known":    {func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, false, "does not know this call"},
		"half JSON":    {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"frontier": "1`) }, true, "not the JSON"},
		"no JSON":      {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) }, true, "not the JSON"},
		"another kind": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[1]`) }, true, "not the JSON"},
		"huge":         {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", 1<<20)) }, true, "more than 65536 bytes"},
		"huge head":    {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 64<<10)) }, true, "exceeded"},
		"half a body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{}`)
		}, true, "half a body"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, true, "redirects are not followed"},
		"cut off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			evictions := 0
			p := startProgram(t, func(call string, w http.ResponseWriter, r *http.Request) {
				if call == "acquire" {
					c.answer(w, r)
					return
				}
				if evictions++; evictions < 3 {
					http.Error(w, "not yet", 500)
				}
			})
			err := p.handler.Acquire(t.Context(), point)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v", err)
			}
			want := []string{"acquire"}
			if c.undone {
				want = []string{"acquire", "evict", "evict", "evict"}
			}
			if got := p.calls(); !slices.Equal(got, want) {
				t.Errorf("it was asked %v, not %v", got, want)
			}
		})
	}
}

// Behind an error of a release the region is held as before, also if the move is given up: where that
// is not known it is asked again, by the same id, until it is.
func TestC06ReleaseIsSettledBeforeItReturns(t *testing.T) {
	for name, c := range map[string]struct{ then, frontier, says string }{
		"it was done":     {`{"frontier": "18"}`, "18", ""},
		"it was not done": {`{"error": "not now"}`, "", "not now"},
	} {
		t.Run(name, func(t *testing.T) {
			var ids []string
			p := startProgram(t, func(_ string, w http.ResponseWriter, r *http.Request) {
				var asked Call
				if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
					t.Error(err)
				}
				if ids = append(ids, asked.ID); len(ids) < 3 {
					panic(http.ErrAbortHandler)
				}
				fmt.Fprint(w, c.then)
			})
			frontier, err := p.handler.Release(t.Context(), point)
			if string(frontier) != c.frontier || (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
				t.Errorf("released at %q, %v", frontier, err)
			}
			if len(ids) != 3 || ids[0] != ids[1] || ids[0] != ids[2] {
				t.Errorf("it was asked by the ids %q", ids)
			}
		})
	}
}

// An answer that does not say how far a region got roots nothing: a release is asked again, and
// a checkpoint and a merge are errors. That it got nowhere has to be said.
func TestC06NoFrontierIsNoAnswer(t *testing.T) {
	for name, then := range map[string]string{"nothing": "", "an empty object": "{}", "null": `{"frontier": null}`} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			p := startProgram(t, func(_ string, w http.ResponseWriter, _ *http.Request) {
				if asked++; asked <= 3 {
					fmt.Fprint(w, then)
					return
				}
				fmt.Fprint(w, `{"frontier": ""}`)
			})
			h, ctx := p.handler, t.Context()
			if _, err := h.Checkpoint(ctx, point); !errors.Is(err, errNoFrontier) {
				t.Errorf("a checkpoint: %v", err)
			}
			if _, err := h.Merge(ctx, point, point); !errors.Is(err, errNoFrontier) {
				t.Errorf("a merge: %v", err)
			}
			if f, err := h.Release(ctx, point); err != nil || len(f) != 0 {
				t.Errorf("released at %q, %v", f, err)
			}
			if got := p.calls(); !slices.Equal(got, []string{"checkpoint", "merge", "release", "release"}) {
				t.Errorf("it was asked %v", got)
			}
		})
	}
}

// A call that is late is under way: its context ends, and nothing else is asked before it returns;
// with the process it ends.
func TestC06LateCallsAreWaitedForUntilTheProcessEnds(t *testing.T) {
	entered, answer := make(chan struct{}, 1), make(chan struct{}, 1)
	p := startProgram(t, func(_ string, _ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // behind it the server sees that the caller goes
		entered <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- p.handler.Acquire(ctx, point) }()
	<-entered
	cancel()
	answer <- struct{}{}
	if err := <-result; err != nil {
		t.Errorf("an answer behind the deadline was lost: %v", err)
	}
	go func() {
		_, err := p.handler.Release(ctx, point)
		result <- err
	}()
	<-entered
	p.died()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if got := p.calls(); !slices.Equal(got, []string{"acquire", "release"}) {
		t.Errorf("it was asked %v", got)
	}
}

// A frontier is rooted as it was said, or not at all: what JSON cannot have as text is no answer, also
// where a decoder would put something else in its place, and what is too long is refused.
func TestC06AFrontierIsRootedAsItWasSaid(t *testing.T) {
	for name, c := range map[string]struct {
		then, frontier string
		known          bool
		says           string
	}{
		"text":              {`{"frontier": "\u0000 17\u202e\n\ud83d\ude00"}`, "\x00 17\u202e\n\U0001f600", true, ""},
		"the longest":       {`{"frontier": "` + strings.Repeat("x", 4096) + `"}`, strings.Repeat("x", 4096), true, ""},
		"bytes":             {`{"frontier_base64": "/wD+"}`, "\xff\x00\xfe", true, ""},
		"bytes behind text": {`{"frontier": "a", "frontier_base64": "Yg=="}`, "b", true, ""},
		"too long":          {`{"frontier": "` + strings.Repeat("x", 4097) + `"}`, "", true, "has 4097 bytes, 4096 at most"},
		"bytes too long":    {`{"frontier_base64": "` + strings.Repeat("AAAA", 1366) + `"}`, "", true, "has 4098 bytes, 4096 at most"},
		"a long error":      {`{"error": "` + strings.Repeat("x", 60<<10) + `"}`, "", true, strings.Repeat("x", maxSaid)},
		"bytes as text":     {"{\"frontier\": \"a\xff\xfeb\"}", "", false, "say it in frontier_base64"},
		"half a pair":       {`{"frontier": "a\ud800b"}`, "", false, "say it in frontier_base64"},
		"a replacement":     {`{"frontier": "\ufffd"}`, "", false, "say it in frontier_base64"},
		"no base64":         {`{"frontier_base64": "***"}`, "", false, "not the JSON"},
		"a number":          {`{"frontier": 17}`, "", false, "not the JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProgram(t, func(_ string, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.then) })
			frontier, err := p.handler.Checkpoint(t.Context(), point)
			var refused *Refused
			if string(frontier) != c.frontier || (err == nil) != (c.says == "") || err != nil && errors.As(err, &refused) != c.known {
				t.Errorf("the frontier is %.50q, %.200v", frontier, err)
			}
			if err != nil && (!strings.Contains(err.Error(), c.says) || len(err.Error()) > 2*maxSaid) {
				t.Errorf("the error is of %d bytes, want %q in it: %.200v", len(err.Error()), c.says, err)
			}
		})
	}
	for said, bytes := range map[string]bool{"17": false, "\xff": true, "\ufffd": true} {
		r := point
		r.Frontier = said
		if j := regionJSON(r); (j.FrontierBytes != "") != bytes || (j.Frontier == said) == bytes {
			t.Errorf("of the frontier %q it is told %q, %q", said, j.Frontier, j.FrontierBytes)
		}
	}
}

// What is not known of many regions, and asked again and again, is a line a minute.
func TestWhatIsNotKnownDoesNotFillTheLog(t *testing.T) {
	p := startProgram(t, func(call string, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "half of {") })
	var log written.Text
	p.handler.logger = log.Logger(hclog.Warn)
	var asking sync.WaitGroup
	for range 5 {
		asking.Go(func() { _, _ = p.handler.Release(t.Context(), point) })
		asking.Go(func() { _ = p.handler.Acquire(t.Context(), point) })
	}
	for calls := 0; calls < 100; calls = len(p.calls()) {
		time.Sleep(time.Millisecond)
	}
	p.died()
	asking.Wait()
	if n := strings.Count(log.String(), "[WARN]"); n != 2 {
		t.Errorf("%d lines of %d calls, want one of releases and one of acquisitions:\n%.1000s", n, len(p.calls()), log.String())
	}
}

// A process that knows acquire and release alone is a whole member.
func TestC06WhatAProcessDoesNotKnowIsAnsweredForIt(t *testing.T) {
	p := startProgram(t, func(call string, w http.ResponseWriter, _ *http.Request) {
		switch call {
		case "acquire":
		case "release":
			fmt.Fprint(w, `{"frontier": "18", "and more": [1]}`)
		default:
			http.NotFound(w, nil)
		}
	})
	h, ctx := p.handler, t.Context()
	if err := h.Acquire(ctx, point); err != nil {
		t.Error(err)
	}
	if f, err := h.Release(ctx, point); err != nil || string(f) != "18" {
		t.Errorf("released at %q, %v", f, err)
	}
	if err := errors.Join(h.Evict(ctx, point), h.Prepare(ctx, point, member.Peer{ID: "g2"}), h.Abandon(ctx, point)); err != nil {
		t.Error(err)
	}
	if _, err := h.Checkpoint(ctx, point); err == nil {
		t.Error("it made a checkpoint")
	}
	if idle, err := h.Idle(ctx, point); idle || err != nil {
		t.Errorf("nobody uses it: %t, %v, although nobody knows", idle, err)
	}
	further := point
	further.Frontier = "18"
	if f, err := h.Merge(ctx, point, point); err != nil || string(f) != "17" {
		t.Errorf("merged at %q, %v", f, err)
	}
	if _, err := h.Merge(ctx, point, further); err == nil {
		t.Error("merged at two frontiers")
	}
	h.Stopped(ctx, "games")
	h.Resumed(ctx, "games")
	want := []string{"acquire", "release", "evict", "release", "prepare", "abandon", "checkpoint", "idle", "merge", "merge", "stop", "resume"}
	if got := p.calls(); !slices.Equal(got, want) {
		t.Errorf("it was asked %v", got)
	}
}

func TestC06WhatAProcessIsTold(t *testing.T) {
	bodies := make(chan string, 1)
	p := startProgram(t, func(_ string, _ http.ResponseWriter, r *http.Request) {
		b := make([]byte, 4096)
		n, _ := r.Body.Read(b)
		bodies <- string(b[:n])
	})
	_ = p.handler.Prepare(t.Context(), point, member.Peer{ID: "g2", Address: "127.0.0.1:2", Epoch: point.Epoch})
	want := `{"id":"1","call":"prepare","keyspace":"games","region":"9223372036854775809","epoch":"1.2","key":"g1","start_key":"ZzE=","end_key":"ZzEA","frontier":"17",` +
		`"from":{"member":"g2","address":"127.0.0.1:2","epoch":"1.2"}}`
	if got := <-bodies; got != want {
		t.Errorf("it was told %s", got)
	}
	odd := point
	odd.Frontier, odd.Start, odd.End = "\xff", "\xfe", "\xfe\x00"
	_ = p.handler.Acquire(t.Context(), odd)
	want = `{"id":"2","call":"acquire","keyspace":"games","region":"9223372036854775809","epoch":"1.2","start_key":"/g==","end_key":"/gA=","frontier":"","frontier_base64":"/w=="}`
	if got := <-bodies; got != want {
		t.Errorf("it was told %s", got)
	}
	p.handler.Stopped(t.Context(), "games")
	if got := <-bodies; got != `{"id":"3","call":"stop","keyspace":"games"}` {
		t.Errorf("it was told %s", got)
	}
}

func TestWhereAProcessIsAsked(t *testing.T) {
	for text, ok := range map[string]bool{
		"http://127.0.0.1:1": true, "127.0.0.1:1": true, "http://[::1]:1/app": true, "http://localhost:1": true,
		"http://10.0.0.1:1": false, "https://127.0.0.1:1": false, "http://": false, "http://127.0.0.1:1?x=1": false, "http://a:b@127.0.0.1:1": false, "%": false,
	} {
		if err := CheckApp(text, false); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckApp("http://10.0.0.1:1", true); err != nil {
		t.Error(err)
	}
}

// Any answer of HTTP says that a process lives, whatever is wrong with its body.
func TestC06AnAnswerIsASignOfLife(t *testing.T) {
	for name, says := range map[string]func(w http.ResponseWriter){
		"nothing":  func(http.ResponseWriter) {},
		"too much": func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat("x", 1<<20)) },
		"half of it": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "x")
		},
	} {
		p := startProgram(t, func(_ string, w http.ResponseWriter, _ *http.Request) { says(w) })
		a := p.handler.caller.(*app)
		if err := errors.Join(a.answers(t.Context()), a.ready(t.Context())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p = startProgram(t, func(_ string, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			says(w)
		})
		a = p.handler.caller.(*app)
		if alive, ready := a.answers(t.Context()), a.ready(t.Context()); alive != nil || ready == nil {
			t.Errorf("%s with status 503: it lives: %v, it is ready: %v", name, alive, ready)
		}
	}
}
