package sidecar

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// A command may make a group of its own, as timeout does and a shell with jobs: it is ended with what it has
// started all the same, and alone if it goes to a group that is not ours to end.
func TestC06ACommandWithAGroupOfItsOwnEnds(t *testing.T) {
	for name, argv := range map[string][]string{
		"a group that it makes":    {"timeout", "1000", "sh", "-c", "echo begins; sleep 1000"},
		"the group that it was in": {"sh", "-c", "sleep 1000 & echo begins; wait"},
		"a group of others":        {"python3", "-c", `import os, time; os.setpgid(0, os.getpgid(os.getppid())); print("begins", flush=True); time.sleep(1000)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skipf("SKIPPED: %s is not installed: %v", argv[0], err)
			}
			theirs, ours, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			p, err := start(argv, nil, nil, ours, nil)
			_ = ours.Close() // now those alone have it who were started
			if err != nil {
				t.Fatal(err)
			}
			said := bufio.NewReader(theirs)
			if line, err := said.ReadString('\n'); line != "begins\n" {
				t.Fatalf("it said %q: %v", line, err)
			}
			go p.kill() // joined by ended
			select {
			case <-p.ended:
			case <-time.After(proctest.Patience):
				_ = p.cmd.Process.Kill()
				<-p.ended
				t.Error("it was not ended")
			}
			if err := theirs.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(said); err != nil { // it ends when the last of them has
				t.Errorf("what it has started outlived it: %v, %s", err, rest)
			}
		})
	}
}

// The command does not begin before its guardian: what it started then would outlive a sidecar that is killed in
// that moment. A sidecar that ends in it leaves nothing.
func TestC06NoCommandIsUnguarded(t *testing.T) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	begins := make(chan string, 1)
	go func() { // ends with the pipe
		line, _ := bufio.NewReader(theirs).ReadString('\n')
		begins <- line
	}()
	p, err := startAt([]string{"sh", "-c", "echo begins; sleep 1000"}, nil, nil, ours, nil, func() {
		select { // a command that waits for nothing begins in this time
		case line := <-begins:
			t.Errorf("without a guardian, the command said %q", line)
			begins <- line
		case <-time.After(300 * time.Millisecond):
		}
	})
	_ = ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	if line := <-begins; line != "begins\n" {
		t.Errorf("with a guardian, the command said %q", line)
	}
	p.kill()
}

// What cannot be run is said before anything is, and leaves nothing.
func TestACommandThatCannotBeRun(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("\x7fELF nothing"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		garbage: "exec format error", filepath.Join(dir, "none"): "no such file", dir: "is a directory", "no-such-command-anywhere": "executable file not found",
	} {
		p, err := start([]string{path, "x"}, nil, nil, nil, nil)
		if err == nil {
			p.kill()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "start the command: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// The command has its arguments, its environment, also names that a shell would drop, and nothing open but what
// every process has that is started here.
func TestTheCommandIsRunAsItWasSaid(t *testing.T) {
	for _, argv := range [][]string{{"sh", "-c", `echo "$0 $1|$2"`, "zero", "a b", "$c"}, {"printenv", "a.b"}, {"ls", "/dev/fd/"}} {
		plain := exec.Command(argv[0], argv[1:]...)
		plain.Env = append(os.Environ(), "a.b=c d")
		want, err := plain.Output()
		if err != nil || len(want) == 0 {
			t.Fatalf("%q: %v", argv, err)
		}
		theirs, ours, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := start(argv, []string{"a.b=c d"}, nil, ours, nil)
		_ = ours.Close()
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(theirs) // until it ends
		if argv[0] == "ls" {
			// What this process inherited open may stay open in one and not in the other.
			plainly := strings.Fields(string(want))
			for _, fd := range strings.Fields(string(said)) {
				if err != nil || !slices.Contains(plainly, fd) {
					t.Errorf("%q said %q, %v, want no more than %q", argv, said, err, want)
				}
			}
		} else if err != nil || string(said) != string(want) {
			t.Errorf("%q said %q, %v, want %q", argv, said, err, want)
		}
		p.kill()
		_ = theirs.Close()
	}
}
