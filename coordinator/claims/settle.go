package claims

import (
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settle goes on from what became of a call.
func (d *Desk) settle(b *batch) {
	for i, c := range b.claims {
		if b.results == nil {
			d.lost(b, c)
			continue
		}
		d.result(c, b.results[i])
	}
}

// lost answers a claim of which nobody knows what became.
func (d *Desk) lost(b *batch, c *claim) {
	d.unbook(c)
	if e := reason.From(b.why); e != nil && e.GetReason() != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
		d.finish(c, Answer{Err: &reason.Error{Detail: e}})
		return
	}
	d.finish(c, Answer{Err: reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the root did not answer (%v): claim it again, that is safe", b.why)})
}

// unbook has what was given for a claim not count any more.
func (d *Desk) unbook(c *claim) {
	c.grant.over = true
	if f := d.fields[c.at.keyspace]; f != nil {
		f.stale = true
	}
}

// result goes on from what became of the command of a claim.
func (d *Desk) result(c *claim, result *rootv1.CommandResult) {
	c.after = state.TokenFromProto(result.GetToken())
	var made *rootv1.Region
	if events := result.GetEvents(); len(events) > 0 {
		made = events[0].GetRegion()
	}
	refused := result.GetError()
	switch result.GetOutcome() {
	case rootv1.Outcome_OUTCOME_APPLIED:
		c.made, c.grant.at = true, c.after
		d.found(c, made)
	case rootv1.Outcome_OUTCOME_ALREADY_APPLIED:
		c.grant.at = c.after
		d.found(c, made)
	default:
		d.unbook(c)
		switch refused.GetReason() {
		case rootv1.Reason_REASON_RANGE_OVERLAP:
			d.found(c, refused.GetRegion())
		case rootv1.Reason_REASON_ERA_STALE:
			d.finish(c, Answer{Err: reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "the era in which it was claimed is over")})
		case rootv1.Reason_REASON_RANGE_CHANGE_PENDING, rootv1.Reason_REASON_MEMBER_RETIRED, rootv1.Reason_REASON_MEMBER_DRAINING, rootv1.Reason_REASON_UNHEALTHY_MEMBER,
			rootv1.Reason_REASON_MEMBER_NOT_FOUND, rootv1.Reason_REASON_CAPACITY_EXCEEDED, rootv1.Reason_REASON_PERMISSION_DENIED:
			if c.tries++; c.tries < maxTries {
				d.later = append(d.later, c) // by what the view knows then of members, of limits, and of grants
				return
			}
			fallthrough
		default:
			d.finish(c, Answer{Err: &reason.Error{Detail: refused}})
		}
	}
}

// found answers a claim with its region, or by a view that has it: it may have been left out
// of a long answer.
func (d *Desk) found(c *claim, r *rootv1.Region) {
	if string(r.GetStartKey()) == c.at.key {
		d.finish(c, Answer{Region: r, Token: c.after, Made: c.made})
		return
	}
	if c.tries++; c.tries >= maxTries { // somebody removes it as often as it is made
		d.finish(c, Answer{Err: reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the region was made, and is gone: claim it again")})
		return
	}
	d.later = append(d.later, c)
}

// again looks at claims whose positions a view has reached.
func (d *Desk) again(v *rootview.View) {
	kept := d.later[:0]
	var ready []*claim
	for _, c := range d.later {
		switch {
		case c.after.Compare(v.Token) > 0:
			if !d.deserted(c) {
				kept = append(kept, c)
			}
		default:
			ready = append(ready, c)
		}
	}
	clear(d.later[len(kept):])
	d.later = kept
	if len(ready) == 0 {
		return
	}
	d.counts.again.Add(uint64(len(ready)))
	for _, c := range ready {
		c.after = state.Token{}
	}
	d.wait(ready)
}
