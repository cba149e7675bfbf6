package roottest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Replacements count the losses of disks and what became of them.
type Replacements struct {
	// Lost disks, Done replacements, Cancelled new peers, peers that came Back
	// with their old disk while or after they were replaced, and Steps that were
	// acknowledged.
	Lost, Done, Cancelled, Back, Steps int
}

// Add adds the counts of another run.
func (n *Replacements) Add(o Replacements) {
	n.Lost, n.Done, n.Cancelled, n.Back, n.Steps = n.Lost+o.Lost, n.Done+o.Done, n.Cancelled+o.Cancelled, n.Back+o.Back, n.Steps+o.Steps
}

// replacement is a lost peer, and the new one that takes its place.
type replacement struct {
	c    *Cluster
	lost *Peer
	with *Peer
	// force says that the operators insist, cancel that they give the new peer up
	// and take another one.
	force, cancel bool
	ended         bool
	// term is the newest one when the replacement ended.
	term uint64
}

// Replacing says whether a lost peer has not been replaced yet.
func (c *Cluster) Replacing() bool { return c.losing != nil }

// Lose takes a peer away for good and starts an empty one in its place, which
// operators make a peer. Only one peer is lost at a time: false when one is, and in
// clusters of one.
func (c *Cluster) Lose(p *Peer) bool {
	i := slices.Index(c.Peers, p)
	if c.losing != nil || i < 0 || len(c.Peers) < 3 {
		return false
	}
	c.World.Fault("disk lost for ever")
	c.Replaced.Lost++
	if p.core != nil {
		p.down()
	}
	p.reboot()
	c.Peers = slices.Concat(c.Peers[:i], c.Peers[i+1:])
	r := &replacement{c: c, lost: p}
	c.losing, p.losing = r, r
	r.join()
	for i := range 1 + c.World.Rand.IntN(2) {
		(&operator{r: r, link: c.NewLink(Place(fmt.Sprintf("operator-%d", i)))}).loop()
	}
	r.plan()
	return true
}

// plan decides what else happens meanwhile.
func (r *replacement) plan() {
	w := r.c.World
	if w.Chance(0.3) {
		w.After(w.Between(0, 2*time.Second), func() { r.cancel = !r.ended })
	}
	if w.Chance(0.2) { // Its disk was not lost after all.
		w.After(w.Between(0, 2*time.Second), func() { r.back() })
	}
}

// join starts a machine with an empty disk and a node id that nobody had.
func (r *replacement) join() {
	id := storage.Identity{
		ClusterID: ClusterID, NodeID: uint64(len(r.c.machines)) + 1, Incarnation: r.c.World.Rand.Uint64() | 1, Member: true, Joined: true,
	}
	for _, p := range r.c.Peers {
		id.Peers = append(id.Peers, storage.Peer{NodeID: p.ID, Incarnation: p.identity.Incarnation, Address: fmt.Sprintf("root-%d:1", p.ID)})
	}
	id.Peers = append(id.Peers, storage.Peer{NodeID: id.NodeID, Incarnation: id.Incarnation, Address: fmt.Sprintf("root-%d:1", id.NodeID)})
	p, err := r.c.machine(id)
	if err != nil {
		r.c.Failures = append(r.c.Failures, fmt.Errorf("root %d: %w", id.NodeID, err))
	}
	r.with = p
	r.c.World.After(r.c.World.Between(0, 300*time.Millisecond), func() {
		if p.core != nil || r.with != p {
			return
		}
		if err := p.Restart(); err != nil {
			r.c.Failures = append(r.c.Failures, err)
		}
	})
}

// back starts the process of the lost peer on its old disk.
func (r *replacement) back() {
	if r.lost.core != nil || r.lost.Stale {
		return
	}
	r.c.World.Fault("replaced peer back with its old disk")
	r.c.Replaced.Back++
	r.force = true
	if err := r.lost.Restart(); err != nil {
		r.c.Failures = append(r.c.Failures, err)
	}
}

// again gives the new peer up and takes another one.
func (r *replacement) again() {
	r.c.Replaced.Cancelled++
	r.cancel = false
	if r.with.core != nil {
		r.with.down()
	}
	r.c.Peers = slices.DeleteFunc(slices.Clone(r.c.Peers), func(p *Peer) bool { return p == r.with })
	r.join()
}

// done ends the replacement. What was replaced may come back.
func (r *replacement) done() {
	if r.ended {
		return
	}
	r.ended, r.c.losing = true, nil
	r.c.Replaced.Done++
	for _, p := range r.c.machines {
		if p.core != nil {
			r.term = max(r.term, p.View().Term)
		}
	}
	w := r.c.World
	if w.Chance(0.5) {
		w.After(w.Between(0, 500*time.Millisecond), r.back)
	}
	// Whoever may be lost now includes the leader, which alone may know how it ended.
	if l := r.c.Leader(); l != nil && w.Chance(0.25) {
		r.c.Lose(l)
	}
}

// judgeLost asks that a peer that was replaced leads nobody any more.
func (c *Cluster) judgeLost(p *Peer) {
	if r := p.losing; r != nil && r.ended && p.core.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER && p.core.view.Term > r.term {
		c.Failures = append(c.Failures, fmt.Errorf("root %d was replaced, and leads in term %d", p.ID, p.core.view.Term))
		p.losing = nil
	}
}

// CheckPeers asks that the rooted peers are those in service, and all of them vote.
func (c *Cluster) CheckPeers() error {
	for _, p := range c.Peers {
		var ids []uint64
		for _, q := range c.Peers {
			ids = append(ids, q.ID)
		}
		if !p.Alive() {
			return fmt.Errorf("root %d is down: %w", p.ID, p.Err)
		}
		m := p.View().Members
		if slices.Sort(m.Voters); !slices.Equal(m.Voters, ids) || len(m.Outgoing)+len(m.Learners) > 0 {
			return fmt.Errorf("root %d knows the voters %v, outgoing %v, learners %v; in service are %v", p.ID, m.Voters, m.Outgoing, m.Learners, ids)
		}
	}
	return nil
}

// Wipe empties the disk of a peer and starts it again under its old node id, as
// if nothing had happened: for contrast, this must not be done.
func (p *Peer) Wipe() error {
	if p.core != nil {
		p.down()
	}
	p.cluster.World.Fault("disk wiped under a node id in use")
	p.Disk, p.crashed = disk.NewFake(p.cluster.World.Rand.Uint64()), false
	if err := p.Disk.MkdirAll(workdir, 0o755); err != nil {
		return err
	}
	return p.Start()
}

// operator is somebody who calls ReplacePeer again and again.
type operator struct {
	r    *replacement
	link *Link
}

func (o *operator) loop() {
	r, w := o.r, o.r.c.World
	if r.ended {
		return
	}
	with, cancel := r.with, r.cancel
	answered := func(stage rootv1.ReplaceStage, err error) {
		if stage != rootv1.ReplaceStage_REPLACE_STAGE_UNSPECIFIED {
			r.c.Replaced.Steps++
		}
		switch {
		case r.ended || with != r.with:
		case stage == rootv1.ReplaceStage_REPLACE_STAGE_DONE:
			r.done()
		case stage == rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED:
			r.again()
		case cancel && reason.Of(err) == rootv1.Reason_REASON_ALREADY_EXISTS:
			r.cancel = false // It votes.
		case reason.Of(err) == rootv1.Reason_REASON_INVALID_REQUEST:
			o.link.Peer().Transfer(0) // The peer that is to be replaced leads.
		}
		if err != nil {
			o.link.Rotate(reason.From(err).GetLeaderId())
		}
		w.After(w.Between(5*time.Millisecond, 100*time.Millisecond), o.loop)
	}
	o.link.replace(r.lost.ID, with, r.force, cancel, answered)
}

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
