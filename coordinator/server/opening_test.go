package server

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"google.golang.org/grpc/peer"
)

// Whoever waits for the time to be sent more of a snapshot goes when its reader or the
// coordinator does, and what was sent before is what is waited for.
func TestOpeningWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o opening
		o.watches.Store(1)
		of := func(ctx context.Context) *watch {
			return &watch{live: &live{ctx: ctx, end: make(chan struct{})}}
		}
		begun := time.Now()
		if err := o.wait(of(t.Context()), 100<<20); err != nil || time.Since(begun) > 0 {
			t.Fatalf("the first waited for %v: %v", time.Since(begun), err)
		}
		if err := o.wait(of(t.Context()), 0); err != nil || time.Since(begun) > 0 {
			t.Fatalf("one that opens alone waited for %v: %v", time.Since(begun), err)
		}
		o.watches.Store(100)
		if err := o.wait(of(t.Context()), 100<<20); err != nil || time.Since(begun) > 0 {
			t.Fatalf("the first of many waited for %v: %v", time.Since(begun), err)
		}
		gone, hangUp := context.WithCancel(t.Context())
		stopped, errStop := of(t.Context()), errors.New("stop")
		ends := make(chan error)
		wait := func(w *watch) { ends <- o.wait(w, 0) }
		go wait(of(gone))
		synctest.Wait()
		hangUp()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("whose reader hung up: %v", err)
		}
		go wait(stopped)
		synctest.Wait()
		stopped.live.cut(errStop)
		if err := <-ends; !errors.Is(err, errStop) {
			t.Errorf("at the stop: %v", err)
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("they went after %v", took)
		}
		go wait(of(t.Context()))
		if err, took := <-ends, time.Since(begun); err != nil || took < snapshotShare*costOf(100<<20) || took > 2*time.Second {
			t.Errorf("behind 100 MB after %v: %v", took, err)
		}
	})
}

// What a crowd that opens has been given and does not read is bounded for each caller, in
// bytes, leaves others theirs, and comes back when it is read or the watch ends.
func TestPartsOfSnapshotsFitInTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o opening
		replies := budget.New(128 << 20).Holder(budget.Replies)
		open := func(c string, port int) *watch {
			w := &watch{live: &live{ctx: peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{Port: port}}), end: make(chan struct{})}}
			w.out.open(replies.Account(c))
			return w
		}
		const share = 128 << 20 / 16 * 3 / 8 * 5 // of what budget.Replies has for them
		var crowd []*watch
		var given atomic.Int64
		for range 2000 {
			w := open("greedy", 1)
			crowd = append(crowd, w)
			go func() {
				if o.wait(w, 0) == nil {
					given.Add(1)
				}
			}()
		}
		time.Sleep(time.Second)
		if n := int(given.Load()); n < share/4/partBytes || n > share/2/partBytes+1 {
			t.Errorf("one caller has %d parts of %d bytes, and its share is half of %d", n, partBytes, share)
		}
		other := open("other", 2)
		for range 50 {
			if err := o.wait(other, 0); err != nil {
				t.Fatal(err)
			}
		}
		before := given.Load()
		rest := slices.DeleteFunc(crowd, func(w *watch) bool {
			w.out.mu.Lock()
			lent := w.out.lent
			w.out.mu.Unlock()
			if lent > 0 {
				w.live.cut(errors.New("gone"))
				w.out.close()
				return true
			}
			return false
		})
		time.Sleep(time.Second)
		if given.Load() == before {
			t.Error("nobody gets what ended watches had")
		}
		for range 50 {
			other.out.giveBack(partBytes)
		}
		other.out.close()
		for _, w := range rest {
			w.live.cut(errors.New("gone"))
			w.out.close()
		}
		synctest.Wait()
		for _, c := range []string{"greedy", "other"} {
			a := replies.Account(c)
			if used := a.Used(); used != 0 {
				t.Errorf("%s: %d bytes are taken for ever", c, used)
			}
			a.Close()
		}
	})
}
