package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		c.Relay = func(ctx context.Context, to *rootv1.Coordinator) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
			if to.GetId() != "c2" || to.GetAddress() != "there" {
				t.Errorf("the stream is passed on to %v", to)
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

// Who asks in vain, for long enough and until now, to be passed on to the holder of the era
// counts as cut off from it, until the holder answers.
func TestRule10WhoAsksInVainIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder := hosting(t)
		defer holder.end(t)
		holder.must(t, &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: "c2", Address: "there", Incarnation: 1}}})
		holder.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c2", HolderIncarnation: 1, HolderAddress: "there", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
		}}})
		era := state.Era(holder.root.state.Tenure().GetEra())
		reached := false
		between := startOn(t, holder.root, func(c *server.Config) {
			c.ID, c.Authority = "c3", standby{&counter{}}
			c.Relay = func(ctx context.Context, _ *rootv1.Coordinator) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
				if !reached {
					return nil, status.Error(codes.Unavailable, "no route")
				}
				return holder.client.MemberStream(ctx)
			}
		})
		defer between.end(t)
		counts := func(when string, vain, of int) {
			t.Helper()
			if v, o := between.server.CutOff(era); v != vain || o != of {
				t.Errorf("%s: %d of %d, want %d of %d", when, v, o, vain, of)
			}
		}
		ask := func() {
			t.Helper()
			if err := between.through(t, &coordinatorv1.MemberFrame{Complete: true}).fails(); err == nil || !strings.Contains(err.Error(), "cannot be reached from here either") {
				t.Fatal(err)
			}
		}
		counts("nobody asked", 0, 0)
		ask()
		counts("once", 0, 0)
		for range 2 {
			time.Sleep(6 * time.Second)
			ask()
		}
		counts("for 12 s", 1, 2)
		if v, _ := between.server.CutOff(era + 1); v != 0 {
			t.Errorf("%d count for another era", v)
		}
		counts("what is of another era is forgotten", 0, 0)
		for range 3 {
			ask()
			time.Sleep(6 * time.Second)
		}
		counts("again", 1, 2)
		time.Sleep(7 * time.Second)
		counts("not lately", 0, 0)
		for range 3 {
			ask()
			time.Sleep(6 * time.Second)
		}
		reached = true
		m := between.through(t, &coordinatorv1.MemberFrame{Complete: true})
		m.hear()
		counts("the holder answers", 0, 0)
		m.end()
	})
}

func cutOffWorlds(t *testing.T, relay func(ctx context.Context, holder *world) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error)) (holder, between *world, era state.Era) {
	holder = hosting(t)
	holder.must(t, &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: "c2", Address: "there", Incarnation: 1}}})
	holder.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c2", HolderIncarnation: 1, HolderAddress: "there", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
	}}})
	era = state.Era(holder.root.state.Tenure().GetEra())
	between = startOn(t, holder.root, func(c *server.Config) {
		c.ID, c.Authority = "c3", standby{&counter{}}
		c.Relay = func(ctx context.Context, _ *rootv1.Coordinator) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
			return relay(ctx, holder)
		}
	})
	return
}

// A store asks nobody to pass anything on, and counts as one that reaches the holder.
func TestRule10AStoreIsNoMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, between, era := cutOffWorlds(t, func(context.Context, *world) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
			return nil, status.Error(codes.Unavailable, "no route")
		})
		defer holder.end(t)
		defer between.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := between.client.StoreHeartbeat(ctx, &coordinatorv1.StoreHeartbeatRequest{MemberId: "m2", Incarnation: between.incarnation("m2"), Sequence: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		for range 3 {
			_ = between.through(t, &coordinatorv1.MemberFrame{Complete: true}).fails()
			time.Sleep(6 * time.Second)
		}
		if vain, of := between.server.CutOff(era); 2*vain > of {
			t.Errorf("%d of %d: m2 beat here an hour ago, and at the holder since", vain, of)
		}
	})
}

// A member that changes its mind at once, as it found another way, while the connection to the
// holder is being made, has not asked in vain.
func TestRule10AChangeOfMindIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, between, era := cutOffWorlds(t, func(ctx context.Context, _ *world) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
			<-ctx.Done() // as gRPC does while it connects
			return nil, status.FromContextError(ctx.Err()).Err()
		})
		defer holder.end(t)
		defer between.end(t)
		for range 4 {
			m := between.through(t, &coordinatorv1.MemberFrame{Complete: true})
			time.Sleep(10 * time.Millisecond)
			m.end()
			time.Sleep(5 * time.Second)
		}
		if vain, of := between.server.CutOff(era); vain > 0 {
			t.Errorf("%d of %d: it was here twice for 10 ms", vain, of)
		}
	})
}
