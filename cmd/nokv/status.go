package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// statusOutput is what `nokv status -o json` prints. The field names stay.
type statusOutput struct {
	ClusterID string `json:"cluster_id"`
	// State is forming, no_members, degraded, moving, single or stable; StateWhy says what makes it
	// so.
	State    string `json:"state"`
	StateWhy string `json:"state_why"`
	Era      uint64 `json:"era"`
	Holder   string `json:"holder"`
	// Ending is who asked the era under way to end, and why; Predecessor how the one
	// before it ended. Empty: nobody did, there was none.
	Ending       string                    `json:"ending,omitempty"`
	Predecessor  string                    `json:"predecessor,omitempty"`
	Coordinators []coordinatorStatusOutput `json:"coordinators"`
	RootPeers    []rootEndpointOutput      `json:"root_peers"`
	// Members and regions as the coordinator that serves has them, or else the one that is furthest;
	// absent: no coordinator that answers has read the root. Stuck is what keyspaces wait for.
	Members *membersOutput `json:"members,omitempty"`
	// MovesUnderWay are changes of regions that have begun and not ended, 1,000 at most.
	MovesUnderWay uint64        `json:"moves_under_way"`
	Stuck         []stuckOutput `json:"stuck,omitempty"`
	// Rounds are how keyspaces were evened out last, by who assigns.
	Rounds []roundOutput `json:"rounds,omitempty"`
	// Scaling is how many members keyspaces want, by who assigns.
	Scaling []scalingOutput `json:"scaling,omitempty"`
	// RestingHooks are those that do not answer, by who assigns.
	RestingHooks []restingHookOutput `json:"resting_hooks,omitempty"`
	// asOf says how old the members are; empty: the coordinator that has them is level with the root.
	asOf string `json:"-"`
}

type restingHookOutput struct {
	Keyspace string `json:"keyspace"`
	Why      string `json:"why"`
	// Instead is the strategy that places regions.
	Instead string `json:"instead"`
}

type coordinatorStatusOutput struct {
	Address          string `json:"address"`
	ID               string `json:"id,omitempty"`
	Error            string `json:"error,omitempty"`
	ServingAuthority bool   `json:"serving_authority"`
	ClockBound       bool   `json:"clock_bound,omitempty"`
	Keyspaces        uint64 `json:"keyspaces"`
	Regions          uint64 `json:"regions"`
	Members          uint64 `json:"members"`
	// OrphanedRegions have no owner who may act.
	OrphanedRegions uint64 `json:"orphaned_regions"`
	// InvariantViolations are those of I1 to I5 that it found since it started.
	InvariantViolations []uint64 `json:"invariant_violations"`
	IDFence             uint64   `json:"id_fence"`
	TSOFence            uint64   `json:"tso_fence"`
	IDWindowLeft        uint64   `json:"id_window_left"`
	TSOWindowLeft       uint64   `json:"tso_window_left"`
	UptimeMillis        uint64   `json:"uptime_millis"`
	Version             string   `json:"version,omitempty"`
	// Channel is tls, loopback or insecure; CertificateDays are left until the
	// certificate ends, or the CA's that signed it if that is earlier.
	Channel         string            `json:"channel,omitempty"`
	CertificateDays *float64          `json:"certificate_days,omitempty"`
	Disclosure      *disclosureOutput `json:"disclosure,omitempty"`
}

type rootEndpointOutput struct {
	NodeID    uint64 `json:"node_id"`
	Address   string `json:"address"`
	Reachable bool   `json:"reachable"`
	Leader    bool   `json:"leader"`
	Problem   string `json:"problem,omitempty"`
	// DiskLow says that its disk is full or nearly so.
	DiskLow string `json:"disk_low,omitempty"`
	// Replaced: it is no root peer any more, and whether it answers counts for nothing.
	Replaced bool `json:"replaced"`
	// Channel and CertificateDays are as those of coordinators.
	Channel         string   `json:"channel,omitempty"`
	CertificateDays *float64 `json:"certificate_days,omitempty"`
}

// daysLeft are the days until a certificate ends; nil without one.
func daysLeft(endsUnixSeconds uint64) *float64 {
	if endsUnixSeconds == 0 {
		return nil
	}
	days := channel.Days(endsUnixSeconds, time.Now())
	return &days
}

// channelCell is a channel in a table: tls and the days left, or what it is instead.
func channelCell(name string, days *float64) string {
	if days != nil {
		return fmt.Sprintf("%s, %.0f days", name, math.Floor(*days))
	}
	return orDash(name)
}

func statusCommand() *command {
	return &command{
		name: "status", args: "[flags]", summary: "show coordinators, the Tenure and the root as they see them",
		long: `
Asks every coordinator at once: those given and those registered in the root. Exit
status 0 when at least one answers and the root has a quorum, 3 otherwise.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error { return showStatus(ctx, e, cl) })
			}
		},
	}
}

// errDegraded ends `nokv status` with exit status 3 after it has printed.
var errDegraded = errors.New("the cluster is degraded: no root peer with a quorum answers; see above")

func showStatus(ctx context.Context, e *env, cl *client.Client) error {
	out, err := heard(askEach(ctx, cl, cl.Status))
	if err != nil {
		return err
	}
	moves, unknown := movesUnderWay(ctx, cl)
	out.MovesUnderWay = moves
	out.judge(unknown)
	if err := e.print(out, out.table); err != nil {
		return err
	}
	if out.cutOff() {
		return errDegraded
	}
	return nil
}

// heard is one output of the answers of all coordinators; an error: none of them answered.
func heard(answers []answerOf[*coordinatorv1.StatusResponse]) (*statusOutput, error) {
	out := &statusOutput{}
	// best is the answer of the coordinator that is furthest, serving that of the one that serves.
	var best, serving *coordinatorv1.StatusResponse
	var firstErr error
	for _, a := range answers {
		st := a.said
		if a.err != nil {
			firstErr = errors.Join(firstErr, a.err)
			out.Coordinators = append(out.Coordinators, coordinatorStatusOutput{Address: a.address, Error: explain(a.err)})
			continue
		}
		out.Coordinators = append(out.Coordinators, showCoordinator(a.address, st))
		for _, x := range st.GetStuck() {
			out.Stuck = append(out.Stuck, stuckOutput{x.GetKeyspace(), x.GetWhy(), x.GetCount(), x.GetRegionId()})
		}
		for _, r := range st.GetRounds() {
			out.Rounds = append(out.Rounds, showRound(r))
		}
		for _, x := range st.GetScaling() {
			out.Scaling = append(out.Scaling, showScaling(x))
		}
		for _, x := range st.GetRestingHooks() {
			out.RestingHooks = append(out.RestingHooks, restingHookOutput{x.GetKeyspace(), x.GetWhy(), x.GetInstead()})
		}
		if best == nil || isFurther(st, best) {
			best = st
		}
		if st.GetServingAuthority() && (serving == nil || isFurther(st, serving)) {
			serving = st
		}
	}
	if best == nil {
		return nil, firstErr
	}
	out.ClusterID = fmt.Sprintf("%016x", best.GetCluster().GetClusterId())
	out.Era, out.Holder = best.GetTenure().GetEra(), best.GetTenure().GetHolderId()
	if best.GetTenure().GetRetired() {
		out.Holder = ""
	}
	if end := best.GetTenure().GetEnd(); end != nil {
		out.Ending = asked(end)
	}
	out.Predecessor = howEnded(best.GetHandover())
	for _, p := range best.GetRootPeers() {
		out.RootPeers = append(out.RootPeers, rootEndpointOutput{
			NodeID: p.NodeId, Address: p.Address, Reachable: p.Reachable, Leader: p.Leader, Problem: p.Problem,
			DiskLow: p.DiskLow, Replaced: state.WasReplaced(best.GetCluster(), p.NodeId), Channel: channel.Name(p.Channel), CertificateDays: daysLeft(p.CertificateEndsUnixSeconds),
		})
	}
	switch old := age(best.GetDisclosure()); {
	case serving != nil:
		out.Members = showMembers(serving)
	case out.Era > 0 || old == "": // or else it has read nothing, or not yet what was long decided
		out.Members, out.asOf = showMembers(best), old
	}
	return out, nil
}

// isFurther says whether a knows more of the root's log than b, or as much, and that it is all.
func isFurther(a, b *coordinatorv1.StatusResponse) bool {
	x, y := a.GetDisclosure(), b.GetDisclosure()
	if n, m := x.GetServedRootToken().GetIndex(), y.GetServedRootToken().GetIndex(); n != m {
		return n > m
	}
	return age(x) == "" && age(y) != ""
}

// age says how old an answer is; empty: the coordinator that gave it is level with the root.
func age(d *coordinatorv1.Disclosure) string {
	switch d.GetDegradedMode() {
	case coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY:
		return ""
	case coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING:
		return fmt.Sprintf("%d entries behind the root", d.GetRootLag())
	}
	if ms := d.GetRootLagMillis(); ms > 0 {
		return (time.Duration(ms) * time.Millisecond).Round(100*time.Millisecond).String() + " old"
	}
	return "as of " + showToken(d.GetServedRootToken())
}

func showCoordinator(addr string, st *coordinatorv1.StatusResponse) coordinatorStatusOutput {
	d := showDisclosure(st.GetDisclosure())
	return coordinatorStatusOutput{
		Address: addr, ID: st.CoordinatorId, ServingAuthority: st.ServingAuthority, ClockBound: st.ClockBound,
		Keyspaces: st.Keyspaces, Regions: st.Regions, Members: st.Members, OrphanedRegions: st.OrphanedRegions, InvariantViolations: st.InvariantViolations,
		IDFence: st.GetAllocators().GetIdFence(), TSOFence: st.GetAllocators().GetTsoFence(),
		IDWindowLeft: st.IdWindowLeft, TSOWindowLeft: st.TsoWindowLeft, UptimeMillis: st.UptimeMillis, Version: st.Version, Disclosure: &d,
		Channel: channel.Name(st.Channel), CertificateDays: daysLeft(st.CertificateEndsUnixSeconds),
	}
}

// invariants says whether coordinators found I1 to I5 broken.
func (s *statusOutput) invariants() string {
	var broken []string
	asked := 0
	for _, c := range s.Coordinators {
		if len(c.InvariantViolations) > 0 {
			asked++
		}
		for i, n := range c.InvariantViolations {
			if n > 0 {
				broken = append(broken, fmt.Sprintf("I%d %d times by %s", i+1, n, c.ID))
			}
		}
	}
	switch {
	case len(broken) > 0:
		return "BROKEN: " + strings.Join(broken, ", ") + "; see nokv witness"
	case asked == 0:
		return "cannot tell: no coordinator counts them"
	default:
		return "I1 to I5: no violations found"
	}
}

func (s *statusOutput) table(w *tabwriter.Writer) {
	row(w, "cluster", s.ClusterID)
	row(w, "state", strings.ReplaceAll(s.State, "_", " ")+": "+s.StateWhy)
	tenure := "not known"
	if s.Members != nil {
		tenure = fmt.Sprintf("era %d, held by %s", s.Era, orDash(s.Holder))
	}
	row(w, "tenure", tenure)
	if s.Ending != "" {
		row(w, "", s.Ending)
	}
	if s.Predecessor != "" {
		row(w, "before", s.Predecessor)
	}
	row(w, "invariants", s.invariants())
	members := s.Members.words()
	if s.asOf != "" {
		members += " (" + s.asOf + ")"
	}
	row(w, "members", members)
	for _, x := range s.Stuck {
		row(w, "waiting", x.words())
	}
	row(w)
	row(w, "COORDINATOR", "ADDRESS", "AUTHORITY", "REGIONS", "ORPHANED", "TOKEN", "LAG", "STATE", "UPTIME", "CHANNEL")
	for _, c := range s.Coordinators {
		if c.Disclosure == nil {
			row(w, "-", c.Address, "-", "-", "-", "-", "-", "unreachable", "-", "-")
			continue
		}
		authority := "standby"
		switch {
		case c.ServingAuthority:
			authority = "serving"
		case c.ClockBound:
			authority = "clock_bound"
		}
		row(w, c.ID, c.Address, authority, c.Regions, c.OrphanedRegions, c.Disclosure.ServedToken, c.Disclosure.LagEntries, c.Disclosure.DegradedMode,
			(time.Duration(c.UptimeMillis) * time.Millisecond).Round(time.Second), channelCell(c.Channel, c.CertificateDays))
	}
	if len(s.Rounds) > 0 {
		row(w)
		roundsTable(w, s.Rounds...)
	}
	if len(s.Scaling) > 0 {
		row(w)
		scalingTable(w, s.Scaling)
	}
	row(w)
	row(w, "ROOT PEER", "ADDRESS", "REACHABLE", "ROLE", "CHANNEL")
	for _, p := range s.RootPeers {
		role := "follower"
		if p.Leader {
			role = "leader"
		}
		switch {
		case p.Replaced:
			role = "replaced: take it out of -root-peer"
		case !p.Reachable:
			role = orDash(p.Problem)
		}
		row(w, p.NodeID, p.Address, p.Reachable, role, channelCell(p.Channel, p.CertificateDays))
	}
}
