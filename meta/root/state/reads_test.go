package state_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// TestReads: lists are in order and go on where they are told, counts count.
func TestReads(t *testing.T) {
	m := bootstrapped(t)
	for _, id := range []string{"b", "a", "c"} {
		m.must(memberEvent(id, 1))
		m.must(&rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: id, Incarnation: 1}}})
		m.must(settingsEvent("k-"+id, drawSettings[0]))
		m.must(publish(&rootv1.Region{KeyspaceId: 1, StartKey: []byte(id), EndKey: []byte(id + "m")}).Events...)
	}
	s := m.s
	var got []string
	s.Members(func(x *rootv1.Member) bool { got = append(got, "m:"+x.GetId()); return x.GetId() != "b" })
	s.Coordinators(func(x *rootv1.Coordinator) bool { got = append(got, "c:"+x.GetId()); return true })
	s.Keyspaces("k-a", func(x *rootv1.Keyspace) bool { got = append(got, x.GetName()); return true })
	s.Keyspaces("", func(x *rootv1.Keyspace) bool { got = append(got, "first:"+x.GetName()); return false })
	for _, from := range []string{"", "ax", "bb", "cz"} {
		s.RegionsFrom(1, from, func(r *state.Region) bool { got = append(got, from+">"+r.Start); return true })
	}
	want := "m:a m:b c:a c:b c:c k-b k-c first:default >a >b >c ax>b ax>c bb>b bb>c"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	counts := []int{s.MemberCount(), s.CoordinatorCount(), s.KeyspaceCount(), s.RegionCount(), s.KeyspaceRegionCount(1), s.KeyspaceRegionCount(2), s.KeyspaceRegionCount(99)}
	if !slices.Equal(counts, []int{3, 3, 4, 3, 3, 0, 0}) {
		t.Errorf("counts %v", counts)
	}
	if s.Member("x") != nil || s.Coordinator("x") != nil || s.Keyspace(99) != nil || s.KeyspaceByName("x") != nil ||
		s.Region(99) != nil || s.RegionAt(99, "a") != nil || s.Transition("x") != nil || s.PendingTransition(1) != nil {
		t.Errorf("something is there that is not")
	}
	if s.Cluster().GetClusterId() != 7 || s.Tenure() != nil || len(s.Handovers()) != 0 || len(s.PinKeys()) != 0 || s.ActiveEra() != 0 {
		t.Errorf("cluster %v, tenure %v", s.Cluster(), s.Tenure())
	}
}

func settingsEvent(name string, s *rootv1.KeyspaceSettings) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: s}}}
}

// TestSlot: a key's slot is what any FNV-1a of 64 bits says.
func TestSlot(t *testing.T) {
	for i := range 100 {
		key := []byte(fmt.Sprint("key-", i))
		h := fnv.New64a()
		h.Write(key)
		if got := rooted.Slot(1024, key); got != h.Sum64()%1024 {
			t.Errorf("slot of %q is %d, want %d", key, got, h.Sum64()%1024)
		}
	}
}

// TestLookupAllocates nothing, for keys of ordinary length.
func TestLookupAllocates(t *testing.T) {
	m := bootstrapped(t)
	m.must(publish(&rootv1.Region{KeyspaceId: 1}).Events...)
	key := strings.Repeat("k", 100)
	if n := testing.AllocsPerRun(100, func() { m.s.RegionAt(1, key) }); n != 0 {
		t.Errorf("%v allocations a lookup", n)
	}
}

// TestToken: order, text and wire.
func TestToken(t *testing.T) {
	a, b, c := state.Token{Incarnation: 1, Term: 9, Index: 5}, state.Token{Incarnation: 1, Term: 9, Index: 6}, state.Token{Incarnation: 2, Term: 1, Index: 1}
	if a.Compare(b) >= 0 || c.Compare(b) <= 0 || a.Compare(a) != 0 || a.Compare(state.Token{}) <= 0 {
		t.Errorf("the order of %s, %s, %s is wrong", a, b, c)
	}
	if state.TokenFromProto(a.Proto()) != a || state.TokenFromProto(nil) != (state.Token{}) || a.String() != "1.9.5" {
		t.Errorf("token %s comes back as %s", a, state.TokenFromProto(a.Proto()))
	}
}

// TestSettings: what is out of bounds is refused.
func TestSettings(t *testing.T) {
	good := func() *rootv1.KeyspaceSettings { s, _ := state.Preset("games"); return s }
	long := strings.Repeat("x", 5000)
	labels := map[string]string{}
	for i := range state.MaxLabels + 1 {
		labels[fmt.Sprint(i)] = ""
	}
	for name, change := range map[string]func(*rootv1.KeyspaceSettings){
		"owners":    func(s *rootv1.KeyspaceSettings) { s.Ownership.MaxOwners = state.MaxOwners + 1 },
		"owner ttl": func(s *rootv1.KeyspaceSettings) { s.Ownership.TtlMillis = state.MaxMillis + 1 },
		"interval":  func(s *rootv1.KeyspaceSettings) { s.Liveness.IntervalMillis = 1 << 63 },
		"vnodes":    func(s *rootv1.KeyspaceSettings) { s.Policy.RingVnodes = state.MaxRingVnodes + 1 },
		"rules": func(s *rootv1.KeyspaceSettings) {
			s.Policy.LabelRules = make([]*rootv1.LabelRule, state.MaxLabelRules+1)
		},
		"rule prefix":  func(s *rootv1.KeyspaceSettings) { s.Policy.LabelRules = []*rootv1.LabelRule{{KeyPrefix: []byte(long)}} },
		"rule labels":  func(s *rootv1.KeyspaceSettings) { s.Policy.LabelRules = []*rootv1.LabelRule{{Labels: labels}} },
		"hook":         func(s *rootv1.KeyspaceSettings) { s.Policy.HookUrl = long },
		"cooldown":     func(s *rootv1.KeyspaceSettings) { s.Policy.Rebalance.CooldownMillis = state.MaxMillis + 1 },
		"cadence":      func(s *rootv1.KeyspaceSettings) { s.Cadence.IdleScanMillis = state.MaxMillis + 1 },
		"labels":       func(s *rootv1.KeyspaceSettings) { s.Labels = labels },
		"label name":   func(s *rootv1.KeyspaceSettings) { s.Labels = map[string]string{"": "x"} },
		"label length": func(s *rootv1.KeyspaceSettings) { s.Labels = map[string]string{"x": long} },
		"preset":       func(s *rootv1.KeyspaceSettings) { s.Preset = long },
		"no slots":     func(s *rootv1.KeyspaceSettings) { s.Layout.Kind = &rootv1.Layout_Slots_{} },
		"no layout":    func(s *rootv1.KeyspaceSettings) { s.Layout = &rootv1.Layout{} },
	} {
		s := good()
		change(s)
		if d := state.CheckCommand(settingsCommand(s)); d.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("%s: %v", name, d)
		}
	}
	if d := state.CheckCommand(settingsCommand(good())); d != nil {
		t.Errorf("%v", d)
	}
}

// TestHandoversAreForgotten: MaxHandovers are kept, and the lineage goes on.
func TestHandoversAreForgotten(t *testing.T) {
	m := bootstrapped(t)
	for era := range uint64(state.MaxHandovers + 10) {
		m.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c", HolderIncarnation: era + 1, ExpectedEra: era, PredecessorExpired: true, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
		}}})
	}
	m.checkHash()
	all := m.s.Handovers()
	if len(all) != state.MaxHandovers || all[len(all)-1].GetEra() != m.s.Tenure().GetEra() || m.s.ActiveEra() != state.Era(state.MaxHandovers+10) {
		t.Fatalf("%d handovers, the last of era %d, the era is %d", len(all), all[len(all)-1].GetEra(), m.s.Tenure().GetEra())
	}
	for i, h := range all[1:] {
		if h.GetEra() != all[i].GetEra()+1 || h.GetLegacy().GetDigest() == all[i].GetLegacy().GetDigest() {
			t.Errorf("handover %v follows %v", h, all[i])
		}
	}
}

// TestC17C19OwnedByForks: what members own is shared by forks and changed by each on
// its own, and by what was restored.
func TestC17C19OwnedByForks(t *testing.T) {
	const regions = 500
	m := bootstrapped(t)
	m.must(memberEvent("a", 1), memberEvent("b", 1), settingsEvent("k", drawSettings[0]))
	ks := state.KeyspaceID(m.out.Results[0].Events[2].Keyspace.GetId())
	assign := func(m *machine, owner string, ids ...uint64) {
		for _, id := range ids {
			m.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
				Assignments: []*rootv1.Assignment{{RegionId: id, Owners: []*rootv1.Owner{{MemberId: owner}}}},
			}}})
		}
	}
	for i := range uint64(regions) {
		m.must(publish(&rootv1.Region{
			Id: i + 1, KeyspaceId: uint32(ks), StartKey: []byte(benchKey(int(i))), EndKey: []byte(benchKey(int(i) + 1)),
			Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
		}).Events...)
		assign(m, "a", i+1)
	}
	one, two := &machine{t: t, s: m.s.Fork()}, &machine{t: t, s: m.s.Fork()}
	back := &machine{t: t, s: restored(t, m.s)}
	assign(one, "b", 1, 300)
	assign(two, "b", 500)
	assign(m, "b", 2, 400)
	assign(back, "b", 3)
	for name, c := range map[string]struct {
		m *machine
		b []state.RegionID
	}{"first fork": {one, []state.RegionID{1, 300}}, "second fork": {two, []state.RegionID{500}}, "forked": {m, []state.RegionID{2, 400}}, "restored": {back, []state.RegionID{3}}} {
		var a, b []state.RegionID
		c.m.s.MemberRegionsAfter("a", 0, func(r *state.Region) bool { a = append(a, r.ID); return r.Owners[0].Member == "a" })
		c.m.s.MemberRegionsAfter("b", 0, func(r *state.Region) bool { b = append(b, r.ID); return true })
		if !slices.Equal(b, c.b) || len(a) != regions-len(b) || c.m.s.MemberRegionCount("a") != len(a) ||
			c.m.s.MemberKeyspaceRegionCount("a", ks) != len(a) || c.m.s.MemberKeyspaceRegionCount("b", ks) != len(b) {
			t.Errorf("%s: a owns %d, b owns %d, want %d", name, len(a), b, c.b)
		}
		c.m.s.MemberRegionsAfter("b", c.b[0], func(r *state.Region) bool {
			if r.ID == c.b[0] {
				t.Errorf("%s: region %d is not behind itself", name, r.ID)
			}
			return true
		})
	}
}

// When an entry was proposed is in the log, and in nothing that is made of it.
func TestTimeOfAnEntryIsNotJudged(t *testing.T) {
	var hashes []uint64
	for _, date := range []uint64{0, 1, 1_700_000_000_000, math.MaxUint64} {
		m := bootstrapped(t)
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{publish(&rootv1.Region{KeyspaceId: 1})}, UnixMillis: date})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.s.ApplyEntry(1, 2, data, &m.out); err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, m.s.Hash())
	}
	if n := len(slices.Compact(hashes)); n != 1 {
		t.Errorf("four times of one entry make %d states", n)
	}
}
