package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func memberCommand() *command {
	return &command{
		name: "member", summary: "list, register, drain, fail and remove members",
		children: []*command{memberList(), memberGet(), memberRegister(), memberDrain(), memberUndrain(), memberFail(), memberRemove()},
	}
}

// memberOutput is a member in JSON. The field names stay.
type memberOutput struct {
	ID           string            `json:"id"`
	Address      string            `json:"address"`
	ProbeAddress string            `json:"probe_address,omitempty"`
	Kind         string            `json:"kind"`
	State        string            `json:"state"`
	Reason       string            `json:"reason,omitempty"`
	Incarnation  uint64            `json:"incarnation"`
	Capacity     uint64            `json:"capacity,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	// Keyspaces whose regions it takes; empty: all that are assigned.
	Keyspaces []string `json:"keyspaces,omitempty"`
	// Verdict are the signals that led to its end.
	Verdict []string `json:"verdict,omitempty"`
	Regions *uint64  `json:"owned_regions,omitempty"`
}

// observedOutput is what a coordinator has observed of a member.
type observedOutput struct {
	// Health is discovered, live, suspected or held, or reports: of a store, which nobody judges by
	// its silence; empty: it may not act any more.
	Health string `json:"health,omitempty"`
	// Signals are what speaks against it, or for it; Guard is what holds the verdict.
	Signals []string `json:"signals,omitempty"`
	Guard   string   `json:"guard,omitempty"`
	// Connected: it has a stream there, on which so many frames came.
	Connected bool   `json:"connected"`
	Frames    uint64 `json:"frames"`
	// HeardMillis is how long ago it was heard; absent: never.
	HeardMillis *uint64 `json:"heard_millis,omitempty"`
	// Load and the most that it can take, as it says; absent: it does not.
	Load         *float64 `json:"load,omitempty"`
	LoadCapacity float64  `json:"load_capacity,omitempty"`
	// DampedMillis: it failed as often as guards-flap-failures says, and gets nothing new for so long;
	// what it has it keeps.
	DampedMillis uint64 `json:"damped_millis,omitempty"`
	// RestingMillis: it could not acquire what another member could.
	RestingMillis uint64 `json:"resting_millis,omitempty"`
}

// listedOutput is a line of nokv member list -o json.
type listedOutput struct {
	memberOutput
	observedOutput
}

func showMember(m *rootv1.Member, owned *uint64) memberOutput {
	state := word(m.GetState().String(), "MEMBER_STATE_")
	if rooted.HasLeft(m) {
		state = "left"
	}
	return memberOutput{
		ID: m.GetId(), Address: m.GetAddress(), ProbeAddress: m.GetProbeAddress(), Kind: m.GetKind(), State: state,
		Reason: m.GetReason(), Incarnation: m.GetIncarnation(), Capacity: m.GetCapacity(), Labels: m.GetLabels(), Keyspaces: m.GetKeyspaces(),
		Verdict: m.GetSignals(), Regions: owned,
	}
}

func showObserved(m *coordinatorv1.MemberStatus) observedOutput {
	out := observedOutput{
		Signals: m.GetSignals(), Guard: m.GetGuard(), Connected: m.GetConnected(), Frames: m.GetFrames(), DampedMillis: m.GetDampedMillis(), RestingMillis: m.GetRestingMillis(),
		LoadCapacity: m.GetLoad().GetCapacity(),
	}
	if state := m.GetMember().GetState(); m.GetHealth() != 0 && (state == rootv1.MemberState_MEMBER_STATE_ACTIVE || state == rootv1.MemberState_MEMBER_STATE_DRAINING) {
		out.Health = word(m.GetHealth().String(), "MEMBER_HEALTH_")
		if m.GetHealth() == coordinatorv1.MemberHealth_MEMBER_HEALTH_DISCOVERED && m.GetLastHeartbeat() != nil {
			out.Health = "reports"
		}
	}
	if m.GetFrames() > 0 || m.GetLastHeartbeat() != nil {
		out.HeardMillis = &m.HeartbeatAgeMillis
	}
	switch {
	case m.GetLoad() != nil:
		out.Load = &m.Load.Load
	case m.GetLastHeartbeat() != nil:
		out.Load = &m.LastHeartbeat.Load
	}
	return out
}

var observedColumns = []any{"HEALTH", "STREAM", "HEARD", "LOAD"}

func (o *observedOutput) cells() []any {
	stream, heard, load := "-", "-", "-"
	if o.Connected {
		stream = "open"
	}
	if o.HeardMillis != nil {
		heard = (time.Duration(*o.HeardMillis) * time.Millisecond).String() + " ago"
	}
	if o.Load != nil {
		load = strconv.FormatFloat(*o.Load, 'g', 4, 64)
	}
	return []any{orDash(o.Health), stream, heard, load}
}

// why is what there is to say of a member that is not well.
func (o *observedOutput) why() string {
	var parts []string
	if o.Guard != "" {
		parts = append(parts, "held by "+o.Guard)
	}
	if o.DampedMillis > 0 {
		parts = append(parts, "damped by guards-flap-failures, gets nothing new for "+(time.Duration(o.DampedMillis)*time.Millisecond).Round(time.Second).String())
	}
	if o.RestingMillis > 0 {
		parts = append(parts, "could not acquire what another member could, gets nothing new for "+(time.Duration(o.RestingMillis)*time.Millisecond).Round(time.Second).String())
	}
	if len(o.Signals) > 0 {
		parts = append(parts, strings.Join(o.Signals, ","))
	}
	return strings.Join(parts, "; ")
}

func memberList() *command {
	return &command{
		name: "list", args: "[flags]", summary: "list members, with what the coordinator that answers has observed",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			show := func(m *coordinatorv1.MemberStatus) listedOutput {
				return listedOutput{showMember(m.GetMember(), &m.OwnedRegions), showObserved(m)}
			}
			header := slices.Concat([]any{"ID", "ADDRESS", "KIND", "STATE", "INCARNATION", "REGIONS"}, observedColumns, []any{"REASON"})
			return list(f, unargued((*client.Client).ListMembers), show, header, func(m listedOutput) []any {
				reason := m.Reason
				if m.Health != "" && (m.Health != "live" && m.Health != "reports" || m.DampedMillis > 0 || m.RestingMillis > 0) {
					reason = strings.TrimPrefix(reason+"; "+m.why(), "; ")
				}
				return slices.Concat([]any{m.ID, orDash(m.Address), orDash(m.Kind), m.State, m.Incarnation, *m.Regions}, m.cells(), []any{orDash(reason)})
			})
		},
	}
}

// memberGetOutput is what nokv member get -o json prints. The field names stay.
type memberGetOutput struct {
	memberOutput
	// MovesFrom and MovesTo are moves of regions that are under way.
	MovesFrom uint64 `json:"moves_from"`
	MovesTo   uint64 `json:"moves_to"`
	// Owned are as many of its regions as --regions says.
	Owned []ownedOutput `json:"regions,omitempty"`
	// Observed is what each coordinator has observed.
	Observed []observerOutput `json:"observed"`
}

// ownedOutput is a region of a member, in JSON. The field names stay.
type ownedOutput struct {
	Region   uint64 `json:"region"`
	Keyspace string `json:"keyspace"`
	StartKey string `json:"start_key"`
	EndKey   string `json:"end_key"`
	Epoch    string `json:"epoch"`
}

type observerOutput struct {
	Coordinator string `json:"coordinator"`
	Error       string `json:"error,omitempty"`
	observedOutput
}

func memberGet() *command {
	return &command{
		name: "get", args: "ID [flags]", summary: "show a member, and what every coordinator has observed of it",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			regions := f.Uint("regions", 0, "show so many of its `regions`, with their keys; keyspaces are looked through until they are found")
			c, r := f.client(), f.read()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				opts, err := r.options()
				if err != nil {
					return err
				}
				if len(args) != 1 {
					return usagef("name one member")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					return showWholeMember(ctx, e, cl, rooted.MemberID(args[0]), uint64(*regions), opts)
				})
			}
		},
	}
}

func showWholeMember(ctx context.Context, e *env, cl *client.Client, id rooted.MemberID, regions uint64, opts []client.ReadOption) error {
	m, err := cl.GetMember(ctx, id, opts...)
	if err != nil {
		return err
	}
	out := memberGetOutput{memberOutput: showMember(m.GetMember(), &m.OwnedRegions)}
	if out.MovesFrom, out.MovesTo, err = movesOf(ctx, cl, m.GetMember()); err != nil {
		return err
	}
	if out.Owned, err = ownedBy(ctx, cl, id, min(regions, m.OwnedRegions)); err != nil {
		return err
	}
	seen := func(ctx context.Context, address string) (*coordinatorv1.MemberStatus, error) {
		return cl.GetMemberAt(ctx, address, id)
	}
	for _, a := range askEach(ctx, cl, seen) {
		o := observerOutput{Coordinator: a.address}
		if a.err != nil {
			o.Error = explain(a.err)
		} else {
			o.observedOutput = showObserved(a.said)
		}
		out.Observed = append(out.Observed, o)
	}
	return e.print(out, out.table)
}

// ownedBy are so many regions of a member, by keyspace and key.
func ownedBy(ctx context.Context, cl *client.Client, id rooted.MemberID, most uint64) (all []ownedOutput, err error) {
	if most == 0 {
		return nil, nil
	}
	for k, err := range cl.ListKeyspaces(ctx) {
		if err != nil {
			return nil, err
		}
		for route, err := range cl.ScanRegions(ctx, nil, nil, client.In(k.GetName()), client.Limit(4096)) {
			if err != nil {
				return nil, err
			}
			r := route.Region
			if _, its := r.Owner(id); !its {
				continue
			}
			all = append(all, ownedOutput{uint64(r.ID), k.GetName(), showKey([]byte(r.Start)), showKey([]byte(r.End)), r.Epoch.String()})
			if uint64(len(all)) == most {
				return all, nil
			}
		}
	}
	return all, nil
}

// movesOf counts the regions that are about to leave a member's process, and to come to it.
func movesOf(ctx context.Context, cl *client.Client, m *rootv1.Member) (from, to uint64, err error) {
	for t, err := range cl.ListTransitions(ctx, 0, false) {
		if err != nil {
			return 0, 0, err
		}
		leaves, comes := moves(t, m)
		from, to = from+leaves, to+comes
	}
	return from, to, nil
}

// moves is what a transition takes from a process of a member, and gives to it: 0 or 1.
// Those of its older processes are not its own.
func moves(t *rootv1.Transition, m *rootv1.Member) (from, to uint64) {
	its := func(o *rootv1.Owner) uint64 {
		if o.GetMemberId() == m.GetId() && o.GetIncarnation() == m.GetIncarnation() {
			return 1
		}
		return 0
	}
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		return its(t.GetFrom()), its(t.GetOwner())
	case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		return 0, its(t.GetOwner())
	case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		return its(t.GetOwner()), 0
	}
	return 0, 0
}

func (m *memberGetOutput) table(w *tabwriter.Writer) {
	row(w, "member", m.ID)
	row(w, "state", strings.TrimSpace(m.State+"  "+m.Reason))
	if len(m.Verdict) > 0 {
		row(w, "verdict", strings.Join(m.Verdict, ", "))
	}
	row(w, "incarnation", m.Incarnation)
	row(w, "address", orDash(m.Address))
	row(w, "probe address", orDash(m.ProbeAddress))
	row(w, "kind", orDash(m.Kind))
	row(w, "capacity", max(m.Capacity, 1))
	labels := make([]string, 0, len(m.Labels))
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, name+"="+m.Labels[name])
	}
	row(w, "labels", orDash(strings.Join(labels, ",")))
	keyspaces := "all that are assigned"
	if len(m.Keyspaces) > 0 {
		keyspaces = strings.Join(m.Keyspaces, ",")
	}
	row(w, "keyspaces", keyspaces)
	row(w, "regions", fmt.Sprintf("%d owned; moves under way: %d from it, %d to it", *m.Regions, m.MovesFrom, m.MovesTo))
	if len(m.Owned) > 0 {
		row(w)
		row(w, "REGION", "KEYSPACE", "KEYS", "EPOCH")
		for _, r := range m.Owned {
			row(w, r.Region, r.Keyspace, "["+clipped(r.StartKey)+", "+clipped(r.EndKey)+")", r.Epoch)
		}
		if more := *m.Regions - min(uint64(len(m.Owned)), *m.Regions); more > 0 {
			row(w, fmt.Sprintf("# %d more", more))
		}
	}
	row(w)
	row(w, slices.Concat([]any{"COORDINATOR"}, observedColumns, []any{"FRAMES", "SIGNALS"})...)
	for _, o := range m.Observed {
		if o.Error != "" {
			row(w, o.Coordinator, "-", "-", "-", "-", "-", o.Error)
			continue
		}
		row(w, slices.Concat([]any{o.Coordinator}, o.cells(), []any{o.Frames, orDash(o.why())})...)
	}
}

func memberRegister() *command {
	return &command{
		name: "register", args: "ID ADDRESS [flags]", summary: "register a member process; its older processes are superseded",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			m := &rootv1.Member{Labels: map[string]string{}}
			f.StringVar(&m.Kind, "kind", "", "`word` for what it is, such as store or worker")
			f.Uint64Var(&m.Capacity, "capacity", 0, "`share` of load it can take, relative to others; 0 counts as 1, 1,000,000 at most")
			f.keyspaces(&m.Keyspaces)
			f.label(m.Labels, "`NAME=VALUE`; repeat for more")
			check := func(args []string) error {
				if err := checkAddr(args[1]); err != nil {
					return usagef("ADDRESS %s", err)
				}
				return nil
			}
			return memberChange(f, 2, check, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				var nonce [8]byte
				_, _ = rand.Read(nonce[:]) // never fails: crypto/rand crashes the process instead
				m.Id, m.Address, m.StartNonce = args[0], args[1], binary.LittleEndian.Uint64(nonce[:])
				return cl.RegisterMember(ctx, m)
			})
		},
	}
}
