package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	roots        = procs.RootPeers
	coordinators = 2
	members      = roots + coordinators
)

func rootPlace(i int) string        { return fmt.Sprintf("root%d", i+1) }
func coordinatorPlace(i int) string { return fmt.Sprintf("c%d", i+1) }

// place is where a member is in the network.
func place(member int) string {
	if member < roots {
		return rootPlace(member)
	}
	return coordinatorPlace(member - roots)
}

// cluster is real processes with a network of proxies between them.
type cluster struct {
	*proctest.Cluster
	t   testing.TB
	net *proctest.Network
	// advertised are the addresses of coordinators that everybody is told.
	advertised []string
	// peerAddrs are the transports as the other peers reach them, rootAddrs the
	// roots as each coordinator does.
	peerAddrs []string
	rootAddrs [coordinators][]string
	// nowhere is what root peers say of themselves, where nobody listens: who went
	// to their own addresses would go around the network.
	nowhere string
	// clients ask the root peers directly, past the network.
	clients []rootv1.RootClient
	ttl     time.Duration
}

// checkpointEntries is how many entries start a checkpoint: a run crosses some.
const checkpointEntries = 100

// electionTimeout is that of the root peers: the default.
const electionTimeout = 500 * time.Millisecond

func newCluster(t testing.TB, ttl time.Duration) *cluster {
	t.Helper()
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, net: proctest.NewNetwork(t), ttl: ttl, nowhere: proctest.Addrs(t, 1)[0]}
	c.Cluster = proctest.NewCluster(t, path, nil, coordinators)
	c.CommandLine = c.commandLine
	for i := range roots {
		c.peerAddrs = append(c.peerAddrs, c.net.CommonDoor(rootPlace(i), c.TransportAddrs[i], helloBytes, helloFrom))
		c.clients = append(c.clients, rootv1.NewRootClient(dial(t, c.RootAddrs[i])))
		for k := range coordinators {
			c.rootAddrs[k] = append(c.rootAddrs[k], c.net.Door(coordinatorPlace(k), rootPlace(i), c.RootAddrs[i]))
		}
	}
	for k := range coordinators {
		c.advertised = append(c.advertised, c.net.Door(callersGo, coordinatorPlace(k), c.CoordinatorAddrs[k]))
	}
	return c
}

// A root peer says who it is in the first frame of a connection: behind the
// frame's header of 9 bytes, a magic of 8, two versions and a feature level of 8,
// and a purpose of 1.
const (
	helloFromAt = 9 + 8 + 8 + 1
	helloBytes  = helloFromAt + 8
)

func helloFrom(head []byte) string {
	if from := binary.BigEndian.Uint64(head[helloFromAt:]); from >= 1 && from <= roots {
		return rootPlace(int(from - 1))
	}
	return ""
}

// commandLine is a member's command line with the network's addresses.
func (c *cluster) commandLine(member int) []string {
	l := *c.Layout
	if member < roots {
		l.TransportAddrs = c.peerAddrs
		l.RootPeerFlags = append(l.RootPeerFlags[:len(l.RootPeerFlags):len(l.RootPeerFlags)],
			"-transport-addr", c.TransportAddrs[member], "-advertise-addr", c.nowhere, "-checkpoint-entries", strconv.Itoa(checkpointEntries))
		return l.Args(member)
	}
	k := member - roots
	l.RootAddrs = c.rootAddrs[k]
	l.CoordinatorFlags = append(l.CoordinatorFlags[:len(l.CoordinatorFlags):len(l.CoordinatorFlags)],
		"-advertise-addr", c.advertised[k], "-tenure-ttl", c.ttl.String())
	return l.Args(member)
}

// start starts a member that is down.
func (c *cluster) start(member int, stderr *os.File) {
	c.StartWithStderr(member, stderr)
	c.net.Open(place(member))
}

// kill ends a member at once.
func (c *cluster) kill(member int) {
	c.Kill(member)
	c.net.Close(place(member))
}

// left closes the doors of a member that has ended by itself.
func (c *cluster) left(member int) { c.net.Close(place(member)) }

// status asks every root peer for its status; nil: it does not answer.
func (c *cluster) status() [roots]*rootv1.StatusResponse {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	var all [roots]*rootv1.StatusResponse
	done := make(chan struct{})
	for i := range roots {
		go func() {
			all[i], _ = c.clients[i].Status(ctx, &rootv1.StatusRequest{}) // nil with an error
			done <- struct{}{}
		}()
	}
	for range roots {
		<-done
	}
	return all
}

var errNoRole = errors.New("nobody has the role")

// role finds the member with a name or a role.
func (c *cluster) role(name string) (int, error) {
	for m := range members {
		if place(m) == name {
			return m, nil
		}
	}
	var newest *rootv1.StatusResponse
	for _, s := range c.status() {
		if s.GetRole() == rootv1.RaftRole_RAFT_ROLE_LEADER && s.GetTerm() >= newest.GetTerm() {
			newest = s
		}
	}
	if newest == nil {
		return 0, fmt.Errorf("%w: no root peer leads", errNoRole)
	}
	leader := int(newest.GetNodeId()) - 1
	holder := -1
	for k := range coordinators {
		if newest.GetTenure().GetHolderId() == coordinatorPlace(k) && !newest.GetTenure().GetRetired() {
			holder = k
		}
	}
	switch {
	case name == "leader":
		return leader, nil
	case name == "follower":
		return (leader + 1) % roots, nil
	case name == "other":
		return (leader + 2) % roots, nil
	case holder < 0:
		return 0, fmt.Errorf("%w: %q holds the Tenure", errNoRole, newest.GetTenure().GetHolderId())
	case name == "holder":
		return roots + holder, nil
	case name == "standby":
		return roots + (holder+1)%coordinators, nil
	}
	return 0, fmt.Errorf("%q is no member and no role", name)
}

// find waits for a role.
func (c *cluster) find(name string) int {
	c.t.Helper()
	member := 0
	proctest.Eventually(c.t, patience, func() (err error) {
		member, err = c.role(name)
		return err
	})
	return member
}

// pair waits for two roles of two members.
func (c *cluster) pair(one, other string) (a, b int) {
	c.t.Helper()
	proctest.Eventually(c.t, patience, func() error {
		if a, b = c.find(one), c.find(other); a == b {
			return fmt.Errorf("%s was %s and %s: the roles have changed", place(a), one, other)
		}
		return nil
	})
	return a, b
}

const patience = proctest.Patience

// follow reads the committed log of one root peer, as often as it breaks, until ctx
// ends. A peer that has dropped what comes next goes on with what it still has:
// the others have told of what is missing.
func (c *cluster) follow(ctx context.Context, peer int, e *evidence) {
	var at rootv1.RootToken
	for ctx.Err() == nil {
		err := c.read(ctx, peer, e, &at)
		if reason.Of(reason.FromGRPC(err)) == rootv1.Reason_REASON_BOOTSTRAP_REQUIRED {
			if s, err := c.clients[peer].Status(ctx, &rootv1.StatusRequest{}); err == nil {
				e.skip(&at, s.GetFirstIndex())
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // until it is back
		}
	}
}

// read reads the log of one root peer behind a position until the stream breaks.
func (c *cluster) read(ctx context.Context, peer int, e *evidence, at *rootv1.RootToken) error {
	stream, err := c.clients[peer].Tail(ctx, &rootv1.TailRequest{After: at, FeatureLevel: state.FeatureLevel})
	for err == nil {
		var m *rootv1.TailResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		for _, entry := range m.GetEntries() {
			if entry.GetIndex() != at.GetIndex()+1 {
				e.mu.Lock()
				e.dispute("the tail of %s went from %d to %d", rootPlace(peer), at.GetIndex(), entry.GetIndex())
				e.mu.Unlock()
			}
			e.committed(rootPlace(peer), entry.GetIndex(), entry.GetTerm(), entry.GetEntry())
			at.Incarnation, at.Term, at.Index = m.GetIncarnation(), entry.GetTerm(), entry.GetIndex()
		}
	}
	return err
}
