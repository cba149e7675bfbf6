package held

import (
	"fmt"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/rooted"
)

// CallKind is what the application is asked for.
type CallKind uint8

// Calls to the application.
const (
	// Acquire: get ready to serve the region, from its frontier on.
	Acquire CallKind = iota + 1
	// Release: nothing more is admitted and all of it is done; say the exact frontier.
	Release
	// Evict: the region is somebody else's; drop it.
	Evict
	// Merge: Region and Right, its neighbour, are released at their frontiers and become
	// one; say its frontier.
	Merge
	// Prepare: get ready to take the region over from Peer, which still serves it, or to own it beside
	// Peer.
	Prepare
	// Abandon: what was prepared does not come.
	Abandon
	// Checkpoint: make durable what there is and say up to where.
	Checkpoint
	// Idle: say whether the region may be released because nobody uses it.
	Idle
	// TransferLeader: let Peer lead the region's replication group.
	TransferLeader
	// Stop: nobody confirms the member; what it keeps in the keyspace is not served.
	Stop
	// Resume: the keyspace is served again.
	Resume
	// Cancel: the call ID is not wanted any more; end its context.
	Cancel
)

var callNames = [...]string{"", "acquire", "release", "evict", "merge", "prepare", "abandon", "checkpoint", "idle", "transfer-leader", "stop", "resume", "cancel"}

// String is the kind in a word.
func (k CallKind) String() string { return callNames[k] }

// Call is something that the application is asked for. Each but Cancel has to be
// answered by Done, once.
type Call struct {
	ID   uint64
	Kind CallKind
	// Region that it is about, shared: not to be changed. nil for Stop and Resume.
	Region *rooted.Region
	// Peer is whom Prepare takes from, at which epoch, and who shall lead.
	Peer Peer
	// Right is the other region of Merge.
	Right *rooted.Region
	// Keyspace that the region is in, or that was stopped; its terms as they are now.
	Keyspace *Keyspace
}

// Peer is the other side of a move.
type Peer struct {
	Member      rooted.MemberID
	Incarnation uint64
	Address     string
	Epoch       rooted.Epoch
}

// Result is what became of a call.
type Result struct {
	// Err is why it failed; empty: it did not.
	Err string
	// Frontier of Release, Merge and Checkpoint.
	Frontier string
	// Idle is the answer to Idle.
	Idle bool
}

// callRef is what a call under way is about.
type callRef struct {
	region   rooted.RegionID
	keyspace rooted.KeyspaceID
	class    class
	// taken: it is made. late: it takes too long, and has no worker any more.
	taken, late bool
}

// begin makes a call.
func (c *Core) begin(r *region, kind CallKind) bool {
	c.lastID++
	if kind != r.kind {
		r.tries = 0
	}
	r.call, r.kind, r.cancelled, r.retryAt = c.lastID, kind, false, 0
	call := Call{ID: r.call, Kind: kind, Region: r.at, Keyspace: c.keyspaces[r.at.Keyspace].now.Load()}
	switch {
	case kind == Prepare:
		call.Peer = r.shown.peer
		call.Peer.Epoch = r.shown.region.Epoch
	case kind == Merge:
		call.Region, call.Right = r.ended(), c.regions[r.shown.right].ended()
	case kind == TransferLeader:
		call.Peer.Member = r.command.to
	}
	c.enqueue(callRef{region: r.id, keyspace: r.at.Keyspace, class: classOf(kind, r.tries)}, call)
	c.changed(r)
	return false
}

// ended is a released region at its frontier.
func (r *region) ended() *rooted.Region {
	at := r.at.Clone()
	at.Frontier = r.frontier
	return at
}

// retry makes a call unless its last failure is too recent.
func (c *Core) retry(r *region, kind CallKind, now clock.Instant) bool {
	if r.tries > 0 && r.kind == kind && now < r.retryAt {
		return false
	}
	return c.begin(r, kind)
}

// Done says what became of a call. It returns why that counts as failed, if it does.
func (c *Core) Done(id uint64, res Result, now clock.Instant) (why string) {
	ref, ok := c.calls[id]
	if !ok {
		return res.Err
	}
	delete(c.calls, id)
	if ref.taken && !ref.late {
		c.queue.free(ref)
	}
	if len(res.Frontier) > MaxFrontierBytes {
		res = Result{Err: fmt.Sprintf("the frontier that it returned has %d bytes, and MaxFrontierBytes is %d: keep more than that elsewhere, and return where it is", len(res.Frontier), MaxFrontierBytes)}
	}
	if res.Err != "" {
		c.counts.Failed++
		res.Err = bounded(res.Err)
	}
	if ref.region == 0 {
		if k := c.keyspaces[ref.keyspace]; k != nil {
			k.call = 0
			c.tell(k, now)
		}
		return res.Err
	}
	r := c.regions[ref.region]
	if r == nil || r.call != id {
		return res.Err
	}
	kind := r.kind
	r.call, r.err = 0, ""
	c.changed(r)
	switch {
	case res.Err != "" && r.hung:
		r.hung = false
		c.leave(r)
	case res.Err != "" && r.cancelled && (kind == Acquire || kind == Prepare):
		// It was not wanted, and is looked at as it would be if it had never begun.
		c.leave(r)
	case res.Err != "" && r.command != nil:
		c.keeps(r, kind, now)
		c.reply(r, res.Err)
	case res.Err != "" && kind == Abandon:
		c.leave(r) // it is told once
	case res.Err != "":
		c.failed(r, res.Err, now)
	default:
		c.succeeded(r, kind, res, now)
	}
	c.settle(r, now)
	return res.Err
}

func (c *Core) succeeded(r *region, kind CallKind, res Result, now clock.Instant) {
	r.tries, r.retryAt = 0, 0
	switch kind {
	case Acquire:
		if r.hung {
			r.hung, r.phase, r.gate = false, phaseReleasing, &gate{}
			r.gate.end()
			return
		}
		r.phase, r.gate = phaseServing, &gate{}
		c.watchUse(r, now)
	case Release:
		c.released(r, res.Frontier, now)
		if r.command != nil {
			c.reply(r, "")
		}
	case Merge:
		r.joined, r.whole = true, res.Frontier
	case Prepare:
		r.phase = phaseReady
	case Evict:
		r.evicted = true
	case Abandon:
		c.leave(r)
	case Checkpoint:
		r.frontier, r.fronted = res.Frontier, true
		ref := *r.command
		ref.made, r.command = &checkpoint{r.id, r.at.Epoch, res.Frontier}, &ref
		c.reply(r, "")
	case Idle:
		// Who comes from here on finds it closed, or is served before it is released.
		if r.idle = res.Idle && !c.inUse(r); !r.idle {
			c.keeps(r, kind, now)
			c.reply(r, "it is in use")
		}
	case TransferLeader:
		c.reply(r, "")
	}
}

// failed notes why, and when it is tried again.
func (c *Core) failed(r *region, why string, now clock.Instant) {
	r.err = why
	pause := min(c.cfg.RetryMax, c.cfg.RetryMin<<min(r.tries, 20))
	r.tries++
	r.retryAt = now.Add(pause)
	c.timers.push(timer{r.retryAt, r.id})
}

// Overdue says that a call has not returned in time. It stays under way: no other is made
// for the region before it returns; but its worker is free. False: it has returned.
func (c *Core) Overdue(id uint64, why string) bool {
	ref, ok := c.calls[id]
	if !ok || !ref.taken || ref.late {
		return false
	}
	c.queue.free(ref)
	ref.late = true
	c.calls[id] = ref
	if r := c.regions[ref.region]; r != nil && r.call == id {
		r.set(c, &r.err, bounded(why))
		c.changed(r) // it counts as failed
	}
	return true
}

// Drained says that the last admitted work of a region has ended.
func (c *Core) Drained(id rooted.RegionID, now clock.Instant) {
	if r := c.regions[id]; r != nil {
		c.settle(r, now)
	}
}

// bounded is what the application says, as a frame can have it.
func bounded(text string) string { return oneline.Within(MaxErrorBytes, text) }

// timer is when a region is looked at again.
type timer struct {
	at     clock.Instant
	region rooted.RegionID
}

func (t timer) before(o timer) bool { return t.at < o.at || t.at == o.at && t.region < o.region }

// timers are a heap: the first is due first.
type timers []timer

func (h *timers) push(t timer) {
	all := append(*h, t)
	for i := len(all) - 1; i > 0; {
		up := (i - 1) / 2
		if !all[i].before(all[up]) {
			break
		}
		all[i], all[up] = all[up], all[i]
		i = up
	}
	*h = all
}

func (h *timers) pop() (t timer) {
	all := *h
	last := len(all) - 1
	t, all[0] = all[0], all[last]
	all = all[:last]
	*h = all
	for i := 0; ; {
		least := i
		for down := 2*i + 1; down <= 2*i+2 && down < last; down++ {
			if all[down].before(all[least]) {
				least = down
			}
		}
		if least == i {
			return t
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
}

// Tick does what the time asks for.
func (c *Core) Tick(now clock.Instant) {
	for len(c.timers) > 0 && c.timers[0].at <= now {
		t := c.timers.pop()
		if r := c.regions[t.region]; r != nil && (r.retryAt == t.at || r.waitsUntil == t.at) && r.call == 0 {
			c.settle(r, now)
		}
	}
	c.lookAtUse(now)
	for _, k := range c.keyspaces {
		c.tell(k, now)
	}
}

// Next is when Tick has something to do; 0: when nothing else happens, never.
func (c *Core) Next() (at clock.Instant) {
	if len(c.timers) > 0 {
		at = c.timers[0].at
	}
	if len(c.looks) > 0 && (at == 0 || c.looks[0].at < at) {
		at = c.looks[0].at
	}
	confirmed := clock.Instant(c.table.confirmed.Load())
	for _, k := range c.keyspaces {
		ttl := k.now.Load().TTL
		if confirmed == 0 || k.stopped || ttl == 0 {
			continue
		}
		if end := confirmed.Add(ttl); at == 0 || end < at {
			at = end
		}
	}
	return at
}
