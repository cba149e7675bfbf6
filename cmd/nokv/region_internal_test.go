package main

import (
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A region of an incarnation that is over is not shown as its member's own.
func TestA23OwnersThatAreOver(t *testing.T) {
	const active, failed = rootv1.MemberState_MEMBER_STATE_ACTIVE, rootv1.MemberState_MEMBER_STATE_FAILED
	for _, c := range []struct {
		name  string
		owner uint64
		is    client.Member
		want  string
	}{
		{"its own", 4, client.Member{ID: "m1", Incarnation: 4, State: active}, "m1"},
		{"it began anew", 4, client.Member{ID: "m1", Incarnation: 7, State: active}, "m1 (over)"},
		{"it has failed", 4, client.Member{ID: "m1", Incarnation: 4, State: failed}, "m1 (over)"},
		{"of a reported keyspace", 0, client.Member{ID: "m1", Incarnation: 7, State: active}, "m1"},
		{"nothing is known of it", 4, client.Member{ID: "m1"}, "m1"},
	} {
		r := &rootv1.Region{Id: 7, Owners: []*rootv1.Owner{{MemberId: "m1", Incarnation: c.owner}}}
		if got := regionCells(showOwned(r, []client.Member{c.is}))[5]; got != c.want {
			t.Errorf("%s: shown as %q, want %q", c.name, got, c.want)
		}
	}
}
