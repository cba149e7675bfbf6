package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/principal"
)

func TestC06SidecarsWords(t *testing.T) {
	certs := proctest.NewCertificates(t, "test").Of(principal.Member, "g1")
	for _, c := range []struct{ line, want string }{
		{"sidecar --address 127.0.0.1:1 -- true", "--id"},
		{"sidecar --id g1 -- true", "--address"},
		{"sidecar --id g1 --address :1 -- true", "want the host and the port"},
		{"sidecar --id g1 --address 0.0.0.0:1 -- true", "want the host and the port"},
		{"sidecar --id g1 --address 127.0.0.1:0 -- true", "want the host and the port"},
		{"sidecar --id g1 --address 127.0.0.1:1", "say what to run"},
		{"sidecar --id g1 --address 127.0.0.1:1 --poll", "NOKV_SIDECAR_TOKEN"},
		{"sidecar --id g1 --address 127.0.0.1:1 --app http://127.0.0.1:1 --poll -- true", "leave out one"},
		{"sidecar --id g1 --address 127.0.0.1:1 --app http://10.0.0.1:1 -- true", "--insecure"},
		{"sidecar --id g1 --address 127.0.0.1:1 --app https://127.0.0.1:1 -- true", "want http://"},
		{"sidecar --id g1 --address 127.0.0.1:1 --control 0.0.0.0:1 -- true", "--insecure"},
		{"sidecar --id g1 --address 127.0.0.1:1 --listen 127.0.0.2:1 -- true", "it has none"},
		{"sidecar --id g1 --address 127.0.0.1:1 --certs " + certs + " -- true", "--app http://127.0.0.1:PORT"},
		{"sidecar --id g1 --address 127.0.0.2:1 --listen :1 --certs " + certs + " -- true", "--app http://127.0.0.1:PORT"},
		{"sidecar --id g1 --address 127.0.0.1:1 --listen 127.0.0.1:x --certs " + certs + " -- true", "--listen"},
		{"sidecar --id g1 --address 127.0.0.1:1 --ready 0s -- true", "more than 0"},
		{"sidecar --id g1 --address 127.0.0.1:1 --keyspace a --keyspace a -- true", "stands twice"},
	} {
		wantRefused(t, c.line, exitUsage, c.want, sidecarToken+"=")
	}
}

// A process that is no member: its exit status is kept, and it is not started again. No cluster
// is asked before it is ready.
func TestC06SidecarOfAProcessThatIsNoMember(t *testing.T) {
	t.Parallel()
	addrs, err := procs.Addrs(1)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/nokv/ready" {
			http.Error(w, "what?", 500)
		}
	}))
	t.Cleanup(server.Close) // behind the subtests
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hangs.Close)
	for name, c := range map[string]struct {
		flags, shell string
		code         int
		says         string
	}{
		"dies at once":               {"", "exit 7", 7, "exit status 7"},
		"dies of a signal":           {"", "kill -9 $$", 137, "signal 9"},
		"ends well before it began":  {"", "exit 0", 1, "it has to stay"},
		"ignores the sidecar":        {"--ready 300ms", "sleep 100", 1, "was not ready within 300ms"},
		"never polls":                {"--poll --ready 300ms", "sleep 100", 1, "has not asked GET /nokv/next"},
		"answers nothing":            {"--ready 300ms --app " + hangs.URL, "sleep 100", 1, "was not ready within 300ms"},
		"cannot be reached":          {"--ready 3s --app " + server.URL, "sleep 100", 1, "nobody can be reached at --address"},
		"leaves a child that serves": {"", "sleep 100 & exit 3", 3, "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := filepath.Join(t.TempDir(), "starts")
			args := append(strings.Fields("sidecar --id g1 --address "+addrs[0]+" --coordinator-addr "+nobody(t)+" "+c.flags), "--", "sh", "-c", "echo x >> "+count+"; "+c.shell)
			r := proctest.Run(t, proctest.Options{Name: "sidecar", Path: nokvPath(t), Env: nokvEnv(t), Args: args})
			if r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("exit status %d, %s", r.Code, r.Stderr)
			}
			raw, err := os.ReadFile(count)
			early := len(raw) == 0 && c.flags != "" // The sidecar ended it before it came so far.
			if string(raw) != "x\n" && !early {
				t.Errorf("it was started %q times, %v", raw, err)
			}
		})
	}
}

// Who kills the sidecar ends what its process has started too: it would serve as the owner, and
// nobody would know of it.
func TestC06AKilledSidecarLeavesNoChildren(t *testing.T) {
	t.Parallel()
	for name, shell := range map[string]string{
		"the process waits for its child": "sleep 1000 & echo $!; wait",
		"the process has ended before":    "sh -c 'sleep 1000 & echo $!'; kill -STOP $PPID; exit 0",
		"the child ignores SIGTERM":       "sh -c 'trap \"\" TERM HUP; sleep 1000 & echo $!; wait'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs, ours, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			cmd := exec.Command(nokvPath(t), "sidecar", "--id", "g1", "--address", nobody(t), "--coordinator-addr", nobody(t), "--ready", "1h", "--", "sh", "-c", shell)
			cmd.Env, cmd.Stdout = append(os.Environ(), nokvEnv(t)...), ours
			err = cmd.Start()
			_ = ours.Close() // now those alone have it who were started
			if err != nil {
				t.Fatal(err)
			}
			said := bufio.NewReader(theirs)
			line, err := said.ReadString('\n')
			child, bad := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || bad != nil {
				t.Fatalf("the child is %q: %v", line, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if err := theirs.SetReadDeadline(time.Now().Add(recoverWithin)); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(said); err != nil { // it ends when the last of them has
				_ = syscall.Kill(child, syscall.SIGKILL)
				t.Errorf("process %d outlived the sidecar: %v, %s", child, err, rest)
			}
		})
	}
}

// languages are the examples, by what has to be installed for them.
var languages = map[string]struct{ flags, file string }{
	"python3": {"", "counter.py"}, "node": {"--poll", "counter.mjs"},
}

// needProgram skips where a program is not installed.
func needProgram(t *testing.T, name string) {
	t.Helper()
	if err := exec.Command(name, "--version").Run(); err != nil {
		t.Skipf("SKIPPED: the example needs %s, which is not installed: %v", name, err)
	}
}

// counters are sidecars of the examples behind a proxy.
type counters struct {
	*cluster
	t        *testing.T
	language string
	folder   string
	url      string
	sidecars map[string]*proctest.Process
	address  map[string]string
}

// counted is what an example answers.
type counted struct {
	Key    string `json:"key"`
	Count  int    `json:"count"`
	Member string `json:"member"`
	PID    int    `json:"pid"`
}

func startCounters(t *testing.T, language string) *counters {
	t.Helper()
	needProgram(t, language)
	c := &counters{cluster: newCluster(t, 2), t: t, language: language, folder: t.TempDir(), sidecars: map[string]*proctest.Process{}, address: map[string]string{}}
	c.StartAll()
	c.WaitHealthy(hostedWithin)
	if r := c.Run("keyspace", "create", "games", "--preset", "games", "--coordinator-addr", c.Coordinators()); r.Code != 0 {
		t.Fatalf("create a keyspace: %s", r.Stderr)
	}
	addrs, err := procs.Addrs(4)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"g1", "g2", "g3"} {
		c.address[id] = addrs[i]
		c.sidecars[id] = c.sidecar(id, id, addrs[i])
	}
	c.url = "http://" + addrs[3] + "/"
	proctest.Start(t, c.Options("proxy", "proxy", "--keyspace", "games", "--key-header", "X-Game", "--claim", "--addr", addrs[3], "--hold", "30s", "--no-access-log", "--coordinator-addr", c.Coordinators()))
	c.eventually(func() error { return c.connected(3) })
	return c
}

func (c *counters) sidecar(name, id, address string) *proctest.Process {
	l := languages[c.language]
	args := append(strings.Fields("sidecar --keyspace games --id "+id+" --address "+address+" --drain 5s --coordinator-addr "+c.Coordinators()+" "+l.flags), "--",
		c.language, repositoryFile(c.t, "examples/sidecar/"+l.file), address[strings.LastIndex(address, ":")+1:], c.folder)
	return proctest.Start(c.t, c.Options(name, args...))
}

func (c *counters) eventually(ask func() error) {
	c.t.Helper()
	proctest.Eventually(c.t, hostedWithin, ask)
}

// connected says whether so many members are live.
func (c *counters) connected(want int) error {
	cl, err := client.New(client.Config{Endpoints: c.CoordinatorAddrs})
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	n := 0
	for m, err := range cl.ListMembers(ctx) {
		if err != nil {
			return err
		}
		if m.GetConnected() {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d of %d members have a stream", n, want)
	}
	return nil
}

// ask adds one to a counter with POST, and names the request; GET tells it.
func (c *counters) ask(method, key, once string) (got counted, err error) {
	req, err := http.NewRequest(method, c.url, nil)
	if err != nil {
		return got, err
	}
	req.Header.Set("X-Game", key)
	if once != "" {
		req.Header.Set("Idempotency-Key", once)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil || resp.StatusCode != 200 {
		return got, errors.Join(err, fmt.Errorf("status %d: %s", resp.StatusCode, raw))
	}
	return got, json.Unmarshal(raw, &got)
}

// countedKeys are of any bytes that a header can have.
var countedKeys = []string{"k0", "k1", "ü", "日本", "\xff\xfe", "a b"}

// A counter service behind a proxy, in another language, while its owners are killed in each
// way: no request fails, and what was acknowledged is there, once.
func TestC06P84CountersSurviveTheirOwners(t *testing.T) {
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			c := startCounters(t, language)
			c.eventually(func() error { _, err := c.ask("POST", "k0", "first"); return err })
			stop := make(chan struct{})
			var adding sync.WaitGroup
			var mu sync.Mutex
			added := map[string]int{"k0": 1}
			for i := range 3 {
				adding.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						key := countedKeys[(n+i)%len(countedKeys)]
						if _, err := c.ask("POST", key, fmt.Sprintf("%d-%d", i, n)); err != nil {
							t.Errorf("adding to %q: %v", key, err)
							return
						}
						mu.Lock()
						added[key]++
						mu.Unlock()
					}
				})
			}
			more := func() {
				t.Helper()
				mu.Lock()
				before := added["k1"]
				mu.Unlock()
				c.eventually(func() error {
					mu.Lock()
					defer mu.Unlock()
					if added["k1"] < before+3 && !t.Failed() {
						return fmt.Errorf("k1 was added to %d times", added["k1"]-before)
					}
					return nil
				})
			}
			owner := func(key string) counted {
				t.Helper()
				got, err := c.ask("GET", key, "")
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			more()
			// The process is killed: the sidecar ends with its status.
			first := owner("k0")
			if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if code := c.sidecars[first.Member].Wait(hostedWithin); code != 137 {
				t.Errorf("exit status %d of the sidecar of a process that was killed", code)
			}
			more()
			second := owner("k0")
			if language == "node" {
				// Another process of the same id takes over from the one before, which ends.
				addrs, err := procs.Addrs(1)
				if err != nil {
					t.Fatal(err)
				}
				again := c.sidecar(second.Member+"-again", second.Member, addrs[0])
				if code := c.sidecars[second.Member].Wait(hostedWithin); code != 1 || !strings.Contains(c.sidecars[second.Member].Log(), "another process registered") {
					t.Errorf("exit status %d of a sidecar that was superseded: %s", code, c.sidecars[second.Member].Tail())
				}
				c.sidecars[second.Member] = again
			} else {
				// The sidecar is killed: its process ends with it, on Linux.
				c.sidecars[second.Member].Kill()
			}
			c.gone(second.PID)
			more()
			close(stop)
			adding.Wait()
			for key, want := range added {
				if got := owner(key); got.Count != want {
					t.Errorf("%q is %d, and %d were acknowledged", key, got.Count, want)
				}
			}
			last := owner("k0")
			c.sidecars[last.Member].Signal(syscall.SIGTERM)
			if code := c.sidecars[last.Member].Wait(hostedWithin); code != 143 {
				t.Errorf("exit status %d of a sidecar that was asked to end", code)
			}
		})
	}
}

// gone waits until a process is gone.
func (c *counters) gone(pid int) {
	c.t.Helper()
	c.eventually(func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("process %d runs: %v", pid, err)
		}
		return nil
	})
}
