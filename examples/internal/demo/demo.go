// Package demo starts what an example consists of: a cluster, and processes of the example itself.
//
// It owns the processes that it started, and their end with it. It promises nothing that a real
// deployment would want: see docs/operations.md for that.
package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/procs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// endWithin is how long the cluster has to end when it is asked to.
const endWithin = 10 * time.Second

// interrupted is the exit status of what a second Ctrl-C ended.
const interrupted = 130

// Demo is a running cluster beside the processes of an example.
type Demo struct {
	// Dir is removed at the end: for what the example's processes share.
	Dir string
	// Coordinators are addresses, with commas in between.
	Coordinators string

	nokv string
	out  *lines
	main *byMain // nil where Ctrl-C is not Main's

	mu       sync.Mutex
	all      []*Process // the cluster first
	stopping bool
}

// ends are the signals that end an example: Ctrl-C, kill, and a terminal that is closed, but for nohup.
func ends() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if signal.Ignored(syscall.SIGHUP) {
		return all[:2]
	}
	return all
}

// byMain is what a context has that Main gives, under keyOfMain.
type byMain struct {
	end      context.CancelFunc
	stopping atomic.Bool    // there is a Demo, which has to be stopped
	again    chan os.Signal // a second Ctrl-C, for which Stop waits no more
}

type keyOfMain struct{}

// Main runs an example's command until it is done, or Ctrl-C, and returns the exit status. A second Ctrl-C ends it as
// it is, unless a Demo has to be stopped.
func Main(run func(context.Context) error) int {
	m := &byMain{again: make(chan os.Signal, 1)}
	ctx, end := context.WithCancel(context.WithValue(context.Background(), keyOfMain{}, m))
	defer end()
	m.end = end
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, ends()...)
	defer signal.Stop(signals)
	var heard sync.WaitGroup
	defer heard.Wait()
	defer close(done)
	heard.Go(func() { m.listen(signals, done) })
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// listen does what signals ask for until done.
func (m *byMain) listen(signals chan os.Signal, done chan struct{}) {
	for first := true; ; first = false {
		select {
		case <-done:
			return
		case s := <-signals:
			switch {
			case first:
				m.end()
			case !m.stopping.Load():
				os.Exit(interrupted)
			default:
				select {
				case m.again <- s:
				default:
				}
			}
		}
	}
}

// Parse parses the flags of a command that takes words words behind them. What is wrong is said once, by the
// error; after --help, flags are on standard output, and the error is flag.ErrHelp.
func Parse(f *flag.FlagSet, args []string, words int) error {
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(os.Stdout)
		f.Usage()
		return err
	case err != nil:
		return fmt.Errorf("%w: %s --help names the flags", err, f.Name())
	case f.NArg() > words:
		return fmt.Errorf("%q is one word too many: %s --help names the flags", f.Arg(words), f.Name())
	}
	return nil
}

// Start builds nokv, unless the environment variable NOKV says where it is, and starts a cluster.
func Start(ctx context.Context, out io.Writer) (_ *Demo, err error) {
	d := &Demo{out: &lines{w: out}, nokv: os.Getenv("NOKV")}
	if m, ok := ctx.Value(keyOfMain{}).(*byMain); ok {
		d.main = m
		m.stopping.Store(true)         // before there is anything
		signal.Ignore(syscall.SIGPIPE) // where the first line that nobody reads would be the end of it
		d.out.unread = m.end
	}
	defer func() {
		if err != nil {
			d.Stop()
		}
	}()
	dir, err := os.MkdirTemp("", "nokv-example-")
	if err != nil {
		return nil, err
	}
	d.Dir = dir
	d.Say("files are in " + dir + " until the example ends; kill -9 leaves them there")
	if d.nokv == "" {
		d.nokv = filepath.Join(dir, "nokv")
		d.Say("building nokv (a minute the first time)")
		build := exec.CommandContext(ctx, "go", "build", "-o", d.nokv, "github.com/nokv/nokv/cmd/nokv")
		// It ends with its compilers, and what they leave is removed with the folder.
		build.SysProcAttr, build.Env = procs.Attributes(), append(os.Environ(), "GOTMPDIR="+dir)
		build.Cancel, build.WaitDelay = func() error { return syscall.Kill(-build.Process.Pid, syscall.SIGKILL) }, endWithin
		if said, err := build.CombinedOutput(); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			return nil, fmt.Errorf("go build of nokv: %w\n%sStart the example in the folder of the repository, or say with the environment variable NOKV where the program nokv is", err, said)
		}
	}
	read, write := io.Pipe()
	noCluster := func(err error) error {
		return fmt.Errorf("no cluster runs: %s dev: %w: what it said is above; say with the environment variable NOKV where the program nokv is", d.nokv, err)
	}
	cluster, err := d.spawn(ctx, "cluster", d.nokv, write, "dev", "--workdir", filepath.Join(dir, "cluster"), "-o", "json")
	if err != nil {
		return nil, noCluster(err)
	}
	defer context.AfterFunc(ctx, func() { _ = write.CloseWithError(ctx.Err()) })()
	go func() {
		<-cluster.ended
		_ = write.CloseWithError(errors.New("it ended: " + cluster.cmd.ProcessState.String()))
	}()
	var said struct{ Coordinators []string }
	err = json.NewDecoder(read).Decode(&said)
	go func() { _, _ = io.Copy(io.Discard, read) }() // until it has ended: what is not read keeps Stop waiting
	if err != nil {
		return nil, noCluster(err)
	}
	if len(said.Coordinators) == 0 {
		return nil, noCluster(errors.New("it names no coordinator"))
	}
	d.Coordinators = strings.Join(said.Coordinators, ",")
	d.Say("a cluster runs: three root peers and two coordinators, at " + d.Coordinators)
	return d, nil
}

// Logger is for what a process of an example has to tell of what goes wrong, on standard output.
func Logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stdout, DisableTime: true})
}

// Say prints a line.
func (d *Demo) Say(text string) { d.out.write("", text) }

// NoKV runs a command of nokv to its end, and returns what it printed.
func (d *Demo) NoKV(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, d.nokv, args...)
	c.SysProcAttr = procs.Attributes()
	c.Env = append(os.Environ(), "NOKV_COORDINATOR_ADDR="+d.Coordinators)
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if ctx.Err() != nil { // that is why it ended
		return "", ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("nokv %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// Self starts this program again as a process of the example. What it prints is shown behind
// its name.
func (d *Demo) Self(ctx context.Context, name string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return d.spawn(ctx, name, self, nil, args...)
}

// Serve starts nokv as a process beside the cluster: a command that serves until it is ended.
func (d *Demo) Serve(ctx context.Context, name string, args ...string) (*Process, error) {
	return d.spawn(ctx, name, d.nokv, nil, args...)
}

// FreeAddress is one of this machine that nobody listens at, for a process that is told where to.
func FreeAddress() (string, error) {
	addrs, err := procs.Addrs(1)
	if err != nil {
		return "", err
	}
	return addrs[0], nil
}

// Process is one that a Demo started.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	ended chan struct{}
}

func (d *Demo) spawn(ctx context.Context, name, path string, to io.Writer, args ...string) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &Process{Name: name, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	// A group of its own, so that Ctrl-C reaches the example first; it ends with this process.
	p.cmd.SysProcAttr = procs.Attributes()
	p.cmd.Env = append(os.Environ(), "NOKV_COORDINATOR_ADDR="+d.Coordinators)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr, p.cmd.Stdout = write, to
	if to == nil {
		p.cmd.Stdout = write
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, read.Close(), write.Close())
	}
	_ = write.Close()
	go func() {
		defer read.Close()
		for from := bufio.NewReader(read); ; {
			line, err := from.ReadString('\n')
			if line != "" {
				d.out.write(name, strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, p)
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is read from its state
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.stopping {
			d.out.write(name, "has ended: "+p.cmd.ProcessState.String())
		}
	}()
	return p, nil
}

// ClusterEnded is closed when the cluster has ended: nothing of the example goes on without it.
func (d *Demo) ClusterEnded() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[0].ended
}

// PID is the process's id: kill -9 PID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal, if the process still runs.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process as kill -9 does, with those of its group, and waits for that.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // fails only when it is gone
	<-p.ended
}

// Stop ends every process, the cluster last, and removes Dir. A second Ctrl-C has it wait for nothing,
// and ends nothing before that.
func (d *Demo) Stop() {
	var again chan os.Signal
	if d.main != nil {
		again = d.main.again
		defer d.main.stopping.Store(false)
	}
	d.mu.Lock()
	all := d.all
	d.stopping = true
	d.mu.Unlock()
	for i := len(all) - 1; i >= 0; i-- {
		if i == 0 { // the cluster
			all[i].Signal(syscall.SIGTERM)
			select {
			case <-all[i].ended:
			case <-again:
			case <-time.After(endWithin):
			}
		}
		all[i].Kill()
	}
	if err := os.RemoveAll(d.Dir); err != nil {
		d.Say("remove what is left: " + err.Error())
	}
}

// lines are written whole, whoever writes them.
type lines struct {
	mu sync.Mutex
	w  io.Writer
	// unread is called when w is a pipe that nobody reads any more; nil: nothing is.
	unread func()
}

func (l *lines) write(name, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintf(l.w, "%s  %-8s %s\n", time.Now().Format("15:04:05.000"), name, text)
	if errors.Is(err, syscall.EPIPE) && l.unread != nil {
		l.unread()
	}
}
