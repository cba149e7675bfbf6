package state

import (
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Commands of any two kinds are about different things, also when all their fields
// are empty: no kind is left out, and none has another's number.
func TestSubjectsTellKindsApart(t *testing.T) {
	seen := map[uint32]protoreflect.Name{subject(&rootv1.Command{}): "none", subject(&rootv1.Command{Events: []*rootv1.Event{{}}}): "an empty one"}
	kinds := (&rootv1.Event{}).ProtoReflect().Descriptor().Fields()
	for i := range kinds.Len() {
		fd := kinds.Get(i)
		e := (&rootv1.Event{}).ProtoReflect()
		e.Mutable(fd)
		h := subject(&rootv1.Command{Events: []*rootv1.Event{e.Interface().(*rootv1.Event)}})
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have one digest", fd.Name(), other)
		}
		seen[h] = fd.Name()
	}
}

// What its sender named counts, and what a coordinator fills in does not.
func TestSubjects(t *testing.T) {
	region := func(id uint64, start, end string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
			Region: &rootv1.Region{Id: id, KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end)},
		}}}
	}
	join := func(id string, follows uint64, labels map[string]string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: id, StartNonce: 7, Labels: labels}, Follows: follows,
		}}}
	}
	update := func(name string, version, slots uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			Name: name, ExpectedVersion: version, Settings: &rootv1.KeyspaceSettings{Limits: &rootv1.Limits{MaxRegions: slots}},
		}}}
	}
	rotate := func(newest uint32, secret string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{ExpectedId: newest, Secret: []byte(secret)}}}
	}
	assign := func(members ...string) *rootv1.Event {
		e := &rootv1.RegionsAssigned{}
		for i, m := range members {
			e.Assignments = append(e.Assignments, &rootv1.Assignment{RegionId: uint64(i), Owners: []*rootv1.Owner{{MemberId: m}}})
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}}
	}
	of := func(events ...*rootv1.Event) uint32 { return subject(&rootv1.Command{Events: events}) }
	for name, pair := range map[string][2]uint32{
		"what is followed, labels": {of(join("m", 0, nil)), of(join("m", 9, map[string]string{"a": "b"}))},
		"version and settings":     {of(update("k", 1, 2)), of(update("k", 2, 3))},
		"the secret":               {of(rotate(1, "a")), of(rotate(1, "b"))},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: it counts", name)
		}
	}
	seen := map[uint32]int{}
	for i, h := range []uint32{
		of(region(0, "ab", "c")),
		of(region(0, "a", "bc")),
		of(region(0, "a", "c")),
		of(region(0, "a\x00", "c")),
		of(region(0, "a_long_key_1", "c")),
		of(region(0, "a_long_key_2", "c")),
		of(region(1, "a", "c")),
		of(region(0, "a", "c"), region(0, "ab", "c")),
		of(region(0, "ab", "c"), region(0, "a", "c")),
		of(join("m", 0, nil)), of(join("n", 0, nil)),
		of(update("k", 1, 0)), of(update("l", 1, 0)),
		of(rotate(1, "")), of(rotate(2, "")),
		of(assign("a", "b")), of(assign("b", "a")), of(assign("a"), assign("b")),
	} {
		if other, ok := seen[h]; ok {
			t.Errorf("commands %d and %d are told apart by nothing", other, i)
		}
		seen[h] = i
	}
	c := &rootv1.Command{Events: []*rootv1.Event{region(0, "a_long_key_1", "c"), assign("a", "b"), join("m", 0, nil)}}
	if n := testing.AllocsPerRun(100, func() { subject(c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
