package balance

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// constrain moves what is where it may not be: owners without the labels, two in one
// zone, more or fewer than there may be, members with more regions than they may have.
func (r *rounds) constrain() {
	r.round = Constrain
	refused := map[Refusal]int{}
	for i := range r.regions {
		if f := r.right(int32(i)); f.Why != 0 {
			at, known := refused[Refusal{Member: f.Member, Why: f.Why}]
			if !known {
				refused[Refusal{Member: f.Member, Why: f.Why}] = len(r.out.Refusals)
				f.Regions = 1
				r.refuse(f)
			} else if at < len(r.out.Refusals) {
				r.out.Refusals[at].Regions++
			}
		}
	}
	for at := range r.f.seats {
		r.relieve(int32(at))
	}
}

// right puts one thing about a region right.
func (r *rounds) right(region int32) Refusal {
	x, own := r.regions[region], r.owners(region)
	if x.Quarantined {
		return Refusal{Region: x.ID, Why: PoisonSuspected}
	}
	if r.begun[region] || len(own) == 0 || r.spent(1) {
		return Refusal{}
	}
	for n, at := range own {
		set := r.f.seats[at].set
		switch zone := r.f.sets[set].zone; {
		case r.rule[region] != free && !slices.Contains(r.f.allows[r.rule[region]+1], set):
		case zone != "" && slices.ContainsFunc(own[:n], func(o int32) bool { return r.f.sets[r.f.seats[o].set].zone == zone }):
		default:
			continue
		}
		return r.oust(region, at, rootv1.OperationReason_OPERATION_REASON_LABEL_RULE)
	}
	switch {
	case len(own) > r.k.OwnersMax:
		r.drop(region, rootv1.OperationReason_OPERATION_REASON_LIMIT)
	case len(own) < r.k.OwnersMin:
		return r.add(region, rootv1.OperationReason_OPERATION_REASON_LIMIT)
	}
	return Refusal{}
}

// oust moves a region off a member that may not have it.
func (r *rounds) oust(region, from int32, why rootv1.OperationReason) Refusal {
	f := Refusal{Region: r.regions[region].ID, Member: r.f.seats[from].ID}
	if r.f.seats[from].gives >= r.k.InFlight {
		f.Why = TooManyMoves
		return f
	}
	to := r.target(region, from)
	if to < 0 {
		f.Why = NoMember
		return f
	}
	r.move(region, from, to, why)
	return Refusal{}
}

// add gives a region one owner more.
func (r *rounds) add(region int32, why rootv1.OperationReason) Refusal {
	to := r.target(region)
	if to < 0 {
		return Refusal{Region: r.regions[region].ID, Why: NoMember}
	}
	r.f.book(to, r.weights[region], 1)
	r.f.seats[to].gets++
	r.do(region, Step{Kind: Add, To: r.f.seats[to].ID, Reason: why})
	return Refusal{}
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
		if f := r.oust(own[i], at, rootv1.OperationReason_OPERATION_REASON_LIMIT); f.Why != 0 {
			r.refuse(f)
			return
		}
	}
}

// widen gives regions with a saturated owner one more, once: the next follows a report
// of the new one.
func (r *rounds) widen() {
	r.round = Shape
	for i, x := range r.regions {
		if r.begun[i] || r.spent(1) || !x.Saturated || r.k.OwnersMax == 1 || len(r.owners(int32(i))) >= r.k.OwnersMax {
			continue
		}
		if f := r.add(int32(i), rootv1.OperationReason_OPERATION_REASON_SATURATED); f.Why != 0 {
			r.refuse(f)
		}
	}
}
