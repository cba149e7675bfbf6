// Package hermetic gives tests, and the processes that they start, one
// environment that is the same on every machine.
//
// A test package imports it for its effect: before the first test the process's
// environment is replaced by Environ's. It promises: (1) what the machine has
// set (NOKV_* variables, a home folder, settings of PostgreSQL or of a shell, a
// running `nokv dev`, GOGC, signals that nohup has ignored) reaches no test; (2) the go command works in tests as
// it does outside, from the same caches; (3) what a test sets afterwards is left
// alone, also in processes that it starts and that import this package. It
// leaves to the tests which ports they use.
package hermetic

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Variables of the tests themselves. Every other NOKV_* variable is taken away.
const (
	// Report names the file that package testreport adds lines to.
	Report = "NOKV_TEST_REPORT"
	// Logs names the folder that keeps the logs of processes of failed tests.
	Logs = "NOKV_TEST_LOGS"
	// Binary names a nokv binary that is built already.
	Binary = "NOKV_TEST_BINARY"
	// Long, when it is not empty, makes tests as long as package size says.
	Long = "NOKV_TEST_LONG"
	// Run marks the processes of one run of the tests.
	Run = "NOKV_TEST_RUN"
	// made says that the environment is Environ's, and what a test added to it.
	made = "NOKV_TEST_ENVIRONMENT"
)

// kept are the variables that tests have from the machine: where programs are,
// where temporary files go, the tests' own. Those of the go command and of the C
// compiler are kept too, but for GOGC and its like, which programs under test
// would obey.
var (
	kept    = []string{"PATH", "TMPDIR", "USER", "LOGNAME", "CC", "CXX", Report, Logs, Binary, Long, Run, made}
	dropped = []string{"GOGC", "GOMEMLIMIT", "GODEBUG", "GOTRACEBACK"}
)

// nowhere is a path below which nothing can be read or made.
const nowhere = os.DevNull

// Environ is the environment of tests, made of this process's.
func Environ() []string {
	env := map[string]string{"HOME": nowhere, "XDG_RUNTIME_DIR": nowhere, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
	// The go command finds these by HOME, unless its file of settings says something.
	if dir, err := os.UserConfigDir(); err == nil {
		env["GOENV"] = filepath.Join(dir, "go", "env")
	}
	settings, _ := os.ReadFile(cmp.Or(os.Getenv("GOENV"), env["GOENV"])) // which need not be there
	says := func(name string) bool {
		return bytes.Contains(append([]byte("\n"), settings...), []byte("\n"+name+"="))
	}
	if home, err := os.UserHomeDir(); err == nil && !says("GOPATH") {
		env["GOPATH"] = filepath.Join(home, "go")
	}
	if dir, err := os.UserCacheDir(); err == nil && !says("GOCACHE") {
		env["GOCACHE"] = filepath.Join(dir, "go-build")
	}
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		ofGo := strings.HasPrefix(name, "GO") || strings.HasPrefix(name, "CGO_")
		if value != "" && (slices.Contains(kept, name) || ofGo && !slices.Contains(dropped, name)) {
			env[name] = value
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// umask is what most machines have: tests see the modes of files that are made.
const umask = 0o022

func init() {
	if !testing.Testing() || os.Getenv(made) != "" {
		return // no test, or a process of one: its environment is what the test says
	}
	env := append(Environ(), made+"=1")
	os.Clearenv()
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		_ = os.Setenv(name, value) // which Environ's names cannot fail
	}
	syscall.Umask(umask)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) { // by nohup, or a shell that runs tests in the background
			// Here it stays without effect, and processes that are started begin with its default.
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	// Simulations make garbage: collecting it seldom saves a fifth of their time.
	debug.SetGCPercent(400)
}
