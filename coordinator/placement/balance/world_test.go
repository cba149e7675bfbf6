package balance_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// member of a world.
type member struct {
	id            state.MemberID
	incarnation   uint64
	capacity      uint64
	most          float64
	labels        map[string]string
	takes, silent bool
	joined, rests clock.Instant
}

// region of a world: load is what it has in truth.
type region struct {
	id         state.RegionID
	start, end string
	owners     []*member
	epoch      state.Epoch
	load, told float64
	from, to   *member
	ends       clock.Instant
	moved      []clock.Instant
	saturated  bool
	cool, cut  clock.Instant
	median     string
	hot        string
	permille   uint64
	quiet      bool // nobody tells its load
}

// world is members and regions in virtual time, with nobody else: reports come every
// frame, moves end after a while.
type world struct {
	failer
	policy  balance.Policy
	now     clock.Instant
	members []*member
	regions []*region
	book    *load.Book
	budget  balance.Budget
	random  *rand.Rand
	// takes is how long a move takes; fails is which part of them fails, of 1,000.
	takes time.Duration
	fails int
	// shape is what a region's load is multiplied with at a moment.
	shape func(r *region, now clock.Instant) float64

	lives  uint64
	steps  []balance.Step
	moved  float64
	last   balance.Result
	plans  int
	frames bool
}

func newWorld(t failer, p balance.Policy) *world {
	p.Even = true
	return &world{
		failer: t, policy: p, now: clock.Instant(time.Hour), book: load.NewBook(1 << 21), random: rand.New(rand.NewPCG(1, 2)),
		takes: time.Second, frames: true,
	}
}

func (w *world) join(n int, change ...func(*member)) {
	for range n {
		w.lives++
		m := &member{id: state.MemberID(fmt.Sprintf("m%04d", len(w.members))), incarnation: w.lives, capacity: 1, takes: true}
		for _, f := range change {
			f(m)
		}
		w.members = append(w.members, m)
	}
}

// own makes regions of a member, with such loads.
func (w *world) own(m *member, loads ...float64) {
	for _, l := range loads {
		n := len(w.regions)
		r := &region{
			id: state.RegionID(n + 1), start: fmt.Sprintf("%07d", n), end: fmt.Sprintf("%07d", n+1), owners: []*member{m},
			epoch: state.Epoch{Version: 1, ConfVersion: 1}, load: l, told: -1,
		}
		w.regions = append(w.regions, r)
		w.follow(r)
	}
}

func (w *world) follow(r *region) { w.book.Follow(r.id, r.epoch, ownersOf(r), w.now) }

func ownersOf(r *region) (owners []state.Owner) {
	for _, m := range r.owners {
		owners = append(owners, state.Owner{Member: m.id, Incarnation: m.incarnation})
	}
	return owners
}

// spread makes n regions with such loads, one after the other to each member.
func (w *world) spread(loads []float64) {
	for i, l := range loads {
		w.own(w.members[i%len(w.members)], l)
	}
}

// zipf are n loads that together are sum, in any order.
func (w *world) zipf(n int, s, sum float64) []float64 {
	loads, all := make([]float64, n), 0.0
	for i := range loads {
		loads[i] = math.Pow(float64(i+1), -s)
		all += loads[i]
	}
	for i := range loads {
		loads[i] *= sum / all
	}
	w.random.Shuffle(n, func(i, j int) { loads[i], loads[j] = loads[j], loads[i] })
	return loads
}

// report has every member tell what it has.
func (w *world) report() {
	totals := map[*member]float64{}
	for _, r := range w.regions {
		l := r.load
		if w.shape != nil {
			l *= w.shape(r, w.now)
		}
		for _, m := range r.owners {
			totals[m] += l / float64(len(r.owners))
			if l != r.told && !m.silent && !r.quiet {
				w.book.Report(r.id, m.incarnation, r.epoch, l/float64(len(r.owners)), w.now)
			}
		}
		if !r.quiet && !r.owners[0].silent {
			r.told = l
		}
	}
	for _, m := range w.members {
		if !m.silent && w.frames {
			w.book.Total(m.incarnation, totals[m], m.most, w.now)
		}
	}
}

// input is what a plan is made of now.
func (w *world) input() balance.Input {
	in := balance.Input{Keyspace: 7, Policy: w.policy, Budget: w.budget, Now: w.now}
	gives, gets := map[*member]int{}, map[*member]int{}
	for _, r := range w.regions {
		if r.from != nil {
			gives[r.from]++
		}
		if r.to != nil {
			gets[r.to]++
		}
		x := balance.Region{
			ID: r.id, Epoch: r.epoch, Start: r.start, End: r.end, Owners: ownersOf(r), Busy: r.from != nil || r.to != nil,
			Saturated: r.saturated, CoolSince: r.cool, CutAt: r.cut, Median: r.median, HotKey: r.hot, HotPermille: r.permille,
		}
		if r.from != nil {
			x.From = r.from.id
		}
		if r.to != nil {
			x.To = r.to.id
		}
		x.Load, x.Known = w.book.Region(r.id, w.now)
		in.Regions = append(in.Regions, x)
	}
	for _, m := range w.members {
		b := w.book.Member(m.incarnation, w.now)
		in.Members = append(in.Members, balance.Member{
			ID: m.id, Incarnation: m.incarnation, Capacity: m.capacity, Most: b.Capacity, Labels: m.labels, Takes: m.takes,
			Stale: m.silent, Joined: m.joined, RestsUntil: m.rests, Other: b.Rest, Gives: gives[m], Gets: gets[m],
		})
	}
	return in
}

// plan makes a plan, and begins what it says.
func (w *world) plan() balance.Result {
	w.Helper()
	in := w.input()
	out := balance.Make(in)
	w.check(in, out)
	w.budget, w.last = out.Budget, out
	w.plans++
	for _, s := range out.Steps {
		w.steps = append(w.steps, s)
		w.begin(s)
	}
	return out
}

func (w *world) find(id state.MemberID) *member {
	i := slices.IndexFunc(w.members, func(m *member) bool { return m.id == id })
	if i < 0 {
		return nil
	}
	return w.members[i]
}

func (w *world) region(id state.RegionID) *region {
	i, ok := slices.BinarySearchFunc(w.regions, id, func(r *region, id state.RegionID) int { return cmp.Compare(r.id, id) })
	if !ok {
		w.Fatalf("region %d is none", id)
	}
	return w.regions[i]
}

func (w *world) begin(s balance.Step) {
	r := w.region(s.Region)
	switch s.Kind {
	case balance.Split:
		w.cutAt(r, s.Key)
	case balance.Merge:
		next := w.region(s.Next)
		r.end, r.load = next.end, r.load+next.load
		w.book.Merge(r.id, next.id, w.now)
		w.regions = slices.DeleteFunc(w.regions, func(x *region) bool { return x == next })
	default:
		r.from, r.to, r.ends = w.find(s.From), w.find(s.To), w.now.Add(w.takes)
		if s.Kind == balance.Move {
			w.moved += r.load
			r.moved = append(r.moved, w.now)
		}
	}
}

func (w *world) cutAt(r *region, key string) {
	right := &region{
		id: w.regions[len(w.regions)-1].id + 1, start: key, end: r.end, owners: slices.Clone(r.owners), told: -1,
		epoch: state.Epoch{Version: r.epoch.Version + 1, ConfVersion: r.epoch.ConfVersion}, cut: w.now,
	}
	part := 0.5
	if r.permille > 400 {
		part = float64(r.permille) / 1000
		if key > r.hot {
			part = 1 - part
		}
	}
	right.load = r.load * part
	r.load -= right.load
	r.end, r.cut, r.epoch.Version, r.told, r.median = key, w.now, r.epoch.Version+1, -1, ""
	if key > r.hot && r.permille > 0 {
		r.permille = 1000
	} else if r.permille > 400 {
		right.hot, right.permille = r.hot, 1000
		r.permille = 0
	}
	w.book.Split(r.id, right.id, uint64(part*1000), w.now)
	w.regions = append(w.regions, right)
}

// end ends the moves whose time has come.
func (w *world) end() {
	for _, r := range w.regions {
		if r.from == nil && r.to == nil || r.ends > w.now {
			continue
		}
		if w.random.IntN(1000) < w.fails {
			w.budget = w.budget.Failed(r.id, w.policy, w.now)
			r.from, r.to = nil, nil
			continue
		}
		from, to := r.from, r.to
		r.from, r.to, r.told = nil, nil, -1
		r.owners = slices.DeleteFunc(slices.Clone(r.owners), func(m *member) bool { return m == from })
		if to != nil {
			r.owners = append(r.owners, to)
		}
		r.epoch.ConfVersion++
		w.follow(r)
		if from != nil {
			w.book.Gone(r.id, from.incarnation, w.now)
		}
	}
}

// run goes on for a time, with a plan each so often.
func (w *world) run(d, every time.Duration) {
	w.Helper()
	for until := w.now.Add(d); w.now < until; {
		w.tick(time.Second)
		if w.now%clock.Instant(every) < clock.Instant(time.Second) {
			w.plan()
		}
	}
}

func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	w.end()
	w.report()
}

// settle reports for so long that averages are what they are about.
func (w *world) settle() {
	w.report()
	w.now = w.now.Add(20 * time.Minute)
	w.end()
	w.report()
}

// round is a plan, and those that go on with it, until all that they say is done,
// reported and settled.
func (w *world) round() balance.Result {
	w.Helper()
	if w.policy.Cooldown == 0 {
		w.policy.Cooldown = 10 * time.Minute
	}
	out := w.plan()
	for next := out; len(next.Steps) > 0; next = w.plan() {
		w.now = w.now.Add(w.takes)
		w.end()
		w.report()
	}
	w.settle()
	return out
}

// loads are what members have in truth.
func (w *world) loads() []float64 {
	loads := make([]float64, len(w.members))
	for i, m := range w.members {
		for _, r := range w.regions {
			if slices.Contains(r.owners, m) {
				loads[i] += r.load / float64(len(r.owners))
			}
		}
	}
	return loads
}

func (w *world) counts() []int {
	counts := map[*member]int{}
	for _, r := range w.regions {
		for _, m := range r.owners {
			counts[m]++
		}
	}
	out := make([]int, len(w.members))
	for i, m := range w.members {
		out[i] = counts[m]
	}
	return out
}

// worst is the highest load by the mean of those that take.
func (w *world) worst() float64 {
	byMember := map[*member]float64{}
	sum, capacity := 0.0, 0.0
	for _, r := range w.regions {
		for _, m := range r.owners {
			byMember[m] += r.load / float64(len(r.owners))
		}
	}
	for _, m := range w.members {
		if m.takes {
			sum, capacity = sum+byMember[m], capacity+float64(m.capacity)
		}
	}
	worst := 0.0
	for _, m := range w.members {
		if m.takes {
			worst = max(worst, byMember[m]/float64(m.capacity)/(sum/capacity))
		}
	}
	return worst
}

// excess is what those have above 1.1 of the mean that have more than 1.2.
func (w *world) excess() (excess float64) {
	loads := w.loads()
	mean := 0.0
	for _, l := range loads {
		mean += l / float64(len(loads))
	}
	for _, l := range loads {
		if l > 1.2*mean {
			excess += l - 1.1*mean
		}
	}
	return excess
}

// check fails for what no plan may say.
func (w *world) check(in balance.Input, out balance.Result) {
	w.Helper()
	gives, gets := map[state.MemberID]int{}, map[state.MemberID]int{}
	for _, m := range in.Members {
		gives[m.ID], gets[m.ID] = m.Gives, m.Gets
	}
	seen := map[state.RegionID]bool{}
	for _, s := range out.Steps {
		if seen[s.Region] {
			w.Fatalf("two steps for region %d", s.Region)
		}
		seen[s.Region] = true
		r, to := w.region(s.Region), w.find(s.To)
		if r.from != nil || r.to != nil {
			w.Fatalf("%+v is about a region under way", s)
		}
		if s.Reason == 0 {
			w.Fatalf("%+v has no reason", s)
		}
		gives[s.From]++
		gets[s.To]++
		if to == nil {
			continue
		}
		if !to.takes || slices.Contains(r.owners, to) {
			w.Fatalf("%+v goes to who may not take it", s)
		}
		if to.silent {
			w.Fatalf("%+v goes to who is silent", s)
		}
		if n := max(w.policy.InFlight, 16); w.policy.InFlight == 0 && gets[s.To] > n || s.From != "" && w.policy.InFlight == 0 && gives[s.From] > n {
			w.Fatalf("%+v: %d from there, %d to there under way", s, gives[s.From], gets[s.To])
		}
	}
}
