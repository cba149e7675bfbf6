package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// check is a command that prints what it finds wrong.
type check struct {
	name string
	// dir is where it runs; empty: the root of the repository.
	dir string
	env []string
	// words of the go command.
	words []string
	// quiet: what it prints is no finding, its exit status alone tells.
	quiet bool
	// mend is the command that puts it right; empty: a person must.
	mend string
}

// checks are what stands beside the tests. For other systems everything is compiled and nothing linked.
var checks = []check{
	{name: "go vet", words: []string{"vet", "./..."}},
	{name: "staticcheck", words: []string{"tool", "-modfile=tools/go.mod", "staticcheck", "./..."}},
	{name: "gofumpt", words: []string{"tool", "-modfile=tools/go.mod", "gofumpt", "-l", "."}, mend: "go tool -modfile=tools/go.mod gofumpt -w ."},
	{name: "generated code", dir: "tools", words: []string{"run", "./protogen", "-check", "../proto"}, mend: "go generate ./proto/..."},
	{name: "build for " + otherSystem(), env: []string{"GOOS=" + otherSystem(), "GOARCH=arm64", "CGO_ENABLED=0"}, words: []string{"list", "-export", "-f", "{{with .Error}}{{.}}{{end}}", "./..."}},
}

// otherSystem is one that is supported and is not this one.
func otherSystem() string {
	if runtime.GOOS == "linux" {
		return "darwin"
	}
	return "linux"
}

// runChecks runs checks, one after the other, and returns what failed.
func runChecks(ctx context.Context, w io.Writer, checks []check) (failed []failure) {
	for _, c := range checks {
		begun := time.Now()
		err := c.run(ctx)
		word := "ok"
		if err != nil {
			word = "FAILED"
			failed = append(failed, failure{c.name, err.Error(), c.again()})
		}
		fmt.Fprintf(w, "[check]      %-6s %6.1f s  %s\n", word, time.Since(begun).Seconds(), c.name)
	}
	return failed
}

// run returns what a check finds wrong. Only what stands on standard output is a finding: the go
// command tells on standard error what it downloads. A check that cannot be run has failed.
func (c check) run(ctx context.Context) error {
	cmd := goCommand(ctx, c.words...)
	cmd.Dir, cmd.Env = c.dir, append(cmd.Env, c.env...)
	return findings(cmd, c.quiet)
}

func findings(cmd *exec.Cmd, quiet bool) error {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	found := strings.TrimSpace(stdout.String())
	switch {
	case err != nil:
		return fmt.Errorf("%w\n%s", err, strings.TrimSpace(found+"\n"+stderr.String()))
	case found != "" && !quiet:
		return errors.New(found)
	}
	return nil
}

// again is the command that repeats a check, or the one that puts right what it found.
func (c check) again() string {
	if c.mend != "" {
		return c.mend
	}
	words := append(slices.Clone(c.env), "go")
	if c.dir != "" {
		words = append(words, "-C", c.dir)
	}
	for _, w := range c.words {
		words = append(words, quoted(w))
	}
	return strings.Join(words, " ")
}
