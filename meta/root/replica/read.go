package replica

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.etcd.io/raft/v3"
)

// reads are the read index requests between arrival and answer. One attempt
// is in flight at a time and serves everybody who came before it was sent; who
// comes later waits for the next, because an attempt says nothing about writes
// acknowledged after it began.
type reads struct {
	// nonce and attempts make the id of every attempt unique.
	nonce    []byte
	attempts uint64

	waiting []Request
	flight  []Request
	// id is the attempt in flight, nil for none; sent its tick.
	id   []byte
	sent uint64
	// confirmed wait until this peer has applied their index; held are
	// confirms that wait for the outcome of a claim.
	confirmed []confirmed
	held      []*Confirm
}

type confirmed struct {
	index    uint64
	requests []Request
}

func (r *reads) count() int {
	n := len(r.waiting) + len(r.flight) + len(r.held)
	for _, c := range r.confirmed {
		n += len(c.requests)
	}
	return n
}

func (c *Core) acceptRead(r *Read, out *Output) {
	if c.reads.count() >= c.cfg.MaxQueuedReads {
		c.failRequest(r, errOverloaded("reads", c.cfg.MaxQueuedReads), out)
		return
	}
	c.reads.waiting = append(c.reads.waiting, r)
}

func (c *Core) acceptConfirm(r *Confirm, out *Output) {
	switch {
	case !c.leads():
		c.failRequest(r, errNotLeader(c.leader), out)
	case c.reads.count() >= c.cfg.MaxQueuedReads:
		c.failRequest(r, errOverloaded("confirms", c.cfg.MaxQueuedReads), out)
	default:
		c.reads.waiting = append(c.reads.waiting, r)
	}
}

func (c *Core) failRequest(r Request, err error, out *Output) {
	r.fail(err)
	out.Done = append(out.Done, r)
}

// startRead begins an attempt when none is in flight and somebody waits: this peer
// itself when it stood still. A leader first applies an entry of its own term: raft
// itself waits for that, except in a cluster of one.
func (c *Core) startRead() {
	r := &c.reads
	if r.id != nil || len(r.waiting) == 0 && !c.known.silent || c.leader == 0 || (c.leads() && !c.settled()) {
		return
	}
	r.flight, r.waiting = r.waiting, r.flight[:0]
	c.sendRead()
}

func (c *Core) sendRead() {
	r := &c.reads
	r.attempts++
	r.id = binary.BigEndian.AppendUint64(bytes.Clone(r.nonce), r.attempts)
	r.sent = c.ticks
	c.raft.ReadIndex(r.id)
}

// retryRead gives up the attempt in flight. Everybody waits for the next one,
// which has an id of its own: an answer to the old one counts for nobody.
func (c *Core) retryRead() {
	r := &c.reads
	if r.id == nil {
		return
	}
	r.waiting = append(r.flight, r.waiting...)
	r.flight, r.id = nil, nil
}

// tickReads drops requests that nobody waits for, and repeats an attempt whose
// messages may be lost.
func (c *Core) tickReads() {
	r := &c.reads
	r.waiting = slices.DeleteFunc(r.waiting, abandoned)
	if r.id != nil && c.ticks-r.sent >= uint64(max(1, c.cfg.ElectionTicks/2)) {
		c.retryRead()
		r.waiting = slices.DeleteFunc(r.waiting, abandoned)
	}
}

func abandoned(r Request) bool {
	switch r := r.(type) {
	case *Read:
		return r.abandoned.Load()
	case *Confirm:
		return r.abandoned.Load()
	}
	return false
}

// readConfirmed takes raft's answer: a quorum said after the attempt was sent
// that its leader led.
func (c *Core) readConfirmed(states []raft.ReadState) {
	r := &c.reads
	for _, s := range states {
		if r.id == nil || !bytes.Equal(s.RequestCtx, r.id) {
			continue
		}
		if len(r.flight) > 0 {
			r.confirmed = append(r.confirmed, confirmed{index: s.Index, requests: r.flight})
		}
		r.flight, r.id = nil, nil
		c.heardQuorum(s.Index)
	}
}

// serveReads answers what this peer has applied far enough for.
func (c *Core) serveReads(out *Output) {
	r := &c.reads
	token := c.state.Token()
	n := 0
	for ; n < len(r.confirmed) && r.confirmed[n].index <= token.Index; n++ {
		for _, request := range r.confirmed[n].requests {
			switch request := request.(type) {
			case *Read:
				request.Token = token
				out.Done = append(out.Done, request)
			case *Confirm:
				c.answerConfirm(request, out)
			}
		}
		r.confirmed[n] = confirmed{}
	}
	if r.confirmed = r.confirmed[n:]; len(r.confirmed) == 0 {
		r.confirmed = nil
	}
}

// failConfirms answers all confirms with err and leaves the reads.
func (c *Core) failConfirms(err error, out *Output) {
	r := &c.reads
	keep := func(requests []Request) []Request {
		return slices.DeleteFunc(requests, func(request Request) bool {
			_, confirms := request.(*Confirm)
			if confirms {
				c.failRequest(request, err, out)
			}
			return confirms
		})
	}
	r.waiting, r.flight = keep(r.waiting), keep(r.flight)
	for i := range r.confirmed {
		r.confirmed[i].requests = keep(r.confirmed[i].requests)
	}
	for _, confirm := range r.held {
		c.failRequest(confirm, err, out)
	}
	r.held = nil
}

// failReads answers all reads and confirms with err.
func (c *Core) failReads(err error, out *Output) {
	r := &c.reads
	c.failConfirms(err, out)
	c.retryRead()
	for _, request := range r.waiting {
		c.failRequest(request, err, out)
	}
	for _, confirmed := range r.confirmed {
		for _, request := range confirmed.requests {
			c.failRequest(request, err, out)
		}
	}
	r.waiting, r.confirmed = nil, nil
}
