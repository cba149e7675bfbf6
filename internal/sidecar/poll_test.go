package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestC06PolledCallsAreTakenOnceAndAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolls(time.Now)
		port := newControl(nil, "secret", p)
		if code, _ := ask(port, "secret", "GET", "/nokv/next", ""); code != 204 {
			t.Errorf("without a call: %d", code)
		}
		type outcome struct {
			Answer
			error
		}
		outcomes := make(chan outcome, 8)
		begin := func(name string) {
			go func() {
				a, err := p.ask(t.Context(), Call{Call: name})
				outcomes <- outcome{a, err}
			}()
			synctest.Wait()
		}
		next := func(query string) Call {
			t.Helper()
			var c Call
			code, body := ask(port, "secret", "GET", "/nokv/next"+query, "")
			if err := json.Unmarshal([]byte(body), &c); code != 200 || err != nil {
				t.Fatalf("next: %d %s", code, body)
			}
			return c
		}
		begin("acquire")
		begin("checkpoint")
		first, second := next(""), next("")
		if first.Call != "acquire" || second.Call != "checkpoint" || first.ID == second.ID {
			t.Errorf("taken were %+v and %+v", first, second)
		}
		if code, _ := ask(port, "secret", "GET", "/nokv/next", ""); code != 204 {
			t.Errorf("a call was taken twice: %d", code)
		}
		// Who has begun anew asks for what it had.
		if a, b := next("?again=true"), next("?again=true"); a.ID != first.ID || b.ID != second.ID {
			t.Errorf("again were %+v and %+v", a, b)
		}
		for body, want := range map[string]string{`{"fron`: "not the JSON", strings.Repeat(" ", maxAnswer+1): "too large"} {
			if _, got := ask(port, "secret", "POST", "/nokv/done/"+first.ID, body); !strings.Contains(got, want) {
				t.Errorf("done with %.20s: %s", body, got)
			}
		}
		for _, body := range []string{`{"frontier": "1"}`, `{"frontier": "2"}`, `{"error": "late"}`} {
			if code, got := ask(port, "secret", "POST", "/nokv/done/"+second.ID, body); code != 200 || !strings.Contains(got, `"frontier":"1"`) {
				t.Errorf("done with %s: %d %s", body, code, got)
			}
		}
		if o := <-outcomes; o.error != nil || o.Frontier == nil || *o.Frontier != "1" {
			t.Errorf("the checkpoint was answered with %+v", o)
		}
		if code, _ := ask(port, "secret", "POST", "/nokv/done/"+first.ID, `{"error": "no room"}`); code != 200 {
			t.Error(code)
		}
		if o := <-outcomes; o.error == nil || o.error.Error() != "no room" {
			t.Errorf("the acquisition was answered with %+v", o)
		}
		for _, id := range []string{"99", "x", "-1"} {
			if code, body := ask(port, "secret", "POST", "/nokv/done/"+id, `{}`); code != 404 || !strings.Contains(body, "no call of this id") {
				t.Errorf("done %s: %d %s", id, code, body)
			}
		}
		// A frontier that the root does not take is a refusal, and not kept.
		begin("release")
		long := next("")
		_, _ = ask(port, "secret", "POST", "/nokv/done/"+long.ID, `{"frontier": "`+strings.Repeat("x", 5000)+`"}`)
		if o := <-outcomes; o.error == nil || !strings.Contains(o.error.Error(), "4096 at most") {
			t.Errorf("a long frontier was answered with %+v", o)
		}
	})
}

// A call whose answer did not reach who took it is taken again; one of a process that died is not.
func TestC06PolledCallsAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolls(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := p.ask(ctx, Call{Call: "acquire"})
			ended <- err
		}()
		synctest.Wait()
		c, ok, err := p.next(t.Context(), false)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		p.untake(c.ID)
		if again, ok, err := p.next(t.Context(), false); !ok || err != nil || again.ID != c.ID {
			t.Fatal(again, ok, err)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("it was answered")
		}
		if _, err := p.done(c.ID, Answer{}); err == nil {
			t.Error("the answer of a dead process was taken")
		}
		over, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if c, ok, _ := p.next(over, true); ok {
			t.Errorf("it was handed out: %+v", c)
		}
	})
}

func TestC06PollsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolls(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		for range maxOpen {
			go func() { _, _ = p.ask(ctx, Call{Call: "acquire"}) }()
		}
		synctest.Wait()
		if _, err := p.ask(ctx, Call{}); err == nil || !strings.Contains(err.Error(), "POST them") {
			t.Errorf("one more: %v", err)
		}
		cancel()
		synctest.Wait()
		if n := len(p.open) + len(p.queue) + len(p.taken); n != 0 {
			t.Errorf("%d are left", n)
		}
		over, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		for range maxPollers {
			go func() { _, _, _ = p.next(over, false) }()
		}
		synctest.Wait()
		if _, _, err := p.next(over, false); err == nil {
			t.Error("one more waits")
		}
		stop()
		synctest.Wait()
		for i := range maxAnswered + 100 {
			go func() { _, _ = p.ask(t.Context(), Call{Call: fmt.Sprint(i)}) }()
			c, _, _ := p.next(t.Context(), false)
			_, _ = p.done(c.ID, Answer{})
		}
		if len(p.answered) != maxAnswered || len(p.order) != maxAnswered {
			t.Errorf("%d answers are kept", len(p.answered))
		}
	})
}

// A process is alive that waits for calls, or asked a moment ago.
func TestC06PollsSayWhetherItLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolls(time.Now)
		if err := p.answers(t.Context()); err == nil {
			t.Error("it lives, and never asked")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() { _, _, _ = p.next(ctx, false) }()
		time.Sleep(4 * time.Second)
		if err := p.answers(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		if err := p.answers(t.Context()); err == nil {
			t.Error("it lives, and asks no more")
		}
	})
}
