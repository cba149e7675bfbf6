package state

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

var decoded = size.Int("decoded", 30_000, 1_000_000, "so many regions are decoded")

// What regionDecoder decodes is what package proto decodes, also of bytes that
// nobody wrote like that; and regions as they are written it does decode.
func TestRegionDecoder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	some := func(n int) []byte {
		b := make([]byte, rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	number := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	taken := 0
	var d regionDecoder
	for n := range *decoded {
		p := &rootv1.Region{Id: number(), KeyspaceId: uint32(number()), StartKey: some(20), EndKey: some(20), Frontier: some(3), Revision: number()}
		if rng.IntN(8) == 0 {
			p.EndKey = append(p.StartKey, 0)
		}
		if rng.IntN(8) > 0 {
			p.Epoch = &rootv1.RegionEpoch{Version: number(), ConfVersion: number()}
		}
		for range rng.IntN(10) {
			p.Owners = append(p.Owners, &rootv1.Owner{MemberId: "m1", PeerId: number(), Incarnation: number(), Role: rootv1.OwnerRole(rng.IntN(3))})
		}
		if rng.IntN(8) == 0 {
			p.Former = &rootv1.FormerOwner{MemberId: "m2", Incarnation: number(), Revision: number()}
		}
		r := &rootv1.Record{Kind: &rootv1.Record_Region{Region: p}}
		if rng.IntN(50) == 0 {
			r.Kind = &rootv1.Record_Member{Member: &rootv1.Member{Id: "m1"}}
		}
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		spoilt := n%2 == 1
		for range rng.IntN(4) {
			if spoilt && len(b) > 0 {
				b[rng.IntN(len(b))] = byte(rng.Uint32())
			}
		}
		got := d.decode(b)
		if got == nil {
			if !spoilt && len(p.GetOwners()) <= len(d.owners) && r.GetRegion() != nil {
				t.Fatalf("not decoded: %v", p)
			}
			continue
		}
		taken++
		want := &rootv1.Record{}
		if err := proto.Unmarshal(b, want); err != nil {
			t.Fatalf("% x: package proto says %v", b, err)
		}
		if err := knownRecord(want); err != nil {
			t.Fatalf("% x: decoded, and %v", b, err)
		}
		if !proto.Equal(got.Proto(), RegionFromProto(want.GetRegion()).Proto()) {
			t.Fatalf("% x:\n%v\npackage proto:\n%v", b, got, want)
		}
	}
	if taken < *decoded*3/10 {
		t.Errorf("only %d were decoded", taken)
	}
}

// The decoder knows every field of what it decodes: a new one has to be added, or
// every region would take the long way.
func TestRegionDecoderKnowsEveryField(t *testing.T) {
	for m, last := range map[protoreflect.Message]int{
		(&rootv1.Region{}).ProtoReflect(): keyRegionFormer >> 3, (&rootv1.FormerOwner{}).ProtoReflect(): keyFormerRevision >> 3, (&rootv1.RegionEpoch{}).ProtoReflect(): keyEpochConfVersion >> 3, (&rootv1.Owner{}).ProtoReflect(): keyOwnerRole >> 3,
	} {
		if n := m.Descriptor().Fields().Len(); n != last {
			t.Errorf("%s has %d fields, the decoder knows %d", m.Descriptor().Name(), n, last)
		}
	}
}
