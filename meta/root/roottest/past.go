package roottest

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/disk"
)

// Way is how a folder comes back from its past.
type Way string

// The ways. The copy is of an earlier start of its process; it is of the process that runs, whose
// promises since tell it; it is started beside the original.
const (
	RolledBack  Way = "whole disk rolled back"
	Restarted   Way = "restart from an older copy"
	CloneBeside Way = "clone beside the original"
)

// Ways are all of them.
var Ways = [...]Way{RolledBack, Restarted, CloneBeside}

// past is the folder of a follower that comes back from its past, while the other follower lacks what the
// leader and this one have acknowledged since the copy, and the leader is away.
type past struct {
	c                       *Cluster
	way                     Way
	leader, behind, forgets *Peer
	older                   *disk.Fake
	// term and last are those of the folder when it was copied.
	term, last uint64
	over       bool
}

// ComeBack has a folder come back from its past, in a moment that the rules of freshness are about: those that
// are there have heard of something that the copy lacks. It takes some time, and may come to nothing. While
// it is Returning nobody else may disturb the root peers, or start one.
func (c *Cluster) ComeBack(way Way) {
	if c.Returning() || c.Replacing() || len(c.Peers) != 3 {
		return
	}
	c.past = &past{c: c, way: way}
	for _, p := range c.Peers {
		for _, q := range c.Peers {
			c.Net.Mend(p.Place, q.Place)
		}
		c.past.took(p.steady())
	}
	c.past.await(c.past.settled, c.past.begin)
}

// Returning says whether a folder comes back from its past now.
func (c *Cluster) Returning() bool { return c.past != nil && !c.past.over }

// ReplaceStale has a peer replaced whose folder was refused, one at a time. It says whether there is none.
func (c *Cluster) ReplaceStale() bool {
	i := slices.IndexFunc(c.Peers, func(p *Peer) bool { return p.Stale })
	if i >= 0 && !c.Returning() {
		c.Lose(c.Peers[i])
	}
	return i < 0
}

// took notes an error of what must succeed.
func (p *past) took(err error) {
	if err != nil {
		p.c.Failures = append(p.c.Failures, err)
	}
}

// election is how long an election takes, or more.
func (p *past) election() time.Duration { return 2 * p.c.Peers[0].electionTimeout() }

// await goes on when something is so. If it never is, nothing comes back.
func (p *past) await(is func() bool, then func()) {
	limit := p.c.World.Now().Add(6 * p.election())
	var look func()
	look = func() {
		switch {
		case p.over:
		case is():
			then()
		case p.c.World.Now() >= limit:
			p.end()
		default:
			p.c.World.After(10*time.Millisecond, look)
		}
	}
	look()
}

// settled says that somebody leads and that each peer has let every other one in.
func (p *past) settled() bool {
	for _, one := range p.c.Peers {
		for _, other := range p.c.Peers {
			if !one.Runs() || one != other && one.contacts[other.ID] != (contact{other, other.life}) {
				return false
			}
		}
	}
	return p.c.Leader() != nil
}

// begin copies the folder, and cuts the other follower from whoever has what it is to lack.
func (p *past) begin() {
	p.leader = p.c.Leader()
	i := slices.Index(p.c.Peers, p.leader)
	p.behind, p.forgets = p.c.Peers[(i+1)%3], p.c.Peers[(i+2)%3]
	if p.way != RolledBack {
		p.links(p.c.Net.Cut, p.leader)
		p.copy()
		p.await(p.told, p.comeBack)
		return
	}
	p.copy()
	p.forgets.Kill()
	p.took(p.forgets.Restart())
	p.await(p.settled, func() {
		if p.c.Leader() != p.leader {
			p.end()
			return
		}
		p.links(p.c.Net.Cut, p.leader, p.forgets)
		p.await(p.told, p.comeBack)
	})
}

// links does something to the links of the follower that is to lag.
func (p *past) links(do func(from, to Place), others ...*Peer) {
	for _, o := range others {
		do(o.Place, p.behind.Place)
		do(p.behind.Place, o.Place)
	}
}

func (p *past) copy() {
	p.older, p.term = p.forgets.Copy(), p.forgets.View().Term
	p.last, _ = p.forgets.store.LastIndex()
}

// told says that ten entries were committed that the copy lacks, and that the follower that lags knows of a newer
// start, or has heard of a promise that the copy lacks.
func (p *past) told() bool {
	if p.behind.core == nil || p.forgets.core == nil || p.c.Leader() != p.leader || p.c.Log.Last() < p.last+10 {
		return false
	}
	if p.way == RolledBack || p.c.cfg.Forgetful {
		return true
	}
	known, _ := p.behind.store.Memory().Of(p.forgets.ID)
	promise := known.Before.Merge(known.Now)
	return promise.Term > p.term || promise.Term == p.term && promise.Index > p.last
}

// comeBack starts the copy, and takes the leader away.
func (p *past) comeBack() {
	w := p.c.World
	away := func() {
		if p.over {
			return
		}
		p.leader.Kill()
		p.links(p.c.Net.Mend, p.leader, p.forgets)
		w.After(3*p.election(), p.end)
	}
	if p.way == CloneBeside {
		_, err := p.c.CloneBeside(p.forgets, p.older)
		p.took(err)
		w.After(w.Between(p.election()/4, p.election()), away)
		return
	}
	away()
	p.took(p.forgets.PutBack(p.older))
}

// end mends what it has cut, and ends a clone, which is not in service.
func (p *past) end() {
	if p.over {
		return
	}
	p.over = true
	if p.behind != nil {
		p.links(p.c.Net.Mend, p.leader, p.forgets)
	}
	if p.c.twin != nil {
		p.c.twin.Kill()
	}
}
