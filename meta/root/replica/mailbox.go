package replica

import (
	"sync"

	"github.com/nokv/nokv/internal/clock"
	"go.etcd.io/raft/v3/raftpb"
)

// mailbox collects what happens between Turns. Putting never blocks.
type mailbox struct {
	// wake holds a token when there is something to take.
	wake chan struct{}

	// mu guards the rest.
	mu     sync.Mutex
	closed bool
	in     Input
	bytes  int
	clock  clock.Clock
}

const (
	// maxMailboxRequests and maxMailboxMessages bound what waits for the next
	// Turn. Raft repeats messages that are dropped.
	maxMailboxRequests = 65_536
	maxMailboxMessages = 8192
	maxMailboxBytes    = 64 << 20
	maxMailboxEvents   = 1024
)

func newMailbox(clk clock.Clock) *mailbox { return &mailbox{wake: make(chan struct{}, 1), clock: clk} }

func (b *mailbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// request puts a request: REASON_OVERLOADED when too many wait,
// REASON_ROOT_UNAVAILABLE when nobody will take it.
func (b *mailbox) request(r Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errUnavailable("this peer has stopped")
	}
	if len(b.in.Requests) >= maxMailboxRequests {
		return errOverloaded("requests", maxMailboxRequests)
	}
	b.in.Requests = append(b.in.Requests, r)
	if len(b.in.Requests) == 1 {
		b.signal()
	}
	return nil
}

func (b *mailbox) message(m *raftpb.Message) {
	size := payload(m.GetEntries())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.in.Messages) >= maxMailboxMessages || (b.bytes > 0 && b.bytes+size > maxMailboxBytes) {
		return
	}
	b.bytes += size
	b.in.Messages = append(b.in.Messages, m)
	if len(b.in.Messages) == 1 {
		b.in.MessagesSince = b.clock.Now()
		b.signal()
	}
}

func (b *mailbox) event(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Raft waits for the end of every checkpoint it had sent.
	must := e.Kind == SnapshotDelivered || e.Kind == SnapshotFailed
	if b.closed || (len(b.in.Events) >= maxMailboxEvents && !must) {
		return
	}
	b.in.Events = append(b.in.Events, e)
	b.signal()
}

// tick counts a tick. No more than most wait: a loop that was late must not
// take the time it was away for silence of the others, whose messages wait.
func (b *mailbox) tick(most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in.Ticks = min(b.in.Ticks+1, most)
	b.signal()
}

func (b *mailbox) checkpointed(done *Checkpointed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in.Checkpointed = done
	b.signal()
}

// take empties the mailbox. spare is an Input whose slices may be used again.
// Entries of at most about maxTurnBytes come out at once, because they are
// written at once; the rest stays.
func (b *mailbox) take(spare Input) Input {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	n, size := 0, 0
	for n < len(in.Messages) && size <= maxTurnBytes {
		size += payload(in.Messages[n].GetEntries())
		n++
	}
	b.in = Input{Requests: reuse(spare.Requests), Events: reuse(spare.Events), Messages: reuse(spare.Messages)}
	if n < len(in.Messages) {
		b.in.Messages, b.in.MessagesSince = append(b.in.Messages, in.Messages[n:]...), in.MessagesSince
		clear(in.Messages[n:])
		in.Messages = in.Messages[:n]
		b.signal()
	}
	b.bytes -= size
	return in
}

// close refuses everything from now on and drops what was not taken.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.in = true, Input{}
}

// reuse empties a slice for the next Input; a very long one is let go.
func reuse[T any](s []T) []T {
	clear(s)
	if cap(s) > 16_384 {
		return nil
	}
	return s[:0]
}
