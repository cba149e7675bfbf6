package root

import (
	"strings"

	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/transport"
	"github.com/nokv/nokv/meta/root/witness"
)

// Vars is what a root peer shows at /debug/vars. The field names stay.
type Vars struct {
	NodeID uint64 `json:"node_id"`
	channel.Vars
	UptimeMillis int64 `json:"uptime_millis"`
	// Role is that of raft; bootstrap or joining while there is no cluster.
	Role       string `json:"role"`
	Term       uint64 `json:"term"`
	LeaderID   uint64 `json:"leader_id"`
	Commit     uint64 `json:"commit"`
	Applied    uint64 `json:"applied"`
	FirstIndex uint64 `json:"first_index"`
	LastIndex  uint64 `json:"last_index"`
	// CheckpointIndex is the position of the newest checkpoint; 0 for none.
	CheckpointIndex uint64 `json:"checkpoint_index"`
	CheckpointBytes uint64 `json:"checkpoint_bytes"`
	StateHash       uint64 `json:"state_hash"`
	// HashMismatches must be 0.
	HashMismatches uint64 `json:"hash_mismatches"`
	// StateDiffers says whose state differs from this peer's; empty: nobody's. NotVoting: it
	// does not vote for that.
	StateDiffers string `json:"state_differs"`
	NotVoting    bool   `json:"not_voting"`
	// RefusedMessages came under a root peer's name and cannot be of one: must be 0.
	RefusedMessages uint64 `json:"refused_messages"`
	QueuedProposals int    `json:"queued_proposals"`
	Stalled         bool   `json:"stalled"`
	// NoRoom is what the peer does without because its disk has no room for it; Dropped
	// counts how often something was, since the start.
	NoRoom  string `json:"no_room"`
	Dropped uint64 `json:"no_room_dropped"`
	// DiskFreeBytes of DiskTotalBytes are free; 0 of 0: not known. DiskLow says that they are too few;
	// empty: they are not.
	DiskFreeBytes  uint64 `json:"disk_free_bytes"`
	DiskTotalBytes uint64 `json:"disk_total_bytes"`
	DiskLow        string `json:"disk_low"`

	TenureEra    uint64 `json:"tenure_era"`
	TenureHolder string `json:"tenure_holder"`
	IDFence      uint64 `json:"id_fence"`
	TSOFence     uint64 `json:"tso_fence"`
	Regions      int    `json:"regions"`
	// Guarantees are the Witness's verdicts on this peer's state: holds, broken,
	// cannot tell. HandoverStage is how far the current handover has come.
	Guarantees    map[string]string `json:"guarantees"`
	HandoverStage string            `json:"handover_stage"`

	// Fsync has the durable appends to the log, Apply the batches of committed
	// entries applied.
	Fsync rpcstats.Latency `json:"fsync"`
	Apply rpcstats.Latency `json:"apply"`

	TailReaders []server.Reader `json:"tail_readers"`
	CutReaders  uint64          `json:"cut_readers"`
	// Voters decide, Outgoing with them while a replacement settles; Learners get
	// the log and do not vote.
	Voters   []uint64 `json:"voters"`
	Outgoing []uint64 `json:"outgoing"`
	Learners []uint64 `json:"learners"`

	Peers map[uint64]transport.PeerMetrics `json:"peers"`
	// RPC counts requests by method, those in streams too; Streams are what those came in.
	RPC     map[string]rpcstats.MethodSnapshot `json:"rpc"`
	Streams map[string]rpcstats.StreamSnapshot `json:"streams"`
	// Access counts refusals and callers. Nil without certificates.
	Access *access.Metrics `json:"access"`
	// Budget is what callers make the process hold, Gate the gRPC connections.
	Budget budget.Vars `json:"budget"`
	Gate   gate.Vars   `json:"gate"`
}

// Vars returns the peer's numbers.
func (p *Peer) Vars() any {
	out := Vars{NodeID: p.cfg.NodeID, Vars: channel.Channel{Certs: p.cfg.TLS, Insecure: p.cfg.Insecure}.Vars(), UptimeMillis: p.clock.Now().Sub(p.started).Milliseconds(), Role: "bootstrap"}
	if p.cfg.Join {
		out.Role = "joining"
	}
	short := p.store.Shortage()
	out.NoRoom, out.Dropped = short.Why, short.Count
	room := p.room.room()
	out.DiskFreeBytes, out.DiskTotalBytes, out.DiskLow = room.Free, room.Total, room.Low()
	rep, net, srv := p.parts()
	if rep == nil {
		return out
	}
	v := rep.View()
	out.Role = strings.ToLower(strings.TrimPrefix(v.Role.String(), "RAFT_ROLE_"))
	out.Voters, out.Outgoing, out.Learners = v.Members.Voters, v.Members.Outgoing, v.Members.Learners
	out.Term, out.LeaderID, out.Commit, out.Applied = v.Term, v.Leader, v.Commit, v.Applied
	out.FirstIndex, out.LastIndex = v.FirstIndex, v.LastIndex
	out.CheckpointIndex, out.CheckpointBytes = v.Checkpoint.Index, v.Checkpoint.Bytes
	out.StateHash, out.HashMismatches, out.RefusedMessages, out.QueuedProposals, out.Stalled = v.State.Hash(), v.HashMismatches, v.RefusedMessages, v.QueuedProposals, v.Stalled
	out.StateDiffers, out.NotVoting = v.Differs, v.Silent
	out.TenureEra, out.TenureHolder = v.State.Tenure().GetEra(), v.State.Tenure().GetHolderId()
	out.IDFence, out.TSOFence = v.State.Allocators().GetIdFence(), v.State.Allocators().GetTsoFence()
	out.Regions = v.State.RegionCount()
	out.Guarantees = make(map[string]string)
	for _, f := range witness.Judge(witness.Of(v.State)).Findings {
		out.Guarantees[strings.ToLower(f.Guarantee.String())] = f.Verdict.String()
	}
	if h := v.State.Handovers(); len(h) > 0 {
		out.HandoverStage = strings.ToLower(strings.TrimPrefix(h[len(h)-1].GetStage().String(), "HANDOVER_STAGE_"))
	}
	out.Fsync, out.Apply = rep.Latencies()
	m := srv.Metrics()
	out.TailReaders, out.CutReaders, out.RPC, out.Streams, out.Access = m.Readers, m.CutReaders, m.RPCs, m.Streams, m.Access
	out.Peers = net.Metrics()
	out.Budget, out.Gate = p.cfg.Budget.Vars(), srv.GateVars()
	return out
}
