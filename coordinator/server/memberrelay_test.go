package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// standby is an authority that is somebody else's.
type standby struct{ *counter }

func (standby) Status() tenure.Status { return tenure.Status{} }

// relaying has m1 speak to a standby, of which c2, the holder, is the coordinator at "there".
func relaying(t *testing.T) (holder, between *world) {
	holder = hosting(t)
	join := &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: "c2", Address: "there", Incarnation: 1}}}
	holder.must(t, join)
	between = startOn(t, holder.root, func(c *server.Config) {
		c.ID, c.Authority = "c3", standby{&counter{}}
		c.Relay = func(ctx context.Context, address string) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
			if address != "there" {
				t.Errorf("the stream is passed on to %q", address)
			}
			return holder.client.MemberStream(ctx)
		}
	})
	return holder, between
}

// through opens a stream for c2 at a coordinator between.
func (w *world) through(t *testing.T, f *coordinatorv1.MemberFrame) *speaker {
	t.Helper()
	m := w.speak(t, "m1", w.incarnation("m1"))
	m.sequence, f.Sequence = 1, 1
	f.Hello = &coordinatorv1.MemberHello{MemberId: m.id, Incarnation: m.life, RelayTo: "c2"}
	if err := m.stream.Send(f); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRule10TheHolderConfirmsThroughAnother: what a member says reaches the holder through another
// coordinator, and the holder's confirmation comes back that way; either end ends both.
func TestRule10TheHolderConfirmsThroughAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, between := relaying(t)
		defer holder.end(t)
		defer between.end(t)
		m := between.through(t, &coordinatorv1.MemberFrame{Complete: true})
		if a := m.hear(); !a.GetConfirmed() || a.GetEra() != 7 || a.GetSequence() != 1 || !a.GetSet().GetComplete() || len(m.has) != 2 || a.GetTerms() == nil {
			t.Fatalf("the first answer is %v", a)
		}
		if holder.server.MemberStreams() != 1 || between.server.MemberStreams() != 0 {
			t.Errorf("the holder has %d streams, the one between %d", holder.server.MemberStreams(), between.server.MemberStreams())
		}
		m.say(&coordinatorv1.MemberFrame{Shown: m.shown(), Load: &coordinatorv1.MemberLoad{Load: 3, Capacity: 9}})
		if a := m.hear(); !a.GetConfirmed() || a.GetSequence() != 2 {
			t.Errorf("the second answer is %v", a)
		}
		if l := holder.server.Load("m1", m.life); l.GetCapacity() != 9 {
			t.Errorf("the holder knows of the load %v", l)
		}
		m.end()
		synctest.Wait()
		if n := holder.server.MemberStreams(); n != 0 {
			t.Errorf("the member is gone, and the holder has %d streams", n)
		}

		m = between.through(t, &coordinatorv1.MemberFrame{Complete: true})
		m.hear()
		direct := holder.hosted(t, "m1")
		if err := m.fails(); err == nil || !strings.Contains(err.Error(), "took the place of this one") {
			t.Errorf("the member is back at the holder; the way through another ends with %v", err)
		}
		direct.end()
	})
}

// Who passes a stream on is known and reaches the other; a stream is passed on once.
func TestRule10AWayThatIsNoneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, between := relaying(t)
		defer holder.end(t)
		defer between.end(t)
		for says, hello := range map[string]*coordinatorv1.MemberHello{
			`coordinator "c9" is not known here`:            {MemberId: "m1", Incarnation: 1, RelayTo: "c9"},
			`coordinator "c4" passes the stream on already`: {MemberId: "m1", Incarnation: 1, RelayTo: "c2", RelayedBy: "c4"},
			`member_id`: {Incarnation: 1, RelayTo: "c2"},
		} {
			m := between.speak(t, "m1", 1)
			if err := m.stream.Send(&coordinatorv1.MemberFrame{Sequence: 1, Hello: hello}); err != nil {
				t.Fatal(err)
			}
			if err := m.fails(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v ended with %v, want %q", hello, err, says)
			}
		}
	})
}
