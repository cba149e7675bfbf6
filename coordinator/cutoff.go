package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// cutOffEvery is the time between two looks, cutOffTimeout how long the root may take.
	cutOffEvery   = time.Second
	cutOffTimeout = 2 * time.Second
)

// endCutOff asks for an end of eras whose holders reach the root and nobody whom they are
// there for.
//
// Such a holder stays confirmed, and rightly: the root alone cannot know that nobody else
// hears it. A standby alone cannot either: its own way to the holder may be all that is cut.
// So it takes more than half of the members that may serve, which asked it in the last moments, in
// vain, to be passed on to the holder, and its own probes having had no answer for
// tenure.UnheardAfter, which is also what it waits before it asks again. The majority keeps two
// halves of a network from taking the Tenure from one another in turn: the half of fewer members
// has no majority. What follows is what follows when an operator ends an era: the holder, which
// reaches the root, retires it exactly, and leaves the next one to others; coordinators that no
// member reaches do so as well. A cluster without members has no such evidence, nor has one of
// mostly replicated stores, which have no streams, or of so many coordinators that none is asked by
// more than half (a member asks three): an operator ends the era.
func (c *Coordinator) endCutOff(ctx context.Context) {
	ticker := time.NewTicker(cutOffEvery)
	defer ticker.Stop()
	var askedAt clock.Instant
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c.holder.OnLonely(c.server.MemberStreams() == 0)
		a, now := c.holder.Status(), c.clock.Now()
		if !unheard(a, now) || askedAt != 0 && now.Sub(askedAt) < tenure.UnheardAfter {
			continue
		}
		era := state.Era(a.Tenure.GetEra())
		vain, of := c.server.CutOff(era)
		if 2*vain <= of {
			continue
		}
		askedAt = now
		if err := c.endEra(ctx, a.Tenure, vain, of); err != nil {
			c.cfg.Logger.Warn("the holder is cut off from its members, and its era could not be asked to end", "era", era, "holder", a.Tenure.GetHolderId(), "err", err)
		}
	}
}

// unheard says that a standby has not heard the holder of an era that may end for too long.
func unheard(a tenure.Status, now clock.Instant) bool {
	return a.Phase == tenure.Standby && a.Tenure != nil && !a.Tenure.GetRetired() && a.Tenure.GetEnd() == nil && now.Sub(a.HeardAt) >= tenure.UnheardAfter
}

func (c *Coordinator) endEra(ctx context.Context, t *rootv1.Tenure, vain, of int) error {
	ctx, cancel := context.WithTimeout(ctx, cutOffTimeout)
	defer cancel()
	because := fmt.Sprintf("coordinator %s cannot reach the holder, nor can %d of %d members", c.cfg.ID, vain, of)
	results, err := c.root.Propose(ctx, &rootv1.Command{
		Why: because, Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: t.GetEra(), CutOff: true}}}},
	})
	if err != nil {
		return err
	}
	if d := results[0].GetError(); d != nil {
		return &reason.Error{Detail: d}
	}
	c.cfg.Logger.Warn("the holder is cut off from its members: its era was asked to end", "era", t.GetEra(), "holder", t.GetHolderId(), "why", because)
	return nil
}
