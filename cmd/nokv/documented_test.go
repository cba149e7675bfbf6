package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// The ports of the documented commands.
var documentedPorts = []string{
	"127.0.0.1:2379", "127.0.0.1:2380", "127.0.0.1:2381", "127.0.0.1:2382", "127.0.0.1:3380", "127.0.0.1:3381", "127.0.0.1:3382",
	"127.0.0.1:2383", "127.0.0.1:3383", // of a new root peer
}

// needDocumentedPorts skips where something else uses them, a cluster of the
// developer's for example.
func needDocumentedPorts(t *testing.T) {
	t.Helper()
	for _, addr := range documentedPorts {
		if !proctest.Free(addr) {
			t.Skipf("SKIPPED: %s is in use, and the documented commands need it", addr)
		}
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	needDocumentedPorts(t)
	dir, env := t.TempDir(), nokvEnv(t)
	start := func(name, line string) *proctest.Process {
		return proctest.Start(t, proctest.Options{Name: name, Path: nokvPath(t), Env: env, Dir: dir, Args: strings.Fields(line)})
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
	// No address on the command line: the documented port is the default.
	for _, args := range [][]string{{"tso", "--timeout", recoverWithin.String()}, {"id"}, {"status"}, {"root", "status"}, {"root", "events"}} {
		if r := here(t, env, args...); r.Code != 0 {
			t.Errorf("nokv %s: exit status %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
		}
	}
	// The runbook for a root peer whose disk is lost.
	all[1].Kill()
	if err := os.RemoveAll(filepath.Join(dir, "artifacts/cluster/meta-root-2")); err != nil {
		t.Fatal(err)
	}
	all[1] = start("meta-root-4", documentedCommand(t, "nokv meta-root -join "))
	for _, line := range []string{documentedCommand(t, "nokv root replace --lost "), "id --timeout 30s"} {
		if r := here(t, env, strings.Fields(line)...); r.Code != 0 {
			t.Errorf("nokv %s: exit status %d\n%s%s", line, r.Code, r.Stdout, r.Stderr)
		}
	}
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

func TestClusterScript(t *testing.T) {
	t.Parallel()
	needDocumentedPorts(t)
	script := clusterScript(t)
	dir := t.TempDir() // the config's folders are relative: nothing is left in the repository
	run := func(args ...string) *proctest.Process {
		p := proctest.Start(t, proctest.Options{Name: "cluster.sh", Path: script, Dir: dir, Args: args, Env: nokvEnv(t), Parent: true})
		p.WaitLog("Ctrl-C stops everything.", recoverWithin)
		return p
	}
	stop := func(p *proctest.Process) {
		t.Helper()
		p.SignalGroup(syscall.SIGINT) // as a terminal does
		if code := p.Wait(recoverWithin); code != 130 {
			t.Errorf("cluster.sh: exit status %d after Ctrl-C, want 130", code)
		}
		for _, addr := range documentedPorts {
			if !proctest.Free(addr) {
				t.Errorf("%s is still in use after Ctrl-C", addr)
			}
		}
	}
	config := []string{"--config", repositoryFile(t, "raft_config.example.json")}

	p := run(config...)
	for _, want := range []string{"cluster is healthy", "root peers:   127.0.0.1:2380 127.0.0.1:2381 127.0.0.1:2382", "coordinators: 127.0.0.1:2379"} {
		if !strings.Contains(p.Log(), want) {
			t.Errorf("cluster.sh did not print %q:\n%s", want, p.Tail())
		}
	}
	cli := func(want int, args ...string) {
		t.Helper()
		r := here(t, nokvEnv(t), args...)
		if r.Code != want {
			t.Errorf("nokv %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), r.Code, want, r.Stdout, r.Stderr)
		}
	}
	cli(0, "keyspace", "create", "kept")
	stop(p)
	for _, name := range []string{"coordinator-1.log", "meta-root-1.log"} {
		if log, err := os.ReadFile(filepath.Join(dir, "artifacts/cluster", name)); err != nil || !strings.Contains(string(log), "stopped") || strings.Contains(string(log), "[WARN]") {
			t.Errorf("%s after an orderly stop: %v\n%s", name, err, log)
		}
	}

	p = run(append(config, "--coordinators", "2")...)
	cli(0, "keyspace", "get", "kept", "--strong")
	cli(0, "id", "--coordinator-addr", "127.0.0.1:2383")
	stop(p)

	p = run(append(config, "--clean")...)
	cli(1, "keyspace", "get", "kept", "--strong")
	stop(p)

	r := proctest.Run(t, proctest.Options{Path: script, Dir: dir, Args: append(config, "--clean-only")})
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

// clusterScript is the script's path; it builds the binary itself.
func clusterScript(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"bash", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: cluster.sh needs %s", tool)
		}
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
