package client_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// How old a copy is counts from before the coordinator was called: what waited while
// this process, or the coordinator, stood still is as old as it is, and not as of when
// it was read.
func TestCacheDoesNotCallFreshWhatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{})
		defer end()
		begun := time.Now()
		send := func(index, sent uint64) {
			ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(index), Snapshot: index == 5, SentMillis: sent})
		}
		age := func() time.Duration { return time.Since(k.AsOf()).Round(100 * time.Millisecond) }
		synctest.Wait()
		if !k.AsOf().IsZero() {
			t.Error("an age of nothing")
		}
		send(5, 1)
		time.Sleep(10 * time.Second)
		if age() != 10*time.Second {
			t.Errorf("age %v", age())
		}
		send(6, 2001) // waited for 8 s
		if age() != 8*time.Second {
			t.Errorf("of what waited: %v", age())
		}
		send(7, 10001)
		if age() != 0 {
			t.Errorf("of what did not: %v", age())
		}
		// Nothing is from the future, and what is not told is not known.
		send(8, 1<<50)
		if k.AsOf().After(time.Now()) {
			t.Errorf("as of %v from now", time.Until(k.AsOf()))
		}
		time.Sleep(time.Second)
		send(9, 0)
		if age() != time.Second {
			t.Errorf("of what is not told: %v", age())
		}
		if k.AsOf().Before(begun) {
			t.Error("it went back")
		}
	})
}

// A coordinator that is ahead of what it has sent says nothing of that.
func TestCacheIsAsOldAsItsPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		ch := make(chan *coordinatorv1.WatchRegionsResponse)
		f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			for {
				select {
				case m := <-ch:
					if err := s.Send(m); err != nil {
						return err
					}
				case <-s.Context().Done():
					return nil
				}
			}
		}
		w.start("a", f)
		c, end := w.client(client.Config{WatchSilence: time.Hour}, "a")
		defer end()
		k := c.NewCache(client.CacheConfig{})
		done := make(chan error, 1)
		go func() { done <- k.Run(t.Context()) }()
		synctest.Wait()
		begun := time.Now()
		send := func(index, served, lag uint64) {
			m := &coordinatorv1.WatchRegionsResponse{Token: at(index), Snapshot: index == 5, Disclosure: says(served), SentMillis: uint64(time.Since(begun).Milliseconds()) + 1}
			m.Disclosure.RootLagMillis = lag
			ch <- m
			synctest.Wait()
		}
		send(5, 5, 3000)
		if age := time.Since(k.AsOf()).Round(100 * time.Millisecond); age != 3*time.Second {
			t.Errorf("with the coordinator's lag: %v", age)
		}
		time.Sleep(10 * time.Second)
		send(6, 8, 0) // 8 is the newest now
		time.Sleep(time.Second)
		send(7, 9, 0)
		if age := time.Since(k.AsOf()).Round(100 * time.Millisecond); age != 14*time.Second {
			t.Errorf("behind: %v", age)
		}
		time.Sleep(time.Second)
		send(8, 12, 0)
		if age := time.Since(k.AsOf()).Round(100 * time.Millisecond); age != 2*time.Second {
			t.Errorf("where it was two seconds ago: %v", age)
		}
	})
}
