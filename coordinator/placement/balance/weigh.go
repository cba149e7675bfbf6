package balance

import (
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
)

// weigh says what each region counts: its load, or one where loads do not matter or
// nobody has any. What is not known is estimated as what is in the middle; and no region
// is for nothing.
func (r *rounds) weigh() {
	r.weights = make([]load.Pair, len(r.regions))
	if r.out.ByCount = r.k.By == Count || !r.weighLoads(); r.out.ByCount {
		for i := range r.weights {
			r.weights[i] = load.Same(load.One)
		}
		r.total, r.estimated = load.One*load.Amount(len(r.regions)), false
		return
	}
	r.reserve()
}

// weighLoads reports whether there are any loads.
func (r *rounds) weighLoads() bool {
	known := make([]load.Amount, 0, len(r.regions))
	for i, x := range r.regions {
		if x.Known {
			r.weights[i] = x.Load
			known = append(known, (x.Load.Low+x.Load.High)/2)
			r.total = r.total.Plus(known[len(known)-1])
		}
	}
	unknown := len(r.regions) - len(known)
	if r.total == 0 || unknown == 0 {
		return r.total > 0
	}
	median := middle(known)
	for i, x := range r.regions {
		if !x.Known {
			r.weights[i] = load.Same(median)
		}
	}
	estimated := median.Share(uint64(unknown), 1)
	r.total = r.total.Plus(estimated)
	r.estimated = estimated > r.total.Share(r.k.Unknown, 1000) || 1000*uint64(unknown) > r.k.Unknown*uint64(len(r.regions)) && median == 0
	return true
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
