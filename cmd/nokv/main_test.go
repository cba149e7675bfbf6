package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls/ca"
)

// beNoKV makes the test binary run as nokv: processes under test are the
// binary under test, with the race detector when the tests have it.
const beNoKV = "NOKV_TEST_RUN_MAIN"

// atOnce is how many tests run at once, unless -parallel says so: most of them wait for
// processes, and few of them make both cores of a small machine busy.
const atOnce = "6"

func TestMain(m *testing.M) {
	if os.Getenv(beNoKV) != "" {
		main()
		return
	}
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	for _, dir := range foldersOfAll {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// foldersOfAll are those that end with the tests.
var foldersOfAll []string

// nokvPath and nokvEnv run nokv as a process.
func nokvPath(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// nokvEnv makes a process nokv, and finds and notes a running `nokv dev` in a folder of the test's.
func nokvEnv(t testing.TB) []string {
	t.Helper()
	return []string{beNoKV + "=1", "XDG_RUNTIME_DIR=" + t.TempDir()}
}

// here runs a command line in this process, with variables beside this process's own, and
// returns what a process would have left. Servers and what starts processes are run by
// proctest.Run.
func here(t testing.TB, vars []string, args ...string) proctest.Result {
	t.Helper()
	const limit = proctest.Patience + proctest.Patience/4
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := hereUntil(ctx, vars, args...)
	if ctx.Err() != nil {
		t.Fatalf("nokv %q did not end within %s\nstdout: %s\nstderr: %s", args, limit, r.Stdout, r.Stderr)
	}
	return r
}

func hereUntil(ctx context.Context, vars []string, args ...string) proctest.Result {
	var stdout, stderr written.Text
	begin := time.Now()
	code := run(ctx, args, &env{stdout: &stdout, stderr: &stderr, getenv: func(name string) string {
		switch name {
		case "GOGC", "GOMEMLIMIT":
			return "as it is" // they are of the whole process
		}
		for i := len(vars) - 1; i >= 0; i-- {
			if value, ok := strings.CutPrefix(vars[i], name+"="); ok {
				return value
			}
		}
		return os.Getenv(name)
	}})
	return proctest.Result{Code: code, Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(begin)}
}

// wantRefused runs a command line that must end at once, before anybody is asked.
func wantRefused(t testing.TB, line string, code int, want string, vars ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what is not refused must not go on
	if r := hereUntil(ctx, vars, strings.Fields(line)...); r.Code != code || !strings.Contains(r.Stderr, want) {
		t.Errorf("nokv %s: exit status %d, want %d, %s, want %q", line, r.Code, code, r.Stderr, want)
	}
}

// nobody is an address where nobody listens, nor can as long as the test runs.
func nobody(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

// cluster has members that are processes. The commands of Run are not.
type cluster struct {
	*proctest.Cluster
	t testing.TB
}

func newCluster(t testing.TB, coordinators int) *cluster {
	t.Helper()
	return &cluster{proctest.NewCluster(t, nokvPath(t), nokvEnv(t), coordinators), t}
}

// Secure gives every member a certificate, and the commands of Run that of an operator.
func (c *cluster) Secure() *cluster {
	c.t.Helper()
	return c.SecureFor(ca.DefaultLife)
}

// SecureFor is Secure with certificates that are valid for so long.
func (c *cluster) SecureFor(life time.Duration) *cluster {
	c.t.Helper()
	c.Cluster.SecureFor(life)
	return c
}

// StopAll ends every member in order, coordinators first.
func (c *cluster) StopAll() {
	c.t.Helper()
	for i := c.Size() - 1; i >= 0; i-- {
		c.stop(i)
	}
}

// stop ends a member in order.
func (c *cluster) stop(member int) {
	c.t.Helper()
	c.Process(member).Signal(syscall.SIGTERM)
	if code := c.Process(member).Wait(recoverWithin); code != 0 {
		c.t.Errorf("%s: exit status %d after SIGTERM, want 0\n%s", c.Name(member), code, c.Process(member).Tail())
	}
}

// Run runs a command in this process.
func (c *cluster) Run(args ...string) proctest.Result {
	c.t.Helper()
	return here(c.t, c.Options("").Env, args...)
}

// RunProcess runs a command as a process to its end: a server that has to refuse.
func (c *cluster) RunProcess(args ...string) proctest.Result {
	c.t.Helper()
	return c.Cluster.Run(args...)
}
