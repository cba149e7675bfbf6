package procs

import (
	"fmt"
	"path/filepath"
)

// RootPeers is the size of a cluster's root.
const RootPeers = 3

// Layout is where the members of a cluster are: three root peers, then
// coordinators, counted from 0.
type Layout struct {
	// Dir holds workdirs and logs.
	Dir string
	// RootAddrs, TransportAddrs, CoordinatorAddrs and MetricsAddrs are
	// host:port; metrics in the order of members.
	RootAddrs, TransportAddrs, CoordinatorAddrs, MetricsAddrs []string
	// RootPeerFlags and CoordinatorFlags are added to the command lines of root
	// peers and of coordinators.
	RootPeerFlags, CoordinatorFlags []string
	// CertsOf is a member's folder of certificates; nil: they have none.
	CertsOf func(member int) string
}

// NewLayout chooses free ports for a cluster in dir.
func NewLayout(dir string, coordinators int) (*Layout, error) {
	n := RootPeers + coordinators
	addrs, err := Addrs(2*RootPeers + coordinators + n)
	if err != nil {
		return nil, err
	}
	take := func(n int) []string {
		part := addrs[:n:n]
		addrs = addrs[n:]
		return part
	}
	return &Layout{
		Dir:       dir,
		RootAddrs: take(RootPeers), TransportAddrs: take(RootPeers), CoordinatorAddrs: take(coordinators), MetricsAddrs: take(n),
	}, nil
}

// Size is the number of members.
func (l *Layout) Size() int { return RootPeers + len(l.CoordinatorAddrs) }

// Roots is the number of root peers: members [0, Roots()).
func (l *Layout) Roots() int { return RootPeers }

// Name is what a member is called.
func (l *Layout) Name(member int) string {
	if member < RootPeers {
		return fmt.Sprintf("meta-root-%d", member+1)
	}
	return fmt.Sprintf("coordinator-c%d", member-RootPeers+1)
}

// Workdir is a root peer's folder.
func (l *Layout) Workdir(member int) string { return filepath.Join(l.Dir, l.Name(member)) }

// Log is the file with what a member wrote, over all its starts.
func (l *Layout) Log(member int) string { return filepath.Join(l.Dir, l.Name(member)+".log") }

// Args is a member's command line.
func (l *Layout) Args(member int) []string {
	if member >= RootPeers {
		i := member - RootPeers
		args := []string{
			"coordinator", "-addr", l.CoordinatorAddrs[i], "-coordinator-id", fmt.Sprintf("c%d", i+1),
			"-metrics-addr", l.MetricsAddrs[member],
		}
		args = append(args, l.certs(member)...)
		return append(append(args, l.RootFlags()...), l.CoordinatorFlags...)
	}
	args := []string{
		"meta-root", "-addr", l.RootAddrs[member], "-workdir", l.Workdir(member), "-node-id", fmt.Sprint(member + 1),
		"-transport-addr", l.TransportAddrs[member], "-metrics-addr", l.MetricsAddrs[member],
	}
	for i, a := range l.TransportAddrs {
		args = append(args, "-peer", fmt.Sprintf("%d=%s", i+1, a))
	}
	args = append(args, l.certs(member)...)
	return append(args, l.RootPeerFlags...)
}

func (l *Layout) certs(member int) []string {
	if l.CertsOf == nil {
		return nil
	}
	return []string{"-certs", l.CertsOf(member)}
}

// RootFlags name the root peers to a coordinator or a root command.
func (l *Layout) RootFlags() []string {
	var flags []string
	for i, a := range l.RootAddrs {
		flags = append(flags, "-root-peer", fmt.Sprintf("%d=%s", i+1, a))
	}
	return flags
}
