package client

import (
	"context"
	"slices"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// proposal is one caller's commands.
type proposal struct {
	commands []*rootv1.Command
	bytes    int
	// ofHolder ones are sent first, and in requests of their own, which the root has
	// room for when publishers filled theirs.
	ofHolder bool
	// done gets one value when results and err are set. Capacity 1.
	done    chan struct{}
	results []*rootv1.CommandResult
	err     error

	// Guarded by proposer.mu.
	inFlight  bool // on a stream, without an answer
	unknown   bool // an earlier stream broke before the answer
	abandoned bool // its caller has gone
}

// proposer queues proposals and merges them into requests on a stream to the
// leader (session.go).
type proposer struct {
	c     *Client
	ready chan struct{} // a level: there may be something to send
	pool  sync.Pool     // of *proposal; one whose caller left is not returned

	mu       sync.Mutex // guards what follows
	queue    []*proposal
	commands int // in queue
	bytes    int // in queue
	last     error
	closed   bool
}

func newProposer(c *Client) *proposer {
	q := &proposer{c: c, ready: make(chan struct{}, 1)}
	q.pool.New = func() any { return &proposal{done: make(chan struct{}, 1)} }
	return q
}

// propose queues commands and waits for their results.
func (q *proposer) propose(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	p, err := q.proposal(commands)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, unanswered(context.Cause(ctx), false, nil)
	}
	if err := q.put(p); err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return q.take(p)
	case <-ctx.Done():
		return q.abandon(ctx, p)
	}
}

func (q *proposer) proposal(commands []*rootv1.Command) (*proposal, error) {
	size := 0
	for _, c := range commands {
		size += proto.Size(c)
	}
	if len(commands) > MaxRequestCommands || size > MaxRequestBytes {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST,
			"%d commands of %d bytes: a request holds at most %d commands and %d bytes", len(commands), size, MaxRequestCommands, MaxRequestBytes)
	}
	p := q.pool.Get().(*proposal)
	p.commands, p.bytes = commands, size+8*len(commands) // With tags and lengths.
	p.ofHolder = p.bytes <= state.MaxHolderBytes/2 && !slices.ContainsFunc(commands, func(c *rootv1.Command) bool { return !state.OfHolder(c) })
	return p, nil
}

// take returns the outcome to the caller and the proposal to the pool.
func (q *proposer) take(p *proposal) ([]*rootv1.CommandResult, error) {
	results, err := p.results, p.err
	*p = proposal{done: p.done}
	q.pool.Put(p)
	return results, err
}

func (p *proposal) finish(results []*rootv1.CommandResult, err error) {
	p.results, p.err = results, err
	p.done <- struct{}{}
}

func (q *proposer) put(p *proposal) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if !p.ofHolder && (q.commands+len(p.commands) > q.c.cfg.MaxQueuedCommands || q.bytes+p.bytes > q.c.cfg.MaxQueuedBytes) {
		return reason.New(rootv1.Reason_REASON_OVERLOADED, "%d commands of %d bytes wait for the root already", q.commands, q.bytes)
	}
	q.pushLocked(p)
	q.signal()
	return nil
}

func (q *proposer) pushLocked(p *proposal) {
	at := len(q.queue)
	if p.ofHolder {
		if at = slices.IndexFunc(q.queue, func(o *proposal) bool { return !o.ofHolder }); at < 0 {
			at = len(q.queue)
		}
	}
	q.queue = slices.Insert(q.queue, at, p)
	q.commands += len(p.commands)
	q.bytes += p.bytes
}

func (q *proposer) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// abandon leaves a proposal whose caller's context ended, unless it was
// answered meanwhile.
func (q *proposer) abandon(ctx context.Context, p *proposal) ([]*rootv1.CommandResult, error) {
	q.mu.Lock()
	p.abandoned = true
	sent, last := p.inFlight || p.unknown, q.last
	q.mu.Unlock()
	select {
	case <-p.done:
		return p.results, p.err
	default:
		return nil, unanswered(context.Cause(ctx), sent, last)
	}
}

// most is the most bytes of a request that the proposal is in.
func (p *proposal) most() int {
	if p.ofHolder {
		return state.MaxHolderBytes / 2 // The root counts what is around commands too.
	}
	return MaxRequestBytes
}

// next takes as many queued proposals as fit a request; none: nil.
func (q *proposer) next() *request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var r *request
	taken, bytes := 0, 0
	for _, p := range q.queue {
		if r != nil && (p.ofHolder != r.proposals[0].ofHolder || len(r.commands)+len(p.commands) > MaxRequestCommands || bytes+p.bytes > r.proposals[0].most()) {
			break
		}
		taken++
		q.commands -= len(p.commands)
		q.bytes -= p.bytes
		if p.abandoned {
			continue
		}
		if r == nil {
			r = &request{commands: make([]*rootv1.Command, 0, min(q.commands+len(p.commands), MaxRequestCommands))}
		}
		p.inFlight = true
		bytes += p.bytes
		r.proposals = append(r.proposals, p)
		r.commands = append(r.commands, p.commands...)
	}
	q.queue = drop(q.queue, taken)
	if len(q.queue) > 0 {
		q.signal()
	}
	return r
}

// drop removes the first n proposals; the array is used again once it is empty.
func drop(queue []*proposal, n int) []*proposal {
	if n < len(queue) {
		clear(queue[:n])
		return queue[n:]
	}
	clear(queue)
	return queue[:0]
}

// giveBack queues the proposals of requests that got no answer, in front of
// everything, to be sent again. known says that the root judged none of them.
func (q *proposer) giveBack(requests []*request, known bool, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = why
	var again []*proposal
	for _, r := range requests {
		for _, p := range r.proposals {
			p.inFlight = false
			p.unknown = p.unknown || !known
			if !p.abandoned {
				again = append(again, p)
				q.commands += len(p.commands)
				q.bytes += p.bytes
			}
		}
	}
	if len(again) == 0 {
		return
	}
	q.queue = append(again, q.queue...)
	q.signal()
}

// close fails everything that is queued, now and from now on.
func (q *proposer) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.failQueued(ErrClosed)
}

// failQueued answers everything that is queued with err.
func (q *proposer) failQueued(err error) {
	q.mu.Lock()
	queue := q.queue
	q.queue, q.commands, q.bytes = nil, 0, 0
	q.mu.Unlock()
	for _, p := range queue {
		if p.unknown {
			p.finish(nil, unanswered(err, true, nil))
			continue
		}
		p.finish(nil, err)
	}
}

// refuse answers a proposal that the root did not judge this time; an earlier
// attempt may have been.
func (q *proposer) refuse(p *proposal, why error) {
	q.mu.Lock()
	unknown := p.unknown
	q.mu.Unlock()
	if unknown {
		why = unanswered(why, true, nil)
	}
	p.finish(nil, why)
}

// refuseUnwritable answers the proposals of a request that have no wire form, such as
// text that is not UTF-8: sent again, they would keep the others from being sent.
func (q *proposer) refuseUnwritable(r *request) {
	r.proposals = slices.DeleteFunc(r.proposals, func(p *proposal) bool {
		for _, c := range p.commands {
			if _, err := proto.Marshal(c); err != nil {
				q.refuse(p, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "encode command: %v", err))
				return true
			}
		}
		return false
	})
}
