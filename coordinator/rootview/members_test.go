package rootview_test

import (
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The steps of a replacement come over the tail like all other entries, and the
// view has the root peers of its position.
func TestRootPeersOverTheTail(t *testing.T) {
	s := newScript(t)
	s.tail(s.log.all(0), nil)
	for _, e := range []*rootv1.Event{
		{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{Peer: &rootv1.RootPeer{NodeId: 2, Incarnation: 12, TransportAddress: "b:1"}, Replaces: 1}}},
		{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: 2}}},
		{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{Peer: &rootv1.RootPeer{NodeId: 3, Incarnation: 13, TransportAddress: "c:1"}, Replaces: 1}}},
		{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: 3}}},
		{Kind: &rootv1.Event_RootPeersSettled{RootPeersSettled: &rootv1.RootPeersSettled{NodeId: 3}}},
	} {
		have := len(s.log.entries)
		s.log.commit(e)
		s.tail(s.log.all(have), nil)
		s.is(have + 1)
	}
	m := s.core.View().State.RootMembers()
	if len(m.Voters) != 1 || m.Voters[0] != 3 || len(m.Outgoing)+len(m.Learners) > 0 {
		t.Errorf("members %+v, want 3 alone", m)
	}
}
