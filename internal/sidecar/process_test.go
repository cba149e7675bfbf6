package sidecar

import (
	"bufio"
	"io"
	"os"
	"os/exec"
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
