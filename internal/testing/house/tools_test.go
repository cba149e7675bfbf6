package house

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// findings runs a tool that prints what it finds wrong. Only what stands on
// standard output is a finding: the go command tells on standard error what it
// downloads, on a machine where the tool runs for the first time. A tool that
// fails is an error, with whatever it said.
func findings(cmd *exec.Cmd) error {
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return fmt.Errorf("%s: %w\n%s%s", cmd, err, out, exit.Stderr)
	case err != nil:
		return fmt.Errorf("%s: %w", cmd, err)
	case len(strings.TrimSpace(string(out))) > 0:
		return fmt.Errorf("%s found:\n%s", cmd, out)
	}
	return nil
}

func TestOnlyStandardOutputIsAFinding(t *testing.T) {
	for script, want := range map[string]string{
		"echo go: downloading golang.org/x/tools >&2": "",
		"echo; echo ' '":                  "",
		"echo a.go; echo progress >&2":    "a.go",
		"echo a.go:1: unused; exit 1":     "a.go:1: unused",
		"echo no such module >&2; exit 1": "no such module",
		"kill -9 $$":                      "killed",
	} {
		err := findings(exec.Command("/bin/sh", "-c", script))
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if err := findings(exec.Command(filepath.Join(t.TempDir(), "missing"))); err == nil {
		t.Error("a tool that cannot be started has found nothing")
	}
}

// tool runs a tool of tools/go.mod from the root of the repository.
func tool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "-modfile=tools/go.mod"}, args...)...)
	cmd.Dir = root
	if err := findings(cmd); err != nil {
		t.Error(err)
	}
}

const root = "../../.."

// Generated code is committed; it must be what the generators make of the
// .proto files today.
func TestGeneratedCodeIsFresh(t *testing.T) {
	cmd := exec.Command("go", "run", "./protogen", "-check", "../proto")
	cmd.Dir = filepath.Join(root, "tools")
	if err := findings(cmd); err != nil {
		t.Errorf("run `go generate ./proto/...`: %v", err)
	}
}

func TestFormatted(t *testing.T) {
	tool(t, "gofumpt", "-l", "cmd", "config", "coordinator", "docs", "examples", "grpcroute", "internal", "member", "meta", "mtls", "nokvtest", "pin", "proxy", "rooted", "router", "store", "tools")
}

func TestStaticcheck(t *testing.T) {
	tool(t, "staticcheck", "./...")
}
