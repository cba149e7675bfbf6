package roottest

import (
	"errors"
	"fmt"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// errNoAnswer is what a caller knows whose request or answer was lost.
var errNoAnswer = errors.New("roottest: no answer")

// replace asks the current peer for the next step of a replacement, as the Root
// service takes it. done is called once.
func (l *Link) replace(lost uint64, with *Peer, force, cancel bool, done func(rootv1.ReplaceStage, error)) {
	answered := false
	finish := func(stage rootv1.ReplaceStage, err error) {
		if !answered && !l.closed {
			answered = true
			l.run(func() { done(stage, err) })
		}
	}
	to, sent := l.Peer(), false
	l.cluster.Net.Send(l.place, to.Place, func() {
		if sent {
			return
		}
		sent = true
		s := &step{peer: to, lost: lost, with: with, force: force, reply: func(stage rootv1.ReplaceStage, err error) {
			l.cluster.Net.Send(to.Place, l.place, func() { finish(stage, err) })
		}}
		if to.core == nil {
			s.reply(0, errNoAnswer)
			return
		}
		// What a leader has applied may be old.
		to.submit(replica.NewRead(), func(r replica.Request) {
			switch err := Refusal(r); {
			case err != nil:
				s.reply(0, err)
			case cancel:
				s.drop()
			default:
				s.next()
			}
		})
	})
	l.cluster.World.After(askTimeout, func() { finish(0, errNoAnswer) })
}

// step is one call of ReplacePeer at a peer; see package server.
type step struct {
	peer  *Peer
	lost  uint64
	with  *Peer
	force bool
	reply func(rootv1.ReplaceStage, error)
}

// rooted is the new peer as it is rooted; nil: it is not.
func (s *step) rooted() *rootv1.RootPeer {
	for _, p := range s.peer.View().State.Cluster().GetPeers() {
		if p.GetNodeId() == s.with.ID {
			return p
		}
	}
	return nil
}

func (s *step) next() {
	p := s.rooted()
	promote := &rootv1.Event{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: s.with.ID}}}
	switch {
	case p == nil:
		s.reshape(&rootv1.Event{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
			Peer:     &rootv1.RootPeer{NodeId: s.with.ID, Incarnation: s.with.identity.Incarnation, TransportAddress: fmt.Sprintf("root-%d:1", s.with.ID)},
			Replaces: s.lost,
		}}}, func(rootv1.Outcome) rootv1.ReplaceStage { return rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP })
	case p.GetRole() == rootv1.RootPeerRole_ROOT_PEER_ROLE_JOINING:
		s.reply(rootv1.ReplaceStage_REPLACE_STAGE_SETTLING, nil)
	default:
		// Of a peer that votes the answer says that a majority knows it.
		s.reshape(promote, func(o rootv1.Outcome) rootv1.ReplaceStage {
			if o == rootv1.Outcome_OUTCOME_ALREADY_APPLIED && p.GetRole() == rootv1.RootPeerRole_ROOT_PEER_ROLE_UNSPECIFIED {
				return rootv1.ReplaceStage_REPLACE_STAGE_DONE
			}
			return rootv1.ReplaceStage_REPLACE_STAGE_SETTLING
		})
	}
}

func (s *step) drop() {
	for _, p := range s.peer.View().State.Cluster().GetReplaced() {
		if p.GetNodeId() == s.with.ID {
			s.reply(rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED, nil)
			return
		}
	}
	switch p := s.rooted(); {
	case p == nil:
		s.next() // It is given up as soon as it is there.
		return
	case p.GetRole() != rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER:
		s.reply(0, reason.New(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d votes", s.with.ID))
		return
	}
	s.reshape(&rootv1.Event{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: s.with.ID}}},
		func(rootv1.Outcome) rootv1.ReplaceStage { return rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED })
}

// reshape takes one step at the leader and says where that leads.
func (s *step) reshape(e *rootv1.Event, stage func(rootv1.Outcome) rootv1.ReplaceStage) {
	r, err := replica.NewReshape(e, s.force)
	if err != nil {
		s.reply(0, err)
		return
	}
	s.peer.submit(r, func(replica.Request) {
		switch {
		case r.Err != nil:
			s.reply(0, r.Err)
		case r.Result.Reject != nil:
			s.reply(0, &reason.Error{Detail: r.Result.Reject})
		default:
			s.reply(stage(r.Result.Outcome), nil)
		}
	})
}
