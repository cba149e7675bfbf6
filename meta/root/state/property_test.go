package state_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The generator draws from a small world, so that commands meet: a few
// members, keyspaces of each layout, keys, holders and small numbers.

func drawCommand(t *rapid.T, s *state.State) *rootv1.Command {
	c := &rootv1.Command{}
	if rapid.IntRange(0, 9).Draw(t, "require") == 0 {
		c.RequireEra = drawEra(t, s)
	}
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "events") {
		c.Events = append(c.Events, drawEvent(t, s))
	}
	return c
}

// drawGreed has some windows of ids ask for more, or further ahead, than is fair.
func drawGreed(t *rapid.T, c *rootv1.Command) *rootv1.Command {
	for _, e := range c.GetEvents() {
		if f := e.GetFenceExtended(); f.GetMandate() == rootv1.Mandate_MANDATE_ALLOC_ID && rapid.IntRange(0, 3).Draw(t, "greed") == 0 {
			f.Floor += rapid.SampledFrom([]uint64{0, 1 << 39, 1 << 40, 1 << 50}).Draw(t, "skip")
			f.Size += rapid.SampledFrom([]uint64{0, 1<<32 - 1, 1 << 50}).Draw(t, "share")
		}
	}
	return c
}

func drawEra(t *rapid.T, s *state.State) uint64 {
	return s.Tenure().GetEra() + uint64(rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "later"))
}

// drawFollows is mostly the rooted incarnation.
func drawFollows(t *rapid.T, rooted uint64) uint64 {
	return rapid.SampledFrom([]uint64{rooted, rooted, rooted, 0}).Draw(t, "follows")
}

func drawMember(t *rapid.T) string {
	return rapid.SampledFrom([]string{"m1", "m2", "m3"}).Draw(t, "member")
}

func drawOwners(t *rapid.T) []*rootv1.Owner {
	var owners []*rootv1.Owner
	for range rapid.IntRange(0, 2).Draw(t, "owners") {
		id := drawMember(t)
		if !slices.ContainsFunc(owners, func(o *rootv1.Owner) bool { return o.GetMemberId() == id }) {
			owners = append(owners, &rootv1.Owner{MemberId: id, Incarnation: rapid.SampledFrom([]uint64{0, 0, 0, 1}).Draw(t, "incarnation")})
		}
	}
	return owners
}

// drawEpoch is near the epoch of a region, if it is there.
func drawEpoch(t *rapid.T, r *state.Region) *rootv1.RegionEpoch {
	e := state.Epoch{Version: 1, ConfVersion: 1}
	if r != nil {
		e = r.Epoch
	}
	e.Version += uint64(rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "version"))
	e.ConfVersion += uint64(rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "conf version"))
	return e.Proto()
}

func drawRegionID(t *rapid.T) uint64 { return rapid.Uint64Range(1, 12).Draw(t, "region") }

func drawKey(t *rapid.T) []byte {
	return []byte(rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"}).Draw(t, "key"))
}

func drawRegion(t *rapid.T, s *state.State) *rootv1.Region {
	r := &rootv1.Region{KeyspaceId: rapid.Uint32Range(1, 4).Draw(t, "keyspace"), StartKey: drawKey(t), Owners: drawOwners(t)}
	if rapid.Bool().Draw(t, "end") {
		r.EndKey = drawKey(t)
	}
	if rapid.Bool().Draw(t, "with id") {
		r.Id = drawRegionID(t)
		r.Epoch = drawEpoch(t, s.Region(state.RegionID(r.Id)))
		if old := s.Region(state.RegionID(r.Id)); old != nil && rapid.Bool().Draw(t, "same range") {
			r.KeyspaceId, r.StartKey, r.EndKey = uint32(old.Keyspace), []byte(old.Start), []byte(old.End)
		}
	}
	return r
}

func drawTransition(t *rapid.T, s *state.State) string {
	ids := []string{"split-1-1.1"}
	s.Transitions(func(p *rootv1.Transition) bool { ids = append(ids, p.GetId()); return true })
	return rapid.SampledFrom(ids).Draw(t, "transition")
}

var drawSettings = []*rootv1.KeyspaceSettings{
	{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}},
	{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Ownership: &rootv1.Ownership{MaxOwners: 2}},
	{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 2}}}},
	{Placement: rootv1.Placement_PLACEMENT_REPORTED, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}, Limits: &rootv1.Limits{MaxRegions: 2}},
}

func drawEvent(t *rapid.T, s *state.State) *rootv1.Event {
	kind := rapid.IntRange(0, 31).Draw(t, "kind")
	region := s.Region(state.RegionID(drawRegionID(t)))
	var id uint64
	if region != nil {
		id = uint64(region.ID)
	}
	e := &rootv1.Event{}
	switch kind {
	case 0:
		e = clusterEvent()
	case 1, 2:
		m := rapid.SampledFrom([]rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}).Draw(t, "mandate")
		e.Kind = &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: m, Era: drawEra(t, s), Floor: rapid.Uint64Range(0, 40).Draw(t, "floor"), Size: rapid.Uint64Range(0, 20).Draw(t, "window"),
		}}
	case 3:
		e.Kind = &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "holder"), HolderIncarnation: rapid.Uint64Range(1, 2).Draw(t, "incarnation"),
			ExpectedEra: drawEra(t, s), PredecessorExpired: rapid.Bool().Draw(t, "expired"),
			Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}[:rapid.IntRange(1, 2).Draw(t, "mandates")],
		}}
		e.GetTenureClaimed().RetireDigest = digestOf(rapid.SampledFrom(retireSecrets).Draw(t, "secret"))
	case 4:
		a := s.Allocators()
		back := rapid.Uint64Range(0, 25).Draw(t, "back")
		e.Kind = &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
			Era: drawEra(t, s), HolderId: s.Tenure().GetHolderId(), HolderIncarnation: s.Tenure().GetHolderIncarnation(),
			Consumed: &rootv1.Frontiers{AllocId: a.GetIdFence() - min(back, a.GetIdFence()), Tso: a.GetTsoFence() - min(back, a.GetTsoFence())},
		}}
		e.GetTenureRetired().RetireSecret = rapid.SampledFrom(retireSecrets).Draw(t, "secret")
	case 5:
		e.Kind = &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{
			Era: drawEra(t, s), Stage: rootv1.HandoverStage(rapid.IntRange(1, 3).Draw(t, "stage")),
			HolderId: s.Tenure().GetHolderId(), HolderIncarnation: s.Tenure().GetHolderIncarnation(),
		}}
		e.GetHandoverAdvanced().HolderId, e.GetHandoverAdvanced().HolderIncarnation = s.Tenure().GetHolderId(), s.Tenure().GetHolderIncarnation()
	case 6:
		e.Kind = &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
			Id: "c1", Incarnation: rapid.Uint64Range(1, 3).Draw(t, "incarnation"), Follows: drawFollows(t, s.Coordinator("c1").GetIncarnation()),
			FeatureLevel: state.FeatureLevel,
		}}
	case 7:
		e.Kind = &rootv1.Event_CoordinatorLeft{CoordinatorLeft: &rootv1.CoordinatorLeft{Id: "c1", Incarnation: rapid.Uint64Range(1, 3).Draw(t, "incarnation")}}
	case 8, 9:
		e = memberEvent(drawMember(t), rapid.Uint64Range(1, 3).Draw(t, "nonce"))
		e.GetMemberJoined().Follows = drawFollows(t, s.Member(state.MemberID(e.GetMemberJoined().GetMember().GetId())).GetIncarnation())
	case 10:
		e.Kind = &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: drawMember(t), State: rootv1.MemberState(rapid.IntRange(1, 4).Draw(t, "state"))}}
	case 11:
		n := rapid.IntRange(0, len(drawSettings)-1).Draw(t, "settings")
		e.Kind = &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprintf("k%d", n), Settings: drawSettings[n]}}
	case 12:
		e.Kind = &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			KeyspaceId: rapid.Uint32Range(1, 4).Draw(t, "keyspace"), ExpectedVersion: 1, Settings: rapid.SampledFrom(drawSettings).Draw(t, "settings"),
		}}
	case 13:
		e.Kind = &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: rapid.Uint32Range(2, 6).Draw(t, "keyspace"), ExpectedVersion: 1}}
	case 14:
		e.Kind = &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: drawRegionID(t)}}
	case 15:
		n := rapid.IntRange(1, 2).Draw(t, "assignments")
		a := &rootv1.RegionsAssigned{}
		for range n {
			a.Assignments = append(a.Assignments, &rootv1.Assignment{RegionId: drawRegionID(t), Owners: drawOwners(t)})
		}
		e.Kind = &rootv1.Event_RegionsAssigned{RegionsAssigned: a}
	case 16:
		e.Kind = &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
			RegionId: max(id, 1), ExpectedEpoch: drawEpoch(t, region), Kind: rootv1.TransitionKind(rapid.IntRange(1, 2).Draw(t, "peer change")),
			Owner: &rootv1.Owner{MemberId: drawMember(t)},
		}}
	case 17:
		e.Kind = &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: max(id, 1), ExpectedEpoch: drawEpoch(t, region), SplitKey: drawKey(t), RightRegionId: rapid.Uint64Range(0, 14).Draw(t, "right"),
		}}
	case 18:
		right := s.Region(state.RegionID(drawRegionID(t)))
		if region != nil {
			right = s.RegionAt(region.Keyspace, region.End)
		}
		m := &rootv1.MergePlanned{LeftRegionId: max(id, 1), LeftExpectedEpoch: drawEpoch(t, region), RightRegionId: 1, RightExpectedEpoch: drawEpoch(t, right)}
		if right != nil {
			m.RightRegionId = uint64(right.ID)
		}
		e.Kind = &rootv1.Event_MergePlanned{MergePlanned: m}
	case 19:
		e.Kind = &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: drawTransition(t, s)}}
	case 20:
		e.Kind = &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: drawTransition(t, s), Aborted: rapid.Bool().Draw(t, "aborted")}}
	case 21:
		m := &rootv1.MovePlanned{RegionId: max(id, 1), ExpectedEpoch: drawEpoch(t, region), From: &rootv1.Owner{MemberId: drawMember(t)}, To: &rootv1.Owner{MemberId: drawMember(t)}}
		if region != nil && len(region.Owners) > 0 {
			m.From = &rootv1.Owner{MemberId: string(region.Owners[0].Member)}
		}
		e.Kind = &rootv1.Event_MovePlanned{MovePlanned: m}
	case 22:
		e.Kind = &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{TransitionId: drawTransition(t, s), Incarnation: rapid.Uint64Range(1, 6).Draw(t, "incarnation")}}
	case 23:
		from := s.FeatureLevel()
		e.Kind = &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: from, To: min(from+rapid.Uint32Range(0, 1).Draw(t, "levels"), state.SupportedLevel())}}
	case 24:
		secret := bytes.Repeat([]byte{rapid.Byte().Draw(t, "secret")}, state.KeySecretBytes)
		e.Kind = &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{ExpectedId: rapid.Uint32Range(0, 3).Draw(t, "pin key"), Secret: secret}}
	case 29:
		r := &rootv1.TokenKeyRotated{ExpectedId: rapid.Uint32Range(0, 3).Draw(t, "token key"), Sealed: rapid.Bool().Draw(t, "sealed")}
		r.Secret = bytes.Repeat([]byte{rapid.Byte().Draw(t, "secret")}, state.KeySecretBytes)
		if r.Sealed {
			r.Secret = append(r.Secret, make([]byte, state.SealedSecretBytes-state.KeySecretBytes)...)
		}
		e.Kind = &rootv1.Event_TokenKeyRotated{TokenKeyRotated: r}
	case 30:
		e.Kind = &rootv1.Event_TokenRevoked{TokenRevoked: &rootv1.TokenRevoked{
			KeyId: rapid.Uint32Range(1, 4).Draw(t, "token key"), Serial: rapid.Uint64Range(0, 3).Draw(t, "serial"),
		}}
	case 25:
		e.Kind = &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: drawEra(t, s)}}
	case 26:
		e.Kind = &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
			ExpectedVersion: rapid.Uint64Range(0, 3).Draw(t, "version"),
			Settings: &rootv1.ClusterSettings{
				MaxTenureTtlMillis:  rapid.SampledFrom([]uint64{0, 99, 100, 200}).Draw(t, "ttl"),
				RevokedCertificates: rapid.SampledFrom([][]string{nil, {"ab12"}, {"ab12", "member/m1"}, {"member/m1", "ab12"}}).Draw(t, "revoked"),
			},
		}}
	case 27:
		e.Kind = &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
			Principal: drawPrincipal(t), Keyspace: drawPattern(t), Verbs: drawVerbs(t),
		}}}
	case 28:
		e.Kind = &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: drawPrincipal(t), Keyspace: drawPattern(t), Verbs: drawVerbs(t)}}
	default:
		e = publish(drawRegion(t, s)).Events[0]
	}
	return e
}

var retireSecrets = [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}

func digestOf(secret []byte) []byte {
	d := sha256.Sum256(secret)
	return d[:]
}

func drawPrincipal(t *rapid.T) string {
	return rapid.SampledFrom([]string{"client/a", "client/b", "client/a*", "client/*", "member/a"}).Draw(t, "principal")
}

func drawPattern(t *rapid.T) string {
	return rapid.SampledFrom([]string{"k", "k1", "k*", "k1*", "*"}).Draw(t, "keyspaces")
}

func drawVerbs(t *rapid.T) []rootv1.Verb {
	return rapid.SliceOfDistinct(rapid.SampledFrom([]rootv1.Verb{1, 2, 3, 4}), func(v rootv1.Verb) rootv1.Verb { return v }).Draw(t, "verbs")
}

// TestLaws checks what holds in every State and for every command: promises 1
// to 8 of the package.
func TestLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		bootstrap := clusterEvent()
		w.entry(&rootv1.Command{Events: []*rootv1.Event{bootstrap}})
		for _, m := range []string{"m1", "m2", "m3"} {
			w.entry(&rootv1.Command{Events: []*rootv1.Event{memberEvent(m, 1)}})
		}
		for n, settings := range drawSettings {
			w.entry(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceCreated{
				KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprintf("k%d", n), Settings: settings},
			}}}})
		}
		restoreAt := rapid.IntRange(0, 60).Draw(t, "restore at")
		for i := range rapid.IntRange(1, 60).Draw(t, "entries") {
			if i == restoreAt {
				w.machines[1] = restored(t, w.machines[1])
			}
			var commands []*rootv1.Command
			for range rapid.IntRange(0, 2).Draw(t, "commands") {
				c := drawGreed(t, drawCommand(t, w.machines[0]))
				if rapid.Bool().Draw(t, "identity") {
					w.sequence++
					index := w.machines[0].Token().Index
					c.Identity = &rootv1.CommandIdentity{Origin: 9, Sequence: w.sequence, KnownIndex: index - rapid.Uint64Range(0, min(index, 2)).Draw(t, "known")}
				}
				commands = append(commands, c)
			}
			w.entry(commands...)
			w.repeat()
		}
	})
}

// world is three machines that apply the same log, and what was seen of it.
type world struct {
	t        *rapid.T
	machines [3]*state.State
	// given are the ids that were given so far: to eras, and to regions.
	given []span
	// tso are the timestamp windows that eras were given, minus what an
	// orderly retirement gave back.
	tso []span
	era uint64
	// sent are the commands with an identity that were judged.
	sent     []sent
	sequence uint64
	// chosen are the region ids that members chose.
	chosen map[uint64]bool
}

// sent is a command and its first answer.
type sent struct {
	command *rootv1.Command
	answer  state.Result
}

// repeat: a command that is sent again with its identity, whatever happened in
// between, changes nothing, and has the same outcome and numbers.
func (w *world) repeat() {
	if len(w.sent) == 0 {
		return
	}
	old := w.sent[rapid.IntRange(0, len(w.sent)-1).Draw(w.t, "repeat")]
	for i, m := range w.machines {
		s := m.Fork()
		var out state.Applied
		if err := s.ApplyEntry(1, s.Token().Index+1, encode(w.t, old.command), &out); err != nil {
			w.t.Fatalf("machine %d: repeat: %v", i, err)
		}
		r := out.Results[0]
		if !r.Repetition || r.Outcome != old.answer.Outcome || r.Reject.GetReason() != old.answer.Reject.GetReason() || r.Token != s.Token() {
			w.t.Fatalf("machine %d: %v sent again: %+v, first at %s", i, old.command, r, old.answer.Token)
		}
		if s.Hash() != m.Hash() || len(out.Changes) > 0 {
			w.t.Fatalf("machine %d: %v sent again changed the state", i, old.command)
		}
		for j := range r.Events {
			again, first := r.Events[j], old.answer.Events[j]
			if first.Transition != nil && again.Transition == nil {
				again.Region = nil // an assignment that completed a change then
			}
			if got, want := numbers(again), numbers(first); got != want {
				w.t.Fatalf("machine %d: %v sent again: event %d is answered %s, first %s", i, old.command, j, got, want)
			}
		}
	}
}

// numbers are what an event's result says for ever.
func numbers(r state.EventResult) string {
	region, right := uint64(0), uint64(0)
	if r.Region != nil && r.Transition == nil {
		region = uint64(r.Region.ID)
	}
	if r.Transition.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT {
		right = r.Transition.GetRightRegionId()
	}
	return fmt.Sprint(region, right, r.Keyspace.GetId(), r.Member.GetId(), r.Window, r.Tenure.GetEra(), r.Handover.GetEra(), r.Coordinator.GetId())
}

// span is a run (from, to] that belongs to an era; era 0 is the root.
type span struct{ era, from, to uint64 }

func newWorld(t *rapid.T) *world {
	return &world{t: t, chosen: map[uint64]bool{}, machines: [3]*state.State{state.New(), state.New(), state.New()}}
}

// entry applies an entry everywhere, once with a fork taken before.
func (w *world) entry(commands ...*rootv1.Command) {
	data := encode(w.t, commands...)
	before := w.machines[0]
	fork, hash := before.Fork(), before.Hash()
	var out [3]state.Applied
	for i, s := range w.machines {
		if err := s.ApplyEntry(1, s.Token().Index+1, data, &out[i]); err != nil {
			w.t.Fatalf("machine %d: %v", i, err)
		}
		if s.Hash() != w.machines[0].Hash() || !slices.EqualFunc(out[i].Results, out[0].Results, func(a, b state.Result) bool { return proto.Equal(a.Proto(), b.Proto()) }) {
			w.t.Fatalf("machine %d differs after %s", i, s.Token())
		}
	}
	if fork.Hash() != hash || restored(w.t, fork).Hash() != hash {
		w.t.Fatalf("the fork changed")
	}
	w.checkRegions(fork)
	again := restored(w.t, before)
	if again.Hash() != before.Hash() {
		w.t.Fatalf("the hash is %x, that of the records %x", before.Hash(), again.Hash())
	}
	w.checkRegions(again)
	for i, r := range out[0].Results {
		if commands[i].GetIdentity() != nil && state.CheckCommand(commands[i]) == nil {
			w.sent = append(w.sent, sent{commands[i], r})
		}
	}
	w.retry(data, out[0])
	w.checkRejected(fork, commands, out[0])
	for _, s := range w.machines {
		w.checkRegions(s)
	}
	w.checkAuthority(commands, out[0])
	w.checkSkipped(fork, commands)
}

// checkSkipped: no event uses up more than a bounded share of
// the ids, but the first that ever gives any.
func (w *world) checkSkipped(before *state.State, commands []*rootv1.Command) {
	const share = state.MaxIDSkip + state.MaxIDWindow + state.MaxEventsPerCommand
	events := uint64(0)
	for _, c := range commands {
		events += uint64(len(c.GetEvents()))
	}
	had, has := before.Allocators(), w.machines[0].Allocators()
	if had.GetLastIdWindow().GetTo() > 0 && has.GetIdFence() > had.GetIdFence()+events*share {
		w.t.Fatalf("%v raised the fence from %d to %d", commands, had.GetIdFence(), has.GetIdFence())
	}
}

// retry: an entry of one applied command, sent again at once, changes nothing.
func (w *world) retry(data []byte, out state.Applied) {
	if len(out.Results) != 1 || out.Results[0].Outcome == rootv1.Outcome_OUTCOME_REJECTED {
		return
	}
	var entry rootv1.Entry
	if err := proto.Unmarshal(data, &entry); err != nil || len(entry.Commands[0].Events) != 1 {
		return
	}
	again := w.machines[0].Fork()
	hash := again.Hash()
	var second state.Applied
	if err := again.ApplyEntry(1, again.Token().Index+1, data, &second); err != nil {
		w.t.Fatalf("retry: %v", err)
	}
	if again.Hash() == hash && len(second.Changes) == 0 {
		return
	}
	if entry.Commands[0].Events[0].GetFenceExtended() != nil {
		return // without an identity it asks for another window
	}
	if a := entry.Commands[0].Events[0].GetRegionsAssigned(); a != nil && len(a.GetAssignments()) > 1 {
		return // the same region twice in one event, without epochs, is two moves
	}
	w.t.Fatalf("%v sent again changed the state: %v", entry.Commands[0].Events[0], second.Results[0])
}

// checkRejected: what is rejected left no trace, but for its identity.
func (w *world) checkRejected(before *state.State, commands []*rootv1.Command, out state.Applied) {
	var kept []*rootv1.Command
	for i, r := range out.Results {
		if r.Outcome == rootv1.Outcome_OUTCOME_REJECTED && (r.Reject.GetReason() == 0 || r.Reject.GetMessage() == "") {
			w.t.Fatalf("rejected without a reason: %v", r.Reject)
		}
		if r.Outcome == rootv1.Outcome_OUTCOME_APPLIED || commands[i].GetIdentity() != nil { // which is remembered
			kept = append(kept, commands[i])
		}
	}
	s := before.Fork()
	if err := s.ApplyEntry(1, s.Token().Index+1, encode(w.t, kept...), nil); err != nil {
		w.t.Fatalf("%v", err)
	}
	if s.Hash() != w.machines[0].Hash() {
		w.t.Fatalf("without the rejected commands the hash is another one")
	}
}

// checkRegions: no overlap, owners within bounds and joined, counts exact.
func (w *world) checkRegions(s *state.State) {
	type share struct {
		member   state.MemberID
		keyspace state.KeyspaceID
	}
	var orphaned []state.RegionID
	owned, shares, total := map[state.MemberID][]state.RegionID{}, map[share]int{}, 0
	s.Keyspaces("", func(k *rootv1.Keyspace) bool {
		id, count, end, open := state.KeyspaceID(k.GetId()), 0, "", false
		assigned, before := k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED, len(orphaned)
		s.RegionsFrom(id, "", func(r *state.Region) bool {
			if count > 0 && (open || r.Start < end) {
				w.t.Fatalf("region %d overlaps the one before", r.ID)
			}
			if assigned && !slices.ContainsFunc(r.Owners, func(o state.Owner) bool {
				m := s.Member(o.Member)
				return o.Incarnation == m.GetIncarnation() && (m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING)
			}) {
				orphaned = append(orphaned, r.ID)
			}
			count++
			end, open = r.End, r.End == ""
			for _, o := range r.Owners {
				owned[o.Member] = append(owned[o.Member], r.ID)
				shares[share{o.Member, id}]++
				if s.Member(o.Member) == nil || s.Member(o.Member).GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
					w.t.Fatalf("region %d is owned by %q, which is not joined", r.ID, o.Member)
				}
			}
			if s.Region(r.ID) != r || s.RegionAt(id, r.Start) != r {
				w.t.Fatalf("region %d is indexed wrongly", r.ID)
			}
			return true
		})
		if orphans := s.KeyspaceOrphaned(id); orphans != len(orphaned)-before {
			w.t.Fatalf("keyspace %d has the orphans %d, counted %d", id, orphaned[before:], orphans)
		}
		if count != s.KeyspaceRegionCount(id) {
			w.t.Fatalf("keyspace %d has %d regions, counted %d", id, count, s.KeyspaceRegionCount(id))
		}
		total += count
		return true
	})
	var listed []state.RegionID
	s.Orphans(func(r *state.Region) bool {
		listed = append(listed, r.ID)
		return true
	})
	slices.Sort(listed)
	slices.Sort(orphaned)
	if !slices.Equal(listed, orphaned) || s.Orphaned() != len(orphaned) {
		w.t.Fatalf("the orphans are %d, listed %d, counted %d", orphaned, listed, s.Orphaned())
	}
	if total != s.RegionCount() {
		w.t.Fatalf("%d regions, counted %d", total, s.RegionCount())
	}
	s.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		slices.Sort(owned[id])
		var listed []state.RegionID
		s.MemberRegionsAfter(id, 0, func(r *state.Region) bool {
			listed = append(listed, r.ID)
			return true
		})
		if !slices.Equal(owned[id], listed) || len(listed) != s.MemberRegionCount(id) {
			w.t.Fatalf("member %s owns %d, counted %d: %d", id, owned[id], s.MemberRegionCount(id), listed)
		}
		s.Keyspaces("", func(k *rootv1.Keyspace) bool {
			ks := state.KeyspaceID(k.GetId())
			if got, want := s.MemberKeyspaceRegionCount(id, ks), shares[share{id, ks}]; got != want {
				w.t.Fatalf("member %s owns %d regions of keyspace %d, counted %d", id, want, ks, got)
			}
			return true
		})
		return true
	})
}

// checkAuthority: eras strictly grow, what eras and the root were given is
// disjoint, and a successor inherits the fences.
func (w *world) checkAuthority(commands []*rootv1.Command, out state.Applied) {
	for i, r := range out.Results {
		if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			continue
		}
		for j, e := range commands[i].GetEvents() {
			w.note(e, r.Events[j])
		}
	}
	for _, spans := range [][]span{w.given, w.tso} {
		for i, a := range spans {
			for _, b := range spans[:i] {
				if a.from < b.to && b.from < a.to && a != b {
					w.t.Fatalf("%v and %v overlap", a, b)
				}
			}
		}
	}
}

func (w *world) note(e *rootv1.Event, r state.EventResult) {
	w.chosen[e.GetRegionPublished().GetRegion().GetId()] = true
	w.chosen[e.GetSplitPlanned().GetRightRegionId()] = true
	switch {
	case e.GetTenureClaimed() != nil && r.Tenure.GetEra() != w.era:
		if r.Tenure.GetEra() != w.era+1 {
			w.t.Fatalf("era %d follows %d", r.Tenure.GetEra(), w.era)
		}
		w.era = r.Tenure.GetEra()
		for _, s := range w.given {
			if s.era != 0 && s.to > r.Tenure.GetInherited().GetAllocId() {
				w.t.Fatalf("era %d starts at %d, but %v may have been served", w.era, r.Tenure.GetInherited().GetAllocId(), s)
			}
		}
	case e.GetFenceExtended() != nil:
		s := span{r.Window.GetEra(), r.Window.GetFrom(), r.Window.GetTo()}
		spans := &w.given
		if e.GetFenceExtended().GetMandate() == rootv1.Mandate_MANDATE_TSO {
			spans = &w.tso
		}
		if !slices.Contains(*spans, s) {
			*spans = append(*spans, s)
		}
	case e.GetTenureRetired() != nil && slices.Contains(r.Tenure.GetMandates(), rootv1.Mandate_MANDATE_ALLOC_ID):
		w.given = cut(w.given, e.GetTenureRetired().GetEra(), e.GetTenureRetired().GetConsumed().GetAllocId())
		if slices.Contains(r.Tenure.GetMandates(), rootv1.Mandate_MANDATE_TSO) {
			w.tso = cut(w.tso, e.GetTenureRetired().GetEra(), e.GetTenureRetired().GetConsumed().GetTso())
		}
	case e.GetRegionPublished() != nil && e.GetRegionPublished().GetRegion().GetId() == 0:
		// A region that was there before, under an id of a member's choice, was
		// not given.
		id := uint64(r.Region.ID)
		if s := (span{0, id - 1, id}); !w.chosen[id] && !slices.Contains(w.given, s) {
			w.given = append(w.given, s)
		}
	}
}

// cut drops what the era gave back.
func cut(spans []span, era, consumed uint64) []span {
	var kept []span
	for _, s := range spans {
		if s.era == era {
			s.to = min(s.to, consumed)
		}
		if s.from < s.to {
			kept = append(kept, s)
		}
	}
	return kept
}

// TestRestoreRefuses checks that records that no State has are refused.
func TestRestoreRefuses(t *testing.T) {
	m := bootstrapped(t)
	m.must(memberEvent("m1", 1))
	m.must(publish(&rootv1.Region{KeyspaceId: 1, StartKey: []byte("a"), EndKey: []byte("m"), Owners: []*rootv1.Owner{{MemberId: "m1"}}}).Events...)
	m.must(publish(&rootv1.Region{KeyspaceId: 1, StartKey: []byte("m")}).Events...)
	region := func(all []*rootv1.Record, n int) *rootv1.Region { return all[n].GetRegion() }
	for name, change := range map[string]func(all []*rootv1.Record) []*rootv1.Record{
		"order":    func(all []*rootv1.Record) []*rootv1.Record { slices.Reverse(all); return all },
		"twice":    func(all []*rootv1.Record) []*rootv1.Record { return append(all, all[len(all)-1]) },
		"overlap":  func(all []*rootv1.Record) []*rootv1.Record { region(all, 5).EndKey = []byte("n"); return all },
		"same id":  func(all []*rootv1.Record) []*rootv1.Record { region(all, 6).Id = region(all, 5).Id; return all },
		"no owner": func(all []*rootv1.Record) []*rootv1.Record { region(all, 5).Owners[0].MemberId = "m9"; return all },
		"no space": func(all []*rootv1.Record) []*rootv1.Record { region(all, 6).KeyspaceId = 9; return all },
		"no kind":  func(all []*rootv1.Record) []*rootv1.Record { return append(all, &rootv1.Record{}) },
		"unknown": func(all []*rootv1.Record) []*rootv1.Record {
			region(all, 5).ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
			return all
		},
		"other": func(all []*rootv1.Record) []*rootv1.Record { all[0].GetCluster().Incarnation = 2; return all },
		"unclaimed": func(all []*rootv1.Record) []*rootv1.Record {
			return slices.Insert(all, 3, &rootv1.Record{Kind: &rootv1.Record_Tenure{Tenure: &rootv1.Tenure{Era: 1}}})
		},
	} {
		var all []*rootv1.Record
		for _, r := range records(t, m.s) {
			all = append(all, proto.CloneOf(r))
		}
		if _, err := restore(m.s.Token(), change(all)); err == nil {
			t.Errorf("%s: restored", name)
		} else if !strings.HasPrefix(err.Error(), "restore ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
