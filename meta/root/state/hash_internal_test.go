package state

import (
	"bytes"
	"strings"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// TestRegionHash: the fast paths of regions, for the hash and for the wire, equal
// the definitions.
func TestRegionHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &Region{Region: rooted.Region{
			ID: RegionID(rapid.Uint64().Draw(t, "id")), Keyspace: KeyspaceID(rapid.Uint32().Draw(t, "keyspace")),
			Start: rapid.String().Draw(t, "start"), End: rapid.String().Draw(t, "end"), Frontier: rapid.String().Draw(t, "frontier"),
			Epoch:    Epoch{Version: rapid.Uint64().Draw(t, "version"), ConfVersion: rapid.Uint64().Draw(t, "conf version")},
			Revision: rapid.Uint64().Draw(t, "revision"),
		}}
		for range rapid.IntRange(0, 3).Draw(t, "owners") {
			r.Owners = append(r.Owners, Owner{
				Member: MemberID(rapid.String().Draw(t, "member")), Peer: rapid.Uint64().Draw(t, "peer"),
				Incarnation: rapid.Uint64().Draw(t, "incarnation"), Role: rootv1.OwnerRole(rapid.IntRange(0, 2).Draw(t, "role")),
			})
		}
		if rapid.Bool().Draw(t, "taken") {
			r.Former = &rooted.FormerOwner{
				Member: MemberID(rapid.String().Draw(t, "former")), Incarnation: rapid.Uint64().Draw(t, "former incarnation"),
				Revision: rapid.Uint64().Draw(t, "taken at"),
			}
		}
		if fast, slow := hashRegion(r), hashRecord(tagRegion, r.Proto()); fast != slow {
			t.Fatalf("fast %x, by definition %x: %+v", fast, slow, r)
		}
		// Long enough for lengths of one, two and three bytes.
		r.Start = strings.Repeat(r.Start, rapid.SampledFrom([]int{1, 20, 2000}).Draw(t, "times"))
		wire, err := proto.Marshal(&rootv1.Record{Kind: &rootv1.Record_Region{Region: r.Proto()}})
		if err != nil || !bytes.Equal(appendRegionRecord([]byte("x"), r), append([]byte("x"), wire...)) {
			t.Fatalf("on the wire it is not %x, %v: %+v", wire, err, r)
		}
		if back := RegionFromProto(r.Proto()); !proto.Equal(back.Proto(), r.Proto()) || !proto.Equal(r.Clone().Proto(), r.Proto()) {
			t.Fatalf("%+v comes back as %+v", r, back)
		}
	})
}

// TestRecordTags: the tags are the numbers of the record's kinds, and every
// field of every record has a canonical encoding.
func TestRecordTags(t *testing.T) {
	fields := (&rootv1.Record{}).ProtoReflect().Descriptor().Fields()
	names := map[tag]string{
		tagCluster: "cluster", tagAllocators: "allocators", tagCounters: "counters", tagTenure: "tenure", tagHandover: "handover",
		tagCoordinator: "coordinator", tagMember: "member", tagKeyspace: "keyspace", tagRegion: "region",
		tagTransition: "transition", tagPinKey: "pin_key", tagRemembered: "remembered_commands", tagRemoved: "removed_region",
		tagClusterSettings: "cluster_settings", tagGrant: "grant", tagTokenKey: "token_key", tagRevokedToken: "revoked_token", tagDeleted: "deleted_keyspace",
	}
	if fields.Len() != len(names) {
		t.Fatalf("%d kinds of records, %d tags", fields.Len(), len(names))
	}
	for i := range fields.Len() {
		if fd := fields.Get(i); names[tag(fd.Number())] != string(fd.Name()) {
			t.Errorf("tag %d is %q, the record's field %q", fd.Number(), names[tag(fd.Number())], fd.Name())
		}
	}
}

// TestEncodingDiffers: records that differ have encodings that differ, where
// fields could run into each other.
func TestEncodingDiffers(t *testing.T) {
	seen := map[uint64]string{}
	for _, r := range []*rootv1.Region{
		{StartKey: []byte("ab")},
		{StartKey: []byte("a"), EndKey: []byte("b")},
		{EndKey: []byte("ab")},
		{Owners: []*rootv1.Owner{{MemberId: "a"}, {MemberId: "b"}}},
		{Owners: []*rootv1.Owner{{MemberId: "ab"}}},
		{Owners: []*rootv1.Owner{{}}},
		{},
		{Epoch: &rootv1.RegionEpoch{Version: 1}},
		{Epoch: &rootv1.RegionEpoch{ConfVersion: 1}},
	} {
		h := hashRecord(tagRegion, r)
		if other, ok := seen[h]; ok {
			t.Errorf("%v and %s have one hash", r, other)
		}
		seen[h] = r.String()
	}
}
