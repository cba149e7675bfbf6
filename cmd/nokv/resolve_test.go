package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// taken is an address that somebody listens on: who is told to listen there says so and ends.
func taken(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis.Addr().String()
}

// The config says what flags leave open, in the scope that is asked for; a flag wins over both
// scopes. Each process is told to listen where another one does, and so names what it took.
func TestN59AFlagWinsOverTheConfig(t *testing.T) {
	host, docker, flag, transport := taken(t), taken(t), taken(t), taken(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "raft_config.json")
	text := fmt.Sprintf(`{
 "coordinator": {"addr": %q, "docker_addr": %q},
 "meta_root": [{"node_id": 1, "addr": %q, "docker_addr": %q, "work_dir": %q, "docker_work_dir": %q}]
}`, host, docker, host, docker, filepath.Join(dir, "host"), filepath.Join(dir, "docker"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, process := range []string{
		"coordinator -coordinator-id c1 -config " + path,
		"meta-root -node-id 1 -peer 1=" + transport + " -config " + path,
	} {
		for flags, want := range map[string]string{
			"":                                host,
			" -scope host":                    host,
			" -scope docker":                  docker,
			" -addr " + flag:                  flag,
			" -scope docker -addr " + flag:    flag,
			" -addr " + flag + " -scope host": flag,
		} {
			code, _, stderr := runHere(t, strings.Fields(process+flags)...)
			if code != exitRefused || !strings.Contains(stderr, "cannot listen on "+want+":") {
				t.Errorf("nokv %s%s: exit status %d, %s\nwant that it cannot listen on %s", process, flags, code, stderr, want)
			}
		}
	}
}

// A root peer has no folder that nobody named, and a coordinator has none at all.
func TestN47TheFolderOfARootPeerIsNamed(t *testing.T) {
	at := " -addr " + taken(t) // what is not refused ends there
	for _, c := range []struct{ line, want string }{
		{"meta-root -node-id 1 -peer 1=127.0.0.1:3380" + at, "-workdir"},
		{"meta-root -node-id 1 -peer 1=127.0.0.1:3380 -workdir=" + at, "-workdir"},
		{"coordinator -coordinator-id c1 -root-peer 1=127.0.0.1:2380 -workdir w" + at, "-workdir"},
	} {
		if code, _, stderr := runHere(t, strings.Fields(c.line)...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("nokv %s: exit status %d, %s, want something about %s", c.line, code, stderr, c.want)
		}
	}
}

// The name of a coordinator is given to it and stays: it has no default, so none that differs
// from start to start.
func TestN48ACoordinatorIsNamed(t *testing.T) {
	rest := " -root-peer 1=127.0.0.1:2380 -addr " + taken(t) // one that has a name ends there
	for _, line := range []string{"coordinator" + rest, "coordinator -coordinator-id=" + rest, "coordinator -coordinator-id c\x01" + rest} {
		if code, _, stderr := runHere(t, strings.Split(line, " ")...); code != exitUsage || !strings.Contains(stderr, "-coordinator-id") {
			t.Errorf("nokv %q: exit status %d, %s", line, code, stderr)
		}
	}
}

// Scripts ask for what a process would resolve, each field in each scope.
func TestN61ConfigGet(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"coordinator", "127.0.0.1:2379"},
		{"coordinator --field addr --scope host", "127.0.0.1:2379"},
		{"coordinator --field addr --scope docker", "nokv-coordinator:2379"},
		{"coordinator --field workdir --scope host", "./artifacts/cluster/coordinator"},
		{"coordinator --field workdir --scope docker", "/var/lib/nokv-coordinator"},
		{"meta-root --node-id 2 --field addr --scope docker", "nokv-meta-root-2:2380"},
		{"meta-root --node-id 2 --field workdir", "./artifacts/cluster/meta-root-2"},
	} {
		args := append([]string{"config", "get"}, strings.Fields(c.line)...)
		code, stdout, stderr := runHere(t, append(args, "--config", "../../raft_config.example.json")...)
		if code != exitOK || stdout != c.want+"\n" {
			t.Errorf("nokv %s: exit status %d, %q%s, want %q", strings.Join(args, " "), code, stdout, stderr, c.want)
		}
	}
	for _, c := range []struct{ line, want string }{
		{"coordinator --field port", "use addr or workdir"},
		{"coordinator --scope moon", "moon"},
		{"store", "coordinator or meta-root"},
		{"meta-root", "--node-id"},
	} {
		args := append([]string{"config", "get"}, strings.Fields(c.line)...)
		if code, _, stderr := runHere(t, append(args, "--config", "../../raft_config.example.json")...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("nokv %s: exit status %d, %s, want %q", strings.Join(args, " "), code, stderr, c.want)
		}
	}
}
