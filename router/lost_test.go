package router_test

import (
	"errors"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// A member has lost a key by what is known of the key since, not by what was known before.
func TestP84AMemberHasLostWhatItDoesNotOwn(t *testing.T) {
	region := func(id rooted.RegionID, conf uint64, owners ...rooted.Owner) *rooted.Region {
		return &rooted.Region{ID: id, Revision: conf, Epoch: epoch(conf), Owners: owners}
	}
	token := func(index uint64) rooted.Token { return rooted.Token{Incarnation: 1, Term: 1, Index: index} }
	m1, m2 := rooted.Owner{Member: "m1", Incarnation: 1}, rooted.Owner{Member: "m2", Incarnation: 1}
	was := router.Target{Member: "m1", Incarnation: 1, Region: region(7, 5, m1), Epoch: epoch(5), Token: token(9)}
	// m2 named m1, before the root did.
	named := router.Target{Member: "m1", Region: region(7, 5, m2), Epoch: epoch(8), Token: token(9)}
	unknown := router.Target{Member: "m1", Epoch: epoch(8), Token: token(9)}
	no := func(why rootv1.Reason, index uint64) error {
		return &client.Error{Reason: why, Detail: &rootv1.ErrorDetail{Reason: why, CurrentToken: token(index).Proto()}}
	}
	const notFound, unhealthy, nobody = rootv1.Reason_REASON_NOT_FOUND, rootv1.Reason_REASON_UNHEALTHY_MEMBER, rootv1.Reason_REASON_NO_ACTIVE_MEMBERS
	for _, row := range []struct {
		name string
		was  router.Target
		now  *rooted.Region
		err  error
		want bool
	}{
		{name: "it is so", was: was, now: region(7, 5, m1)},
		{name: "it has a share", was: was, now: region(7, 6, m2, m1)},
		{name: "it has moved", was: was, now: region(7, 6, m2), want: true},
		{name: "it is granted to the member as it was started again", was: was, now: region(7, 6, rooted.Owner{Member: "m1", Incarnation: 2}), want: true},
		{name: "another region has the key", was: was, now: region(8, 6, m2), want: true},
		{name: "what is known is older", was: was, now: region(7, 4, m2)},
		{name: "the owner is dead", was: was, now: region(7, 5, m1), err: no(unhealthy, 0), want: true},
		{name: "the owner before was dead", was: was, now: region(7, 4, m2), err: no(unhealthy, 0)},
		{name: "nobody can have it", was: was, now: region(7, 6), err: no(nobody, 0), want: true},
		{name: "there is no region", was: was, err: no(notFound, 10), want: true},
		{name: "there was no region", was: was, err: no(notFound, 8)},
		{name: "there is no region, wherever that is", was: was, err: &client.Error{Reason: notFound}, want: true},
		{name: "nobody says", was: was, err: &client.Error{Reason: rootv1.Reason_REASON_ROOT_UNAVAILABLE}},
		{name: "an error", was: was, err: errors.New("no answer")},
		{name: "named by its owner before", was: named, now: region(7, 5, m2)},
		{name: "named by its owner before, of whom no more is known", was: named, now: region(7, 6), err: no(unhealthy, 0)},
		{name: "named, and given away since", was: named, now: region(7, 9, m2), want: true},
		{name: "named, and another region has the key", was: named, now: region(8, 6, m2), want: true},
		{name: "named, of a region that was not known", was: unknown, now: region(7, 5, m2)},
	} {
		if got := row.was.Lost(router.Target{Region: row.now}, row.err); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}
