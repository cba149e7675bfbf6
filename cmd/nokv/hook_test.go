package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// receiver is an application's hook, as the documents say that one is to be written.
type receiver struct {
	mu     sync.Mutex
	asked  int
	wishes []hook.Wish
	silent bool
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	silent := r.silent
	r.mu.Unlock()
	if silent {
		_, _ = io.Copy(io.Discard, req.Body) // only then is a caller that goes noticed
		<-req.Context().Done()
		return
	}
	switch req.URL.Path {
	case "/place":
		var p struct {
			Regions []struct{ ID string }
		}
		if err := json.NewDecoder(req.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		owners := map[string]string{}
		for i, x := range p.Regions {
			owners[x.ID] = worker0(i % 2)
		}
		r.mu.Lock()
		r.asked++
		r.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"owners": owners})
	case "/scale":
		var wish hook.Wish
		if err := json.NewDecoder(req.Body).Decode(&wish); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.wishes = append(r.wishes, wish)
		r.mu.Unlock()
	}
}

// Workers get what a hook gives them; a hook that hangs then costs its timeout, and the log says
// so; a keyspace that is too full says so in nokv status and to its hook.
func TestP61C31C35HooksOfAnApplication(t *testing.T) {
	t.Parallel()
	app := &receiver{}
	server := httptest.NewServer(app)
	t.Cleanup(server.Close)
	h := startWorkers(t, 3, "-hook-allow", "127.0.0.1")
	ctx, cancel := context.WithTimeout(t.Context(), 4*hostedWithin)
	defer cancel()
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 12}}}
	s.Liveness.IntervalMillis = 200
	s.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: server.URL + "/place", HookTimeoutMillis: 1500}
	s.Limits = &rootv1.Limits{MaxRegionsPerMember: 13}
	s.Scaling = &rootv1.Scaling{Enabled: true, UpPermille: 300, DownPermille: 1, SpacingMillis: 1000, HookUrl: server.URL + "/scale"}
	if _, err := h.client.CreateKeyspaceOf(ctx, "hooked", s); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(context.Context) error { return h.hosts(12, 0, 1, 2) })
	app.mu.Lock()
	asked := app.asked
	app.mu.Unlock()
	if n := len(h.held(0)) + len(h.held(1)); asked == 0 || n < 10 { // the third has what was too much for them
		t.Errorf("the hook was asked %d times, and its two workers have %d of 12 regions", asked, n)
	}
	h.eventually(func(context.Context) error {
		app.mu.Lock()
		defer app.mu.Unlock()
		if len(app.wishes) == 0 {
			return errors.New("nothing is wished for")
		}
		if w := app.wishes[0]; w.Desired != 4 || w.Active != 3 || w.Keyspace != "hooked" || w.FullPermille != 307 {
			t.Errorf("the wish is %+v", w)
		}
		return nil
	})
	h.eventually(func(context.Context) error {
		var out statusOutput
		r := h.Run("status", "-o", "json", "--coordinator-addr", h.Coordinators())
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
			return err
		}
		if len(out.Scaling) != 1 || out.Scaling[0].Desired != 4 || !out.Scaling[0].Delivered {
			return fmt.Errorf("nokv status has %+v", out.Scaling)
		}
		return nil
	})
	app.mu.Lock()
	app.silent = true
	app.mu.Unlock()
	begin := time.Now()
	h.workers[0].Kill()
	h.eventually(func(context.Context) error { return h.hosts(12, 1, 2) })
	if took := time.Since(begin); took < time.Second {
		t.Errorf("a hook that hangs was waited for %v", took)
	}
	args := []string{"events", "--keyspace", "hooked"}
	for i, addr := range h.RootAddrs {
		args = append(args, "--root-peer", fmt.Sprintf("%d=%s", i+1, addr))
	}
	r := h.Run(args...)
	if want := "the hook of hooked is of no use (late): placed by balanced"; !strings.Contains(r.Stdout, want) {
		t.Errorf("nokv events do not say %q:\n%s%s", want, r.Stdout, r.Stderr)
	}
}
