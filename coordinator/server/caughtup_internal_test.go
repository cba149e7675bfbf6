package server

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// What a member reports before this coordinator knows of it is reported again once it is
// shown here: also when the set went out between the judging of the report and the noting
// that it was refused.
func TestReportsThatCameTooEarlyComeAgain(t *testing.T) {
	at := func(index uint64) state.Token { return state.Token{Incarnation: 1, Term: 1, Index: index} }
	set := func(index uint64, partial bool) *coordinatorv1.ShownSet {
		return &coordinatorv1.ShownSet{Token: at(index).Proto(), Partial: partial}
	}
	m := &memberStream{}
	if m.caughtUp(set(5, false)) {
		t.Error("asked again without a report that was refused")
	}
	m.missed = at(7)
	if m.caughtUp(nil) || m.caughtUp(set(9, true)) {
		t.Error("asked again before the set was shown")
	}
	if !m.caughtUp(set(9, false)) {
		t.Error("not asked again with the set")
	}
	if m.caughtUp(set(10, false)) {
		t.Error("asked twice")
	}
	m.missed = at(8) // judged by a view from before the set at 10, noted behind it
	if !m.caughtUp(nil) {
		t.Error("not asked again: the set had been sent")
	}
	m.missed = at(10)
	if m.caughtUp(nil) {
		t.Error("asked again for what the newest set does not have")
	}
}
