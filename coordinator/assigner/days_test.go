package assigner_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

// frameEvery is between two frames of a member in days of load.
const frameEvery = 10 * time.Second

// daily is what happens in days of load.
type daily struct {
	*weather
	keyspace state.KeyspaceID
	base     map[state.RegionID]float64
	crowds   map[state.RegionID]bool
	rolling  []*host
	flapping *host
	flaps    clock.Instant
	deaths   int
	// worst is the highest load by the mean at each minute, total the sum of all loads then.
	worst []float64
	total float64
}

func newDaily(t testing.TB, seed uint64, members, regions int) *daily {
	d := &daily{weather: newWeather(t, seed, members), base: map[state.RegionID]float64{}, crowds: map[state.RegionID]bool{}}
	s := evened(uint32(regions), &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200, IntervalMillis: 30_000, CooldownMillis: 60_000})
	s.Liveness.IntervalMillis, s.Liveness.SuspectAfterMillis, s.Liveness.DeadAfterMillis = 10_000, 30_000, 60_000
	k := d.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}})
	d.keyspace = state.KeyspaceID(k.GetEvents()[0].GetKeyspace().GetId())
	var ids []state.RegionID
	d.st.RegionsFrom(d.keyspace, "", func(r *state.Region) bool {
		ids = append(ids, r.ID)
		return true
	})
	d.random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for i, id := range ids {
		d.base[id] = 100 * math.Pow(float64(i+1), -0.6)
	}
	d.load = func(r *state.Region) float64 {
		x := d.base[r.ID] * d.dayOf(r.ID)
		if d.crowds[r.ID] {
			x *= 8
		}
		return x
	}
	return d
}

// dayOf is how much of its load a region has at this hour, with some noise.
func (d *daily) dayOf(id state.RegionID) float64 {
	hour := float64(d.now()) / float64(time.Hour)
	noise := uint64(d.now()/clock.Instant(frameEvery))*0x9e3779b97f4a7c15 ^ uint64(id)*0xbf58476d1ce4e5b9
	noise ^= noise >> 31
	return (1 + 0.5*math.Sin(2*math.Pi*(hour/24+float64(uint64(id)%24)/96))) * (0.93 + 0.14*float64(noise%1000)/1000)
}

// run lets days pass.
func (d *daily) run(days int) {
	for n := range days * int(24*time.Hour/frameEvery) {
		d.disturb(n)
		for _, h := range d.hosts {
			switch {
			case h.up:
				d.frame(h, nil)
			case d.now() >= h.back:
				d.start(h)
			}
		}
		d.pass(frameEvery)
		if n := d.st.Orphaned(); n > 0 { // who died was found dead at once
			d.Fatalf("%d regions are nobody's at %v", n, time.Duration(d.now()))
		}
		if n > 360 && n%6 == 0 { // each minute, behind the first hour
			x, sum := d.imbalance(d.keyspace)
			d.worst, d.total = append(d.worst, x), d.total+sum
		}
	}
}

// disturb is what happens at a time of day.
func (d *daily) disturb(n int) {
	const hour = int(time.Hour / frameEvery)
	switch n % (24 * hour) {
	case 3 * hour:
		d.rolling = slices.Clone(d.hosts)
	case 9 * hour:
		d.flapping, d.flaps = d.hosts[d.random.IntN(len(d.hosts))], d.now().Add(40*time.Minute)
	}
	switch n % (2 * hour) {
	case hour / 2: // a crowd comes, and goes
		for range 3 {
			r := d.hosts[d.random.IntN(len(d.hosts))]
			d.st.MemberRegionsAfter(r.id, state.RegionID(d.random.IntN(len(d.base))), func(x *state.Region) bool {
				d.crowds[x.ID] = true
				return false
			})
		}
	case hour:
		clear(d.crowds)
	case hour + hour/4: // some do not tell
		for _, h := range d.hosts {
			h.silent = d.random.IntN(8) == 0
		}
	case hour + hour/2:
		for _, h := range d.hosts {
			h.silent = false
		}
	}
	if n%(5*hour) == 2*hour {
		if h := d.hosts[d.random.IntN(len(d.hosts))]; h.up {
			d.die(h, 50*time.Second)
		}
	}
	d.roll()
	if h := d.flapping; h != nil {
		switch {
		case d.now() > d.flaps:
			d.flapping = nil
		case h.up && d.now().Sub(h.joined) > 90*time.Second:
			d.die(h, 20*time.Second)
		}
	}
}

// die ends a process that has said nothing before.
func (d *daily) die(h *host, away time.Duration) {
	d.deaths++
	d.stop(h, away)
}

// roll restarts one process after the other.
func (d *daily) roll() {
	if len(d.rolling) == 0 {
		return
	}
	switch h := d.rolling[0]; {
	case h.leaves == 0 && h.up:
		d.leave(h)
	case h.up && (d.st.MemberRegionCount(h.id) == 0 || d.now().Sub(h.leaves) >= time.Minute):
		d.stop(h, 20*time.Second)
		d.rolling = d.rolling[1:]
	}
}

// dayReport is what days of load came to.
type dayReport struct {
	p50, p90, p99   float64 // highest load by the mean
	hour, h50, h99  float64 // part of the load that moved to even out an hour
	evened, drained int
	rounds          uint64
}

func (d *daily) report(days int) (r dayReport) {
	slices.Sort(d.worst)
	of := func(all []float64, p int) float64 { return all[(len(all)-1)*p/100] }
	r.p50, r.p90, r.p99 = of(d.worst, 50), of(d.worst, 90), of(d.worst, 99)
	mean, hours := d.total/float64(len(d.worst)), make([]float64, days*24)
	for _, m := range d.moves {
		if m.reason == rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING {
			r.drained++
			continue
		}
		r.evened++
		part := m.load / mean
		hours[min(int(time.Duration(m.at)/time.Hour)-1, len(hours)-1)] += part
		r.hour += part / float64(len(hours))
	}
	slices.Sort(hours)
	r.h50, r.h99 = of(hours, 50), of(hours, 99)
	for _, n := range d.raw.Vars().Rebalances {
		r.rounds += n
	}
	return r
}

// restless fails for a region that moved to even out sooner than it may after such a move.
func (d *daily) restless() {
	d.Helper()
	last := map[state.RegionID]clock.Instant{}
	for _, m := range d.moves {
		if m.reason == rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING {
			continue
		}
		if was, ok := last[m.region]; ok && m.at.Sub(was) < 2*time.Minute {
			d.Errorf("region %d moved again after %v", m.region, m.at.Sub(was))
		}
		last[m.region] = m.at
	}
}

var (
	days       = size.Int("days", 1, 3, "how many days of load")
	dayMembers = size.Int("days.members", 16, 24, "how many members days of load have, with 20 regions each")
	daySeeds   = size.Int("days.seeds", 1, 4, "how many seeds days of load run")
)

// Days of load in seconds, through the whole assigner: loads by Zipf with hours of the day and noise,
// crowds, rolling restarts, members that die and flap, and such that do not tell. Nobody has
// much more than others for long, and little moves for it.
func TestC27C28C62DaysOfLoad(t *testing.T) {
	days, members, regions := *days, *dayMembers, 20**dayMembers
	for seed := range uint64(*daySeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			d := newDaily(t, seed, members, regions)
			d.run(days)
			r := d.report(days)
			testreport.Linef(t, "days of load, seed %d: %d days, %d members, %d regions, %d rounds, %d deaths, %d commands, %d moves to even out, %d of drains; "+
				"highest load by the mean p50 %.2f p90 %.2f p99 %.2f; moved to even out an hour %.1f%% of the load, p50 %.1f%% p99 %.1f%%",
				seed, days, members, regions, r.rounds, d.deaths, d.commands, r.evened, r.drained, r.p50, r.p90, r.p99, 100*r.hour, 100*r.h50, 100*r.h99)
			if r.p50 > 1.2 || r.p90 > 1.25 || r.p99 > 1.5 {
				t.Errorf("the highest load by the mean is %.2f, %.2f, %.2f", r.p50, r.p90, r.p99)
			}
			if r.hour > 0.06 || r.h50 > 0.05 || r.h99 > 0.4 {
				t.Errorf("of the load %.3f moves to even out an hour, %.3f, %.3f", r.hour, r.h50, r.h99)
			}
			if d.refused > 0 || d.deaths < 20*days || r.evened == 0 || r.drained < days*regions {
				t.Errorf("%d commands were refused, %d members died, %d regions moved, %d of drains", d.refused, d.deaths, r.evened, r.drained)
			}
			d.restless()
		})
	}
}

// One seed is the same days.
func TestDaysOfLoadAreHistory(t *testing.T) {
	var was dayReport
	for n := range 2 {
		d := newDaily(t, 5, 4, 24)
		d.run(1)
		if r := d.report(1); n == 1 && r != was {
			t.Errorf("the same seed gave %+v and %+v", was, r)
		} else {
			was = r
		}
	}
}

// BenchmarkIdle is what the assigner does in a second in which nothing happens, with 100 members
// that send a frame each and 10,000 regions by load: 1% of a core is 10 ms. It plans nothing.
func BenchmarkIdle(b *testing.B) {
	const members = 100
	w := newWeather(b, 1, members)
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: evened(10_000, byLoad())}}})
	second := func(frames bool) {
		w.pass(time.Second)
		for _, h := range w.hosts {
			if frames {
				w.frame(h, nil)
			} else {
				w.raw.Frame(server.HeardFrame{Member: h.id, Incarnation: h.incarnation, Stream: h.stream, At: w.now()})
			}
		}
	}
	for range 10 {
		second(true)
	}
	for range 30 * 60 {
		second(false)
	}
	rounds := func() (n uint64) {
		for _, x := range w.raw.Vars().Rebalances {
			n += x
		}
		return n
	}
	before, moves := rounds(), len(w.moves)
	b.ReportAllocs()
	for b.Loop() {
		second(false)
	}
	if rounds() != before || len(w.moves) != moves {
		b.Fatalf("%d rounds, %d moves", rounds()-before, len(w.moves)-moves)
	}
}
