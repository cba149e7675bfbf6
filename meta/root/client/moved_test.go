package client_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A root peer that moved is found where the others say that it is, also when it
// leads, and where it was when it has moved back. Nobody answers at the address in
// the list, nobody says anything there, or another root peer has it.
func TestAPeerThatMoved(t *testing.T) {
	for name, left := range map[string]func(r *fakeRoot){
		"refused": func(*fakeRoot) {},
		"silent":  func(r *fakeRoot) { r.peers[2].deaf = true },
		"taken":   func(r *fakeRoot) { r.peers[3].at = address(2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFakeRoot(t, 3)
				r.with(func() {
					left(r)
					r.leader, r.peers[2].at = 2, "moved:1"
				})
				c := r.start(r.config())
				ask := func(calls ...func() error) {
					t.Helper()
					for _, call := range calls {
						start := time.Now()
						if err := call(); err != nil {
							t.Error(err)
						}
						if took := time.Since(start); took > 1500*time.Millisecond { // an attempt at a silent address is one second
							t.Errorf("took %v", took)
						}
					}
				}
				ctx, cancel := within(10 * time.Second)
				defer cancel()
				confirm := func() error {
					_, err := c.Confirm(ctx, &rootv1.ConfirmTenureRequest{Era: 1})
					return err
				}
				ask(confirm, func() error { _, err := c.ReadIndex(ctx); return err }, func() error { propose(ctx, t, c, 1); return nil })

				r.peers[2].stop()
				r.with(func() { r.peers[2].at, r.peers[2].deaf = "", false })
				if name == "taken" {
					r.with(func() { r.peers[3].at = "" })
				}
				r.peers[2].start()
				ask(confirm)
			})
		})
	}
}

func TestStatusOfAPeerThatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.with(func() {
			r.peers[1].names, r.peers[2].at = []uint64{1, 2, 3}, "moved:1"
			r.peers[3].down = true
		})
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		for range 2 {
			got := c.Status(ctx)
			if len(got) != 3 || got[1].Err != nil || got[1].Address != "moved:1" || got[2].Err == nil || got[2].Address != address(3) {
				t.Errorf("Status = %v", got)
			}
		}
	})
}

// A tail that is behind goes to the peer that moved, too.
func TestTailOfAPeerThatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 2)
		r.with(func() { r.leader, r.peers[1].names, r.peers[2].at = 2, []uint64{1, 2}, "moved:1" })
		c := r.start(r.config())
		ctx, cancel := within(10 * time.Second)
		defer cancel()
		c.Status(ctx) // tells
		r.peers[1].stop()
		var stream client.TailStream
		for stream == nil && ctx.Err() == nil {
			one, err := c.Tail(ctx, state.Token{})
			if err != nil {
				continue
			}
			if _, err := one.Recv(); err != nil {
				one.Close()
				continue
			}
			stream = one
		}
		if stream == nil {
			t.Fatal("no tail in 10 s")
		}
		stream.Close()
	})
}
