package server_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// authorityView shows a Holder what is rooted.
type authorityView struct{ *rootview.Follower }

func (v authorityView) Authority() (tenure.Authority, bool) {
	view := v.View()
	out := tenure.Authority{Tenure: view.State.Tenure()}
	if handovers := view.State.Handovers(); len(handovers) > 0 {
		out.Handover = handovers[len(handovers)-1]
	}
	return out, view.Loaded()
}

// late is an authority that is made after the view it needs.
type late struct{ *tenure.Holder }

// coordinator is a world with a real Tenure holder.
func coordinator(t *testing.T, root *memoryRoot, id string, incarnation uint64) (w *world, retire func()) {
	t.Helper()
	return coordinatorOf(t, root, id, incarnation, 200*time.Millisecond)
}

// coordinatorOf is coordinator with a ttl.
func coordinatorOf(t *testing.T, root *memoryRoot, id string, incarnation uint64, ttl time.Duration) (w *world, retire func()) {
	t.Helper()
	var authority late
	w = startOn(t, root, func(c *server.Config) {
		var err error
		authority.Holder, err = tenure.New(tenure.Config{
			ID: id, Incarnation: incarnation, Address: id + ":2379", TTL: ttl,
			Root: root, Views: authorityView{c.Views.(*rootview.Follower)}, Clock: clock.NewMonotonic(),
		})
		if err != nil {
			t.Fatal(err)
		}
		c.ID, c.Address, c.Incarnation, c.Authority = state.CoordinatorID(id), id+":2379", incarnation, authority
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- authority.Run(ctx) }()
	return w, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Everything real over a root in memory: ids and timestamps from the holder
// alone, and after it retired from the other one, above all before.
func TestTwoCoordinatorsOverOneRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newMemoryRoot(t)
		c1, retire1 := coordinator(t, root, "c1", 1)
		ids, stamps := until(t, c1)
		c2, retire2 := coordinator(t, root, "c2", 2)
		_, err := c2.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 1})
		if detail := refused(t, err, rootv1.Reason_REASON_TENURE_NOT_HELD); detail.GetHolderAddress() != "c1:2379" || detail.GetEra() != ids.GetEra() {
			t.Errorf("no way to the holder: %v", detail)
		}
		statuses := map[*world]bool{c1: true, c2: false}
		for w, holds := range statuses {
			w.catchUp(t)
			got, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{})
			if err != nil || got.GetServingAuthority() != holds || got.GetDisclosure().GetServedByLeader() != holds || got.GetTenure().GetHolderId() != "c1" {
				t.Errorf("status %v, %v", got, err)
			}
		}
		stream, err := c1.client.TsoStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&coordinatorv1.TsoRequest{Count: 10})
		if streamed, err := stream.Recv(); err != nil || streamed.GetFirst() < stamps.GetFirst()+stamps.GetCount() {
			t.Errorf("streamed %v behind %v, %v", streamed, stamps, err)
		} else {
			stamps = streamed
		}

		retire1()
		nextIDs, nextStamps := until(t, c2)
		if nextIDs.GetEra() <= ids.GetEra() || nextIDs.GetFirst() < ids.GetFirst()+ids.GetCount() || nextStamps.GetFirst() < stamps.GetFirst()+stamps.GetCount() {
			t.Errorf("after %v and %v came %v and %v", ids, stamps, nextIDs, nextStamps)
		}
		if _, err := c1.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 1}); reason.Of(err) != rootv1.Reason_REASON_TENURE_NOT_HELD {
			t.Errorf("the retired one: %v", err)
		}
		retire2()
		for _, w := range []*world{c1, c2} {
			w.conn.Close()
			if err := w.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A holder that is cut off from the root cannot serve, and says so.
func TestA46ACutOffHolderServesNoAuthority(t *testing.T) {
	for _, ttl := range []time.Duration{0, 200 * time.Millisecond} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := newMemoryRoot(t)
				w, retire := coordinatorOf(t, root, "c1", 1, ttl)
				until(t, w)
				w.catchUp(t)
				serving := func() bool {
					got, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{})
					if err != nil {
						t.Fatal(err)
					}
					return got.GetServingAuthority()
				}
				time.Sleep(time.Minute) // nobody asks: what is held is still good
				if !serving() {
					t.Error("an idle holder says that it does not serve")
				}
				root.setDown(true)
				time.Sleep(unavailableAfter + time.Second)
				if serving() {
					t.Error("a holder that is cut off says that it serves")
				}
				root.setDown(false)
				retire()
				w.conn.Close()
				if err := w.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Without a root, who asks for ids or timestamps is told within the deadline, short
// or long, that it is the root that does not answer: by a call and by a stream.
func TestRunsWithoutARootAreRefusedInTime(t *testing.T) {
	for _, ttl := range []time.Duration{0, 200 * time.Millisecond} {
		for deadline, want := range map[time.Duration]time.Duration{100 * time.Millisecond: 90 * time.Millisecond, 10 * time.Second: 900 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				root := newMemoryRoot(t)
				w, retire := coordinatorOf(t, root, "c1", 1, ttl)
				until(t, w)
				root.setDown(true)
				time.Sleep(2 * time.Second) // past every confirmation
				for name, ask := range map[string]func(context.Context) error{
					"AllocID": func(ctx context.Context) error {
						_, err := w.client.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: 1})
						return err
					},
					"Tso": func(ctx context.Context) error {
						_, err := w.client.Tso(ctx, &coordinatorv1.TsoRequest{Count: 1})
						return err
					},
					"AllocIDStream": func(ctx context.Context) error {
						stream, err := w.client.AllocIDStream(ctx)
						if err != nil {
							return err
						}
						_ = stream.Send(&coordinatorv1.AllocIDRequest{Count: 1})
						answer, err := stream.Recv()
						if err != nil {
							return err
						}
						return &reason.Error{Detail: answer.GetError()}
					},
					"TsoStream": func(ctx context.Context) error {
						stream, err := w.client.TsoStream(ctx)
						if err != nil {
							return err
						}
						_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
						answer, err := stream.Recv()
						if err != nil {
							return err
						}
						return &reason.Error{Detail: answer.GetError()}
					},
				} {
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					begun := time.Now()
					err := ask(ctx)
					cancel()
					if took := time.Since(begun); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || took > want {
						t.Errorf("%s within %s, ttl %s: %v after %s", name, deadline, ttl, err, took)
					}
				}
				root.setDown(false)
				retire()
				w.conn.Close()
				if err := w.stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// until asks for ids and timestamps until the coordinator holds the Tenure.
func until(t *testing.T, w *world) (*coordinatorv1.AllocIDResponse, *coordinatorv1.TsoResponse) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
		ids, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 5})
		if reason.Of(err) == rootv1.Reason_REASON_TENURE_NOT_HELD {
			continue
		}
		stamps, err2 := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 5})
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return ids, stamps
	}
	t.Fatal("nobody took the Tenure")
	return nil, nil
}
