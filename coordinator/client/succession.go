package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// succession is the doubt whether a coordinator that says nothing still holds
// the Tenure. A process that died breaks its connections; one that was stopped
// keeps them, and only others can tell that its era is over. They are asked one
// at a time. The client goes to the holder of a newer era and nowhere else: while
// the era that it knows is the rooted one, it stays.
type succession struct {
	c      *Client
	holder *endpoint
	asking atomic.Bool // a question is under way
	// Used by the callback of one timer.
	asked     []*endpoint // since all were
	questions int         // since the silence began
}

const (
	// guessedTTL is the ttl of the Tenure until a coordinator has told it.
	guessedTTL = 200 * time.Millisecond
	// takeoverTime is what a takeover needs beyond the ttl, and the pause behind the
	// first question; longestPause is that behind later ones, and the time a
	// question has.
	takeoverTime = 50 * time.Millisecond
	longestPause = 400 * time.Millisecond
)

// heed is told how long the silence has lasted, and asks if that is due. It
// returns when it is to be told again.
func (s *succession) heed(ctx context.Context, leave context.CancelCauseFunc, silence time.Duration) time.Duration {
	patience := time.Duration(s.c.tenureTTL.Load()) + takeoverTime
	if silence < patience {
		s.asked, s.questions = nil, 0
		return patience - silence
	}
	if e := s.other(); e != nil && s.asking.CompareAndSwap(false, true) {
		s.asked = append(s.asked, e)
		ask := func() {
			defer s.asking.Store(false)
			s.ask(ctx, leave, e)
		}
		if !s.c.spawn(ask) {
			s.asking.Store(false)
		}
	}
	pause := min(longestPause, takeoverTime<<s.questions)
	s.questions = min(s.questions+1, 8)
	return pause
}

// other is the coordinator to ask now; nil: there is no other.
func (s *succession) other() *endpoint {
	for range 2 {
		if e := s.c.ends.pick(nil, append([]*endpoint{s.holder}, s.asked...)); e != nil {
			return e
		}
		s.asked = nil
	}
	return nil
}

func (s *succession) ask(ctx context.Context, leave context.CancelCauseFunc, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, longestPause)
	defer cancel()
	s.c.count.hedges.Add(1)
	status, err := e.rpc.Status(ctx, &coordinatorv1.StatusRequest{Brief: true})
	if err != nil || s.c.accept(e, status) != nil {
		return
	}
	t := status.GetTenure()
	if t.GetEra() <= s.holder.era.Load() || t.GetRetired() || t.GetHolderAddress() == "" || t.GetHolderAddress() == s.holder.address {
		return
	}
	leave(&reason.Error{Detail: &rootv1.ErrorDetail{
		Reason: rootv1.Reason_REASON_TENURE_NOT_HELD, Message: "it says nothing, and its era is over",
		HolderId: t.GetHolderId(), HolderAddress: t.GetHolderAddress(), Era: t.GetEra(),
	}})
}
