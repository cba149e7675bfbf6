package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder that no process could use is shown, and is a failure that says why.
func TestCertShowJudgesFolders(t *testing.T) {
	dir := t.TempDir()
	authority, one, other := filepath.Join(dir, "ca"), filepath.Join(dir, "1"), filepath.Join(dir, "2")
	do := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := runHere(t, args...)
		if code != want {
			t.Fatalf("nokv %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
		}
		return stdout, stderr
	}
	do(exitOK, "cert", "init", "--cluster", "prod", "--ca", authority)
	for name, out := range map[string]string{"1": one, "2": other} {
		do(exitOK, "cert", "issue", "--ca", authority, "--role", "root", "--name", name, "--out", out)
	}
	do(exitOK, "cert", "show", authority, one, other)
	if err := os.Rename(filepath.Join(one, "tls.key"), filepath.Join(other, "tls.key")); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr := do(exitRefused, "cert", "show", other); !strings.Contains(stdout, "nokv://prod/root/2") || !strings.Contains(stderr, "is not the key of") {
		t.Errorf("a swapped key:\n%s%s", stdout, stderr)
	}
	// A new pair mends it.
	do(exitOK, "cert", "renew", other, "--ca", authority)
	do(exitOK, "cert", "show", other)
}

// A key that others can read is shown with its certificate, a CA's as well, and cannot be used.
func TestKeysThatOthersReadAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	authority, own := filepath.Join(dir, "ca"), filepath.Join(dir, "own")
	do := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := runHere(t, args...)
		if code != exitOK || stderr != "" {
			t.Fatalf("nokv %s: exit status %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
		}
		return stdout
	}
	do("cert", "init", "--cluster", "prod", "--ca", authority)
	do("cert", "issue", "--ca", authority, "--role", "operator", "--name", "o", "--out", own)
	if said := do("cert", "show", authority, own); strings.Contains(said, "warning") {
		t.Errorf("keys of their owner alone:\n%s", said)
	}
	for folder, name := range map[string]string{own: "tls.key", authority: "ca.key"} {
		key := filepath.Join(folder, name)
		if err := os.Chmod(key, 0o644); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := runHere(t, "cert", "show", folder)
		if want := map[string]int{own: exitRefused, authority: exitOK}[folder]; code != want || strings.Count(stdout, "chmod o= "+key) != 1 || (want == exitOK) != (stderr == "") {
			t.Errorf("%s is for all to read: exit status %d\n%s%s", key, code, stdout, stderr)
		}
	}
	if code, _, stderr := runHere(t, "cert", "issue", "--ca", authority, "--role", "operator", "--name", "p", "--out", filepath.Join(dir, "p")); code != exitRefused || !strings.Contains(stderr, "chmod o= ") {
		t.Errorf("an authority's key that everybody can read makes certificates: exit status %d\n%s", code, stderr)
	}
}
