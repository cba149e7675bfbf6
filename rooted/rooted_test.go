package rooted_test

import (
	"encoding/json"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// What came from the wire and is written again is the same, also from a clone.
func TestRegionsThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := &rootv1.Region{
			Id: rapid.Uint64().Draw(t, "id"), KeyspaceId: rapid.Uint32().Draw(t, "keyspace"), Revision: rapid.Uint64().Draw(t, "revision"),
			Epoch: &rootv1.RegionEpoch{Version: rapid.Uint64().Draw(t, "version"), ConfVersion: rapid.Uint64().Draw(t, "conf")},
		}
		for _, key := range []*[]byte{&sent.StartKey, &sent.EndKey, &sent.Frontier} {
			*key = append(*key, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "key")...)
		}
		for range rapid.IntRange(0, 3).Draw(t, "owners") {
			sent.Owners = append(sent.Owners, &rootv1.Owner{
				MemberId: rapid.String().Draw(t, "member"), PeerId: rapid.Uint64().Draw(t, "peer"),
				Incarnation: rapid.Uint64().Draw(t, "incarnation"), Role: rootv1.OwnerRole(rapid.IntRange(0, 2).Draw(t, "role")),
			})
		}
		r := rooted.RegionFromProto(sent)
		if !proto.Equal(r.Proto(), sent) {
			t.Fatalf("%v came back as %v", sent, r.Proto())
		}
		c := r.Clone()
		if !proto.Equal(c.Proto(), sent) {
			t.Fatalf("%v was cloned as %v", sent, c.Proto())
		}
		for i := range c.Owners {
			c.Owners[i].Peer++
		}
		if !proto.Equal(r.Proto(), sent) {
			t.Fatal("a change of the clone's owners is one of the region's")
		}
	})
	if rooted.RegionFromProto(nil) != nil || (*rooted.Region)(nil).Proto() != nil {
		t.Fatal("nil is not nil")
	}
}

// A token is read as it is printed, also from JSON; anything else is refused.
func TestTokensThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := rooted.Token{Incarnation: rapid.Uint64().Draw(t, "incarnation"), Term: rapid.Uint64().Draw(t, "term"), Index: rapid.Uint64().Draw(t, "index")}
		if got, err := rooted.ParseToken(sent.String()); got != sent || err != nil {
			t.Fatalf("%s came back as %s, %v", sent, got, err)
		}
		text, err := json.Marshal(sent)
		var got rooted.Token
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if got != sent || err != nil || string(text) != `"`+sent.String()+`"` {
			t.Fatalf("%s came back as %s by %s: %v", sent, got, text, err)
		}
	})
	for _, wrong := range []string{"", "1", "1.2", "1/2/3", "1.2.3.4", "1.2.-3", "1.2.x", "1.2.18446744073709551616"} {
		if got, err := rooted.ParseToken(wrong); err == nil {
			t.Errorf("%q is read as %s", wrong, got)
		}
	}
}
