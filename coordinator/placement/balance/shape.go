package balance

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// splitPart of a member's fair part is what a region must have to be cut, mergePart of
	// that what two must not have together to be joined.
	splitPart, mergePart = 4, 4
	// aloneFrom is how much of a region's load a key has that gets a region of its own, of
	// 1,000.
	aloneFrom = 400
	// sparse is how many regions there are for a member, on average, before any are joined.
	sparse = 4
)

// shape cuts hot ranges, joins cold ones, and takes owners off regions that cooled down.
func (r *rounds) shape() {
	r.round = Shape
	for i, x := range r.regions {
		switch own := r.owners(int32(i)); {
		case r.begun[i], r.spent(1):
		case r.k.OwnersMax > 1 && len(own) > r.k.OwnersMin && r.cool(x):
			r.drop(int32(i), rootv1.OperationReason_OPERATION_REASON_COLD)
		case r.k.Ranges && len(own) == 1 && r.k.CutKeys && r.k.MaxKeys > 0 && x.Keys > r.k.MaxKeys:
			r.cutAt(int32(i), own[0], x.Median, rootv1.OperationReason_OPERATION_REASON_LIMIT)
		case r.k.Ranges && len(own) == 1 && !r.out.ByCount:
			r.cut(int32(i), own[0])
		}
	}
	if r.k.Ranges && !r.out.ByCount {
		r.join()
	}
}

// cool reports whether a region has been cold for long enough.
func (r *rounds) cool(x *Region) bool {
	return x.CoolSince != 0 && r.Now.Sub(x.CoolSince) >= r.k.Quiet
}

// cut cuts a region that is much of what its member has too much of.
func (r *rounds) cut(region, at int32) {
	s := &r.f.seats[at]
	fair := r.f.fair(at)
	if !s.Takes || s.Stale || r.k.Relative == 0 || s.Low <= r.high(at) || r.weights[region].Low <= fair/splitPart {
		return
	}
	x := r.regions[region]
	key := x.Median
	if x.HotPermille > aloneFrom {
		if key = x.HotKey; key == x.Start {
			key += "\x00" // it is the first: what is behind it leaves
		}
	}
	r.cutAt(region, at, key, rootv1.OperationReason_OPERATION_REASON_HOT)
}

// cutAt cuts a region before a key that is inside of it.
func (r *rounds) cutAt(region, at int32, key string, why rootv1.OperationReason) {
	x := r.regions[region]
	if !r.f.seats[at].Takes || key <= x.Start || x.End != "" && key >= x.End {
		return
	}
	r.split[at] = true
	r.do(region, Step{Kind: Split, Key: key, Reason: why})
}

// join joins the coldest two neighbours, or first brings them to one member.
func (r *rounds) join() {
	if r.spent(1) || r.f.capacity == 0 || len(r.regions) <= sparse*r.f.Len() {
		return
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
		return
	}
	a, b := order[best-1], order[best]
	x, y := r.owners(a)[0], r.owners(b)[0]
	switch {
	case x == y:
		r.do(a, Step{Kind: Merge, Next: r.regions[b].ID, NextEpoch: r.regions[b].Epoch, Reason: rootv1.OperationReason_OPERATION_REASON_COLD})
		r.begun[b] = true
	case r.weights[a].High >= r.weights[b].High:
		r.bring(b, y, x)
	default:
		r.bring(a, x, y)
	}
}

// bring moves a region to the member of its neighbour, if that may take it.
func (r *rounds) bring(region, from, to int32) {
	if r.f.gettable(to) && r.f.seats[from].gives < r.k.InFlight && r.f.allowed(r.rule[region], to) {
		r.move(region, from, to, rootv1.OperationReason_OPERATION_REASON_COLD)
	}
}

// joins reports whether two regions are neighbours, and cold for long enough.
func (r *rounds) joins(a, b int32, sum load.Amount) bool {
	for _, i := range []int32{a, b} {
		x := r.regions[i]
		if r.begun[i] || !r.cool(x) || x.CutAt != 0 && r.Now.Sub(x.CutAt) < r.k.Cut || len(r.owners(i)) != 1 {
			return false
		}
		if sum >= r.f.fair(r.owners(i)[0])/(splitPart*mergePart) {
			return false
		}
	}
	if keys := r.regions[a].Keys + r.regions[b].Keys; r.k.MaxKeys > 0 && keys > r.k.MaxKeys/2 {
		return false // it would be cut again
	}
	return r.regions[a].End == r.regions[b].Start && r.rule[a] == r.rule[b]
}
