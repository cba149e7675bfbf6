package balance

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// constrain moves what is where it may not be: owners that may have nothing of the keyspace, or
// that are without the labels, two in one
// zone, more or fewer than there may be, members with more regions than they may have.
func (r *rounds) constrain() {
	r.round = Constrain
	for i := range r.regions {
		r.right(int32(i))
	}
	for at := range r.f.seats {
		r.relieve(int32(at))
	}
}

// right puts one thing about a region right.
func (r *rounds) right(region int32) {
	x, own := r.regions[region], r.owners(region)
	if x.Quarantined {
		r.lack(region, nobody, PoisonSuspected, 1)
		return
	}
	if r.begun[region] || len(own) == 0 || r.spent(1) {
		return
	}
	for n, at := range own {
		reason := rootv1.OperationReason_OPERATION_REASON_LABEL_RULE
		switch zone := r.f.zone(at); {
		case r.f.seats[at].Leaves:
			reason = rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED
		case r.rule[region] != free && !r.f.allowed(r.rule[region], at):
		case zone != "" && slices.ContainsFunc(own[:n], func(o int32) bool { return r.f.zone(o) == zone }):
		default:
			continue
		}
		switch why := r.oust(region, at, reason); {
		case why == NoMember && (r.f.seats[at].Leaves || len(own) > r.k.OwnersMin) && slices.ContainsFunc(own, func(o int32) bool { return o != at && r.f.seats[o].Takes }):
			r.remove(region, at, reason) // who stays has it already
		case why != 0:
			r.lack(region, at, why, 1)
		}
		return
	}
	switch {
	case len(own) > r.k.OwnersMax:
		r.drop(region, rootv1.OperationReason_OPERATION_REASON_LIMIT)
	case len(own) < r.k.OwnersMin:
		r.add(region, rootv1.OperationReason_OPERATION_REASON_LIMIT)
	}
}

// oust moves a region off a member that may not have it.
func (r *rounds) oust(region, from int32, why rootv1.OperationReason) Why {
	if r.f.seats[from].gives >= r.k.InFlight {
		return TooManyMoves
	}
	to := r.best(region, from)
	if to < 0 {
		return NoMember
	}
	r.move(region, from, to, why)
	return 0
}

// add gives a region one owner more, and reports whether it did.
func (r *rounds) add(region int32, why rootv1.OperationReason) bool {
	to := r.best(region)
	if to < 0 {
		r.lack(region, nobody, NoMember, 1)
		return false
	}
	r.f.book(to, r.weights[region], 1)
	r.f.gets(to)
	r.do(region, Step{Kind: Add, To: r.f.seats[to].ID, Reason: why})
	return true
}

// drop takes the owner off a region that has most.
func (r *rounds) drop(region int32, why rootv1.OperationReason) {
	own := r.owners(region)
	from := own[0]
	for _, at := range own[1:] {
		if r.hotter(at, from) {
			from = at
		}
	}
	r.remove(region, from, why)
}

// remove takes an owner off a region.
func (r *rounds) remove(region, from int32, why rootv1.OperationReason) {
	w := r.weights[region]
	w.Low, w.High = -w.Low, -w.High
	r.f.book(from, w, -1)
	r.f.seats[from].gives++
	r.do(region, Step{Kind: Remove, From: r.f.seats[from].ID, Reason: why})
}

// relieve moves what a member has too many of, the lightest first.
func (r *rounds) relieve(at int32) {
	s := &r.f.seats[at]
	if r.k.PerMember == 0 || s.Count <= r.k.PerMember || !s.Takes {
		return
	}
	own := r.of(at)
	for i := len(own) - 1; i >= 0 && s.Count > r.k.PerMember && !r.spent(1); i-- {
		if r.begun[own[i]] {
			continue
		}
		if why := r.oust(own[i], at, rootv1.OperationReason_OPERATION_REASON_LIMIT); why != 0 {
			r.lack(own[i], at, why, s.Count-r.k.PerMember)
			return
		}
	}
}

// widen gives regions with a saturated owner one more, once: the next follows a report
// of the new one. No owner loses anything by that: it pays for its round, and not for the hour.
func (r *rounds) widen() {
	r.enter(Shape)
	for i, x := range r.regions {
		region := int32(i)
		if r.spent(1) || !x.Saturated || r.k.OwnersMax == 1 || len(r.owners(region)) >= r.k.OwnersMax || !r.free(region) {
			continue
		}
		if !r.fitsRound(r.weights[i].High, 1) {
			r.refuse(Refusal{Region: x.ID, Why: BudgetSpent, At: r.nextRound()})
			return
		}
		if r.add(region, rootv1.OperationReason_OPERATION_REASON_SATURATED) {
			r.out.Budget.last[Shape].spend(r.part(r.weights[i].High, 1), r.Now)
			r.out.Budget.rest(x.ID, r.Now.Add(r.k.Spacing))
		}
	}
}
