package balance

import (
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
)

// weigh says what each region counts: one, or its load. What is not known is estimated
// as what is in the middle; and no region is for nothing.
func (r *rounds) weigh() {
	r.weights = make([]load.Pair, len(r.regions))
	known, unknown := r.known()
	if r.out.ByCount = r.k.By == Count || len(known) == 0; r.out.ByCount {
		for i := range r.weights {
			r.weights[i] = load.Same(load.One)
		}
		r.total = load.One * load.Amount(len(r.regions))
		return
	}
	median := load.Pair{}
	if unknown > 0 {
		median = load.Same(middle(known))
	}
	var estimated load.Amount
	for i, x := range r.regions {
		r.weights[i] = x.Load
		if !x.Known {
			r.weights[i] = median
			estimated = estimated.Plus(median.Low)
		}
		r.total = r.total.Plus((r.weights[i].Low + r.weights[i].High) / 2)
	}
	r.estimated = estimated > r.total.Share(r.k.Unknown, 1000) || unknown > 0 && r.total == 0
	r.reserve()
}

// known are the loads that are known, and how many are not.
func (r *rounds) known() (known []load.Amount, unknown int) {
	if r.k.By == Count {
		return nil, 0
	}
	known = make([]load.Amount, 0, len(r.regions))
	for _, x := range r.regions {
		if x.Known {
			known = append(known, (x.Load.Low+x.Load.High)/2)
		} else {
			unknown++
		}
	}
	return known, unknown
}

func middle(of []load.Amount) load.Amount {
	slices.Sort(of)
	return of[len(of)/2]
}

// reserve has each region weigh its part of what is reserved, at least; by both, its
// part of all there is besides.
func (r *rounds) reserve() {
	n := uint64(max(len(r.regions), 1))
	can := load.Amount(0)
	for i := range r.Members {
		if r.Members[i].Takes && r.Members[i].Most == 0 {
			can = r.total
			break
		}
		can = can.Plus(r.Members[i].Most)
	}
	least := can.Share(r.k.Reserve, 1000*n)
	also := load.Amount(0)
	if r.k.By == Both {
		also = r.total.Share(1, n)
	}
	for i := range r.weights {
		w := &r.weights[i]
		w.Low, w.High = max(w.Low, least).Plus(also), max(w.High, least).Plus(also)
	}
	r.total = r.total.Plus(also.Share(n, 1))
}
