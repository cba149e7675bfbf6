package experiment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/takeover"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Bounds of an experiment.
const (
	// recoverBound is how long anything may take that should take a moment.
	recoverBound = 2 * time.Minute
	// stopBound is how long a process may take to end when it is asked to.
	stopBound = time.Minute
	// askEvery is the pause between two looks at processes that tell nobody.
	askEvery = 5 * time.Millisecond
)

// cluster is a cluster of processes that are killed and started again.
type cluster struct {
	*procs.Layout
	self      string
	processes []*procs.Process
	http      http.Client
	certs     *mtls.Source // of who asks; nil: none
	// admin asks coordinators, root the root peers, how they are.
	admin    *client.Client
	root     *rootclient.Client
	stopRoot func()
}

// newCluster starts the processes in dir.
func newCluster(dir, self string, coordinators int, ttl time.Duration, secure bool) (*cluster, error) {
	layout, err := procs.NewLayout(dir, coordinators)
	if err != nil {
		return nil, err
	}
	layout.RootPeerFlags = []string{"-o", "json"}
	layout.CoordinatorFlags = []string{"-o", "json", "-log-level", "debug", "-tenure-ttl", ttl.String()}
	c := &cluster{Layout: layout, self: self, processes: make([]*procs.Process, layout.Size()), stopRoot: func() {}}
	if secure {
		if err := c.secure(filepath.Join(dir, "certs")); err != nil {
			return nil, err
		}
	}
	c.http.Transport = c.certs.Transport(mtls.Peer{Role: principal.Root}, mtls.Peer{Role: principal.Coordinator})
	if c.admin, err = client.New(client.Config{Endpoints: layout.CoordinatorAddrs, TLS: c.certs}); err != nil {
		return nil, err
	}
	peers := make(map[uint64]string)
	for i, a := range layout.RootAddrs {
		peers[uint64(i)+1] = a
	}
	if c.root, err = rootclient.New(rootclient.Config{Peers: peers, TLS: c.certs}); err != nil {
		return nil, errors.Join(err, c.admin.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.root.Run(ctx) }()
	c.stopRoot = func() { stop(); <-ended; c.root.Close() }
	for member := range c.Size() {
		if err := c.start(member); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// secure makes certificates in dir for every member, and for who asks.
func (c *cluster) secure(dir string) error {
	authority, err := ca.New("bench", time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		return err
	}
	issue := func(name string, r ca.Request) (err error) {
		r.Life = ca.DefaultLife
		pair, err := authority.Issue(r, time.Now())
		if err == nil {
			err = pair.Save(filepath.Join(dir, name))
		}
		return err
	}
	c.CertsOf = func(member int) string { return filepath.Join(dir, c.Name(member)) }
	for member := range c.Size() {
		r := ca.Request{Role: principal.Root, Name: fmt.Sprint(member + 1)}
		if member >= procs.RootPeers {
			r = ca.Request{Role: principal.Coordinator, Name: fmt.Sprintf("c%d", member-procs.RootPeers+1)}
		}
		if err := issue(c.Name(member), r); err != nil {
			return err
		}
	}
	if err := issue("operator", ca.Request{Role: principal.Operator, Name: "bench"}); err != nil {
		return err
	}
	c.certs, err = mtls.Open(filepath.Join(dir, "operator"), mtls.Options{})
	return err
}

// close ends every process, at once.
func (c *cluster) close() {
	for _, p := range slices.Backward(c.processes) {
		if p != nil {
			p.Kill()
		}
	}
	c.stopRoot()
	_ = c.admin.Close()
	c.http.CloseIdleConnections()
}

func (c *cluster) start(member int) (err error) {
	c.processes[member], err = procs.Start(procs.Options{Name: c.Name(member), Path: c.self, Args: c.Args(member), Env: []string{"NOKV_CERTS="}, Log: c.Log(member)})
	return err
}

// signals of what is done to a process.
var signals = map[takeover.Action]syscall.Signal{
	takeover.Kill: syscall.SIGKILL, takeover.Hang: syscall.SIGSTOP, takeover.Restart: syscall.SIGTERM,
}

// signalResume lets a process go on that hangs.
const signalResume = syscall.SIGCONT

// strike does it to members; those that must end are gone after that, and
// ended as they were told to.
func (c *cluster) strike(members []int, action takeover.Action) error {
	for _, m := range members {
		if !c.processes[m].Running() {
			return fmt.Errorf("%s ended before its time; its log is lost with the folder, run it by itself", c.Name(m))
		}
		if err := c.processes[m].SignalGroup(signals[action]); err != nil {
			return err
		}
	}
	if action == takeover.Hang {
		return nil
	}
	for _, m := range members {
		p := c.processes[m]
		code, err := p.Wait(stopBound)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", c.Name(m), err)
		case action == takeover.Restart && code != 0:
			return fmt.Errorf("%s: exit status %d after SIGTERM, want 0", c.Name(m), code)
		case action == takeover.Kill && p.KilledBy() != syscall.SIGKILL:
			return fmt.Errorf("%s was not killed: exit status %d", c.Name(m), code)
		}
		p.Kill() // joins what watched it
	}
	return nil
}

// resume lets members go on that hang.
func (c *cluster) resume(members []int) error {
	for _, m := range members {
		if !c.processes[m].Running() {
			return fmt.Errorf("%s ended while it was stopped", c.Name(m))
		}
		if err := c.processes[m].SignalGroup(signalResume); err != nil {
			return err
		}
	}
	return nil
}

// authority is who holds the Tenure and who leads, as member numbers.
type authority struct {
	holder, leader int
	era, term      uint64
}

// statusTimeout is how long one member may take to say how it is.
const statusTimeout = time.Second

// who asks every member but those that hang. An error says what is not as it
// should be yet: all are there, all know the same holder and leader, and the
// holder serves.
func (c *cluster) who(ctx context.Context, hanging []int) (authority, error) {
	a := authority{holder: -1, leader: -1}
	for _, p := range c.rootStatus(ctx, hanging) {
		if slices.Contains(hanging, int(p.NodeID)-1) {
			continue
		}
		if p.Err != nil {
			return a, fmt.Errorf("root peer %d: %w", p.NodeID, p.Err)
		}
		if a.term == 0 {
			a.leader, a.term = int(p.Status.GetLeaderId())-1, p.Status.GetTerm()
		}
		if int(p.Status.GetLeaderId())-1 != a.leader || p.Status.GetTerm() != a.term || a.leader < 0 {
			return a, errors.New("root peers do not agree who leads")
		}
	}
	for i := range c.CoordinatorAddrs {
		if slices.Contains(hanging, c.Roots()+i) {
			continue
		}
		st, err := c.coordinator(ctx, i)
		switch {
		case err != nil:
			return a, err
		case a.era != 0 && st.GetTenure().GetEra() != a.era:
			return a, errors.New("coordinators do not agree about the era")
		case st.GetServingAuthority():
			a.holder = c.Roots() + i
		}
		a.era = st.GetTenure().GetEra()
	}
	if a.holder < 0 {
		return a, errors.New("no coordinator serves authority")
	}
	return a, nil
}

// rootStatus asks all root peers at once; who hangs is not waited for.
func (c *cluster) rootStatus(ctx context.Context, hanging []int) []rootclient.PeerStatus {
	within := statusTimeout
	if len(hanging) > 0 {
		within /= 5
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return c.root.Status(ctx)
}

func (c *cluster) coordinator(ctx context.Context, i int) (*coordinatorv1.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	st, err := c.admin.Status(ctx, c.CoordinatorAddrs[i])
	if err != nil {
		return nil, fmt.Errorf("coordinator c%d: %w", i+1, err)
	}
	return st, nil
}

// knowRegions says whether every coordinator's view has so many regions: one that
// lags would answer lookups that need no fresh view with not_found.
func (c *cluster) knowRegions(ctx context.Context, n uint64) error {
	for i := range c.CoordinatorAddrs {
		st, err := c.coordinator(ctx, i)
		if err != nil {
			return err
		}
		if st.GetRegions() < n {
			return fmt.Errorf("coordinator c%d knows %d of %d regions", i+1, st.GetRegions(), n)
		}
	}
	return nil
}

// healthy asks one member's health check.
func (c *cluster) healthy(ctx context.Context, member int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.certs.Scheme()+"://"+c.MetricsAddrs[member]+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name(member), err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not healthy: %s", c.Name(member), resp.Status)
	}
	return nil
}

// liveHeap is what one member has on its heap behind a collection, in bytes.
func (c *cluster) liveHeap(ctx context.Context, member int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, recoverBound)
	defer cancel()
	url := c.certs.Scheme() + "://" + c.MetricsAddrs[member] + "/debug/pprof/heap?gc=1&debug=1"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.Name(member), err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if n, found := strings.CutPrefix(lines.Text(), "# HeapAlloc = "); found {
			return strconv.ParseInt(n, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s does not say what is on its heap: %s", c.Name(member), resp.Status)
}

// waitHealthy waits until every member is healthy and all know who is who.
func (c *cluster) waitHealthy(ctx context.Context) (a authority, err error) {
	err = until(ctx, func() error {
		for m, p := range c.processes {
			if !p.Running() {
				return fatalError{fmt.Errorf("%s ended by itself: exit status %d\n%s", c.Name(m), p.ExitCode(), c.tail(m))}
			}
			if err := c.healthy(ctx, m); err != nil {
				return err
			}
		}
		a, err = c.who(ctx, nil)
		return err
	})
	return a, err
}

// tailBytes is how much of a log an error shows.
const tailBytes = 2048

func (c *cluster) tail(member int) string {
	raw, err := os.ReadFile(c.Log(member))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-tailBytes):])
}

// fatalError ends until at once.
type fatalError struct{ error }

// until asks until there is no error. The other side is another process, and
// nothing tells of its changes.
func until(ctx context.Context, ask func() error) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for deadline := time.Now().Add(recoverBound); ; {
		err := ask()
		if err == nil {
			return nil
		}
		if fatal := (fatalError{}); errors.As(err, &fatal) {
			return fatal.error
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", recoverBound, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// events reads what all members logged so far.
func (c *cluster) events(epoch time.Time) ([]takeover.Event, error) {
	var all []takeover.Event
	for member := range c.Size() {
		f, err := os.Open(c.Log(member))
		if err != nil {
			return nil, err
		}
		events, err := takeover.ParseLog(f, c.Name(member), epoch)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, events...)
	}
	return all, nil
}
