package procs_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	_ "github.com/nokv/nokv/test/hermetic"
)

// beParent makes the test binary start a child, print its process id, and wait.
const beParent = "PROCS_TEST_BE_PARENT"

// bePorts makes the test binary choose ports, print them, and wait.
const bePorts = "PROCS_TEST_BE_PORTS"

// patience is how long a process is waited for.
const patience = 2 * time.Minute

// many ports are enough for two processes to choose the same one by chance.
const many = 400

func TestMain(m *testing.M) {
	if dir := os.Getenv(beParent); dir != "" {
		p, err := procs.Start(procs.Options{Name: "child", Path: "/bin/sleep", Args: []string{"60"}, Log: filepath.Join(dir, "log")})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Ended()
		return
	}
	if os.Getenv(bePorts) != "" {
		addrs, err := procs.Addrs(many)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(strings.Join(addrs, " "))
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the other one ends it
		return
	}
	os.Exit(m.Run())
}

// What was given out to one process is not given out to another one, also while
// nobody listens there.
func TestPortsAreChosenOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	taken := make(map[string]bool)
	for range 2 {
		chooser := exec.Command(self)
		chooser.Env = append(os.Environ(), bePorts+"=1")
		stdin, err := chooser.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := chooser.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := chooser.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = stdin.Close() // which ends it, and gives its ports back
			if err := chooser.Wait(); err != nil {
				t.Error(err)
			}
		}()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		given := strings.Fields(line)
		if len(given) != many {
			t.Fatalf("%d ports", len(given))
		}
		for _, a := range given {
			if taken[a] {
				t.Errorf("%s was given out twice", a)
			}
			taken[a] = true
		}
	}
}

func TestKilledIsGone(t *testing.T) {
	p, err := procs.Start(procs.Options{Name: "sleep", Path: "/bin/sleep", Args: []string{"60"}, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Running() || p.KilledBy() != 0 || p.ExitCode() != -1 {
		t.Error("a process that runs counts as ended")
	}
	if _, err := p.Wait(time.Millisecond); err == nil {
		t.Error("a process that runs was waited for")
	}
	p.Kill()
	if p.Running() || p.KilledBy() != syscall.SIGKILL || p.ExitCode() != -1 {
		t.Errorf("after Kill: running %v, killed by %v, exit status %d", p.Running(), p.KilledBy(), p.ExitCode())
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	p.Kill()
}

func TestExitStatusAndLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := procs.Start(procs.Options{Name: "sh", Path: "/bin/sh", Args: []string{"-c", "echo $A; exit 7"}, Env: []string{"A=b"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if code, err := p.Wait(patience); code != 7 || err != nil || p.KilledBy() != 0 {
		t.Errorf("exit status %d, %v, killed by %v", code, err, p.KilledBy())
	}
	if raw, err := os.ReadFile(log); string(raw) != "b\n" {
		t.Errorf("log %q, %v", raw, err)
	}
}

func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := procs.Start(procs.Options{Name: "x", Path: filepath.Join(dir, "none"), Log: filepath.Join(dir, "log")}); err == nil || !strings.Contains(err.Error(), "start x") {
		t.Errorf("%v", err)
	}
	if _, err := procs.Start(procs.Options{Name: "x", Path: "/bin/true", Log: filepath.Join(dir, "no", "log")}); err == nil {
		t.Error("a process without a log was started")
	}
}

// Promise 1: the child of a parent that is killed is killed.
func TestEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux ends a process with its parent")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), beParent+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(bufio.NewReader(out), &pid); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // its status is that of a killed process
	stat := fmt.Sprintf("/proc/%d/stat", pid)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // nothing tells of another's child
		raw, err := os.ReadFile(stat)
		if err != nil || strings.Contains(string(raw), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the child outlived its parent")
		}
	}
}

func TestLayout(t *testing.T) {
	l, err := procs.NewLayout("/d", 2)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, list := range [][]string{l.RootAddrs, l.TransportAddrs, l.CoordinatorAddrs, l.MetricsAddrs} {
		for _, a := range list {
			if seen[a] {
				t.Errorf("%s is given twice", a)
			}
			seen[a] = true
		}
	}
	if len(seen) != 13 || l.Size() != 5 {
		t.Errorf("%d addresses, %d members", len(seen), l.Size())
	}
	l.RootPeerFlags, l.CoordinatorFlags = []string{"-r"}, []string{"-c"}
	for member, want := range map[int]string{0: "meta-root-1", 2: "meta-root-3", 3: "coordinator-c1", 4: "coordinator-c2"} {
		if got := l.Name(member); got != want {
			t.Errorf("member %d is %s, want %s", member, got, want)
		}
		last := l.Args(member)[len(l.Args(member))-1]
		if want := map[bool]string{true: "-r", false: "-c"}[member < l.Roots()]; last != want {
			t.Errorf("member %d ends with %s, want %s", member, last, want)
		}
	}
}
