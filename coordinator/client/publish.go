package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/why"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

const (
	// maxCommands and maxCommandBytes bound one request.
	maxCommands     = 1024
	maxCommandBytes = 1 << 20
	// identityBytes is the most that an identity adds to a command.
	identityBytes = 40
	// publishSlots is how many merged requests are under way before callers
	// wait for each other. More would split callers into groups that wait for
	// each other's durable write.
	publishSlots = 1
	// maxPublishBytes is the most bytes of commands without an answer.
	maxPublishBytes = 64 << 20
)

type (
	publishRequest  = coordinatorv1.PublishRootEventsRequest
	publishResponse = coordinatorv1.PublishRootEventsResponse
)

// Publish asks the root for a change and returns what became of it, when it is
// durable. A rejection is an *Error, returned beside the result. Concurrent
// callers share requests; each command is judged on its own.
//
// A command whose outcome is unknown is sent again, under the identity that it
// was first sent with: when the first had come, the answer is what became of it
// then, Repetition set, and what it made. A rejection is final under its identity:
// whoever gives commands one makes a new one to try again. When the context ends
// first, the command may have been applied or may still be. A caller that wants
// to repeat it then, or after a restart of its own, gives the command an Identity
// itself; a command without one is new each time. The command must not be changed
// before Publish has returned, and not after it has returned because the context
// ended.
func (c *Client) Publish(ctx context.Context, cmd *rootv1.Command) (*rootv1.CommandResult, error) {
	if text := why.Outgoing(ctx); text != "" && cmd.GetWhy() == "" {
		cmd = proto.CloneOf(cmd)
		cmd.Why = text
	}
	raw, err := proto.Marshal(cmd)
	size := len(raw) + identityBytes
	switch {
	case err != nil:
		return nil, notText("Publish", cmd, err)
	case len(cmd.GetEvents()) == 0:
		return nil, invalid("Publish", "the command has no events")
	case size > maxCommandBytes:
		return nil, invalid("Publish", "the command has %d bytes, above the limit of %d", size, maxCommandBytes)
	}
	if err := c.learnCluster(ctx, "Publish"); err != nil {
		return nil, err
	}
	mine := c.identities.Of(cmd, c.index.Load())
	// alone: it was refused together with others. open: a try may have arrived and
	// was not judged.
	alone, open := false, false
	for {
		if c.ctx.Err() != nil {
			return nil, &Error{Op: "Publish", Cause: ErrClosed}
		}
		b, i, err := c.publish.join(mine, size, alone)
		if err != nil {
			return nil, err
		}
		answered := true
		select {
		case <-b.done:
		case <-ctx.Done():
			answered = false
		}
		if b.latch.leave() {
			c.publish.launch(c.publish.next())
		}
		if !answered {
			return nil, waited("Publish", ctx.Err(), c.publish.pipe.seen.Load())
		}
		open = open || b.repeated
		switch {
		case b.err == nil && tooOld(b.results[i].GetError()) && !open && mine != cmd:
			mine = c.identities.Of(cmd, c.index.Load())
		case b.err == nil:
			return b.results[i], rejection("Publish", b.by, b.results[i])
		case b.refusedTogether():
			alone = true // so that nobody pays for what another one sent
		case !again(ctx, b.err):
			return nil, waited("Publish", b.err, c.publish.pipe.seen.Load())
		default:
			open = true
		}
	}
}

// PublishEvent is Publish of a command of one event and no condition.
func (c *Client) PublishEvent(ctx context.Context, event *rootv1.Event) (*rootv1.CommandResult, error) {
	return c.Publish(ctx, &rootv1.Command{Events: []*rootv1.Event{event}})
}

// rejection is the error in a result; nil if it was not rejected.
func rejection(op, endpoint string, r *rootv1.CommandResult) error {
	if r.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED {
		return nil
	}
	d := r.GetError()
	if d == nil {
		d = &rootv1.ErrorDetail{}
	}
	return &Error{
		Op: op, Reason: d.GetReason(), Detail: d, Endpoint: endpoint, Cause: errRefused,
		Tries: []Try{{Endpoint: endpoint, Times: 1, Said: words(d)}},
	}
}

// publisher merges callers of Publish onto a PublishStream.
type publisher struct {
	c    *Client
	pipe *pipe[publishRequest, publishResponse]

	mu     sync.Mutex    // guards what follows
	open   *commandBatch // gathers callers; nil: there are none
	busy   int           // batches under way
	bytes  int           // of commands without an answer
	lastID uint64

	// opened is the streams opened so far, doubled, and one more while the last has not
	// ended: both in one number, as a batch that notes them stands between no two changes.
	opened atomic.Int64
}

// commandBatch is the commands of one request.
type commandBatch struct {
	msg   *publishRequest
	bytes int
	born  time.Time
	latch latch
	// publisher.opened before it was sent.
	opened int64

	done chan struct{} // closed when what follows is set
	// results are in the order of the commands; by answered.
	results []*rootv1.CommandResult
	by      string
	err     error
	// repeated: it may have been sent more than once.
	repeated bool
}

func newPublisher(c *Client) *publisher {
	p := &publisher{c: c}
	p.pipe = &pipe[publishRequest, publishResponse]{
		c: c, op: operation{name: "Publish", changes: true},
		connect: p.connect,
		match: func(queue []*request[publishRequest, publishResponse], reply *publishResponse) int {
			return slices.IndexFunc(queue, func(r *request[publishRequest, publishResponse]) bool {
				return r.msg.GetRequestId() == reply.GetRequestId()
			})
		},
		judge: p.judge,
		work:  make(chan struct{}, 1),
	}
	return p
}

// connect counts streams once they are open, so that a batch knows whether it may have
// been sent on two of them. Nothing is sent on a stream before connect has returned.
func (p *publisher) connect(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[publishRequest, publishResponse], error) {
	stream, err := e.rpc.PublishStream(ctx)
	if err != nil {
		return nil, err
	}
	live := p.opened.Load()&^1 + 3 // the pipe connects one stream at a time
	p.opened.Store(live)
	context.AfterFunc(ctx, func() { p.opened.CompareAndSwap(live, live-1) })
	return stream, nil
}

func (p *publisher) judge(_ *endpoint, r *request[publishRequest, publishResponse], reply *publishResponse) error {
	if d := reply.GetError(); d != nil {
		return refused(d)
	}
	if got, want := len(reply.GetResults()), len(r.msg.GetCommands()); got != want {
		return fmt.Errorf("%w: %d results for %d commands", errUnfit, got, want)
	}
	for _, result := range reply.GetResults() {
		p.c.sawIndex(result.GetToken(), result.GetError().GetCurrentToken())
	}
	return nil
}

// refusedTogether says that the request was refused as a whole, and had
// commands of several callers.
func (b *commandBatch) refusedTogether() bool {
	e, ok := b.err.(*Error)
	return ok && len(b.msg.GetCommands()) > 1 && e.Detail != nil &&
		(e.Cause == errRefused || e.Reason == rootv1.Reason_REASON_INVALID_REQUEST)
}

// join puts a command into the open batch and returns its place there, or into
// a batch of its own. It launches the batch if no more than publishSlots are
// under way, and a full one at once.
func (p *publisher) join(cmd *rootv1.Command, size int, alone bool) (*commandBatch, int, error) {
	p.mu.Lock()
	if waiting := p.bytes; waiting+size > maxPublishBytes {
		p.mu.Unlock()
		return nil, 0, overloaded("Publish", "commands of %d bytes wait for coordinators", waiting)
	}
	p.bytes += size
	if alone {
		b := &commandBatch{msg: &publishRequest{Commands: []*rootv1.Command{cmd}}, bytes: size, born: time.Now(), done: make(chan struct{})}
		p.startLocked(b)
		p.mu.Unlock()
		p.launch(b)
		return b, 0, nil
	}
	var filled *commandBatch
	if b := p.open; b != nil && (len(b.msg.GetCommands()) == maxCommands || b.bytes+size > maxCommandBytes) {
		filled = p.sealLocked()
	}
	if p.open == nil {
		p.open = &commandBatch{msg: &publishRequest{}, born: time.Now(), done: make(chan struct{})}
	}
	mine := p.open
	i := len(mine.msg.GetCommands())
	mine.msg.Commands = append(mine.msg.Commands, cmd)
	mine.bytes += size
	var launched *commandBatch
	if p.busy < publishSlots {
		launched = p.sealLocked()
	}
	p.mu.Unlock()
	p.launch(filled)
	p.launch(launched)
	return mine, i, nil
}

func (p *publisher) sealLocked() *commandBatch {
	b := p.open
	if b != nil {
		p.open = nil
		p.startLocked(b)
	}
	return b
}

func (p *publisher) startLocked(b *commandBatch) {
	p.busy++
	p.lastID++
	b.msg.RequestId = p.lastID
}

func (p *publisher) launch(b *commandBatch) {
	if b == nil {
		return
	}
	b.opened = p.opened.Load()
	p.c.count.publishRequests.Add(1)
	p.c.count.publishCallers.Add(uint64(len(b.msg.GetCommands())))
	r := &request[publishRequest, publishResponse]{msg: b.msg, expires: b.born.Add(p.c.cfg.DefaultTimeout)}
	r.finish = func(reply *publishResponse, err error) {
		b.by = r.by
		p.finish(b, reply, err)
	}
	p.pipe.send(r)
}

// finish gives a batch's callers their answers. When they have woken, one of
// them launches what gathered meanwhile.
func (p *publisher) finish(b *commandBatch, reply *publishResponse, err error) {
	b.results, b.err = reply.GetResults(), err
	// The stream that was open counts as one that it may have been sent on.
	if p.opened.Load()/2-b.opened/2+b.opened%2 > 1 {
		b.repeated = true
	}
	p.mu.Lock()
	p.bytes -= b.bytes
	p.mu.Unlock()
	gone := b.latch.end(len(b.msg.GetCommands()))
	close(b.done)
	if !gone {
		return
	}
	next := p.next()
	// Not here: commands may fill the stream, and this goroutine reads the
	// answers that make room again.
	if next != nil && !p.c.spawn(func() { p.launch(next) }) {
		p.launch(next) // which refuses it
	}
}

// next gives up the slot of a batch that has ended, and seals the open one if
// it may take it.
func (p *publisher) next() *commandBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.busy < publishSlots {
		return p.sealLocked()
	}
	return nil
}
