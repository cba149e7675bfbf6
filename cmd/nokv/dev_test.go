package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

func stopDev(t *testing.T, p *proctest.Process) {
	t.Helper()
	begin := time.Now()
	p.Signal(syscall.SIGINT)
	if code := p.Wait(recoverWithin); code != exitOK {
		t.Errorf("nokv dev: exit status %d after Ctrl-C", code)
	}
	t.Logf("nokv dev stopped within %s of Ctrl-C", time.Since(begin).Round(time.Millisecond))
}

func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	env, workdir := nokvEnv(t), t.TempDir()
	cli := func(args ...string) proctest.Result {
		return here(t, env, args...)
	}
	p := startDev(t, env, workdir, "--coordinators", "3", "--tenure-ttl", longTTL)
	if d := readDevFile(filepath.Join(workdir, "dev.json")); d == nil || !strings.Contains(p.Log(), "\n  export NOKV_COORDINATOR_ADDR="+strings.Join(d.Coordinators, ",")+"\n") {
		t.Errorf("dev does not print the line that another terminal needs:\n%s", p.Tail())
	}
	raw, err := os.ReadFile(filepath.Join(workdir, "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	var file devFile
	if err := errors.Join(json.Unmarshal(raw, &fields), json.Unmarshal(raw, &file)); err != nil || len(fields) != 5 {
		t.Fatalf("dev.json: %v\n%s", err, raw)
	}
	if len(file.Coordinators) != 3 || len(file.RootPeers) != 3 || len(file.Metrics) != 6 || file.Workdir != workdir || file.PID != p.PID() {
		t.Errorf("dev.json: %s", raw)
	}
	var id idOutput
	if r := cli("id", "-o", "json"); json.Unmarshal([]byte(r.Stdout), &id) != nil || id.First != 1 {
		t.Errorf("first id: %s%s", r.Stdout, r.Stderr)
	}
	if r := cli("region", "publish", "a", "m", "--id", "7"); r.Code != 0 {
		t.Errorf("publish: %s", r.Stderr)
	}
	second := cli("dev", "--workdir", workdir)
	if second.Code != exitRefused || !strings.Contains(second.Stderr, "in use by another process") || strings.Count(second.Stderr, "\n") != 1 {
		t.Errorf("a second dev on one workdir: exit status %d, %s", second.Code, second.Stderr)
	}
	if _, err := os.Stat(filepath.Join(workdir, "dev.json")); err != nil {
		t.Errorf("the refused second dev took dev.json away: %v", err)
	}
	stopDev(t, p)
	if _, err := os.Stat(filepath.Join(workdir, "dev.json")); !os.IsNotExist(err) {
		t.Errorf("dev.json is still there after the end: %v", err)
	}
	if r := cli("id"); r.Code != exitUnavailable {
		t.Errorf("nokv id without a cluster: exit status %d", r.Code)
	}

	// Same ports, same data, and no id is skipped after an orderly stop. A port that
	// is taken meanwhile is replaced, and named: another process may take one too.
	taken, err := net.Listen("tcp", file.Metrics[0])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p = startDev(t, env, workdir, "--coordinators", "3", "--tenure-ttl", longTTL)
	again := readDevFile(filepath.Join(workdir, "dev.json"))
	if again == nil {
		t.Fatal("it says nothing of where it listens")
	}
	_, moved, _ := strings.Cut(p.Log(), "ports of the last run are taken: using others: addresses=")
	moved, _, _ = strings.Cut(moved, "\n")
	moved = strings.Trim(moved, "\"")
	if all := strings.Split(moved, ","); !slices.Contains(all, file.Metrics[0]) || len(all) > 2 {
		t.Errorf("it says that %q were taken, want %s", moved, file.Metrics[0])
	}
	for i, was := range slices.Concat(file.Coordinators, file.RootPeers, file.Metrics) {
		is := slices.Concat(again.Coordinators, again.RootPeers, again.Metrics)[i]
		if (is != was) != slices.Contains(strings.Split(moved, ","), was) {
			t.Errorf("it listened at %s, and after a restart at %s; it says that %q were taken", was, is, moved)
		}
	}
	if r := cli("region", "get", "banana", "--strong"); r.Code != 0 {
		t.Errorf("the region is gone after a restart: %s", r.Stderr)
	}
	if r := cli("id", "-o", "json"); json.Unmarshal([]byte(r.Stdout), &id) != nil || id.First != 2 {
		t.Errorf("the id after an orderly restart is %s, want 2", r.Stdout)
	}
	stopDev(t, p)
}

func TestDevLeavesNothing(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	env := append(nokvEnv(t), "TMPDIR="+tmp)
	p := startDev(t, env, "")
	if left, _ := filepath.Glob(filepath.Join(tmp, "nokv-dev-*")); len(left) != 1 {
		t.Errorf("a running dev without --workdir has folders %v in TMPDIR, want one", left)
	}
	stopDev(t, p)
	if left, _ := filepath.Glob(filepath.Join(tmp, "nokv-dev-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A second signal ends it at once, and leaves nothing either.
func TestDevEndedTwiceLeavesNothing(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	p := startDev(t, append(nokvEnv(t), "TMPDIR="+tmp), "")
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCONT} {
		p.Signal(s) // both are there when it goes on
	}
	if code := p.Wait(recoverWithin); code != exitInterrupted {
		t.Errorf("exit status %d, want %d", code, exitInterrupted)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "nokv-dev-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Of two the newer one is found, and the other one when that has ended, also when
// it was killed.
func TestTwoDevs(t *testing.T) {
	t.Parallel()
	env := nokvEnv(t)
	cli := func(args ...string) proctest.Result {
		return here(t, env, args...)
	}
	found := func() (name string) {
		t.Helper()
		for _, name := range []string{"first", "second", "third"} {
			if r := cli("keyspace", "get", name, "--strong"); r.Code == 0 {
				return name
			}
		}
		return "none"
	}
	at := t.TempDir()
	first := startDev(t, env, at)
	cli("keyspace", "create", "first")
	second := startDev(t, env, t.TempDir())
	cli("keyspace", "create", "second")
	third := startDev(t, env, t.TempDir())
	cli("keyspace", "create", "third")
	if name := found(); name != "third" {
		t.Errorf("of three the %s is found", name)
	}
	of := append(slices.Clone(env), "NOKV_COORDINATOR_ADDR="+strings.Join(readDevFile(filepath.Join(at, "dev.json")).Coordinators, ","))
	if r := here(t, of, "events", "--keyspace", "first"); r.Code != 0 {
		t.Errorf("of the one whose coordinators are named, the root peers are not found: exit status %d\n%s", r.Code, r.Stderr)
	}
	of = append(slices.Clone(env), "NOKV_COORDINATOR_ADDR="+nobody(t))
	if r := here(t, of, "events"); r.Code == 0 || !strings.Contains(r.Stderr, "--root-peer") {
		t.Errorf("root peers of coordinators that do not answer: exit status %d\n%s", r.Code, r.Stderr)
	}
	third.Kill()
	if name := found(); name != "second" {
		t.Errorf("of two the %s is found", name)
	}
	stopDev(t, second)
	if name := found(); name != "first" {
		t.Errorf("of one the %s is found", name)
	}
	stopDev(t, first)
}

// What a killed dev leaves is no running one, whatever its process id is used for now.
func TestAKilledDevIsNotFound(t *testing.T) {
	t.Parallel()
	env, workdir := nokvEnv(t), t.TempDir()
	p := startDev(t, env, workdir, "--coordinators", "1")
	notes := append(devNotesIn(t, env), filepath.Join(workdir, "dev.json"))
	if len(notes) != 2 {
		t.Fatalf("a running dev has notes %v, want 2", notes)
	}
	for _, note := range notes {
		if d := readDevFile(note); d == nil || d.PID != p.PID() {
			t.Errorf("%s of a running dev says %+v", note, d)
		}
	}
	p.Kill()
	for _, note := range notes {
		raw, err := os.ReadFile(note)
		if err != nil {
			t.Fatal(err)
		}
		// Another process, this one, has the id of the one that was killed.
		reused := strings.Replace(string(raw), fmt.Sprintf(`"pid": %d`, p.PID()), fmt.Sprintf(`"pid": %d`, os.Getpid()), 1)
		if reused == string(raw) {
			t.Fatalf("%s names no process:\n%s", note, raw)
		}
		if err := os.WriteFile(note, []byte(reused), 0o600); err != nil {
			t.Fatal(err)
		}
		if d := readDevFile(note); d != nil {
			t.Errorf("%s of a killed dev says %+v", note, d)
		}
	}
	r := here(t, env, "member", "list", "--timeout", "1s", "-o", "json")
	if strings.Contains(r.Stderr, "nokv dev` with process id") {
		t.Errorf("a killed dev was asked: %s", r.Stderr)
	}
	if left := devNotesIn(t, env); len(left) != 0 {
		t.Errorf("notes of a killed dev are left: %v", left)
	}
}

// A folder of notes that is not this user's alone, and what is no note in one that is, are another one's word:
// nothing there is read, waited for or removed, and a dev says that it cannot be found.
func TestForeignNotesOfDev(t *testing.T) {
	dir, aside := t.TempDir(), t.TempDir()
	kept := filepath.Join(aside, "dev-settings.json")
	if err := os.WriteFile(kept, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &env{getenv: func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": dir}[name] }}
	if err := os.Symlink(aside, e.devNotes()); err != nil {
		t.Fatal(err)
	}
	if d := e.runningDev(); d != nil {
		t.Errorf("behind a link: %+v", d)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a file behind a link was removed: %v", err)
	}
	if err := os.Remove(e.devNotes()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(e.devNotes(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(e.devNotes(), "dev-1-a.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(e.devNotes(), "dev-2-b.json")
	f, err := writeLocked(path, &devFile{Coordinators: []string{"c:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d := e.runningDev(); d == nil || d.Coordinators[0] != "c:1" { // it waits for no pipe
		t.Errorf("of a running dev: %+v", d)
	}
	for _, mode := range []os.FileMode{0o720, 0o702, 0o777} {
		if err := os.Chmod(e.devNotes(), mode); err != nil {
			t.Fatal(err)
		}
		if d := e.runningDev(); d != nil {
			t.Errorf("where others may write (%v): %+v", mode, d)
		}
	}
	if err := os.Chmod(e.devNotes(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := e.runningDev(); d != nil {
		t.Errorf("of a torn note: %+v", d)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the note of a running dev was removed: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if d := e.runningDev(); d != nil {
		t.Errorf("of a dev that has ended: %+v", d)
	}
	if left, _ := filepath.Glob(filepath.Join(e.devNotes(), "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// devNotesIn are the notes of running devs in an environment.
func devNotesIn(t *testing.T, env []string) []string {
	t.Helper()
	for _, v := range env {
		if dir, ok := strings.CutPrefix(v, "XDG_RUNTIME_DIR="); ok {
			names, err := filepath.Glob(filepath.Join(dir, "nokv", "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			return names
		}
	}
	t.Fatal("the environment names no folder of notes")
	return nil
}

func TestDevIsFoundOnlyWhereItCanBeNoted(t *testing.T) {
	t.Parallel()
	env := append(nokvEnv(t), "XDG_RUNTIME_DIR=/dev/null")
	p := startDev(t, env, t.TempDir())
	if !strings.Contains(p.Log(), "export NOKV_COORDINATOR_ADDR=127.0.0.1:") {
		t.Errorf("dev that cannot note where it is does not say how to find it:\n%s", p.Tail())
	}
	stopDev(t, p)
}

func TestDevLogsItsEnd(t *testing.T) {
	t.Parallel()
	p := startDev(t, nokvEnv(t), t.TempDir(), "--log-level", "info")
	stopDev(t, p)
	for _, want := range []string{"coordinator stopped: coordinator=c1", "coordinator stopped: coordinator=c2", "root peer stopped: peer=1", "root peer stopped: peer=3"} {
		if !strings.Contains(p.Log(), want) {
			t.Errorf("the log does not say %q:\n%s", want, p.Tail())
		}
	}
}

func TestDevPrintsJSON(t *testing.T) {
	t.Parallel()
	workdir := t.TempDir()
	p := proctest.Start(t, proctest.Options{Name: "dev", Path: nokvPath(t), Env: nokvEnv(t), Args: []string{"dev", "-o", "json", "--workdir", workdir}})
	p.WaitLog("}\n", recoverWithin)
	file, err := os.ReadFile(filepath.Join(workdir, "dev.json"))
	if err != nil || p.Log() != string(file) {
		t.Errorf("printed:\n%s\ndev.json (%v):\n%s", p.Log(), err, file)
	}
	stopDev(t, p)
}

// The line that another terminal needs is one for a shell, whatever the folder is called.
func TestDevExportsItsCertificatesToo(t *testing.T) {
	t.Parallel()
	for _, certs := range []string{"", "/a/certs/operator-dev", "/it's $HOME \"here\"; exit 1"} {
		d := devFile{Coordinators: []string{"127.0.0.1:1", "127.0.0.1:2"}, Certs: certs}
		shell := exec.Command("/bin/sh", "-c", d.export()+"\nenv | grep ^NOKV_ | sort")
		shell.Env = []string{"PATH=" + os.Getenv("PATH")}
		said, err := shell.Output()
		want := "NOKV_COORDINATOR_ADDR=127.0.0.1:1,127.0.0.1:2\n"
		if certs != "" {
			want = "NOKV_CERTS=" + certs + "\n" + want
		}
		if err != nil || string(said) != want {
			t.Errorf("%s\nsets %q, %v, want %q", d.export(), said, err, want)
		}
	}
}
