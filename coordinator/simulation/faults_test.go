package simulation

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/meta/root/roottest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// holding is the coordinator that has the newest era, if any; otherwise any.
func (r *run) holding() *node {
	var best *node
	for _, n := range r.nodes {
		if n.up && n.holder.Era() != 0 && (best == nil || n.holder.Era() > best.holder.Era()) {
			best = n
		}
	}
	if best == nil {
		return r.nodes[r.Rand.IntN(len(r.nodes))]
	}
	return best
}

// anyone is a coordinator, mostly the one that matters.
func (r *run) anyone() *node {
	if r.Chance(0.7) {
		return r.holding()
	}
	return r.nodes[r.Rand.IntN(len(r.nodes))]
}

// disturb injects one fault, then the next.
func (r *run) disturb() {
	if r.calm {
		return
	}
	if r.Chance(0.4) {
		r.disturbRoots()
	} else {
		r.disturbCoordinators()
	}
	if r.Chance(0.3) {
		r.disturbNetwork()
	}
	next := r.Between(r.k.interval/2, 2*r.k.interval)
	if r.Chance(0.1) {
		next += r.Between(50*time.Millisecond, 300*time.Millisecond) // a lull, in which work gets done
	}
	r.After(next, r.disturb)
}

func (r *run) disturbRoots() {
	if r.roots.Returning() {
		return // what is refused then, and by whom, is known
	}
	p := r.roots.Peers[r.Rand.IntN(len(r.roots.Peers))]
	leader := r.roots.Leader()
	if leader != nil && r.Chance(0.4) {
		p = leader
	}
	switch r.Rand.IntN(12) {
	case 0:
		p.Kill()
	case 1:
		p.PowerCut()
	case 2, 3:
		p.CrashWithin(30, r.Chance(0.5))
	case 4, 5:
		p.Pause()
		r.After(r.Between(10*time.Millisecond, 500*time.Millisecond), p.Resume)
	case 6, 7:
		p.SlowAppend(r.Between(time.Millisecond, 400*time.Millisecond))
	case 8, 9:
		if leader != nil {
			leader.Transfer(0)
		}
	case 10:
		r.Fault("root's wall clock stepped")
		p.Clock.WallOffset = int64(r.Between(-worstRootWall, worstRootWall) / time.Millisecond)
	case 11:
		if r.Chance(0.3) {
			for _, q := range r.roots.Peers {
				q.PowerCut()
			}
		}
	}
}

func (r *run) disturbCoordinators() {
	n := r.anyone()
	switch r.Rand.IntN(10) {
	case 0, 1:
		n.kill()
	case 2:
		if n.up {
			n.then(n.holder.shutdown)()
		}
	case 3, 4, 5:
		r.Fault("coordinator paused")
		n.pause(r.Between(time.Millisecond, 3*r.k.ttl+60*time.Millisecond))
	case 6:
		r.Fault("machine suspended")
		n.pause(r.Between(200*time.Millisecond, 500*time.Millisecond))
	case 7:
		r.Fault("wall clock stepped")
		n.clock.WallOffset = r.wallStep()
	case 8:
		r.strobe(n, 20)
	case 9:
		r.suspect()
	}
}

// suspect makes everybody think the holder dead, rightly or not.
func (r *run) suspect() {
	r.Fault("holder suspected")
	r.suspicion()
}

func (r *run) suspicion() {
	for _, o := range r.nodes {
		o.then(func() { o.holder.Raw.OnHolderSuspect(o.holder.Raw.Tenure().GetEra(), o.now()) })()
	}
}

// wallStep is within half a minute, or beyond what the root allows.
func (r *run) wallStep() int64 {
	d := int64(r.Between(-30*time.Second, 30*time.Second) / time.Millisecond)
	if r.Chance(0.3) {
		d = int64(time.Hour / time.Millisecond)
		if r.Chance(0.5) {
			d = -d
		}
	}
	return d
}

// strobe makes a wall clock jump to and fro.
func (r *run) strobe(n *node, times int) {
	if times == 20 {
		r.Fault("wall clock strobed")
	}
	if times == 0 || r.calm {
		n.clock.WallOffset = 0
		return
	}
	n.clock.WallOffset = r.wallStep()
	r.After(r.Between(100*time.Microsecond, 5*time.Millisecond), func() { r.strobe(n, times-1) })
}

// disturbNetwork cuts links for a while, each direction on its own.
func (r *run) disturbNetwork() {
	lasting := r.Between(10*time.Millisecond, 300*time.Millisecond)
	if r.Chance(0.15) {
		lasting *= 4
	}
	p := r.roots.Peers[r.Rand.IntN(len(r.roots.Peers))].Place
	n, kind := r.anyone().place, r.Rand.IntN(8)
	if kind <= 1 && r.roots.Returning() {
		return
	}
	switch kind {
	case 0:
		if l := r.roots.Leader(); l != nil {
			p = l.Place
		}
		r.cut("root cut from roots", p, r.rootPlaces(), lasting)
	case 1:
		r.cut("link between roots cut", p, r.rootPlaces()[:1+r.Rand.IntN(2)], lasting)
	case 2, 3:
		r.cut("coordinator cut from roots", n, r.rootPlaces(), lasting)
		if r.Chance(0.5) { // trouble does not come alone
			r.After(r.Between(0, 30*time.Millisecond), r.suspect)
		}
	case 4:
		r.cut("link between coordinator and root cut", n, []roottest.Place{p}, lasting)
	case 5:
		var clients []roottest.Place
		for _, c := range r.clients {
			clients = append(clients, c.place)
		}
		r.cut("coordinator cut from clients", n, clients, lasting)
	case 6, 7:
		r.cutUntilClaimed(r.holding())
	}
}

// cutUntilClaimed takes the roots away from the holder, not its callers, and
// gives them back at the worst moment: when its era has just been given away.
func (r *run) cutUntilClaimed(n *node) {
	r.Fault("coordinator cut until its era was claimed")
	each := func(fn func(from, to roottest.Place)) {
		for _, p := range r.rootPlaces() {
			fn(n.place, p)
			fn(p, n.place)
		}
	}
	each(r.roots.Net.Cut)
	era, until := r.era(), r.now()+4*r.k.ttl+100*time.Millisecond
	var watch func()
	watch = func() {
		if r.era() == era && r.now() < until && !r.calm {
			r.suspicion() // probes would say that the holder is well
			r.After(r.Between(0, 6*time.Millisecond), watch)
			return
		}
		r.After(r.Between(0, r.k.ttl+5*time.Millisecond), func() { each(r.roots.Net.Mend) })
	}
	watch()
}

// era is the newest one that a leader has applied.
func (r *run) era() uint64 {
	if l := r.roots.Leader(); l != nil {
		return l.View().State.Tenure().GetEra()
	}
	return 0
}

func (r *run) rootPlaces() []roottest.Place {
	var places []roottest.Place
	for _, p := range r.roots.Peers {
		places = append(places, p.Place)
	}
	return places
}

// cut stops what comes, what goes, or both.
func (r *run) cut(kind string, one roottest.Place, others []roottest.Place, lasting time.Duration) {
	r.Fault(kind)
	in, out := r.Chance(0.7), r.Chance(0.7)
	if !in && !out {
		in, out = true, true
	}
	each := func(fn func(from, to roottest.Place)) {
		for _, o := range others {
			if o != one && in {
				fn(o, one)
			}
			if o != one && out {
				fn(one, o)
			}
		}
	}
	each(r.roots.Net.Cut)
	r.After(lasting, func() { each(r.roots.Net.Mend) })
}

// revive brings root peers up again; coordinators do that themselves.
func (r *run) revive() {
	if r.calm {
		return
	}
	for _, p := range r.roots.Peers {
		if !p.Alive() && !p.Stale && !r.roots.Returning() && r.Chance(0.5) {
			if err := p.Restart(); err != nil {
				r.fail("Durability: %w", err)
			}
		}
	}
	r.roots.ReplaceStale()
	r.After(r.Between(5*time.Millisecond, 40*time.Millisecond), r.revive)
}

// heal ends the faults, asks that the control plane serves again in time
// (Finality), and lets everything come to rest.
func (r *run) heal() error {
	r.calm, r.healed = true, r.now()
	if err := r.roots.Heal(); err != nil {
		return fmt.Errorf("Durability: %w", err)
	}
	for _, n := range r.nodes {
		n.clock.WallOffset = 0
		n.resume()
	}
	r.healMembers()
	// 3 ttl and 2 elections, and half a second for lost time-outs to pass.
	bound := 3*r.k.ttl + 2*2*electionMost + 500*time.Millisecond
	if !r.RunFor(bound, r.serves) {
		return fmt.Errorf("Finality: %v after healing: %s", bound, r.why())
	}
	if !r.RunFor(5*time.Second, func() bool { return r.roots.ReplaceStale() && !r.roots.Replacing() }) {
		return fmt.Errorf("Finality: a lost root peer is not replaced: %+v", r.roots.Replaced)
	}
	if !r.RunFor(membersBound, func() bool { return r.whyMembers() == "" }) {
		return fmt.Errorf("Placement: %v after healing: %s", membersBound, r.whyMembers())
	}
	r.RunFor(50*time.Millisecond, nil)
	for _, c := range r.clients {
		c.quit = true
	}
	for _, c := range r.askers {
		c.quit = true
	}
	if !r.RunFor(2*time.Second, r.rests) {
		return fmt.Errorf("Finality: no rest after the last call: %s", r.why())
	}
	return nil
}

// membersBound is how long it takes until nobody is forgotten: a damped member waits for
// its window.
const membersBound = 3 * time.Second

// serves says whether what was healed serves: the handover closed, ids and
// timestamps given for calls after the healing, every view level with the root.
func (r *run) serves() bool { return r.why() == "" }

func (r *run) why() string {
	leader := r.roots.Leader()
	if leader == nil {
		return "no root leads"
	}
	if h := newest(leader.View().State.Handovers()); h.GetStage() != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
		return fmt.Sprintf("handover of era %d is at %v", h.GetEra(), h.GetStage())
	}
	var fresh [2]bool
	for i := len(r.history.Grants) - 1; i >= 0 && r.history.Grants[i].Called > r.healed-callTimeout; i-- {
		if g := r.history.Grants[i]; g.Called > r.healed && g.Returned <= r.now() {
			fresh[g.Mandate-ids] = true
		}
	}
	if !fresh[0] || !fresh[1] {
		return fmt.Sprintf("fresh ids and timestamps: %v", fresh)
	}
	for _, n := range r.nodes {
		if !n.up || n.view.core.View().Token.Index+20 < leader.View().Applied {
			return fmt.Sprintf("%s has %v, the root is at %d", n.name, n.view.core.View().Token, leader.View().Applied)
		}
	}
	return ""
}

// rests says whether everybody is at the end of the log.
func (r *run) rests() bool {
	last := r.roots.Log.Last()
	for _, p := range r.roots.Peers {
		if !p.Alive() || p.View().Applied != last || p.View().Commit != last || p.View().LastIndex != last {
			return false
		}
	}
	for _, n := range r.nodes {
		if !n.up || n.view.core.View().Token.Index != last {
			return false
		}
	}
	return true
}
