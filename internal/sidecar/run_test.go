package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
)

// harness is a cluster with a member in Go, m1, and a sidecar, s1, that has a region.
type harness struct {
	*nokvtest.Cluster
	port   *httptest.Server
	deaf   atomic.Bool // answers nothing from now on
	undone atomic.Bool // refuses to release
	stop   context.CancelFunc
	result chan error
	out    *written.Text

	mu sync.Mutex
	// Guarded by mu: the calls, and the region and epoch of each acquisition.
	calls    []string
	acquired []acquisition
}

type acquisition struct{ Region, Epoch string }

func (h *harness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := strings.TrimPrefix(r.URL.Path, "/nokv/")
	if h.deaf.Load() {
		b := make([]byte, 1<<16)
		for _, err := r.Body.Read(b); err == nil; _, err = r.Body.Read(b) {
		}
		<-r.Context().Done()
		return
	}
	h.mu.Lock()
	if call != "ready" {
		h.calls = append(h.calls, call)
	}
	if call == "acquire" {
		var a acquisition
		_ = json.NewDecoder(r.Body).Decode(&a)
		h.acquired = append(h.acquired, a)
	}
	h.mu.Unlock()
	if call == "release" {
		if h.undone.Load() {
			http.Error(w, "no", 500)
			return
		}
		fmt.Fprint(w, `{"frontier": "18"}`)
	}
}

func (h *harness) called(call string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if c == call {
			n++
		}
	}
	return n
}

var ann = []byte("ann")

func startHarness(t *testing.T, set func(*Config)) *harness {
	t.Helper()
	h := &harness{result: make(chan error, 1), out: new(written.Text)}
	h.Cluster = nokvtest.Start(t, nokvtest.Keyspace("games", "games"), nokvtest.Loopback())
	h.Member(t, "m1", nothing{})
	h.port = httptest.NewServer(h)
	c, err := client.New(client.Config{Endpoints: h.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Stdout: h.out, Stderr: h.out, App: h.port.URL, Control: "127.0.0.1:0", Reach: true, Ready: proctest.Patience, Drain: proctest.Patience, Grace: proctest.Patience,
		Member: member.Config{ID: "s1", Address: h.port.Listener.Addr().String(), Client: c, HandlerTimeout: proctest.Patience}, Logger: hclog.NewNullLogger(),
	}
	set(&cfg)
	if len(cfg.Command) > 0 {
		cfg.Member.ProbeAddress = "127.0.0.1:0"
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	go func() { h.result <- Run(ctx, cfg) }()
	t.Cleanup(func() {
		h.stop()
		h.port.CloseClientConnections()
		h.port.Close()
		_ = c.Close()
	})
	h.Await(t, "s1 is a member", func() bool {
		select {
		case err := <-h.result:
			t.Fatalf("it ended before it was a member: %v, %s", err, h.out)
		default:
		}
		m, err := h.Client().GetMember(t.Context(), "s1")
		return err == nil && m.GetConnected()
	})
	if len(cfg.Command) > 0 {
		h.Await(t, "the command hears signals", func() bool { return strings.Contains(h.out.String(), "begins") })
	}
	h.Assign(t, "games", ann, "s1")
	h.AwaitOwner(t, "games", ann, "s1")
	h.Await(t, "it was asked to acquire", func() bool { return h.called("acquire") > 0 })
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[acquisition]bool{}
	for _, a := range h.acquired { // at another epoch is right: on a busy machine a region may be lost and given back
		if a.Region == "" || a.Epoch == "" || seen[a] {
			t.Errorf("it was asked to acquire %+v, want each epoch of a region once", h.acquired)
		}
		seen[a] = true
	}
	return h
}

func (h *harness) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-h.result:
		return err
	case <-time.After(2 * proctest.Patience):
		t.Fatal("it does not end")
		return nil
	}
}

// code is the exit status of a process that ended.
func code(t *testing.T, err error) int {
	t.Helper()
	e, ok := errors.AsType[*Ended](err)
	if !ok {
		t.Fatalf("it ended with %v", err)
	}
	return e.Code
}

// Each end of a process gives its regions to others, with its exit status.
func TestC06SidecarsEnds(t *testing.T) {
	loop := []string{"sh", "-c", `trap 'echo hangup' HUP; trap 'echo asked; exit 5' TERM; echo begins; while :; do sleep 0.05; done`}
	for name, c := range map[string]struct {
		set   func(*Config)
		does  func(h *harness)
		judge func(t *testing.T, h *harness, err error)
	}{
		"it hangs": {
			func(c *Config) { c.Command, c.Hang = loop, 400*time.Millisecond },
			func(h *harness) { h.deaf.Store(true) },
			func(t *testing.T, _ *harness, err error) {
				if n := code(t, err); n != 137 {
					t.Errorf("exit status %d", n)
				}
			},
		},
		"it is asked to end": {
			func(c *Config) { c.Command = loop },
			func(h *harness) { h.stop() },
			func(t *testing.T, h *harness, err error) {
				if n := code(t, err); n != 5 || !strings.Contains(h.out.String(), "asked") {
					t.Errorf("exit status %d, %s", n, h.out)
				}
				if h.called("drain") != 1 || h.called("release") != 1 {
					t.Errorf("it was asked %v", h.calls)
				}
			},
		},
		"it does not let go": {
			func(c *Config) {
				c.Command, c.Drain, c.Member.HandlerTimeout = loop, 100*time.Millisecond, 4*time.Second // the process is ended at 3/4 of it
				c.Logger = hclog.New(&hclog.LoggerOptions{Output: c.Stderr})
			},
			func(h *harness) {
				h.undone.Store(true)
				h.stop()
			},
			func(t *testing.T, h *harness, err error) {
				if n := code(t, err); n != 137 || h.called("release") < 1 {
					t.Errorf("exit status %d, asked %v", n, h.calls)
				}
				if said := h.out.String(); !strings.Contains(said, errKeeps.Error()) || strings.Contains(said, errHangs.Error()) {
					t.Errorf("it answers, and keeps its regions: the log says %s", said)
				}
			},
		},
		"beside, it ends": {
			func(c *Config) {
				c.Token, c.Member.HandlerTimeout = "0123456789abcdef", time.Second // for as long its regions are tried to be released
			},
			func(h *harness) {
				h.port.CloseClientConnections()
				h.port.Listener.Close()
			},
			func(t *testing.T, _ *harness, err error) {
				if err == nil || !strings.Contains(err.Error(), "nobody listens") {
					t.Errorf("it ended with %v", err)
				}
			},
		},
		"beside, it is asked to end": {
			func(c *Config) { c.Token = "0123456789abcdef" },
			func(h *harness) { h.stop() },
			func(t *testing.T, h *harness, err error) {
				if err != nil || h.called("release") != 1 {
					t.Errorf("it ended with %v, asked %v", err, h.calls)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHarness(t, c.set)
			c.does(h)
			c.judge(t, h, h.ended(t))
			h.AwaitOwner(t, "games", ann, "m1")
		})
	}
}

// What is not ours and hangs, or listens no more while it finishes what it has, may serve: nothing
// is said of it that would be a proof of death.
func TestC06ProcessBesideIsNotSaidToBeDead(t *testing.T) {
	for name, c := range map[string]struct {
		does func(*harness)
		why  error
	}{
		"it hangs":           {func(h *harness) { h.deaf.Store(true) }, errHangs},
		"it listens no more": {func(h *harness) { h.port.Listener.Close() }, errClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHarness(t, func(c *Config) { c.Token, c.Hang = "0123456789abcdef", 400*time.Millisecond })
			c.does(h)
			if err := h.ended(t); !errors.Is(err, c.why) {
				t.Errorf("it ended with %v", err)
			}
			m, err := h.Client().GetMember(t.Context(), "s1")
			if err != nil {
				t.Fatal(err)
			}
			if said := m.GetMember().GetReason(); strings.Contains(said, "gone") || strings.Contains(said, "ended") {
				t.Errorf("it is said to be dead: %s", said)
			}
		})
	}
}

// Signals that are for the process reach it.
func TestSidecarPassesSignals(t *testing.T) {
	h := startHarness(t, func(c *Config) {
		c.Command = []string{"sh", "-c", `trap 'echo hangup; exit 9' HUP; echo begins; while :; do sleep 0.05; done`}
	})
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if n := code(t, h.ended(t)); n != 9 || !strings.Contains(h.out.String(), "hangup") {
		t.Errorf("exit status %d, %s", n, h.out)
	}
}
