package client

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/mtls"
	"google.golang.org/grpc"
)

// Limits of the wire (root.proto): what one ProposeRequest may hold.
const (
	// MaxRequestCommands is the most commands in one request.
	MaxRequestCommands = 1024
	// MaxRequestBytes is the most bytes of commands in one request.
	MaxRequestBytes = 1 << 20
)

// Config configures a Client.
type Config struct {
	// Peers are the gRPC addresses, host:port, by node id. One that works is
	// enough: the others are learned from its redirects.
	Peers map[uint64]string
	// ReaderID names the coordinator that tails; empty for a tool.
	ReaderID string
	// ClusterID is the cluster to talk to. 0: the one that answers first.
	ClusterID uint64
	// TLS shows this process's certificate and wants one of a root peer. Nil: plain
	// connections.
	TLS *mtls.Source
	// Logger hears of changes of the leader. Nil: nothing is logged.
	Logger hclog.Logger
	// DialOptions come after the client's own, so they may replace them.
	DialOptions []grpc.DialOption

	// AttemptTimeout is how long one peer may take to answer before the
	// next is tried. Default 1 s.
	AttemptTimeout time.Duration
	// HintPatience is how long a request waits for a peer while a tail says that
	// another one leads. Default 250 ms.
	HintPatience time.Duration
	// MinBackoff and MaxBackoff bound the jittered wait after every peer was
	// tried. Defaults 10 ms and 250 ms.
	MinBackoff, MaxBackoff time.Duration
	// TailSilence is how long a tail may say nothing before it counts as broken;
	// a peer speaks every 100 ms. Default 1 s.
	TailSilence time.Duration
	// LeaderlessLimit is how long the peer behind a tail may be without leader
	// before another peer is tried. Default 2 s.
	LeaderlessLimit time.Duration

	// PipelinedProposals is how many merged Propose requests may be without an
	// answer: 2 to 4 are best, because fewer leave the root idle and more make small
	// batches. Default 4.
	PipelinedProposals int
	// PipelinedReads is how many ReadIndex requests, and how many ConfirmTenure
	// requests, may be without an answer. Default 2.
	PipelinedReads int
	// MaxQueuedCommands and MaxQueuedBytes bound what waits to be sent.
	// Defaults 65,536 commands and 64 MiB.
	MaxQueuedCommands, MaxQueuedBytes int
	// MaxWaiting bounds the callers that wait in ReadIndex. Default 65,536.
	MaxWaiting int
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, time.Second)
	c.HintPatience = cmp.Or(c.HintPatience, 250*time.Millisecond)
	c.MinBackoff = cmp.Or(c.MinBackoff, 10*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 250*time.Millisecond)
	c.TailSilence = cmp.Or(c.TailSilence, time.Second)
	c.LeaderlessLimit = cmp.Or(c.LeaderlessLimit, 2*time.Second)
	c.PipelinedProposals = cmp.Or(c.PipelinedProposals, 4)
	c.PipelinedReads = cmp.Or(c.PipelinedReads, 2)
	c.MaxQueuedCommands = cmp.Or(c.MaxQueuedCommands, 1<<16)
	c.MaxQueuedBytes = cmp.Or(c.MaxQueuedBytes, 64<<20)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 1<<16)
}

// Validate says what is wrong with a configuration.
func (c *Config) Validate() error {
	if len(c.Peers) == 0 {
		return errors.New("root client: no peers given")
	}
	seen := map[string]uint64{}
	for id, address := range c.Peers {
		if id == 0 || address == "" {
			return fmt.Errorf("root client: peer %d=%q: node ids start at 1 and need an address", id, address)
		}
		if other, ok := seen[address]; ok {
			return fmt.Errorf("root client: peers %d and %d have the same address %s", min(id, other), max(id, other), address)
		}
		seen[address] = id
	}
	if c.AttemptTimeout < 0 || c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		return fmt.Errorf("root client: attempt timeout %v, backoff %v..%v: out of order", c.AttemptTimeout, c.MinBackoff, c.MaxBackoff)
	}
	if c.PipelinedProposals < 0 || c.PipelinedReads < 0 || c.MaxQueuedCommands < 0 || c.MaxQueuedBytes < 0 || c.MaxWaiting < 0 {
		return errors.New("root client: limits must be positive")
	}
	return nil
}

// snapshotSilence is how long a peer may take for the next chunk of a snapshot.
func (c *Config) snapshotSilence() time.Duration { return 5 * c.TailSilence }
