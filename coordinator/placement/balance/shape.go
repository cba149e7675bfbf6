package balance

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// shape cuts hot ranges, joins cold ones, and takes owners off regions that cooled down.
func (r *rounds) shape() {
	r.enter(Shape)
	waits := false
	for i, x := range r.regions {
		region, own := int32(i), r.owners(int32(i))
		switch {
		case r.begun[i], r.spent(1):
		case r.k.OwnersMax > 1 && len(own) > r.k.OwnersMin && r.cool(x) && r.free(region):
			if waits = waits || !r.affords(r.weights[i].High, 1); !waits {
				r.pay(region)
				r.drop(region, rootv1.OperationReason_OPERATION_REASON_COLD)
			}
		case r.k.Ranges && len(own) == 1 && r.k.CutKeys && r.k.MaxKeys > 0 && x.Keys > r.k.MaxKeys:
			r.cutAt(region, own[0], x.Median, rootv1.OperationReason_OPERATION_REASON_LIMIT)
		case r.k.Ranges && len(own) == 1 && !r.out.ByCount && r.cuttable(region, own[0]):
			if waits = waits || !r.fitsRound(0, 1); !waits && r.cut(region, own[0]) {
				r.out.Budget.last[Shape].spend(r.part(0, 1), r.Now) // nothing leaves its member by that
			}
		}
	}
	if r.k.Ranges && !r.out.ByCount {
		waits = r.join() || waits
	}
	if waits {
		r.refuse(Refusal{Why: BudgetSpent, At: r.nextRound()})
	}
}

// cool reports whether a region has been cold for long enough.
func (r *rounds) cool(x *Region) bool {
	return x.CoolSince != 0 && r.Now.Sub(x.CoolSince) >= r.k.Quiet
}

// cuttable reports whether a region is much of what its member has too much of.
func (r *rounds) cuttable(region, at int32) bool {
	s := &r.f.seats[at]
	return s.Takes && !s.Stale && r.k.Relative > 0 && s.Low > r.high(at) && r.weights[region].Low > r.f.fair(at)/splitPart
}

// cut cuts a hot region, and reports whether it can be cut.
func (r *rounds) cut(region, at int32) bool {
	x := r.regions[region]
	key := x.Median
	if x.HotPermille > aloneFrom {
		if key = x.HotKey; key == x.Start {
			key += "\x00" // it is the first: what is behind it leaves
		}
	}
	return r.cutAt(region, at, key, rootv1.OperationReason_OPERATION_REASON_HOT)
}

// cutAt cuts a region before a key, if that is inside of it.
func (r *rounds) cutAt(region, at int32, key string, why rootv1.OperationReason) bool {
	x := r.regions[region]
	if !r.f.seats[at].Takes || key <= x.Start || x.End != "" && key >= x.End {
		return false
	}
	r.split[at] = true
	r.do(region, Step{Kind: Split, Key: key, Reason: why})
	return true
}

// join joins the coldest two neighbours. It reports whether they wait for another round.
func (r *rounds) join() (waits bool) {
	if r.spent(1) || r.f.capacity == 0 {
		return false
	}
	order := make([]int32, len(r.regions))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.regions[a].Start, r.regions[b].Start), cmp.Compare(a, b))
	})
	best, least := -1, load.Amount(0)
	for n := 1; n < len(order); n++ {
		a, b := order[n-1], order[n]
		if sum := r.weights[a].High + r.weights[b].High; r.joins(a, b, sum) && (best < 0 || sum < least) {
			best, least = n, sum
		}
	}
	if best < 0 {
		return false
	}
	a, b := order[best-1], order[best]
	if !r.affords(least, 2) {
		return true
	}
	r.pay(a)
	r.pay(b)
	r.do(a, Step{Kind: Merge, Next: r.regions[b].ID, NextEpoch: r.regions[b].Epoch, Reason: rootv1.OperationReason_OPERATION_REASON_COLD})
	r.begun[b] = true
	return false
}

// joins reports whether two regions are neighbours of one member that has many, and cold for long
// enough.
func (r *rounds) joins(a, b int32, sum load.Amount) bool {
	for _, i := range []int32{a, b} {
		x := r.regions[i]
		if !r.cool(x) || x.CutAt != 0 && r.Now.Sub(x.CutAt) < r.k.Cut || len(r.owners(i)) != 1 || !r.free(i) {
			return false
		}
	}
	own := r.owners(a)[0]
	if own != r.owners(b)[0] || r.f.seats[own].Count <= leastRegions || sum >= r.f.fair(own)/(splitPart*mergePart) {
		return false
	}
	if keys := r.regions[a].Keys + r.regions[b].Keys; r.k.MaxKeys > 0 && keys > r.k.MaxKeys/2 {
		return false // it would be cut again
	}
	return r.regions[a].End == r.regions[b].Start && r.rule[a] == r.rule[b]
}
