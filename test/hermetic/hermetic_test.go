package hermetic

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A process with the variables of another machine.
func TestEnviron(t *testing.T) {
	home := t.TempDir()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "PATH" {
			t.Setenv(name, "") // puts it back at the end
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, value := range map[string]string{
		"NOKV_COORDINATOR_ADDR": "nonsense", "NOKV_CERTS": "/nonsense", "NOKV_SIDECAR_TOKEN": "x", "NOKV_OF_TOMORROW": "y",
		"PGHOST": "db.example", "BASH_ENV": "/etc/profile", "HTTP_PROXY": "http://proxy.example", "GRPC_GO_LOG_SEVERITY_LEVEL": "info",
		"XDG_RUNTIME_DIR": "/run/user/0", "HOME": home, "TZ": "Asia/Tokyo", "LC_ALL": "de_DE",
		"GOGC": "1", "GOMEMLIMIT": "1", "GODEBUG": "gctrace=1", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "CGO_ENABLED": "0", "TMPDIR": "/tmp/x", Long: "1", "CC": "",
	} {
		t.Setenv(name, value)
	}
	if err := os.MkdirAll(filepath.Join(home, "settings"), 0o755); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(home, "settings", "env")
	if err := os.WriteFile(settings, []byte("GOPRIVATE=x\nGOCACHE=/elsewhere\nGOPATH=/elsewhere\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", settings)
	for _, v := range Environ() {
		if strings.HasPrefix(v, "GOPATH=") || strings.HasPrefix(v, "GOCACHE=") || strings.HasPrefix(v, "GOENV=") && v != "GOENV="+settings {
			t.Errorf("over the go command's own settings, tests have %s", v)
		}
	}
	t.Setenv("GOENV", "")
	got := slices.DeleteFunc(Environ(), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.UserConfigDir()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"CGO_ENABLED=0", "GOCACHE=" + filepath.Join(cache, "go-build"), "GOENV=" + filepath.Join(config, "go", "env"), "GOFLAGS=-mod=mod",
		"GOPATH=" + filepath.Join(home, "go"), "GOPROXY=off", "HOME=/dev/null", "LC_ALL=C.UTF-8", "NOKV_TEST_LONG=1", "TMPDIR=/tmp/x", "TZ=UTC", "XDG_RUNTIME_DIR=/dev/null",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the environment of tests is\n%q, want\n%q", got, want)
	}
}

// This process, whose tests could see the machine otherwise, has the environment of tests, and
// processes that it starts have what it sets.
func TestThisProcess(t *testing.T) {
	if home := os.Getenv("HOME"); home != nowhere || os.Getenv(made) == "" {
		t.Errorf("the home folder is %s", home)
	}
	t.Setenv("NOKV_CERTS", "of a test")
	out, err := exec.Command(os.Args[0], "-test.run", "^TestChild$", "-test.v").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "certs=of a test") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestChild is what TestThisProcess starts.
func TestChild(t *testing.T) { t.Logf("certs=%s", os.Getenv("NOKV_CERTS")) }

// Processes that tests start end by the signals of a terminal.
func TestSignalsEndProcesses(t *testing.T) {
	for _, name := range []string{"HUP", "INT"} {
		err := exec.Command("sh", "-c", "kill -"+name+" $$; echo it lives").Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !exit.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("SIG%s: %v", name, err)
		}
	}
}

// So they do where tests run with nohup, or in the background of a shell.
func TestSignalsEndProcessesOfNohup(t *testing.T) {
	c := exec.Command("sh", "-c", `trap "" HUP INT; exec "$0" -test.run "^TestSignalsEndProcesses$" -test.v`, os.Args[0])
	c.Env = append(os.Environ(), made+"=") // as the go command starts it
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: ") {
		t.Errorf("%v\n%s", err, out)
	}
}
