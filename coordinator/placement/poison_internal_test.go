package placement

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A member that the root forgets is not kept here either: pods have a new name each time.
func TestScenario23MembersThatAreForgottenAreNotKept(t *testing.T) {
	x, st := NewPoison(PoisonTime), state.New()
	for n := range uint64(1000) {
		m := &rootv1.Member{Id: fmt.Sprintf("pod-%d", n), Incarnation: n + 1, State: rootv1.MemberState_MEMBER_STATE_REMOVED}
		x.Follow(st, []state.Change{{Kind: state.ChangeMember, Member: m}}, 0)
		if len(x.lives) != 1 {
			t.Fatalf("%d members are kept, of which one is there", len(x.lives))
		}
		x.Follow(st, []state.Change{{Kind: state.ChangeMember, Member: m, Removed: true}}, 0)
	}
}
