package assigner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A coordinator that starts reads what happened at times that it does not know: nobody is
// damped for what failed long ago, and everything gets an owner at once.
func TestWhatIsReadAgainIsNotHappeningNow(t *testing.T) {
	playBehind(t, func(w *world) {
		w.root.piece = 1
		settings, _ := state.Preset("games")
		w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
		join := func(id state.MemberID, nonce uint64) {
			w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
				Member: &rootv1.Member{Id: string(id), Address: string(id) + ":1", StartNonce: nonce}, Follows: w.now().Member(id).GetIncarnation(),
			}}})
		}
		for i := range 5 {
			for _, id := range []state.MemberID{"m1", "m2"} {
				join(id, uint64(i)+1)
				w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
					MemberId: string(id), Incarnation: w.lives(id), State: rootv1.MemberState_MEMBER_STATE_FAILED,
				}}})
			}
		}
		join("m1", 9)
		join("m2", 9)
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 2, StartKey: []byte("p")}}}})
	}, func(t *testing.T, w *world) {
		time.Sleep(time.Second) // the log is read
		w.open("m1")
		w.open("m2")
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2")
		for _, id := range []state.MemberID{"m1", "m2"} {
			if s := w.a.Standing(id); s.DampedUntil != 0 {
				t.Errorf("%s is damped: %+v", id, s)
			}
		}
		if n := w.now().Orphaned(); n != 0 {
			t.Errorf("%d regions have no owner", n)
		}
		synctest.Wait()
	})
}
