package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a state under construction.
type world struct {
	failer
	st *state.State
}

func newWorld(t failer) *world {
	w := &world{failer: t, st: state.New()}
	w.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "h:1"}},
	}}}})
	return w
}

// apply applies one command; all of it must apply.
func (w *world) apply(events ...*rootv1.Event) []state.EventResult {
	w.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
	if err != nil {
		w.Fatalf("marshal: %v", err)
	}
	var out state.Applied
	if err := w.st.ApplyEntry(1, w.st.Token().Index+1, data, &out); err != nil {
		w.Fatalf("apply: %v", err)
	}
	if r := out.Results[0]; r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		w.Fatalf("outcome %v: %v", r.Outcome, r.Reject)
	}
	return out.Results[0].Events
}

func (w *world) keyspace(name string, layout *rootv1.Layout) uint32 {
	return w.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: name, Settings: &rootv1.KeyspaceSettings{Layout: layout, Placement: rootv1.Placement_PLACEMENT_REPORTED},
	}}})[0].Keyspace.GetId()
}

func published(ks uint32, id uint64, start, end string, owners ...string) *rootv1.Event {
	r := &rootv1.Region{Id: id, KeyspaceId: ks, StartKey: []byte(start), EndKey: []byte(end)}
	for i, o := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: o, PeerId: uint64(i) + 1, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER})
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
}

func joined(id string, nonce uint64) *rootv1.Event { return joinedAfter(0, id, nonce) }

// joinedAfter is a registration that follows an incarnation.
func joinedAfter(follows uint64, id string, nonce uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Follows: follows, Member: &rootv1.Member{
		Id: id, Address: id + ":1", StartNonce: nonce,
	}}}}
}

func ranges() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
}

func slots(n uint32) *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: n}}}
}

func points() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
}

func refused(t failer, err error, want rootv1.Reason) {
	t.Helper()
	if reason.Of(err) != want {
		t.Fatalf("%v, want %v", err, want)
	}
}

func TestLookupInThreeLayouts(t *testing.T) {
	w := newWorld(t)
	w.apply(published(1, 100, "", "g"), published(1, 101, "g", "p"), published(1, 102, "t", ""))
	pts := w.keyspace("pts", points())
	w.apply(published(pts, 200, "a", "a\x00"), published(pts, 201, "b", "b\x00"))
	w.keyspace("slots", slots(8))
	for key, want := range map[string]state.RegionID{"": 100, "a": 100, "g": 101, "ozzz": 101, "p": 0, "t": 102, "zz": 102} {
		checkLookup(t, w.st, "default", key, want)
		checkLookup(t, w.st, "", key, want)
	}
	for key, want := range map[string]state.RegionID{"a": 200, "a\x00": 0, "b": 201, "c": 0, "": 0} {
		checkLookup(t, w.st, "pts", key, want)
	}
	hit := map[state.RegionID]int{}
	for i := range 1000 {
		key := fmt.Appendf(nil, "key-%d", i)
		r, ks, err := catalog.Lookup(w.st, "slots", key)
		if err != nil || ks.GetName() != "slots" || !r.Contains(rooted.RouteKey(slots(8), key)) {
			t.Fatalf("slot of %q: %v %v", key, r, err)
		}
		hit[r.ID]++
	}
	if len(hit) != 8 {
		t.Fatalf("%d of 8 slots were hit: %v", len(hit), hit)
	}
	_, _, err := catalog.Lookup(w.st, "none", nil)
	refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
}

func checkLookup(t *testing.T, st *state.State, keyspace, key string, want state.RegionID) {
	t.Helper()
	r, ks, err := catalog.Lookup(st, keyspace, []byte(key))
	if want == 0 {
		refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
		if ks == nil {
			t.Fatal("a miss says in which keyspace")
		}
		return
	}
	if err != nil || r.ID != want {
		t.Fatalf("Lookup(%q, %q): %v, %v; want region %d", keyspace, key, r, err, want)
	}
	if byID, err := catalog.Get(st, want); err != nil || byID != r {
		t.Fatalf("Get(%d): %v", want, err)
	}
}

// A batch answers each key as Lookup does, and lists each region once.
func TestBatchEqualsLookups(t *testing.T) {
	var b catalog.Batch
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.keyspace("slots", slots(5))
		cuts := rapid.SliceOfNDistinct(rapid.StringMatching("[a-f]{1,3}"), 2, 12, rapid.ID[string]).Draw(t, "cuts")
		for i, c := range cuts {
			end := ""
			for _, o := range cuts {
				if o > c && (end == "" || o < end) {
					end = o
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "hole") > 0 {
				w.apply(published(1, uint64(i)+1000, c, end))
			}
		}
		keyspace := rapid.SampledFrom([]string{"", "slots"}).Draw(t, "keyspace")
		var keys [][]byte
		for range rapid.IntRange(0, 200).Draw(t, "n") {
			keys = append(keys, []byte(rapid.StringMatching("[a-g]{0,4}").Draw(t, "key")))
		}
		if err := catalog.LookupBatch(w.st, keyspace, keys, &b); err != nil {
			t.Fatal(err)
		}
		seen := map[state.RegionID]bool{}
		for _, r := range b.Regions {
			if seen[r.ID] {
				t.Fatalf("region %d is listed twice", r.ID)
			}
			seen[r.ID] = true
		}
		for i, key := range keys {
			want, _, _ := catalog.Lookup(w.st, keyspace, key)
			var got *state.Region
			if at := b.RegionOfKey[i]; at > 0 {
				got = b.Regions[at-1]
				delete(seen, got.ID)
			}
			if got != want {
				t.Fatalf("key %q: %v, want %v", key, got, want)
			}
		}
		if len(seen) > 0 {
			t.Fatalf("regions of no key: %v", seen)
		}
	})
	refused(t, catalog.LookupBatch(state.New(), "none", nil, &b), rootv1.Reason_REASON_NOT_FOUND)
}

// Pages joined together are the regions that meet the interval, each once.
func TestScanPagesJoin(t *testing.T) {
	w := newWorld(t)
	other := w.keyspace("other", ranges())
	for i := range 40 {
		if i%7 == 3 {
			continue // a hole
		}
		w.apply(published(1, uint64(i)+1, fmt.Sprintf("k%02d", i), fmt.Sprintf("k%02d", i+1)))
		w.apply(published(other, uint64(i)+1001, fmt.Sprintf("k%02d", i), fmt.Sprintf("k%02d", i+1)))
	}
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.StringMatching("(k[0-4][0-9]x?)?").Draw(t, "start")
		end := rapid.StringMatching("(k[0-4][0-9]x?)?").Draw(t, "end")
		limit := rapid.Uint32Range(1, 50).Draw(t, "limit")
		if end != "" && start >= end {
			_, err := catalog.Scan(w.st, "", []byte(start), []byte(end), limit)
			refused(t, err, rootv1.Reason_REASON_INVALID_RANGE)
			return
		}
		var want, got []state.RegionID
		w.st.RegionsFrom(1, "", func(r *state.Region) bool {
			if (r.End == "" || r.End > start) && (end == "" || r.Start < end) {
				want = append(want, r.ID)
			}
			return true
		})
		for from, more := start, true; more; {
			page, err := catalog.Scan(w.st, "", []byte(from), []byte(end), limit)
			if err != nil || len(page.Regions) > int(limit) {
				t.Fatalf("page of %d: %v", len(page.Regions), err)
			}
			for _, r := range page.Regions {
				got = append(got, r.ID)
			}
			from, more = page.Next, page.Next != ""
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("[%q, %q) by %d: %v, want %v", start, end, limit, got, want)
		}
	})
	_, err := catalog.Scan(w.st, "", nil, nil, catalog.MaxScanLimit+1)
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, err = catalog.Scan(w.st, "none", nil, nil, 0)
	refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
}

func TestOwners(t *testing.T) {
	w := newWorld(t)
	w.apply(joined("m1", 1), joined("m2", 2))
	w.apply(published(1, 10, "a", "b", "m1", "m2"), published(1, 11, "b", "c", "m2", "m1"), published(1, 12, "c", "d"))
	got := catalog.Owners(w.st, w.st.Region(10), w.st.Region(11), w.st.Region(12))
	if len(got) != 2 || got[0].GetAddress() != "m1:1" || got[1].GetMemberId() != "m2" ||
		got[0].GetIncarnation() == 0 || got[0].GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
		t.Fatalf("owners %v", got)
	}
	if got := catalog.Owners(w.st, w.st.Region(12)); got != nil {
		t.Fatalf("owners of nobody's region: %v", got)
	}
	stray := &state.Region{Region: rooted.Region{Owners: []rooted.Owner{{Member: "m9"}}}}
	if got := catalog.Owners(w.st, stray); len(got) != 1 || got[0].GetMemberId() != "m9" || got[0].GetAddress() != "" {
		t.Fatalf("owner nobody knows: %v", got)
	}
	var many []*state.Region
	for i := range 100 {
		many = append(many, &state.Region{Region: rooted.Region{Owners: []rooted.Owner{{Member: rooted.MemberID(fmt.Sprint("x", i/2))}, {Member: "x7"}}}})
	}
	names := map[string]bool{}
	for _, o := range catalog.Owners(w.st, many...) {
		if names[o.GetMemberId()] {
			t.Fatalf("%s is listed twice", o.GetMemberId())
		}
		names[o.GetMemberId()] = true
	}
	if len(names) != 50 {
		t.Fatalf("%d owners", len(names))
	}
}

func TestHitsDoNotAllocate(t *testing.T) {
	w := newWorld(t)
	w.keyspace("slots", slots(8))
	w.apply(published(1, 10, "a", "b"))
	key := []byte("a" + strings.Repeat("x", 60))
	var b catalog.Batch
	keys := [][]byte{key, []byte("zz"), key}
	for name, f := range map[string]func() error{
		"ranges": func() error { _, _, err := catalog.Lookup(w.st, "", key); return err },
		"slots":  func() error { _, _, err := catalog.Lookup(w.st, "slots", key); return err },
		"id":     func() error { _, err := catalog.Get(w.st, 10); return err },
		"batch":  func() error { return catalog.LookupBatch(w.st, "", keys, &b) },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
