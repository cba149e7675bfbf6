package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/member/fence"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/rooted"
)

// act is work that a member let in.
type act struct {
	keyspace    state.KeyspaceID
	region      state.RegionID
	keys        fence.Keys
	epoch       state.Epoch
	member      state.MemberID
	incarnation uint64
	// number is how far the region got with it.
	number uint64
	// began is when it was let in, ended when its right was found to hold still behind it;
	// 0: it was not.
	began, ended time.Duration
	// landed: the resource took what it wrote, as its number landing-th.
	landed int
}

// taking is a region that a member's application took, or gave with its exact frontier.
type taking struct {
	region      state.RegionID
	epoch       state.Epoch
	member      state.MemberID
	incarnation uint64
	frontier    uint64
	when        time.Duration
}

// acts is what members did.
type acts struct {
	r     *run
	all   []*act
	takes []taking
	gives []taking
	// may is when somebody might have let work in, by region, epoch and incarnation.
	may map[mayKey]*span
	// guards are those of a resource of each keyspace, which all members write to.
	guards map[state.KeyspaceID]*fence.Guard
	landed int
}

type mayKey struct {
	deedKey
	incarnation uint64
}

// span is from when to when an incarnation acted for a region at an epoch.
type span struct {
	member   state.MemberID
	from, to time.Duration
}

func (a *acts) guard(k state.KeyspaceID) *fence.Guard {
	if a.guards[k] == nil {
		a.guards[k] = &fence.Guard{}
	}
	return a.guards[k]
}

// at notes a moment.
func (a *acts) at(w *worker, id state.RegionID, epoch state.Epoch, when time.Duration) {
	key := mayKey{deedKey{id, epoch}, w.member}
	s := a.may[key]
	if s == nil {
		s = &span{w.id, when, when}
		a.may[key] = s
	}
	s.to = max(s.to, when)
}

// idle looks again and again which work would be let in.
func (w *worker) idle() {
	if w.core != nil {
		for _, id := range slices.Sorted(maps.Keys(w.app)) {
			if g, no := w.core.Table().Admit(held.Request{Region: id}, w.clock); no == nil {
				w.r.acts.at(w, id, g.Region.Epoch, w.r.now())
				if w.core.Table().Leave(g) {
					w.core.Drained(id, w.now())
				}
			}
		}
	}
	w.after(w.r.Between(200*time.Microsecond, 2*time.Millisecond), w.idle)
}

func (a *acts) took(w *worker, r *rooted.Region, n uint64) {
	a.takes = append(a.takes, taking{r.ID, r.Epoch, w.id, w.member, n, w.r.now()})
}

func (a *acts) gave(w *worker, r *rooted.Region, n uint64) {
	a.gives = append(a.gives, taking{r.ID, r.Epoch, w.id, w.member, n, w.r.now()})
}

// verdict is what became of a request, or why it was refused.
type verdict struct {
	done bool
	no   *held.Refusal
}

// serve does some work for a region, if the member may: package member's Do.
func (w *worker) serve(id state.RegionID, epoch state.Epoch, answer func(verdict)) {
	asked := w.now()
	var try func()
	try = func() {
		if w.core == nil {
			answer(verdict{})
			return
		}
		core := w.core
		g, no := core.Table().Admit(held.Request{Region: id, Epoch: epoch}, w.clock)
		if no != nil && no.Verdict == held.Wait && w.now().Sub(asked) < no.Hold {
			w.after(w.r.Between(time.Millisecond, 4*time.Millisecond), try)
			return
		}
		if no != nil {
			answer(verdict{no: no})
			return
		}
		copied := w.app[id]
		if copied == nil {
			w.r.fail("Held: %s let work in for region %d at %s, which its application does not have", w.id, id, g.Region.Epoch)
			return
		}
		copied.number++
		a := &act{
			keyspace: g.Region.Keyspace, region: id, keys: fence.Keys{Start: g.Region.Start, End: g.Region.End}, epoch: g.Region.Epoch,
			member: w.id, incarnation: w.member, number: copied.number, began: w.r.now(),
		}
		w.r.acts.all = append(w.r.acts.all, a)
		w.r.acts.at(w, id, a.epoch, a.began)
		w.work(func() {
			if w.core == core {
				w.finish(a, core, g, answer)
			}
		})
	}
	try()
}

// work takes a while, in which the process sometimes stands still.
func (w *worker) work(done func()) {
	r := w.r
	takes := r.Between(0, time.Millisecond)
	if !r.calm && r.Chance(0.05) {
		takes = r.Between(time.Millisecond, 60*time.Millisecond)
	}
	if !r.calm && r.Chance(r.k.stalls) {
		r.Fault("member paused inside work")
		w.pause(r.Between(0, 2*r.k.fence))
	}
	w.after(takes, done)
}

func (w *worker) finish(a *act, core *held.Core, g *held.Grant, answer func(verdict)) {
	r := w.r
	write := func() error {
		r.acts.landed++
		a.landed = r.acts.landed
		return nil
	}
	landed := r.acts.guard(a.keyspace).Do(a.keys, a.epoch, write)
	if landed != nil && r.k.variant == unfenced {
		landed = write()
	}
	no := core.Table().Check(g, w.clock)
	if r.k.variant == unchecked {
		no = nil
	}
	if core.Table().Leave(g) {
		core.Drained(a.region, w.now())
	}
	switch {
	case landed != nil:
		r.count.fenced++
		answer(verdict{})
	case no != nil:
		r.count.lostBehind++
		answer(verdict{no: no})
	default:
		a.ended = r.now()
		r.acts.at(w, a.region, a.epoch, a.ended)
		answer(verdict{done: true})
	}
}

// asker asks for work on any region, as coordinators' views have them: one request at a
// time.
type asker struct {
	r     *run
	place roottest.Place
	quit  bool
}

func (c *asker) loop() {
	if c.quit {
		return
	}
	again := func() { c.r.After(c.r.Between(0, 4*time.Millisecond), c.loop) }
	n := c.r.nodes[c.r.Rand.IntN(len(c.r.nodes))]
	region := c.r.anyRegion(n)
	if region == nil || len(region.Owners) == 0 {
		c.r.After(c.r.Between(5*time.Millisecond, 20*time.Millisecond), c.loop)
		return
	}
	owner := region.Owners[c.r.Rand.IntN(len(region.Owners))].Member
	c.ask(region.ID, owner, region.Epoch, 2, again)
}

// ask asks one member, and the one that it names once more.
func (c *asker) ask(id state.RegionID, member state.MemberID, epoch state.Epoch, left int, done func()) {
	over := false
	finish := func(v verdict) {
		if over {
			return
		}
		over = true
		switch {
		case v.done:
			c.r.count.served++
		case v.no != nil && v.no.Verdict == held.Moved && v.no.To != "" && left > 1:
			c.ask(id, v.no.To, v.no.Epoch, left-1, done)
			return
		default:
			c.r.count.unserved++
		}
		done()
	}
	net := c.r.roots.Net
	for _, w := range c.r.workers {
		if w.id == member && w.up {
			net.Send(c.place, w.place, func() {
				w.then(func() {
					w.serve(id, epoch, func(v verdict) { net.Send(w.place, c.place, func() { finish(v) }) })
				})()
			})
		}
	}
	c.r.After(callTimeout, func() { finish(verdict{}) })
}

// anyRegion is any region of the assigned keyspaces in a coordinator's view.
func (r *run) anyRegion(n *node) *state.Region {
	if !n.up || !n.view.core.View().Loaded() {
		return nil
	}
	s := r.spaces[r.Rand.IntN(len(r.spaces))]
	var all []*state.Region
	st := n.view.core.View().State
	k := st.KeyspaceByName(s.name)
	if k == nil {
		return nil
	}
	st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(region *state.Region) bool {
		all = append(all, region)
		return true
	})
	if len(all) == 0 {
		return nil
	}
	return all[r.Rand.IntN(len(all))]
}
