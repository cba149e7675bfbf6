package coordinator

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/claims"
	"github.com/nokv/nokv/coordinator/idle"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/rpcstats"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Vars is what a coordinator shows at /debug/vars. The field names stay.
type Vars struct {
	CoordinatorID string `json:"coordinator_id"`
	channel.Vars
	UptimeMillis int64 `json:"uptime_millis"`
	// Position of the view, newest position known, and the lag between them.
	TokenIndex    uint64 `json:"token_index"`
	KnownIndex    uint64 `json:"known_index"`
	RootLag       uint64 `json:"root_lag"`
	RootLagMillis uint64 `json:"root_lag_millis"`
	DegradedMode  string `json:"degraded_mode"`
	CatchUpState  string `json:"catch_up_state"`
	// Tenure as the view has it.
	TenureEra    uint64 `json:"tenure_era"`
	TenureHolder string `json:"tenure_holder"`
	// What this coordinator may do itself.
	Holding   bool `json:"holding"`
	Confirmed bool `json:"confirmed"`
	// TenureExpiresMillis is how long the confirmation is good for still; 0: this coordinator
	// holds nothing, or none lasts.
	TenureExpiresMillis int64  `json:"tenure_expires_millis"`
	IDWindowLeft        uint64 `json:"id_window_left"`
	TSOWindowLeft       uint64 `json:"tso_window_left"`

	Authority AuthorityVars `json:"authority"`
	// GuaranteeViolations must all be 0.
	GuaranteeViolations map[string]uint64 `json:"guarantee_violations"`
	// Invariants counts what broke I1 to I5 in what this process followed of the log, by
	// i1 to i5. All must be 0.
	Invariants map[string]uint64 `json:"invariants"`
	// Guarantees are the Witness's verdicts on the view: holds, broken, cannot tell.
	Guarantees map[string]string `json:"guarantees"`
	// Follower counts what the view took from the root.
	Follower rootview.Stats `json:"follower"`
	Regions  int            `json:"regions"`
	Members  int            `json:"members"`
	// Assigner is about members that host regions, and what becomes of those.
	Assigner assigner.Vars `json:"assigner"`
	// Claims made regions at first touch, Idle releases those that nobody uses.
	Claims claims.Vars `json:"claims"`
	Idle   idle.Vars   `json:"idle"`
	// MemberStreams are open here.
	MemberStreams int `json:"member_streams"`
	// RPC counts requests by method, those in streams too; Streams are what those came in.
	RPC     map[string]rpcstats.MethodSnapshot `json:"rpc"`
	Streams map[string]rpcstats.StreamSnapshot `json:"streams"`
	// Access counts refusals and callers. Nil without certificates.
	Access *access.Metrics `json:"access"`
	// Budget is what callers make the process hold, Gate the gRPC connections.
	Budget budget.Vars `json:"budget"`
	Gate   gate.Vars   `json:"gate"`
}

// AuthorityVars are counts of what was done to get and keep authority.
type AuthorityVars struct {
	EraTransitions uint64 `json:"era_transitions"`
	Eras           uint64 `json:"eras"`
	HandoverSteps  uint64 `json:"handover_steps"`
	Claims         uint64 `json:"claims"`
	Confirmations  uint64 `json:"confirmations"`
	Lapses         uint64 `json:"lapses"`
	GateRejections uint64 `json:"gate_rejections"`
	IDExtensions   uint64 `json:"id_extensions"`
	TSOExtensions  uint64 `json:"tso_extensions"`
	IDs            uint64 `json:"ids"`
	Timestamps     uint64 `json:"timestamps"`
	ClockRefusals  uint64 `json:"clock_refusals"`
	Overloads      uint64 `json:"overloads"`
}

// Vars returns the coordinator's numbers.
func (c *Coordinator) Vars() any {
	now := c.clock.Now()
	view := c.follower.View()
	d := view.Disclosure(now, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT)
	held := c.holder.Status()
	n := c.holder.Counters()
	broken, invariants := c.server.InvariantViolations(), map[string]uint64{}
	for i, found := range broken {
		invariants[fmt.Sprint("i", i+1)] = found
	}
	expires := int64(0)
	if ttl := time.Duration(held.Tenure.GetTtlMillis()) * time.Millisecond; held.Era != 0 && held.Confirmed && ttl > 0 {
		expires = max(held.ConfirmedAt.Add(ttl).Sub(now), 0).Milliseconds()
	}
	return Vars{
		TenureExpiresMillis: expires,
		CoordinatorID:       c.cfg.ID, Vars: channel.Channel{Certs: c.cfg.TLS, Insecure: c.cfg.Insecure}.Vars(), UptimeMillis: now.Sub(c.started).Milliseconds(),
		TokenIndex: view.Token.Index, KnownIndex: view.Known.Index,
		RootLag: d.RootLag, RootLagMillis: d.RootLagMillis,
		DegradedMode: d.DegradedMode.String(), CatchUpState: d.CatchUpState.String(),
		TenureEra: held.Tenure.GetEra(), TenureHolder: held.Tenure.GetHolderId(),
		Holding: held.Era != 0, Confirmed: held.Confirmed,
		IDWindowLeft: held.IDsLeft, TSOWindowLeft: held.TimestampsLeft,
		Authority: AuthorityVars{
			EraTransitions: n.EraTransitions.Load(), Eras: n.Eras.Load(), HandoverSteps: n.HandoverSteps.Load(),
			Claims: n.Claims.Load(), Confirmations: n.Confirmations.Load(), Lapses: n.Lapses.Load(),
			GateRejections: n.GateRejections.Load(), IDExtensions: n.IDExtensions.Load(), TSOExtensions: n.TsoExtensions.Load(),
			IDs: n.IDs.Load(), Timestamps: n.Timestamps.Load(), ClockRefusals: n.ClockRefusals.Load(), Overloads: n.Overloads.Load(),
		},
		GuaranteeViolations: map[string]uint64{
			"primacy": n.Violations.Primacy.Load(), "inheritance": n.Violations.Inheritance.Load(),
			"silence": n.Violations.Silence.Load(), "finality": n.Violations.Finality.Load(),
			"placement": broken.Total() - broken[0],
		},
		Invariants: invariants, Guarantees: c.server.Guarantees(),
		Follower: c.follower.Stats(), Regions: view.State.RegionCount(), Members: view.State.MemberCount(),
		Assigner: c.assigner.Vars(), Claims: c.claims.Vars(), Idle: c.idle.Vars(), MemberStreams: c.server.MemberStreams(),
		RPC: c.stats.Snapshot(), Streams: c.stats.Streams(), Access: c.server.Access(), Budget: c.cfg.Budget.Vars(), Gate: c.server.GateVars(),
	}
}
