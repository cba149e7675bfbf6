package proctest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// Cluster is three root peers and coordinators as processes, on ports and in
// folders of their own. Members are counted from 0: first the root peers, then
// the coordinators.
type Cluster struct {
	*procs.Layout
	// CommandLine replaces Args for a member that is started; nil: Args.
	CommandLine func(member int) []string
	// Builds are the paths of members that run another build of nokv.
	Builds map[int]string
	// Certs are the cluster's certificates; nil unless it is secure.
	Certs *Certificates
	certs *mtls.Source // of who asks for health
	t     testing.TB
	// Path and Env run nokv.
	path      string
	env       []string
	processes []*Process
}

// NewCluster describes a cluster and starts nothing. path with env runs nokv.
func NewCluster(t testing.TB, path string, env []string, coordinators int) *Cluster {
	t.Helper()
	layout, err := procs.NewLayout(t.TempDir(), coordinators)
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{Layout: layout, t: t, path: path, env: env, processes: make([]*Process, layout.Size())}
}

// Options run nokv with a command line.
func (c *Cluster) Options(name string, args ...string) Options {
	return Options{Name: name, Path: c.path, Env: c.env, Args: args}
}

// Run runs a command of nokv to its end.
func (c *Cluster) Run(args ...string) Result {
	c.t.Helper()
	return Run(c.t, c.Options(args[0], args...))
}

// Start starts a member that is down, with its old folder and addresses.
func (c *Cluster) Start(member int) *Process {
	c.t.Helper()
	return c.StartWithStderr(member, nil)
}

// StartWithStderr is Start with another place for standard error; nil: the log.
func (c *Cluster) StartWithStderr(member int, stderr *os.File) *Process {
	c.t.Helper()
	args := c.Args
	if c.CommandLine != nil {
		args = c.CommandLine
	}
	o := c.Options(c.Name(member), args(member)...)
	o.Log, o.Stderr = c.Log(member), stderr
	if build, ok := c.Builds[member]; ok {
		o.Path = build
	}
	c.processes[member] = Start(c.t, o)
	return c.processes[member]
}

// StartAll starts every member.
func (c *Cluster) StartAll() {
	c.t.Helper()
	for i := range c.processes {
		c.Start(i)
	}
}

// Process returns a member as it was started last.
func (c *Cluster) Process(member int) *Process { return c.processes[member] }

// Kill ends a member at once.
func (c *Cluster) Kill(member int) { c.processes[member].Kill() }

// StopAll ends every member in order, coordinators first, and fails the test
// when one does not end with exit status 0.
func (c *Cluster) StopAll() {
	c.t.Helper()
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].Signal(syscall.SIGTERM)
		if code := c.processes[i].Wait(Patience); code != 0 {
			c.t.Errorf("%s: exit status %d after SIGTERM, want 0", c.Name(i), code)
		}
	}
}

// Coordinators is the value of --coordinator-addr.
func (c *Cluster) Coordinators() string { return strings.Join(c.CoordinatorAddrs, ",") }

// Healthy asks a member's health check; nil when it serves.
func (c *Cluster) Healthy(member int) error {
	_, err := c.get(member, "/healthz", 5*time.Second) // and is asked again
	return err
}

// get asks a member's metrics port.
func (c *Cluster) get(member int, path string, within time.Duration) ([]byte, error) {
	client := http.Client{Timeout: within, Transport: c.certs.Transport(mtls.Peer{Role: principal.Root}, mtls.Peer{Role: principal.Coordinator})}
	defer client.CloseIdleConnections()
	resp, err := client.Get(c.certs.Scheme() + "://" + c.MetricsAddrs[member] + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s answers %s", c.Name(member), path, resp.Status)
	}
	return raw, nil
}

// WaitHealthy waits until every member is healthy.
func (c *Cluster) WaitHealthy(within time.Duration) {
	c.t.Helper()
	for i, p := range c.processes {
		Eventually(c.t, within, func() error {
			if !p.Running() {
				c.t.Fatalf("%s ended early", c.Name(i))
			}
			return c.Healthy(i)
		})
	}
}
