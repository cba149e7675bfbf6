package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
)

// documented are the addresses of the documented commands, those of a new root peer last.
var documented = []string{
	"127.0.0.1:2379", "127.0.0.1:2380", "127.0.0.1:2381", "127.0.0.1:2382", "127.0.0.1:3380", "127.0.0.1:3381", "127.0.0.1:3382",
	"127.0.0.1:2383", "127.0.0.1:3383",
}

// freePlaces puts free addresses in the place of the documented ones, as far from each
// other as scripts make them: a transport is 1000 above its root peer, and the second
// coordinator behind the last root peer.
func freePlaces(t *testing.T) *strings.Replacer {
	t.Helper()
	at := map[int]int{2379: freeTogether(t), 2380: freeTogether(t, 1000), 2381: freeTogether(t, 1000), 2382: freeTogether(t, 1, 1000, 1001)}
	for _, root := range []int{2380, 2381, 2382} {
		at[root+1000] = at[root] + 1000
	}
	at[2383], at[3383] = at[2382]+1, at[2382]+1001
	var pairs []string
	for port, free := range at {
		pairs = append(pairs, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", free))
	}
	return strings.NewReplacer(pairs...)
}

// freeTogether is a free port of loopback, as procs gives them, of which those at some
// distances from it are free too.
func freeTogether(t *testing.T, distances ...int) int {
	t.Helper()
next:
	for range 1000 {
		addr, err := net.ResolveTCPAddr("tcp", proctest.Addrs(t, 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range distances {
			if !procs.Take(addr.Port + d) {
				continue next
			}
		}
		return addr.Port
	}
	t.Fatal("no free ports at such distances")
	return 0
}

// Without an address on the command line, the documented ones are meant.
func TestDocumentedAddressesAreTheDefaults(t *testing.T) {
	nothing := func() *flags {
		f, notes := newFlags("nokv test", &command{}), t.TempDir()
		f.env.getenv = func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": notes}[name] }
		return f
	}
	at, err := nothing().endpoints().resolve(hclog.NewNullLogger())
	if err != nil || !slices.Equal(at.addrs, documented[:1]) || at.certs != nil {
		t.Errorf("coordinators are asked at %v, %v", at.addrs, err)
	}
	roots, certs, err := nothing().root().resolve(t.Context())
	if err != nil || certs != nil || len(roots) != 3 || roots[1] != documented[1] || roots[2] != documented[2] || roots[3] != documented[3] {
		t.Errorf("root peers are asked at %v, %v", roots, err)
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	dir, places := t.TempDir(), freePlaces(t)
	env := append(nokvEnv(t), "NOKV_COORDINATOR_ADDR="+places.Replace(documented[0]))
	start := func(name, line string) *proctest.Process {
		return proctest.Start(t, proctest.Options{Name: name, Path: nokvPath(t), Env: env, Dir: dir, Args: strings.Fields(places.Replace(line))})
	}
	var all []*proctest.Process
	const peers = "-peer 1=127.0.0.1:3380 -peer 2=127.0.0.1:3381 -peer 3=127.0.0.1:3382"
	for i := range 3 {
		all = append(all, start(fmt.Sprintf("meta-root-%d", i+1), fmt.Sprintf(
			"meta-root -addr 127.0.0.1:%d -workdir ./artifacts/cluster/meta-root-%d -node-id %d -transport-addr 127.0.0.1:%d %s",
			2380+i, i+1, i+1, 3380+i, peers)))
	}
	all = append(all, start("coordinator", "coordinator -addr 127.0.0.1:2379 -coordinator-id c1 "+
		"-root-peer 1=127.0.0.1:2380 -root-peer 2=127.0.0.1:2381 -root-peer 3=127.0.0.1:2382"))
	asked := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if r := here(t, env, strings.Fields(places.Replace(line))...); r.Code != 0 {
				t.Errorf("nokv %s: exit status %d\n%s%s", line, r.Code, r.Stdout, r.Stderr)
			}
		}
	}
	asked("tso --timeout "+recoverWithin.String(), "id", "status", "root status", "root events")
	// The runbook for a root peer whose disk is lost.
	all[1].Kill()
	if err := os.RemoveAll(filepath.Join(dir, "artifacts/cluster/meta-root-2")); err != nil {
		t.Fatal(err)
	}
	all[1] = start("meta-root-4", documentedCommand(t, "nokv meta-root -join "))
	asked(documentedCommand(t, "nokv root replace --lost "), "id --timeout "+recoverWithin.String())
	for i := len(all) - 1; i >= 0; i-- {
		all[i].Signal(syscall.SIGINT)
		if code := all[i].Wait(recoverWithin); code != 0 {
			t.Errorf("process %d: exit status %d after Ctrl-C", i, code)
		}
	}
}

// documentedCommand is the one command of docs/operations.md that begins like
// this, without "nokv".
func documentedCommand(t *testing.T, prefix string) string {
	t.Helper()
	var found []string
	text := strings.ReplaceAll(readDoc(t, "operations.md"), "\\\n", " ")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, prefix) {
			found = append(found, strings.TrimPrefix(line, "nokv "))
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/operations.md has %d commands that begin with %q, want one", len(found), prefix)
	}
	return found[0]
}

// machineStalls is what a busy machine makes a root peer say.
var machineStalls = regexp.MustCompile(`(?m)^.*(this peer stands still|this peer stood still).*\n`)

func TestClusterScript(t *testing.T) {
	t.Parallel()
	script, places := clusterScript(t), freePlaces(t)
	dir := t.TempDir() // the config's folders are relative: nothing is left in the repository
	file := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	example, err := os.ReadFile(repositoryFile(t, "raft_config.example.json"))
	if err != nil {
		t.Fatal(err)
	}
	config := []string{"--config", file("raft_config.json", places.Replace(string(example)), 0o600)}
	// What the script builds is this binary.
	file("go", fmt.Sprintf("#!/bin/sh\n[ \"$1 $2 $4\" = 'build -o ./cmd/nokv' ] && exec ln -s '%s' \"$3\"\n", nokvPath(t)), 0o700)
	env := append(nokvEnv(t), "PATH="+dir+":"+os.Getenv("PATH"), "NOKV_COORDINATOR_ADDR="+places.Replace(documented[0]))
	run := func(args ...string) *proctest.Process {
		p := proctest.Start(t, proctest.Options{Name: "cluster.sh", Path: script, Dir: dir, Args: args, Env: env, Parent: true})
		p.WaitLog("Ctrl-C stops everything.", recoverWithin)
		return p
	}
	logOf := func(name string) string {
		t.Helper()
		log, err := os.ReadFile(filepath.Join(dir, "artifacts/cluster", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(log)
	}
	stop := func(p *proctest.Process) {
		t.Helper()
		p.SignalGroup(syscall.SIGINT) // as a terminal does
		if code := p.Wait(recoverWithin); code != 130 {
			t.Errorf("cluster.sh: exit status %d after Ctrl-C, want 130", code)
		}
		for _, addr := range documented {
			if addr = places.Replace(addr); !proctest.Free(addr) {
				t.Errorf("%s is still in use after Ctrl-C", addr)
			}
		}
	}
	p := run(append(config, "--timeout", "120")...)
	for _, want := range []string{"cluster is healthy", "root peers:   127.0.0.1:2380 127.0.0.1:2381 127.0.0.1:2382", "coordinators: 127.0.0.1:2379"} {
		if !strings.Contains(p.Log(), places.Replace(want)) {
			t.Errorf("cluster.sh did not print %q:\n%s", places.Replace(want), p.Tail())
		}
	}
	cli := func(want int, args ...string) {
		t.Helper()
		r := here(t, env, args...)
		if r.Code != want {
			t.Errorf("nokv %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), r.Code, want, r.Stdout, r.Stderr)
		}
	}
	cli(0, "keyspace", "create", "kept")
	before := map[string]int{"coordinator-1.log": len(logOf("coordinator-1.log")), "meta-root-1.log": len(logOf("meta-root-1.log"))}
	stop(p)
	for name, read := range before {
		log := logOf(name)[read:]
		if said := machineStalls.ReplaceAllString(log, ""); !strings.Contains(said, "stopped") || strings.Contains(said, "[WARN]") {
			t.Errorf("%s after an orderly stop:\n%s", name, log)
		}
	}

	p = run(append(config, "--coordinators", "2", "--timeout", "120")...)
	cli(0, "keyspace", "get", "kept", "--strong")
	cli(0, "id", "--coordinator-addr", places.Replace("127.0.0.1:2383"))
	stop(p)

	p = run(append(config, "--clean", "--timeout", "120")...)
	cli(1, "keyspace", "get", "kept", "--strong")
	stop(p)

	r := proctest.Run(t, proctest.Options{Path: script, Dir: dir, Env: env, Args: append(config, "--clean-only")})
	if left, _ := filepath.Glob(filepath.Join(dir, "artifacts/cluster/meta-root-?")); r.Code != 0 || len(left) > 0 {
		t.Errorf("--clean-only: exit status %d, left %v", r.Code, left)
	}
}

func TestClusterScriptRefusesWrongUse(t *testing.T) {
	t.Parallel()
	script := clusterScript(t)
	for _, args := range [][]string{{"--confg", "x"}, {"--config"}, {"--config", "/nonexistent.json"}, {"--coordinators", "0"}, {"--timeout", "soon"}} {
		if r := proctest.Run(t, proctest.Options{Path: script, Args: args}); r.Code != exitUsage || !strings.Contains(r.Stderr, "cluster.sh: ") {
			t.Errorf("cluster.sh %s: exit status %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
		}
	}
}

// clusterScript is the script's path.
func clusterScript(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("SKIPPED: cluster.sh needs bash: %v", err)
	}
	return repositoryFile(t, "scripts/dev/cluster.sh")
}

func repositoryFile(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}
