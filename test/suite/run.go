package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/test/hermetic"
)

// module is what import paths begin with.
const module = "github.com/nokv/nokv"

// once runs everything one time. An error says that it could not be run.
func (o *options) once(ctx context.Context, n int, times durations) (*result, error) {
	begun := time.Now()
	folder, err := filepath.Abs(filepath.Join(o.folder, fmt.Sprintf("run-%d", n)))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "nokv-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil { // another user runs the server of PostgreSQL in it
		return nil, err
	}
	packages, err := o.list(ctx, times)
	if err != nil {
		return nil, err
	}
	r := &result{folder: folder, options: o}
	env := map[string]string{
		hermetic.Run: fmt.Sprintf("%d-%d", os.Getpid(), n), hermetic.Logs: filepath.Join(folder, "logs"),
		hermetic.Report: filepath.Join(folder, "report"), hermetic.Binary: filepath.Join(temp, "nokv"), "TMPDIR": temp,
	}
	if o.long {
		env[hermetic.Long] = "1"
	}
	keep, err := toolexec(o.linked())
	if err != nil {
		return nil, err
	}
	// Every package of processes runs this one.
	if out, err := goCommand(ctx, "build", keep, "-o", env[hermetic.Binary], "./cmd/nokv").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build nokv: %w\n%s", err, out)
	}
	var beside sync.WaitGroup
	if o.checks && n == 1 {
		beside.Go(func() { r.checks = runChecks(ctx, o.stdout, checks) })
	}
	err = o.goTest(ctx, packages, keep, env, r)
	beside.Wait()
	if err == nil && o.long && o.run == "" {
		r.fuzz(ctx, o.stdout, packages)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Remove(env[hermetic.Binary]); err != nil {
		return nil, err
	}
	r.left = append(leftProcesses(env[hermetic.Run], endsWithin), leftFiles(temp)...)
	if raw, err := os.ReadFile(env[hermetic.Report]); err == nil {
		r.report = strings.Split(strings.TrimSpace(string(raw)), "\n")
		slices.Sort(r.report)
	}
	r.took = time.Since(begun)
	if o.whole() && ctx.Err() == nil {
		if err := forgetLinked(o.linked(), begun); err != nil { // only room is lost
			fmt.Fprintln(o.stdout, "what the linker made before is not removed:", err)
		}
	}
	return r, nil
}

// list are the packages that have tests, those that took longest first: what is long and begins
// late is waited for at the end.
func (o *options) list(ctx context.Context, times durations) ([]pkg, error) {
	out, err := goCommand(ctx, append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, o.packages...)...).Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); err != nil {
			return nil, err
		}
		files := append(p.TestGoFiles, p.XTestGoFiles...)
		if len(files) == 0 {
			continue
		}
		size, k := 0, pkg{path: p.ImportPath}
		for _, name := range files {
			code, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			size += len(code)
			k.files = append(k.files, filepath.Join(p.Dir, name))
			for _, m := range declared.FindAllSubmatch(code, -1) {
				k.tests++
				if name := string(m[1]); strings.HasPrefix(name, "Fuzz") {
					k.fuzz = append(k.fuzz, name)
				}
			}
		}
		k.weight = times.weight(k.path, size)
		packages = append(packages, k)
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("no package of %s has tests", strings.Join(o.packages, " "))
	}
	slices.SortStableFunc(packages, func(a, b pkg) int {
		switch x, y := a.path == timed, b.path == timed; {
		case x && !y:
			return 1
		case y && !x:
			return -1
		}
		return int(b.weight*1000) - int(a.weight*1000)
	})
	return packages, nil
}

// timed is the package whose tests judge, among other things, how soon real processes serve
// again: it comes last, beside packages that are short, and not beside others of processes.
const timed = module + "/internal/testing/chaos"

// pkg is a package with tests.
type pkg struct {
	path string
	// weight is about how many seconds the tests take.
	weight float64
	// tests is how many tests, examples and fuzz targets are declared.
	tests int
	// files are those with tests, fuzz the names of its fuzz targets.
	files, fuzz []string
}

var declared = regexp.MustCompile(`(?m)^func ((?:Test[^a-z]|Fuzz|Example)\w*)\(`)

// goTest runs the tests of packages, and tells how far it is meanwhile.
func (o *options) goTest(ctx context.Context, packages []pkg, keep string, env map[string]string, r *result) error {
	args := []string{"test", keep, "-json", "-count=1", "-vet=off", "-timeout", o.deadline.String(), "-p", fmt.Sprint(atOnce())}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	args = append(args, o.ofGoTest...)
	for _, p := range packages {
		args = append(args, p.path)
	}
	c := goCommand(ctx, args...)
	for name, value := range env {
		c.Env = append(c.Env, name+"="+value)
	}
	record, err := os.Create(filepath.Join(r.folder, "output.json"))
	if err != nil {
		return err
	}
	defer record.Close()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	p := newProgress(o.stdout, packages)
	stop := p.tellOften()
	lines := bufio.NewReader(out)
	for {
		line, readErr := lines.ReadBytes('\n')
		if _, err := record.Write(line); err != nil && readErr == nil {
			readErr = err
		}
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			r.take(e)
			p.take(e)
		}
		if readErr != nil {
			break
		}
	}
	stop()
	err = c.Wait()
	r.finish(packages, err, stderr.String())
	return record.Close()
}
