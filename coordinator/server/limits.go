package server

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Bounds of single requests. They are part of the protocol (coordinator.proto)
// and therefore not configurable.
const (
	// MaxKeys is the most keys of one lookup.
	MaxKeys = 1024
	// MaxKeyBytes is the longest key, in bytes.
	MaxKeyBytes = state.MaxKeyBytes
	// MaxCommands is the most commands of one publish.
	MaxCommands = 1024
	// MaxCommandsBytes is the most bytes the commands of one publish take together.
	MaxCommandsBytes = state.MaxCommandBytes
	// MaxIDCount is the most ids of one AllocID.
	MaxIDCount = 1_000_000
	// MaxTSOCount is the most timestamps of one Tso.
	MaxTSOCount = 1 << 18
	// MaxListLimit is the most records of one list, DefaultListLimit the number when none is given.
	MaxListLimit     = 1024
	DefaultListLimit = 256
	// MaxReplyBytes is about where a scan or list ends early, in bytes: below
	// what a client takes by default.
	MaxReplyBytes = 3 << 20
)

// waitingBytes is what a call that waits takes: two goroutines, buffers, what gRPC
// keeps of it.
const waitingBytes = 16 << 10

// watchBytes is the part of the share for replies that a watch takes: with it, a
// watch for each 64 KiB of the budget leaves room for what grows otherwise.
const watchBytes = 12 << 10

// Limits bound what all callers together can make a coordinator hold.
type Limits struct {
	// MaxMessageBytes is the largest request taken. Default 5 MiB: MaxKeys keys
	// of MaxKeyBytes fit.
	MaxMessageBytes int
	// MaxHeaderBytes is the largest header list taken. Default 16 KiB.
	MaxHeaderBytes uint32
	// MaxConnections is the most open connections; one more is closed at
	// once. Default 10,000; at most three quarters of what the process may accept, and
	// one for each 96 KiB of its budget.
	MaxConnections int
	// MaxStreamsPerConnection is the most calls under way on one connection;
	// a well-behaved client waits. Default 12,288: a proxy with one connection
	// watches for all whom it serves.
	MaxStreamsPerConnection uint32
	// MaxInFlight is the most unary calls under way; one more is refused with
	// REASON_OVERLOADED. Default 16,384.
	MaxInFlight int64
	// MaxWaitingReads, MaxWaitingChanges and MaxWaitingNumbers are the most calls of
	// each kind that wait for the root: reads, changes, ids and timestamps. One
	// principal, or without certificates one connection, has at most as many as
	// are left free; one more is refused with REASON_OVERLOADED. Together they are
	// below MaxInFlight, fewer where the budget has room for fewer, and each kind has its own, so that whoever waits, for a root
	// that is away or a position that never comes, stands in nobody else's way.
	// Defaults 8,192, 2,048 and 4,096.
	MaxWaitingReads   int64
	MaxWaitingChanges int64
	MaxWaitingNumbers int64
	// ReadWait is how long a read may wait for the root, however far its deadline
	// is. Default 10 s.
	ReadWait time.Duration
	// MaxWatchStreams, MaxTsoStreams, MaxIDStreams, MaxRouteStreams and
	// MaxPublishStreams are the most streams of each kind. One principal, or without
	// certificates one connection, has at most as many as are left free; one more
	// is refused with REASON_OVERLOADED. Defaults 4,096, but 20,480 to watch, half of
	// them for who watches alone, one for each 64 KiB of the budget at most, and 1,024 to publish.
	MaxWatchStreams   int64
	MaxTsoStreams     int64
	MaxIDStreams      int64
	MaxRouteStreams   int64
	MaxPublishStreams int64
	// MaxMemberStreams is the most streams of members, and of watches of revoked certificates, which each
	// of them has as well, shared alike. Default 20,480.
	MaxMemberStreams int64
	// MaxHealthStreams is the most health watches, shared alike. Default 1,024.
	MaxHealthStreams int64
	// MaxQueued is the most requests of one stream that were read and are not
	// being answered yet, MaxMessageBytes together; behind them the stream is
	// not read. As many lookups of a stream may wait for the root. Default 256.
	MaxQueued int
	// StreamIdle is how long a request stream may stay silent. Default 10 minutes.
	StreamIdle time.Duration
	// SendTimeout is how long a reader may take nothing of what was sent to it. Default 10 s.
	SendTimeout time.Duration
	// StreamWait is how long one request of a stream, or a call for ids or timestamps, may
	// wait for the root, and 9/10 of its deadline at most: past
	// an election, and short enough that a caller who gives a silent coordinator
	// a second is told that it is the root that does not answer. Default 900 ms.
	StreamWait time.Duration
	// StopTimeout is how long a stop waits for calls under way. Default 5 s.
	StopTimeout time.Duration
}

// DefaultLimits returns the documented defaults.
func DefaultLimits() Limits {
	return Limits{
		MaxMessageBytes:         5 << 20,
		MaxHeaderBytes:          16 << 10,
		MaxConnections:          10_000,
		MaxStreamsPerConnection: 12_288,
		MaxInFlight:             16_384,
		MaxWaitingReads:         8192,
		MaxWaitingChanges:       2048,
		MaxWaitingNumbers:       4096,
		ReadWait:                10 * time.Second,
		MaxWatchStreams:         20_480,
		MaxTsoStreams:           4096,
		MaxIDStreams:            4096,
		MaxRouteStreams:         4096,
		MaxPublishStreams:       1024,
		MaxMemberStreams:        20_480,
		MaxHealthStreams:        1024,
		MaxQueued:               256,
		StreamIdle:              10 * time.Minute,
		SendTimeout:             10 * time.Second,
		StreamWait:              900 * time.Millisecond,
		StopTimeout:             5 * time.Second,
	}
}

// Validate says which limit is not positive, or out of order.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxMessageBytes", int64(l.MaxMessageBytes)},
		{"MaxHeaderBytes", int64(l.MaxHeaderBytes)},
		{"MaxConnections", int64(l.MaxConnections)},
		{"MaxStreamsPerConnection", int64(l.MaxStreamsPerConnection)},
		{"MaxInFlight", l.MaxInFlight},
		{"MaxWaitingReads", l.MaxWaitingReads},
		{"MaxWaitingChanges", l.MaxWaitingChanges},
		{"MaxWaitingNumbers", l.MaxWaitingNumbers},
		{"ReadWait", int64(l.ReadWait)},
		{"MaxWatchStreams", l.MaxWatchStreams},
		{"MaxTsoStreams", l.MaxTsoStreams},
		{"MaxIDStreams", l.MaxIDStreams},
		{"MaxRouteStreams", l.MaxRouteStreams},
		{"MaxPublishStreams", l.MaxPublishStreams},
		{"MaxMemberStreams", l.MaxMemberStreams},
		{"MaxHealthStreams", l.MaxHealthStreams},
		{"MaxQueued", int64(l.MaxQueued)},
		{"StreamIdle", int64(l.StreamIdle)},
		{"SendTimeout", int64(l.SendTimeout)},
		{"StreamWait", int64(l.StreamWait)},
		{"StopTimeout", int64(l.StopTimeout)},
	} {
		if f.value <= 0 {
			return fmt.Errorf("coordinator limits: %s is %d; it must be positive", f.name, f.value)
		}
	}
	if all := l.MaxWaitingReads + l.MaxWaitingChanges + l.MaxWaitingNumbers; all > l.MaxInFlight {
		return fmt.Errorf("coordinator limits: %d calls may wait, and MaxInFlight is %d", all, l.MaxInFlight)
	}
	return nil
}

// gauge counts what is under way up to a limit.
type gauge struct {
	what  string
	limit int64
	n     atomic.Int64
}

// retryAfterMillis is the pause that a refusal for want of room asks for.
const retryAfterMillis = 20

// enter takes a place, or says that there is none.
func (g *gauge) enter() error {
	if g.n.Add(1) <= g.limit {
		return nil
	}
	g.n.Add(-1)
	refusal := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"%d %s are under way, the limit: try again, or ask another coordinator", g.limit, g.what)
	refusal.Detail.Limit = uint64(g.limit)
	refusal.Detail.RetryAfterMillis = retryAfterMillis
	return refusal
}

func (g *gauge) leave() { g.n.Add(-1) }
