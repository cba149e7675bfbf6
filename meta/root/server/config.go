package server

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/mtls"
	"google.golang.org/grpc"
)

// Config configures a Server. Zero values of limits take the defaults.
type Config struct {
	// NodeID is the peer's id.
	NodeID uint64
	// ClusterID is the cluster the peer belongs to; requests that name another one
	// are refused.
	ClusterID uint64
	// Address is the gRPC address that others reach this peer at, host:port.
	Address string

	Replica Replica
	Log     Log
	Peers   Peers
	// Clock is the one that the replica's views are told by.
	Clock clock.Clock
	// Stats counts RPCs. Nil: counters of the server's own.
	Stats *rpcstats.Stats
	// NoRoom is what the peer does without because its disk is full, as Status tells it.
	// Nil: nothing.
	NoRoom func() string
	// Room is how much room the peer's disk has, as Status tells it. Nil: it is not told.
	Room func() storage.Room
	// Logger hears of readers that are cut. Nil: nothing is logged.
	Logger hclog.Logger
	// Access judges callers by their certificates. Nil: there are none, and everybody
	// may do everything.
	Access *access.Gate
	// TLS has every caller show a certificate of the cluster. Nil: plain connections.
	TLS *mtls.Source
	// Insecure says that connections are plain where others reach them, for Status.
	Insecure bool
	// ServerOptions come after the server's own.
	ServerOptions []grpc.ServerOption

	// Budget bounds in bytes what callers can make the peer hold. Nil: one of the default size
	// of its own.
	Budget *budget.Budget
	// MaxMessageBytes is the largest request taken. Default 2 MiB.
	MaxMessageBytes int
	// MaxConnections is the most open connections; one more is closed at once. Default 4,096,
	// or three quarters of what the process may accept; at most one for each 96 KiB of Budget.
	MaxConnections int
	// MaxStreamsPerConnection is the most calls under way on a connection. Default 4,096.
	MaxStreamsPerConnection uint32
	// MaxProposals, MaxReads and MaxConfirmations are the most requests with the
	// replica: Propose, ReadIndex, and claims and confirmations of a Tenure. One
	// principal, or without certificates one connection, has at most as many as are
	// left free. Defaults 8,192, 16,384 and 8,192.
	MaxProposals, MaxReads, MaxConfirmations int64
	// MaxStreamProposals is the most requests of one ProposeStream without an
	// answer; behind them the stream is not read. Default 256.
	MaxStreamProposals int
	// ProposeTimeout is how long a request of a ProposeStream may take. Default 5 s.
	ProposeTimeout time.Duration

	// TailBatchBytes bounds one tail message; a single entry may be larger. Default 256 KiB.
	TailBatchBytes uint64
	// TailIdle is how long a tail may be without message. Default 100 ms.
	TailIdle time.Duration
	// SendTimeout is how long a reader may take nothing of what was sent. Default 10 s.
	SendTimeout time.Duration
	// MaxReaders is the most tails; MaxSnapshots the most snapshots at a time. Who is
	// no coordinator finds a quarter of them. Defaults 1,024 and 16.
	MaxReaders   int
	MaxSnapshots int64
	// SnapshotChunkBytes bounds one chunk of a snapshot; a single record may be
	// larger. Default 1 MiB.
	SnapshotChunkBytes int

	// RaiseAfter is how long every process must have understood more than the rooted
	// feature level before the leader raises it by itself; negative: it does not. Default 10 s.
	RaiseAfter time.Duration

	// HealthTimeout is how long the read index behind a health check may
	// take; HealthCache how long its answer is kept. Defaults 1 s and 200 ms.
	HealthTimeout, HealthCache time.Duration
	// StopTimeout is how long a stop waits for calls under way. Default 2 s.
	StopTimeout time.Duration
}

func (c *Config) channel() channel.Channel {
	return channel.Channel{Certs: c.TLS, Insecure: c.Insecure}
}

func (c *Config) setDefaults() {
	if c.TLS != nil && c.Access == nil {
		c.Access = access.New()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Room == nil {
		c.Room = func() storage.Room { return storage.Room{} }
	}
	if c.NoRoom == nil {
		c.NoRoom = func() string { return "" }
	}
	if c.Stats == nil {
		c.Stats = rpcstats.New()
	}
	if c.Clock == nil {
		c.Clock = clock.NewSystem()
	}
	if c.Budget == nil {
		c.Budget = budget.New(budget.Default())
	}
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 2<<20)
	c.MaxConnections = cmp.Or(c.MaxConnections, min(4096, listen.Connections()*3/4))
	c.MaxStreamsPerConnection = cmp.Or(c.MaxStreamsPerConnection, 4096)
	c.MaxProposals = cmp.Or(c.MaxProposals, 8192)
	c.MaxReads = cmp.Or(c.MaxReads, 16_384)
	c.MaxConfirmations = cmp.Or(c.MaxConfirmations, 8192)
	c.MaxStreamProposals = cmp.Or(c.MaxStreamProposals, 256)
	c.ProposeTimeout = cmp.Or(c.ProposeTimeout, 5*time.Second)
	c.TailBatchBytes = cmp.Or(c.TailBatchBytes, 256<<10)
	c.TailIdle = cmp.Or(c.TailIdle, 100*time.Millisecond)
	c.SendTimeout = cmp.Or(c.SendTimeout, 10*time.Second)
	c.MaxReaders = cmp.Or(c.MaxReaders, 1024)
	c.MaxSnapshots = cmp.Or(c.MaxSnapshots, 16)
	c.SnapshotChunkBytes = cmp.Or(c.SnapshotChunkBytes, 1<<20)
	c.RaiseAfter = cmp.Or(c.RaiseAfter, 10*time.Second)
	c.HealthTimeout = cmp.Or(c.HealthTimeout, time.Second)
	c.HealthCache = cmp.Or(c.HealthCache, 200*time.Millisecond)
	c.StopTimeout = cmp.Or(c.StopTimeout, 2*time.Second)
}

func (c *Config) validate() error {
	if c.NodeID == 0 || c.ClusterID == 0 {
		return fmt.Errorf("root server: node id %d, cluster id %d: both are needed", c.NodeID, c.ClusterID)
	}
	if c.Replica == nil || c.Log == nil || c.Peers == nil {
		return errors.New("root server: replica, log and peers are needed")
	}
	return nil
}
