package turns

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/peer"
)

func of(ctx context.Context, port int) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{Port: port}})
}

// Few are at it at a time, and one caller's crowd holds up another one for as many turns
// as there are callers, not calls.
func TestCallersHaveTurnsOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := New(2)
		var at, most, done atomic.Int64
		work := func(ctx context.Context) {
			if err := turns.Take(ctx); err != nil {
				t.Error(err)
				return
			}
			most.Store(max(most.Load(), at.Add(1)))
			time.Sleep(time.Millisecond)
			at.Add(-1)
			turns.Pass()
			done.Add(1)
		}
		greedy := of(t.Context(), 1)
		for range 1000 {
			go work(greedy)
		}
		synctest.Wait()
		begun := time.Now()
		for range 10 {
			work(of(t.Context(), 2))
		}
		if took := time.Since(begun); took > 30*time.Millisecond {
			t.Errorf("ten turns took %v beside a crowd of another caller's", took)
		}
		time.Sleep(time.Second)
		if done.Load() != 1010 || most.Load() != 2 {
			t.Errorf("%d done, %d at a time", done.Load(), most.Load())
		}
	})
}

// Whose time is over waits no longer, and takes no turn with it.
func TestTurnsOfWhoIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := New(1)
		if err := turns.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 100)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(of(t.Context(), i%3), time.Duration(i)*time.Millisecond)
			defer cancel()
			go func() {
				err := turns.Take(ctx)
				if err == nil {
					turns.Pass()
				}
				ends <- err
			}()
		}
		time.Sleep(50*time.Millisecond - time.Microsecond)
		turns.Pass()
		served := 0
		for range 100 {
			if err := <-ends; err == nil {
				served++
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if served != 50 {
			t.Errorf("%d of the 50 who still waited had a turn", served)
		}
		if err := turns.Take(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A turn whose waiter's time ends in the moment in which it comes is passed on.
func TestTurnThatComesTooLate(t *testing.T) {
	for range 1000 {
		turns := New(1)
		_ = turns.Take(t.Context())
		ctx, cancel := context.WithCancel(of(t.Context(), 1))
		got := make(chan error)
		go func() { got <- turns.Take(ctx) }()
		go cancel()
		turns.Pass()
		if <-got == nil {
			turns.Pass()
		}
		end, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		if err := turns.Take(end); err != nil {
			t.Fatal("a turn is lost")
		}
		stop()
	}
}

func BenchmarkTurn(b *testing.B) {
	turns := New(1)
	ctx := of(b.Context(), 1)
	for b.Loop() {
		if turns.Take(ctx) == nil {
			turns.Pass()
		}
	}
}
