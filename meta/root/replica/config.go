package replica

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Config holds the settings of a Core, and of the Replica around it. Zero
// values of numbers take the defaults of Defaults.
type Config struct {
	// NodeID is this peer's raft id, 1 or greater.
	NodeID uint64
	// Voters are the raft ids of all peers that the cluster begins with, this one
	// included: 1, 3 or 5. Once the state has the cluster's identity it says who
	// votes.
	Voters []uint64
	// Join says that this peer was not there when the cluster began: it waits to
	// be sent the log, and learns from it who votes. Voters is empty then, for the
	// whole life of the workdir.
	Join bool
	// Bootstrap is the identity that the first leader of an empty cluster
	// roots. Its created_unix_millis is set by that leader.
	Bootstrap *rootv1.Cluster
	// Seed makes read index ids unique to this run of the process, so that an
	// answer meant for an earlier run is not taken for one of ours, and draws
	// the election jitter. A process draws it from crypto/rand.
	Seed uint64
	// Transport takes messages to other peers.
	Transport Transport
	// Overdue is asked after every synced Append and at the end of a Turn: true
	// when the Turn has taken longer than an election timeout. The Core then steps
	// down, and knows nothing of the others until it hears from them. Nil: never.
	Overdue func() bool
	// Applying is called before committed entries are applied and returns what
	// to call afterwards, for who measures that. Nil: nobody does.
	Applying func() (applied func())
	// Logger takes changes of role, checkpoints and what raft says. Nil: none.
	Logger hclog.Logger

	// Tick is the length of a raft tick; the Core only counts ticks, the
	// Replica makes them. Heartbeats go out every HeartbeatTicks; a follower
	// that hears nothing for ElectionTicks to 2*ElectionTicks campaigns.
	Tick           time.Duration
	HeartbeatTicks int
	ElectionTicks  int

	// MaxEntryBytes bounds the commands merged into one entry; a larger
	// command gets an entry of its own.
	MaxEntryBytes int
	// MaxMessageBytes bounds one append message.
	MaxMessageBytes uint64
	// MaxUncommittedBytes bounds the leader's log behind the commit index;
	// further proposals wait in the queue.
	MaxUncommittedBytes uint64
	// MaxQueuedProposals and MaxQueuedBytes bound the proposals that were taken
	// and not answered; MaxQueuedReads the reads and confirms. Beyond them
	// requests are refused with REASON_OVERLOADED.
	MaxQueuedProposals int
	MaxQueuedBytes     int
	MaxQueuedReads     int

	// CheckpointEntries or CheckpointBytes applied since the last checkpoint start
	// the next one, once that is a quarter of its size, or four times
	// CheckpointBytes.
	CheckpointEntries uint64
	CheckpointBytes   uint64
	// RetainEntries and RetainBytes of the log stay behind the applied position
	// for tail readers and slow peers, whichever is less.
	RetainEntries uint64
	RetainBytes   uint64
	// HashEvery is the number of log positions between comparisons of the state
	// hash among peers that go on; those that rest at one position compare there. It
	// must be the same on all of them.
	HashEvery uint64

	// DriftPermille is how much faster than the leader's a holder's clock is
	// assumed never to run: an era expires after ttl*(1+DriftPermille/1000).
	DriftPermille uint64
	// MaxTSOAhead is how far ahead of the leader's wall clock a timestamp fence
	// may be.
	MaxTSOAhead time.Duration
}

// Defaults are the settings for peers in one local network: heartbeats every
// 100 ms, elections after 500 ms to 1 s of silence. A leader that died is found
// sooner, by its refused connection; the timeout is for silent ones, and bounds
// how long a write to the disk may take before the leader steps down.
func Defaults() Config {
	return Config{
		Tick:                50 * time.Millisecond,
		HeartbeatTicks:      2,
		ElectionTicks:       10,
		MaxEntryBytes:       256 << 10,
		MaxMessageBytes:     1 << 20,
		MaxUncommittedBytes: 64 << 20,
		MaxQueuedProposals:  65_536,
		MaxQueuedBytes:      128 << 20,
		MaxQueuedReads:      65_536,
		CheckpointEntries:   50_000,
		CheckpointBytes:     64 << 20,
		RetainEntries:       20_000,
		RetainBytes:         32 << 20,
		HashEvery:           128,
		DriftPermille:       10,
		MaxTSOAhead:         10 * time.Minute,
	}
}

// withDefaults fills the numbers that are zero.
func (c Config) withDefaults() Config {
	d := Defaults()
	c.Tick = cmp.Or(c.Tick, d.Tick)
	c.HeartbeatTicks = cmp.Or(c.HeartbeatTicks, d.HeartbeatTicks)
	c.ElectionTicks = cmp.Or(c.ElectionTicks, d.ElectionTicks)
	c.MaxEntryBytes = cmp.Or(c.MaxEntryBytes, d.MaxEntryBytes)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, d.MaxMessageBytes)
	c.MaxUncommittedBytes = cmp.Or(c.MaxUncommittedBytes, d.MaxUncommittedBytes)
	c.MaxQueuedProposals = cmp.Or(c.MaxQueuedProposals, d.MaxQueuedProposals)
	c.MaxQueuedBytes = cmp.Or(c.MaxQueuedBytes, d.MaxQueuedBytes)
	c.MaxQueuedReads = cmp.Or(c.MaxQueuedReads, d.MaxQueuedReads)
	c.CheckpointEntries = cmp.Or(c.CheckpointEntries, d.CheckpointEntries)
	c.CheckpointBytes = cmp.Or(c.CheckpointBytes, d.CheckpointBytes)
	c.RetainEntries = cmp.Or(c.RetainEntries, d.RetainEntries)
	c.RetainBytes = cmp.Or(c.RetainBytes, d.RetainBytes)
	c.HashEvery = cmp.Or(c.HashEvery, d.HashEvery)
	c.DriftPermille = cmp.Or(c.DriftPermille, d.DriftPermille)
	c.MaxTSOAhead = cmp.Or(c.MaxTSOAhead, d.MaxTSOAhead)
	c.Logger = cmp.Or(c.Logger, hclog.NewNullLogger())
	return c
}

// Validate says what is wrong with the settings, after defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.NodeID == 0 {
		return errors.New("replica: node id 0")
	}
	if c.Transport == nil {
		return errors.New("replica: no transport")
	}
	if n := len(c.Voters); c.Join && n > 0 {
		return fmt.Errorf("replica: node %d joins, and was given the voters %v", c.NodeID, c.Voters)
	} else if !c.Join && n != 1 && n != 3 && n != 5 {
		return fmt.Errorf("replica: %d voters, want 1, 3 or 5", n)
	}
	seen := make(map[uint64]bool)
	for _, id := range c.Voters {
		if id == 0 || seen[id] {
			return fmt.Errorf("replica: voter %d is zero or twice in %v", id, c.Voters)
		}
		seen[id] = true
	}
	if !c.Join && !seen[c.NodeID] {
		return fmt.Errorf("replica: node %d is not among the voters %v", c.NodeID, c.Voters)
	}
	// A leader that rests between two heartbeats must not look as if it stood still.
	if c.HeartbeatTicks < 1 || c.ElectionTicks < 3*c.HeartbeatTicks {
		return fmt.Errorf("replica: election after %d ticks, want at least three times the heartbeat's %d", c.ElectionTicks, c.HeartbeatTicks)
	}
	if c.Tick <= 0 || c.MaxEntryBytes < 0 || c.MaxQueuedProposals < 0 ||
		c.MaxQueuedBytes < 0 || c.MaxQueuedReads < 0 || c.MaxTSOAhead < 0 {
		return errors.New("replica: a negative setting")
	}
	if c.RetainEntries > 1<<40 || c.CheckpointEntries > 1<<40 {
		return errors.New("replica: retention or checkpoint distance beyond 2^40 entries")
	}
	return nil
}

// electionTimeout is the shortest silence after which a follower campaigns.
func (c Config) electionTimeout() time.Duration {
	return c.Tick * time.Duration(c.ElectionTicks)
}
