package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var denied = reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, "operator/root may not call MemberStream: members for what is their own may")

// Whose certificate lets it register and have no stream is told at once, and so is who waits
// for it to drain.
func TestRefusedForGoodEnds(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		for _, k := range b.coordinators {
			k.Refuse(denied)
		}
		begin := time.Now()
		p := b.start("m1", nil)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		drained := p.Drain(ctx, "the process ends")
		if drained == nil || errors.Is(drained, context.DeadlineExceeded) {
			t.Errorf("it drained with %v", drained)
		}
		p.stop() // the one that waits for ever ends without a word
		<-p.ended
		if !errors.Is(p.result, client.ErrPermissionDenied) || !strings.Contains(p.result.Error(), "needs a certificate of the role member with the name m1") {
			t.Errorf("it ended with %v", p.result)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

// One coordinator that refuses ends nobody whom another one serves.
func TestOneThatRefusesEndsNobody(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		b.coordinators[1].Refuse(denied)
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		time.Sleep(10 * time.Second)
		if err := p.ask(17, 3); err != nil {
			t.Error(err)
		}
	})
}
