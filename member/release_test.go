package member_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/member"
)

// plain is a Handler that can do no more than one has to.
type plain struct{ member.Handler }

// Promise 3: Release is called behind the last request of its region, also where it stands
// for Evict.
func TestPromise3ReleaseBehindTheLastRequest(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.startWith("m1", nil, func(a *app) member.Handler { return plain{a} })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		free, said := make(chan struct{}), make(chan error, 1)
		go func() {
			said <- p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				<-free
				return nil
			})
		}()
		synctest.Wait()
		b.cluster.End("m1", 17)
		time.Sleep(time.Second)
		if n := p.app.called("release 17@1.3 f3"); n > 0 {
			t.Errorf("Release was called %d times while a request runs", n)
		}
		close(free)
		<-said
	})
}

// Requests overlap everything but Acquire and Release of their own region: one of a grant
// that was lost has returned when the region is acquired again.
func TestPromise3AcquireBehindTheLastRequest(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		free, said := make(chan struct{}), make(chan error, 1)
		go func() {
			said <- p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				<-free
				return nil
			})
		}()
		synctest.Wait()
		b.cluster.End("m1", 17)
		time.Sleep(time.Second)
		b.cluster.Show("m1", own(17, 5))
		time.Sleep(time.Second)
		if n := p.app.called("acquire 17@1.5 f5"); n > 0 {
			t.Errorf("it is acquired while a request of the grant before runs")
		}
		close(free)
		<-said
	})
}
