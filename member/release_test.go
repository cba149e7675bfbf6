package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
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

// However many regions are not released, and however often that is tried, it is a line a minute.
func TestReleasesThatFailDoNotFillTheLog(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		var log written.Text
		p := b.start("m1", func(cfg *member.Config) {
			cfg.Logger = log.Logger(hclog.Warn)
		})
		const regions = 50
		for id := range uint64(regions) {
			b.cluster.Show("m1", own(id+100, 3))
		}
		for id := range uint64(regions) {
			b.awaitPhase("m1", id+100, serving)
		}
		p.app.mu.Lock()
		p.app.do = func(_ context.Context, call string, _ member.Region) error {
			if call == "release" {
				return errors.New("the disk is full")
			}
			return nil
		}
		p.app.mu.Unlock()
		for id := range uint64(regions) {
			b.cluster.Show("m1", moving(id+100, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		}
		time.Sleep(3*time.Minute + 30*time.Second)
		p.app.mu.Lock()
		p.app.do = nil
		p.app.mu.Unlock()
		synctest.Wait()
		if n := strings.Count(log.String(), "a call to the application failed"); n != 4 || strings.Count(log.String(), " more=") != 3 {
			t.Errorf("%d lines in three minutes, want 4, 3 of them with a number:\n%.2000s", n, log.String())
		}
	})
}
