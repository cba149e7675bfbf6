package main

import (
	"bytes"
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
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
)

func TestC06SidecarsWords(t *testing.T) {
	t.Setenv(sidecarToken, "")
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
		{"sidecar --id g1 --address 127.0.0.1:1 --ready 0s -- true", "more than 0"},
		{"sidecar --id g1 --address 127.0.0.1:1 --keyspace a --keyspace a -- true", "each once"},
	} {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		code := run(ctx, strings.Fields(c.line), &env{stdout: &stdout, stderr: &stderr})
		if code != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("nokv %s: exit status %d, %s", c.line, code, stderr.String())
		}
	}
}

// A process that is no member: its exit status is kept, and it is not started again. No cluster
// is asked before it is ready.
func TestC06SidecarOfAProcessThatIsNoMember(t *testing.T) {
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
		"cannot be reached":          {"--ready 300ms --app " + server.URL, "sleep 100", 1, "nobody can be reached at --address"},
		"leaves a child that serves": {"", "sleep 100 & exit 3", 3, "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := filepath.Join(t.TempDir(), "starts")
			args := append(strings.Fields("sidecar --id g1 --address "+addrs[0]+" --coordinator-addr 127.0.0.1:1 "+c.flags), "--", "sh", "-c", "echo x >> "+count+"; "+c.shell)
			r := proctest.Run(t, proctest.Options{Name: "sidecar", Path: nokvPath(t), Env: nokvEnv(t), Args: args})
			if r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("exit status %d, %s", r.Code, r.Stderr)
			}
			if raw, err := os.ReadFile(count); err != nil || string(raw) != "x\n" {
				t.Errorf("it was started %q times, %v", raw, err)
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
	*proctest.Cluster
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
	c := &counters{Cluster: newCluster(t, 2), t: t, language: language, folder: t.TempDir(), sidecars: map[string]*proctest.Process{}, address: map[string]string{}}
	c.StartAll()
	c.WaitHealthy(hostedWithin)
	if r := proctest.Run(t, c.Options("create", "keyspace", "create", "games", "--preset", "games", "--coordinator-addr", c.Coordinators())); r.Code != 0 {
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

const countedKeys = 6

// A counter service behind a proxy, in another language, while its owners are killed in each
// way: no request fails, and what was acknowledged is there, once.
func TestC06P84CountersSurviveTheirOwners(t *testing.T) {
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
						key := fmt.Sprintf("k%d", (n+i)%countedKeys)
						if _, err := c.ask("POST", key, fmt.Sprintf("%d-%d", i, n)); err != nil {
							t.Errorf("adding to %s: %v", key, err)
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
					t.Errorf("%s is %d, and %d were acknowledged", key, got.Count, want)
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

// The tutorial, word for word: what it has for a shell is run by one.
func TestTutorialOfAnyLanguage(t *testing.T) {
	needProgram(t, "python3")
	needProgram(t, "curl")
	for _, addr := range []string{"127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003"} {
		if !proctest.Free(addr) {
			t.Skipf("SKIPPED: %s is in use, and the tutorial needs it", addr)
		}
	}
	said := runTutorial(t, "tutorials/any-language.md")
	var members []string
	for n := 1; n <= 3; n++ {
		got := regexp.MustCompile(fmt.Sprintf(`"count": %d, "member": "(g[1-3])"`, n)).FindStringSubmatch(said)
		if got == nil {
			t.Fatalf("nobody counted to %d", n)
		}
		members = append(members, got[1])
	}
	if members[0] != members[1] || members[1] == members[2] {
		t.Errorf("%v counted", members)
	}
	if !strings.Contains(said, "ended by signal 9") || !strings.Contains(said, "the owner has failed") {
		t.Error("it does not say what happened")
	}
}

// runTutorial runs what a tutorial has for a shell, and returns what that printed. What it builds has
// been built for the tests.
func runTutorial(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{repositoryFile(t, "examples"): "examples", nokvPath(t): "nokv"} {
		if err := os.Symlink(from, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	script := "set -e\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readDoc(t, name), -1) {
		script += block[1]
	}
	const build = "go build -o nokv ./cmd/nokv\n"
	if !strings.Contains(script, build) {
		t.Fatal("the tutorial does not build nokv")
	}
	script = strings.Replace(script, build, "", 1)
	// What else it builds is built here, where the repository is.
	for _, line := range regexp.MustCompile(`(?m)^go build -o (\w+) \./(examples/\w+)\n`).FindAllStringSubmatch(script, -1) {
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, line[1]), repositoryFile(t, line[2])).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line[0], err, out)
		}
		script = strings.Replace(script, line[0], "", 1)
	}
	p := proctest.Start(t, proctest.Options{Name: "tutorial", Path: "/bin/bash", Env: nokvEnv(t), Dir: dir, Parent: true, Args: []string{"-c", script}})
	if code := p.Wait(proctest.Patience); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	return p.Log()
}

// The tutorial of a pool of tenants, word for word.
func TestP68TutorialOfTenantPools(t *testing.T) {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) == 0 {
			t.Skipf("SKIPPED: the tutorial needs PostgreSQL, and there is no %s: apt-get install postgresql", name)
		}
	}
	needProgram(t, "curl")
	if !proctest.Free("127.0.0.1:8090") {
		t.Skip("SKIPPED: 127.0.0.1:8090 is in use, and the tutorial needs it")
	}
	said := runTutorial(t, "tutorials/tenantpool.md")
	rows := regexp.MustCompile(`\{"pod":"(p[1-3])","id":(\d+),"text":"(\w+)"\}`).FindAllStringSubmatch(said, -1)
	var got []string
	for _, r := range rows {
		got = append(got, r[2]+" "+r[3])
	}
	if fmt.Sprint(got) != "[1 one 1 one 1 one 2 two 1 one 3 three]" {
		t.Fatalf("it says %q", got)
	}
	if rows[0][1] != rows[1][1] || rows[0][1] == rows[2][1] || rows[3][1] != rows[0][1] || rows[4][1] == rows[0][1] || rows[5][1] == rows[0][1] {
		t.Errorf("pods are %q", rows)
	}
	if !strings.Contains(said, "there is no such row") || !strings.Contains(said, `"reason":"pin_lost"`) {
		t.Error("the transaction was seen, or is not lost")
	}
}
