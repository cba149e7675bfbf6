package proctest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rootPeers is the size of a cluster's root.
const rootPeers = 3

// Cluster is three root peers and coordinators as processes, on ports and in
// folders of their own. Members are counted from 0: first the root peers, then
// the coordinators.
type Cluster struct {
	t testing.TB
	// Path and Env run nokv.
	path string
	env  []string
	// Dir holds workdirs and logs.
	Dir string
	// RootAddrs, TransportAddrs, CoordinatorAddrs and MetricsAddrs are
	// host:port; metrics in the order of members.
	RootAddrs, TransportAddrs, CoordinatorAddrs, MetricsAddrs []string
	// CoordinatorFlags are added to the command line of coordinators.
	CoordinatorFlags []string
	processes        []*Process
}

// NewCluster describes a cluster and starts nothing. path with env runs nokv.
func NewCluster(t testing.TB, path string, env []string, coordinators int) *Cluster {
	t.Helper()
	n := rootPeers + coordinators
	addrs := Addrs(t, 2*rootPeers+coordinators+n)
	take := func(n int) []string {
		part := addrs[:n]
		addrs = addrs[n:]
		return part
	}
	return &Cluster{
		t: t, path: path, env: env, Dir: t.TempDir(),
		RootAddrs: take(rootPeers), TransportAddrs: take(rootPeers), CoordinatorAddrs: take(coordinators), MetricsAddrs: take(n),
		processes: make([]*Process, n),
	}
}

// Size is the number of members.
func (c *Cluster) Size() int { return len(c.processes) }

// Roots is the number of root peers: members [0, Roots()).
func (c *Cluster) Roots() int { return rootPeers }

// Name is what a member is called.
func (c *Cluster) Name(member int) string {
	if member < rootPeers {
		return fmt.Sprintf("meta-root-%d", member+1)
	}
	return fmt.Sprintf("coordinator-c%d", member-rootPeers+1)
}

// Workdir is a root peer's folder.
func (c *Cluster) Workdir(member int) string { return filepath.Join(c.Dir, c.Name(member)) }

// Args is a member's command line.
func (c *Cluster) Args(member int) []string {
	if member >= rootPeers {
		i := member - rootPeers
		args := []string{
			"coordinator", "-addr", c.CoordinatorAddrs[i], "-coordinator-id", fmt.Sprintf("c%d", i+1),
			"-metrics-addr", c.MetricsAddrs[member],
		}
		return append(append(args, c.RootFlags()...), c.CoordinatorFlags...)
	}
	args := []string{
		"meta-root", "-addr", c.RootAddrs[member], "-workdir", c.Workdir(member), "-node-id", fmt.Sprint(member + 1),
		"-transport-addr", c.TransportAddrs[member], "-metrics-addr", c.MetricsAddrs[member],
	}
	for i, a := range c.TransportAddrs {
		args = append(args, "-peer", fmt.Sprintf("%d=%s", i+1, a))
	}
	return args
}

// RootFlags name the root peers to a coordinator or a root command.
func (c *Cluster) RootFlags() []string {
	var flags []string
	for i, a := range c.RootAddrs {
		flags = append(flags, "-root-peer", fmt.Sprintf("%d=%s", i+1, a))
	}
	return flags
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
	o := c.Options(c.Name(member), c.Args(member)...)
	o.Log, o.Stderr = filepath.Join(c.Dir, o.Name+".log"), stderr
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
		if code := c.processes[i].Wait(15 * time.Second); code != 0 {
			c.t.Errorf("%s: exit status %d after SIGTERM, want 0", c.Name(i), code)
		}
	}
}

// Coordinators is the value of --coordinator-addr.
func (c *Cluster) Coordinators() string { return strings.Join(c.CoordinatorAddrs, ",") }

// Healthy asks a member's health check; nil when it serves.
func (c *Cluster) Healthy(member int) error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + c.MetricsAddrs[member] + "/healthz")
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: /healthz answers %s", c.Name(member), resp.Status)
	}
	return nil
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
