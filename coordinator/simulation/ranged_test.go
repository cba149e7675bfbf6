package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// letters are how many ranges the keyspace of ranges has at first, each with digits keys.
	letters = 20
	digits  = 10
	// loadEvery is between two looks of an application at its own load.
	loadEvery = 40 * time.Millisecond
)

// ranged is a keyspace of ranges that the planner cuts and joins.
const ranged = "ranged"

// byLoad evens a keyspace out by load, and reshapes one of ranges.
func (s *space) byLoad(p *rootv1.Rebalance) {
	if p.By = rootv1.BalanceBy_BALANCE_BY_LOAD; s.slots == 0 {
		p.Reshape, p.QuietMillis, p.CutMillis = true, 200, 400
	}
}

// publishRanges makes the ranges.
func (r *run) publishRanges(keyspace uint32) {
	for i := range letters {
		one := &rootv1.Region{KeyspaceId: keyspace}
		if i > 0 {
			one.StartKey = letter(i)
		}
		if i < letters-1 {
			one.EndKey = letter(i + 1)
		}
		r.operate(func() *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: one}}}
		}, func(*rootv1.CommandResult) {})
	}
}

func letter(i int) []byte { return []byte{'a' + byte(i)} }

// heatOf is the load of a key: every fourth letter is hot, another one each second, and
// the others are next to nothing.
func (r *run) heatOf(l int) float64 {
	if (l+int(r.now()/time.Second))%4 == 0 {
		return 10
	}
	return 0.01
}

// loadOf is the load of a region, with the keys that have it.
func (r *run) loadOf(st *state.State, region *state.Region, touch func(key []byte, n int)) (sum float64) {
	if st.Keyspace(region.Keyspace).GetName() != ranged {
		return 1 + float64((uint64(region.ID)*7+uint64(r.now()/(300*time.Millisecond)))%5*10)
	}
	for l := range letters {
		for d := range digits {
			key := fmt.Sprint(string(letter(l)), d)
			if key < region.Start || region.End != "" && key >= region.End {
				continue
			}
			heat := r.heatOf(l)
			sum += heat
			touch([]byte(key), int(heat/5))
		}
	}
	return sum
}

// weigh has the application tell what its regions have, and count their keys.
func (w *worker) weigh() {
	if w.core != nil {
		sum, st := 0.0, w.r.rooted()
		for _, id := range slices.Sorted(maps.Keys(w.app)) {
			region := st.Region(id)
			g, no := w.core.Table().Admit(held.Request{Region: id}, w.clock)
			if region != nil && no == nil {
				x := w.r.loadOf(st, region, func(key []byte, n int) {
					for range n {
						g.Touch(key)
					}
				})
				w.core.Report(id, rooted.Stats{Load: x})
				sum += x
			}
			if no == nil && w.core.Table().Leave(g) {
				w.core.Drained(id, w.now())
			}
		}
		w.core.SetLoad(rooted.Load{Load: sum})
	}
	w.after(loadEvery, w.weigh)
}

// joined is the application that makes one region of two.
func (w *worker) joined(c *held.Call) held.Result {
	a, _ := strconv.ParseUint(c.Region.Frontier, 10, 64)
	b, _ := strconv.ParseUint(c.Right.Frontier, 10, 64)
	w.r.acts.gave(w, c.Region, max(a, b))
	return held.Result{Frontier: strconv.FormatUint(max(a, b), 10)}
}

// reshape looks at a region that was cut or joined: what comes of it goes on where its owner let go.
func (o *ownership) reshape(st *state.State, t *rootv1.Transition) {
	if t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT {
		o.counts.cut++
	} else {
		o.counts.joined++
	}
	parts := []state.RegionID{state.RegionID(t.GetRegionId()), state.RegionID(t.GetRightRegionId())}
	for _, old := range parts {
		was := o.before.Region(old)
		if was == nil || len(was.Owners) != 1 || !o.before.Acts(was.Owners[0]) {
			continue
		}
		for _, is := range parts {
			r := st.Region(is)
			if r == nil {
				continue
			}
			for _, a := range o.acts[deedKey{old, was.Epoch}] {
				if a.number > frontierOf(r) {
					o.fail("Frontier", "region %d was at %d under %s at %s; it was reshaped at %s, and region %d of it began above %d",
						old, a.number, a.member, a.epoch, st.Token(), is, frontierOf(r))
				}
			}
			if len(r.Owners) != 1 || r.Owners[0] != was.Owners[0] {
				o.fail("Placement", "region %d of %v became region %d of %v at %s", old, was.Owners, is, r.Owners, st.Token())
			}
		}
	}
}
