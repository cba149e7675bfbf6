package held

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
)

// class is a kind of calls that has a share of the workers: slow calls of one class hold up
// none of those before it.
type class uint8

const (
	// classGiving: a region is not let go of without the call, and another member waits for it.
	classGiving class = iota
	// classServing: a region is not served without the call.
	classServing
	// classAgain: as those two, of regions for which such a call has failed.
	classAgain
	// classPreparing: another member serves the region meanwhile.
	classPreparing
	// classServed: the region is served meanwhile.
	classServed
	classes
)

// share is the part of the workers that calls of one class may have, but for the first two: a quarter.
// The first may have all of them, the second all but one of spare: so each finds some that come free.
const (
	share = 4
	spare = 8
)

// reserve bounds what regions of one keyspace may have where there are others: three times
// what it leaves free.
const reserve = 3

func classOf(kind CallKind, tries int) class {
	switch kind {
	case Prepare, Abandon:
		return classPreparing
	case Checkpoint, Idle, TransferLeader:
		return classServed
	}
	switch {
	case tries > 0:
		return classAgain
	case kind == Release, kind == Evict:
		return classGiving
	}
	return classServing
}

// queue has the calls that wait: by class, and within it by keyspace, which take turns.
type queue struct {
	lines   [classes][]*waitingCalls
	waiting int
	// dropped calls are not wanted any more; stale ones are waiting still, and have ended.
	dropped []uint64
	stale   int
	// running is how many calls have a worker, all together, by class and by keyspace, and of these
	// those of the first class.
	running            int
	byClass            [classes]int
	byKeyspace, giving map[rooted.KeyspaceID]int
}

func newQueue() queue {
	return queue{byKeyspace: map[rooted.KeyspaceID]int{}, giving: map[rooted.KeyspaceID]int{}}
}

// waitingCalls are those of one keyspace, the first one first.
type waitingCalls struct {
	keyspace rooted.KeyspaceID
	calls    []Call
}

func (q *queue) clone() queue {
	n := *q
	for i, lines := range q.lines {
		n.lines[i] = make([]*waitingCalls, len(lines))
		for j, l := range lines {
			n.lines[i][j] = &waitingCalls{l.keyspace, slices.Clone(l.calls)}
		}
	}
	n.dropped = slices.Clone(q.dropped)
	n.byKeyspace, n.giving = maps.Clone(q.byKeyspace), maps.Clone(q.giving)
	return n
}

func (q *queue) push(of class, call Call) {
	q.waiting++
	for _, l := range q.lines[of] {
		if l.keyspace == call.Keyspace.ID {
			l.calls = append(l.calls, call)
			return
		}
	}
	q.lines[of] = append(q.lines[of], &waitingCalls{call.Keyspace.ID, []Call{call}})
}

// pop takes the first call of a class whose keyspace may have one more worker. The keyspace
// that it is of comes behind all others then.
func (q *queue) pop(of class, may func(rooted.KeyspaceID) bool) (call Call, ok bool) {
	lines := q.lines[of]
	i := slices.IndexFunc(lines, func(l *waitingCalls) bool { return may(l.keyspace) })
	if i < 0 {
		return Call{}, false
	}
	l := lines[i]
	call, l.calls[0], l.calls = l.calls[0], Call{}, l.calls[1:]
	q.waiting--
	lines = slices.Delete(lines, i, i+1)
	if len(l.calls) > 0 {
		lines = append(lines, l)
	}
	q.lines[of] = lines
	return call, true
}

// take and free count workers.
func (q *queue) take(ref callRef) { q.count(ref, 1) }

func (q *queue) free(ref callRef) { q.count(ref, -1) }

func (q *queue) count(ref callRef, by int) {
	q.running += by
	q.byClass[ref.class] += by
	countIn(q.byKeyspace, ref.keyspace, by)
	if ref.class == classGiving {
		countIn(q.giving, ref.keyspace, by)
	}
}

func countIn(counts map[rooted.KeyspaceID]int, id rooted.KeyspaceID, by int) {
	if counts[id] += by; counts[id] == 0 {
		delete(counts, id)
	}
}

// room reports whether a call of a class may have one of so many workers; 0: there is no
// bound.
func (q *queue) room(of class, workers int) bool {
	switch free := workers - q.running; {
	case workers == 0:
		return true
	case of == classGiving:
		return free > 0
	case of == classServing:
		return free > workers/spare
	default:
		return q.byClass[of] < max(workers/share, 1) && (free > workers/spare+1 || workers == 1 && free > 0)
	}
}

// roomIn reports whether a keyspace among others that has some of so many workers may have one
// more, of which one is free. One that has none may.
func (q *queue) roomIn(busy, workers int) bool {
	return workers == 0 || busy == 0 || busy < reserve*(workers-q.running-1)
}

// sweep forgets stale calls when they are most of those that wait.
func (q *queue) sweep(ended func(Call) bool) {
	if q.stale <= 64 || 2*q.stale < q.waiting {
		return
	}
	q.waiting, q.stale = 0, 0
	for i, lines := range q.lines {
		for _, l := range lines {
			l.calls = slices.DeleteFunc(l.calls, ended)
			q.waiting += len(l.calls)
		}
		q.lines[i] = slices.DeleteFunc(lines, func(l *waitingCalls) bool { return len(l.calls) == 0 })
	}
}

// enqueue has a call wait for a worker.
func (c *Core) enqueue(ref callRef, call Call) {
	c.calls[call.ID] = ref
	c.queue.push(ref.class, call)
}

// callOff ends the context of a call that is not wanted any more, or has it end before it is
// made.
func (c *Core) callOff(r *region) {
	r.cancelled = true
	if c.calls[r.call].taken {
		c.cancels = append(c.cancels, Call{ID: r.call, Kind: Cancel})
	} else {
		c.queue.dropped = append(c.queue.dropped, r.call)
	}
}

// Calls takes at most so many calls to make, within the shares of Config.Workers.
func (c *Core) Calls(most int, now clock.Instant) (calls []Call) {
	c.endDropped(now)
	calls, c.cancels = c.cancels, nil
	workers, others := c.cfg.Workers, len(c.keyspaces) > 1
	for of := range classes {
		busy := c.queue.byKeyspace
		if of == classGiving { // which no other calls of the keyspace hold up
			busy = c.queue.giving
		}
		may := func(id rooted.KeyspaceID) bool { return !others || c.queue.roomIn(busy[id], workers) }
		for most > 0 && c.queue.room(of, workers) {
			call, ok := c.queue.pop(of, may)
			if !ok {
				break
			}
			ref, wanted := c.calls[call.ID]
			if !wanted {
				c.queue.stale--
				continue
			}
			ref.taken = true
			c.calls[call.ID] = ref
			c.queue.take(ref)
			calls = append(calls, call)
			most--
		}
	}
	return calls
}

// endDropped ends calls that nobody wants any more, whether there are workers for them or not:
// what is wanted of their regions instead does not wait for one.
func (c *Core) endDropped(now clock.Instant) {
	for len(c.queue.dropped) > 0 {
		dropped := c.queue.dropped
		c.queue.dropped = nil
		for _, id := range dropped {
			c.queue.stale++ // it waits in its line, and is passed over there
			c.Done(id, Result{Err: "not wanted any more"}, now)
		}
	}
	c.queue.sweep(func(call Call) bool { _, wanted := c.calls[call.ID]; return !wanted })
}

// Waiting is how many calls wait to be taken.
func (c *Core) Waiting() int { return c.queue.waiting - c.queue.stale + len(c.cancels) }
