package claims

import (
	"context"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// hooked is a keyspace whose hook is asked who gets regions.
type hooked struct {
	// waiting are claims that it has not been asked about; asked: a question is under way.
	waiting []*claim
	asked   bool
	// Nobody waits for it until then: it was of no use, and rests twice as long each time.
	until clock.Instant
	rest  time.Duration
}

// question is claims that a hook is asked about at once.
type question struct {
	keyspace   *rootv1.Keyspace
	claims     []*claim
	regions    []hook.Region
	candidates []propose.Candidate
	named      map[state.RegionID]state.MemberID
	err        error
}

// asks reports whether a claim waits for what a hook says of it, which it does once.
func (d *Desk) asks(v *rootview.View, c *claim) bool {
	k := v.State.Keyspace(c.at.keyspace)
	if c.asked || d.cfg.AskHook == nil || d.cfg.Strategies[k.GetName()] != nil || k.GetSettings().GetPolicy().GetStrategy() != rootv1.Strategy_STRATEGY_HOOK {
		return false
	}
	h := d.hooks[c.at.keyspace]
	if h == nil {
		d.forgetHooks()
		h = &hooked{}
		d.hooks[c.at.keyspace] = h
	}
	now := d.cfg.Clock.Now()
	if now < h.until {
		return false
	}
	c.since = now
	h.waiting = append(h.waiting, c)
	return true
}

// giveUp has claims go by the fallback that have waited for questionTime without being asked
// about: behind a slow answer to others of their keyspace, or those of too many other hooks.
func (d *Desk) giveUp(now clock.Instant) {
	for _, h := range d.hooks {
		n := 0
		for n < len(h.waiting) && h.waiting[n].since.Add(questionTime) <= now {
			h.waiting[n].asked = true
			n++
		}
		if n > 0 {
			d.wait(h.waiting[:n])
			h.waiting = h.waiting[n:]
			d.counts.unasked.Add(uint64(n))
		}
	}
}

// waitsSince is since when a claim has waited to be asked about; 0: none does.
func (d *Desk) waitsSince() (since clock.Instant) {
	for _, h := range d.hooks {
		if len(h.waiting) > 0 && (since == 0 || h.waiting[0].since < since) {
			since = h.waiting[0].since
		}
	}
	return since
}

// forgetHooks makes room when there are many.
func (d *Desk) forgetHooks() {
	if len(d.hooks) < maxFields {
		return
	}
	for id, h := range d.hooks {
		if !h.asked && len(h.waiting) == 0 {
			delete(d.hooks, id)
		}
	}
}

// ask begins a question for each hook that claims wait for, of as many as one may have.
func (d *Desk) ask(ctx context.Context, v *rootview.View, begin func(func())) {
	for id, h := range d.hooks {
		if h.asked || len(h.waiting) == 0 || d.questions >= maxQuestions {
			continue
		}
		k := v.State.Keyspace(id)
		q, bytes := &question{keyspace: k}, 0
		for len(h.waiting) > 0 && len(q.claims) < maxAsked && bytes < maxAskedBytes {
			c := h.waiting[0]
			h.waiting[0], h.waiting = nil, h.waiting[1:]
			if d.deserted(c) {
				continue
			}
			bytes += len(c.at.key)
			q.claims = append(q.claims, c)
			q.regions = append(q.regions, hook.Region{
				ID: uint64(len(q.claims)), StartKey: []byte(c.at.key), EndKey: []byte(c.at.key + "\x00"), Load: 1, Reason: "first_touch",
			})
		}
		if len(q.claims) == 0 {
			continue
		}
		if Claimable(v.State, id) == nil {
			q.candidates = d.fieldOf(v, id).claims.Candidates()
		}
		h.asked = true
		d.questions++
		begin(func() {
			ctx, cancel := context.WithTimeout(ctx, questionTime)
			defer cancel()
			q.named, q.err = d.cfg.AskHook(ctx, q.keyspace, q.regions, q.candidates)
			d.heard <- q // there is room for all of them
		})
	}
}

// told goes on from what a hook said: claims go where it named somebody, and by the fallback
// otherwise.
func (d *Desk) told(q *question) {
	d.questions--
	id := q.claims[0].at.keyspace
	h := d.hooks[id]
	h.asked = false
	ready := q.claims
	for i, c := range q.claims {
		c.asked, c.named = true, q.named[state.RegionID(q.regions[i].ID)]
	}
	if q.err == nil {
		h.rest = 0
		d.counts.asked.Add(uint64(len(q.claims)))
	} else {
		h.rest = min(max(2*h.rest, restLeast), restMost)
		h.until = d.cfg.Clock.Now().Add(h.rest)
		d.counts.unasked.Add(uint64(len(q.claims)))
		d.cfg.Logger.Warn("a hook is of no use for claims, which go by the fallback", "keyspace", q.keyspace.GetName(), "for", h.rest, "err", q.err)
		ready = append(ready, h.waiting...)
		h.waiting = nil
	}
	d.wait(ready)
}

// said is what a hook said of the claim that is given away now, as a strategy.
type said struct{ member state.MemberID }

// Propose implements propose.Strategy.
func (s *said) Propose(q *propose.Question) (int, bool) {
	if s.member == "" {
		return 0, false
	}
	return q.Index(s.member), true
}

// brought is an application's code as a strategy. What it does wrong is contained: it has no
// opinion then, until members are looked at anew.
type brought struct {
	desk     *Desk
	strategy propose.Strategy
	keyspace string
	thought  time.Duration
	over     bool
}

// Propose implements propose.Strategy.
func (b *brought) Propose(q *propose.Question) (i int, ok bool) {
	if b.over {
		return 0, false
	}
	begun := b.desk.cfg.Clock.Now()
	defer func() {
		if p := recover(); p != nil {
			i, ok, b.over = 0, false, true
			b.desk.cfg.Logger.Error("a strategy of the application panicked over a claim", "keyspace", b.keyspace, "panic", p)
		}
	}()
	i, ok = b.strategy.Propose(q)
	if b.thought += b.desk.cfg.Clock.Now().Sub(begun); b.thought > mostThought {
		b.over = true
		b.desk.cfg.Logger.Error("a strategy of the application is too slow for claims", "keyspace", b.keyspace, "took", b.thought)
	}
	return i, ok
}
