package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/internal/procs"
)

const usage = `./scripts/test.sh runs every test and every check of the project.

    ./scripts/test.sh [flags] [packages] [-- flags of go test]

Packages are those of the go command; ./... is the default, and alone it runs the
checks too: go vet, staticcheck, gofumpt, generated code, builds for other systems.

`

// options are the command line.
type options struct {
	long, checks       bool
	sizes              bool
	repeat, load       int
	run                string
	packages, ofGoTest []string
	// folder keeps results and logs.
	folder   string
	deadline time.Duration
	stdout   io.Writer
}

// linked is the folder of what the linker made.
func (o *options) linked() string { return filepath.Join(o.folder, "linked") }

// whole says whether everything is run, as it is.
func (o *options) whole() bool { return o.checks && len(o.ofGoTest) == 0 }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 3 && os.Args[1] == asTool {
		if err := runTool(ctx, os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[3], err)
			os.Exit(1)
		}
		return
	}
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	o, err := parse(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if o.sizes {
		err = o.printSizes(ctx)
	}
	ok := o.sizes
	if !o.sizes {
		ok, err = o.runAll(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func parse(args []string, stdout io.Writer) (*options, error) {
	o := &options{folder: filepath.Join("artifacts", "test"), stdout: stdout}
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	f.SetOutput(stdout)
	f.Usage = func() {
		fmt.Fprint(stdout, usage)
		f.PrintDefaults()
	}
	f.BoolVar(&o.long, "long", false, "the long form: searches and simulations in full size, mutations, attacks, chaos; hours")
	f.BoolVar(&o.sizes, "sizes", false, "list what the short form and the long one do, and run nothing")
	f.IntVar(&o.repeat, "repeat", 1, "run everything `N` times, and print a table of the tests by failures")
	f.IntVar(&o.load, "load", 0, "keep `K` processors busy meanwhile")
	f.StringVar(&o.run, "run", "", "only tests that match this `pattern`, as of go test")
	f.DurationVar(&o.deadline, "timeout", 0, "end a package whose tests take longer (default 15m, with --long 12h)")
	if i := slices.Index(args, "--"); i >= 0 {
		args, o.ofGoTest = args[:i], args[i+1:]
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.packages = f.Args()
	o.checks = len(o.packages) == 0 && o.run == ""
	if len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	for _, p := range o.packages {
		if strings.HasPrefix(p, "-") {
			return nil, fmt.Errorf("flag %s behind a package: flags come first, and those of go test behind --", p)
		}
	}
	if o.repeat < 1 || o.load < 0 {
		return nil, fmt.Errorf("--repeat %d --load %d: want at least 1 and 0", o.repeat, o.load)
	}
	if o.deadline == 0 {
		o.deadline = 15 * time.Minute
		if o.long {
			o.deadline = 12 * time.Hour
		}
	}
	return o, nil
}

// runAll runs the whole as often as it is asked for; false: something failed.
func (o *options) runAll(ctx context.Context) (bool, error) {
	unlock, err := o.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	old, err := filepath.Glob(filepath.Join(o.folder, "run-*"))
	if err != nil {
		return false, err
	}
	for _, folder := range old {
		if err := os.RemoveAll(folder); err != nil {
			return false, err
		}
	}
	times := readDurations(o.folder)
	stopLoad, err := burn(o.load)
	defer stopLoad()
	if err != nil {
		return false, err
	}
	var runs []*result
	if o.repeat > 1 {
		defer func() { printTable(o.stdout, runs) }()
	}
	passed := true
	for n := 1; n <= o.repeat; n++ {
		if o.repeat > 1 {
			fmt.Fprintf(o.stdout, "run %d of %d\n", n, o.repeat)
		}
		r, err := o.once(ctx, n, times)
		if err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, errors.New("interrupted: what has not run has not passed")
		}
		runs = append(runs, r)
		r.print(o.stdout)
		passed = passed && r.passed()
		if o.load == 0 && o.run == "" && len(o.ofGoTest) == 0 && r.passed() { // another run takes as long
			if err := times.add(r, o.folder); err != nil {
				return false, err
			}
		}
	}
	return passed, nil
}

// lock keeps other runs of the same checkout away from the folder.
func (o *options) lock() (unlock func(), err error) {
	if err := os.MkdirAll(o.folder, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(o.folder) // The folder itself: a file in it may be removed.
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is used by another run of the tests in this checkout: wait for its end (%w)", o.folder, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// burn keeps processors busy until what it returns is called.
func burn(n int) (stop func(), err error) {
	var burners []*exec.Cmd
	for range n {
		c := exec.Command("/bin/sh", "-c", "while :; do :; done")
		c.SysProcAttr = procs.Attributes()
		if err = c.Start(); err != nil {
			break
		}
		burners = append(burners, c)
	}
	return func() {
		for _, c := range burners {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}, err
}

// goCommand runs the go command with this environment, less what nokv reads of it, and the garbage of
// compilers, of which there is much, collected seldom. It may need a proxy to download modules, which
// no test may see: package hermetic takes the rest away in test binaries. When it is asked to end, what
// it has started is, as it would be by Ctrl-C.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOKV_") }), "GOGC=400")
	c.SysProcAttr = procs.Attributes()
	c.Cancel = func() error {
		err := syscall.Kill(-c.Process.Pid, syscall.SIGINT)
		time.AfterFunc(graceful, func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
		return err
	}
	c.WaitDelay = 2 * graceful
	return c
}

// graceful is how long the go command and what it has started may take to end.
const graceful = 3 * time.Second

// atOnce is how many packages are built or tested at once: much of what tests of
// processes do is waiting.
func atOnce() int { return runtime.GOMAXPROCS(0) + 1 }
