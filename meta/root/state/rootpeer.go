package state

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	voterRole   = rootv1.RootPeerRole_ROOT_PEER_ROLE_UNSPECIFIED
	learnerRole = rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER
	joiningRole = rootv1.RootPeerRole_ROOT_PEER_ROLE_JOINING
	leavingRole = rootv1.RootPeerRole_ROOT_PEER_ROLE_LEAVING

	// maxReplaced bounds the replaced peers that are remembered with their
	// addresses and workdirs.
	maxReplaced = 64
)

// RootMembers are the node ids of the root peers by what they do. While
// Outgoing is not empty a change is joint: a majority of both sets decides.
type RootMembers struct {
	Voters, Outgoing, Learners []uint64
}

// RootMembers tells who decides at this position; all empty before the bootstrap.
func (s *State) RootMembers() RootMembers { return MembersOf(s.cluster) }

// MembersOf is RootMembers for a cluster record; nil has none.
func MembersOf(c *rootv1.Cluster) RootMembers {
	var m RootMembers
	joint := slices.ContainsFunc(c.GetPeers(), isJoint)
	for _, p := range c.GetPeers() {
		switch p.GetRole() {
		case learnerRole:
			m.Learners = append(m.Learners, p.GetNodeId())
			continue
		case leavingRole:
			m.Outgoing = append(m.Outgoing, p.GetNodeId())
			continue
		case voterRole:
			if joint {
				m.Outgoing = append(m.Outgoing, p.GetNodeId())
			}
		}
		m.Voters = append(m.Voters, p.GetNodeId())
	}
	return m
}

func isJoint(p *rootv1.RootPeer) bool {
	return p.GetRole() == joiningRole || p.GetRole() == leavingRole
}

// RootPeerEvent says whether e changes the root peers: such an event rides alone
// in a membership entry of raft.
func RootPeerEvent(e *rootv1.Event) bool {
	switch e.GetKind().(type) {
	case *rootv1.Event_RootPeerAdded, *rootv1.Event_RootPeerPromoted, *rootv1.Event_RootPeersSettled, *rootv1.Event_RootPeerDropped:
		return true
	}
	return false
}

// rootPeer finds a peer by node id; -1: there is none.
func (s *State) rootPeer(node uint64) int {
	return slices.IndexFunc(s.cluster.GetPeers(), func(p *rootv1.RootPeer) bool { return p.GetNodeId() == node })
}

// rootPeerAdded makes a learner. Already applied: this workdir is a peer, or is
// to become one, in place of that one.
func (t *turn) rootPeerAdded(e *rootv1.RootPeerAdded) verdict {
	next, peers := e.GetPeer(), t.cluster.GetPeers()
	if i := t.rootPeer(next.GetNodeId()); i >= 0 {
		old := peers[i]
		if old.GetIncarnation() == next.GetIncarnation() && old.GetTransportAddress() == next.GetTransportAddress() && old.GetReplaces() == e.GetReplaces() {
			return already
		}
		return rejected(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d exists, at %s with workdir %016x", old.GetNodeId(), old.GetTransportAddress(), old.GetIncarnation())
	}
	if WasReplaced(t.cluster, next.GetNodeId()) || slices.ContainsFunc(t.cluster.GetReplaced(), func(p *rootv1.RootPeer) bool {
		return p.GetIncarnation() == next.GetIncarnation()
	}) {
		return rejected(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d, or its workdir %016x, was replaced: take a new node id and an empty workdir", next.GetNodeId(), next.GetIncarnation())
	}
	for _, p := range peers {
		switch {
		case p.GetRole() == learnerRole, p.GetRole() == joiningRole:
			return rejected(rootv1.Reason_REASON_ALREADY_EXISTS, "the replacement of root peer %d by %d is under way: one at a time", p.GetReplaces(), p.GetNodeId())
		case p.GetIncarnation() == next.GetIncarnation(), p.GetTransportAddress() == next.GetTransportAddress() && p.GetNodeId() != e.GetReplaces():
			return rejected(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d has this address or workdir", p.GetNodeId())
		}
	}
	if t.rootPeer(e.GetReplaces()) < 0 {
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d to replace", e.GetReplaces())
	}
	if len(t.cluster.GetReplacedNodeIds()) >= MaxReplacedPeers {
		return verdict{reject: capacity(MaxReplacedPeers, "%d root peers were replaced already, no more are remembered: restore a backup as a new cluster", MaxReplacedPeers)}
	}
	learner := &rootv1.RootPeer{
		NodeId: next.GetNodeId(), Incarnation: next.GetIncarnation(), TransportAddress: next.GetTransportAddress(),
		Role: learnerRole, Replaces: e.GetReplaces(),
	}
	t.changePeers(func(c *rootv1.Cluster) { c.Peers = append(c.Peers, learner) })
	return applied
}

// rootPeerPromoted begins the joint change. Already applied: it has begun, or
// has ended.
func (t *turn) rootPeerPromoted(node uint64) verdict {
	i := t.rootPeer(node)
	if i < 0 {
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d", node)
	}
	next := t.cluster.GetPeers()[i]
	if next.GetRole() != learnerRole {
		return already
	}
	lost := t.rootPeer(next.GetReplaces())
	t.changePeers(func(c *rootv1.Cluster) {
		c.Peers[i].Role, c.Peers[lost].Role = joiningRole, leavingRole
	})
	return applied
}

// rootPeersSettled ends the joint change. Already applied: the peer votes, and
// no change is under way.
func (t *turn) rootPeersSettled(node uint64) verdict {
	i := t.rootPeer(node)
	if i < 0 {
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d", node)
	}
	switch t.cluster.GetPeers()[i].GetRole() {
	case voterRole:
		return already
	case joiningRole:
	default:
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "root peer %d is not joining", node)
	}
	t.changePeers(func(c *rootv1.Cluster) {
		c.Peers[i].Role = voterRole
		lost := slices.IndexFunc(c.Peers, func(p *rootv1.RootPeer) bool { return p.GetRole() == leavingRole })
		gone := c.Peers[lost]
		gone.Role = voterRole
		c.Peers = slices.Delete(c.Peers, lost, lost+1)
		replaced(c, gone)
	})
	return applied
}

// rootPeerDropped gives up a learner; its identity is used up. Already applied:
// it was given up.
func (t *turn) rootPeerDropped(node uint64) verdict {
	i := t.rootPeer(node)
	switch {
	case i < 0 && WasReplaced(t.cluster, node):
		return already
	case i < 0:
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d", node)
	case t.cluster.GetPeers()[i].GetRole() != learnerRole:
		return rejected(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d votes: it can be replaced, not dropped", node)
	}
	t.changePeers(func(c *rootv1.Cluster) {
		replaced(c, c.Peers[i])
		c.Peers = slices.Delete(c.Peers, i, i+1)
	})
	return applied
}

// replaced notes that a peer is none any more.
func replaced(c *rootv1.Cluster, gone *rootv1.RootPeer) {
	c.Replaced = append(c.Replaced, gone)
	c.Replaced = c.Replaced[max(0, len(c.Replaced)-maxReplaced):]
	i, _ := slices.BinarySearch(c.ReplacedNodeIds, gone.GetNodeId())
	c.ReplacedNodeIds = slices.Insert(c.ReplacedNodeIds, i, gone.GetNodeId())
}

// WasReplaced says whether a root peer of that node id was replaced, or given up.
// It is refused for ever.
func WasReplaced(c *rootv1.Cluster, node uint64) bool {
	_, was := slices.BinarySearch(c.GetReplacedNodeIds(), node)
	return was
}

// changePeers changes the cluster record, and when its peers last changed.
func (t *turn) changePeers(change func(*rootv1.Cluster)) {
	t.setCluster(func(c *rootv1.Cluster) {
		change(c)
		c.PeersRevision = t.token.Index
	})
}

// setCluster replaces the cluster record by a changed copy.
func (t *turn) setCluster(change func(*rootv1.Cluster)) {
	c := proto.CloneOf(t.cluster)
	change(c)
	t.cluster = c
	t.change(Change{Kind: ChangeCluster, Cluster: c})
}

func checkRootPeer(e *rootv1.RootPeerAdded) *rootv1.ErrorDetail {
	p := e.GetPeer()
	switch {
	case p.GetIncarnation() == 0:
		return invalid("the workdir of the new root peer is missing")
	case p.GetNodeId() == e.GetReplaces():
		return invalid("root peer %d cannot replace itself: a new peer has a new node id", p.GetNodeId())
	case p.GetTransportAddress() == "":
		return invalid("the transport address of the new root peer is missing")
	}
	return first(checkNumber("node id", p.GetNodeId()), checkNumber("node id to replace", e.GetReplaces()),
		checkText("transport address", p.GetTransportAddress(), MaxAddressBytes))
}
