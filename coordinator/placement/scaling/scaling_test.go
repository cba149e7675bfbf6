package scaling_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/scaling"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// fleet is a keyspace that is judged each second.
type fleet struct {
	*testing.T
	in     scaling.Input
	memory scaling.Memory
	now    clock.Instant
}

// games are members of the preset, each with so many of 500 regions.
func games(t *testing.T, regions ...int) *fleet {
	preset, _ := state.Preset("games")
	preset.Scaling = &rootv1.Scaling{Enabled: true}
	s, on := scaling.SettingsOf(preset)
	if !on {
		t.Fatal("it is off")
	}
	f := &fleet{T: t, in: scaling.Input{Settings: s}, now: 1}
	f.memory.Changed = f.now
	for i, n := range regions {
		f.come(fmt.Sprintf("m%d", i+1), n)
	}
	return f
}

func (f *fleet) come(id string, regions int) {
	f.in.Members = append(f.in.Members, scaling.Member{
		ID: state.MemberID(id), Incarnation: uint64(len(f.in.Members) + 1), Active: true, Well: true, Regions: regions, All: regions,
	})
}

// run judges each second, and returns the last verdict and how many wishes there were.
func (f *fleet) run(d time.Duration) (v scaling.Verdict) {
	for end := f.now.Add(d); f.now < end; {
		f.now = f.now.Add(time.Second)
		f.in.Now = f.now
		v, f.memory = scaling.Judge(f.in, f.memory)
		if v.Drain != "" {
			return v
		}
	}
	return v
}

func (f *fleet) want(v scaling.Verdict, reason scaling.Reason, desired int) {
	f.Helper()
	if v.Reason != reason || v.Desired != desired {
		f.Errorf("at %v the verdict is %+v, want %v and %d members", time.Duration(f.now), v, reason, desired)
	}
}

// With 500 games a core there is one core more above 400 on average, and one fewer below
// 150, two minutes apart.
func TestC31C32C33C36ScalesByTheMean(t *testing.T) {
	f := games(t, 400, 400)
	f.want(f.run(time.Hour), scaling.Steady, 2)
	f.in.Members[0].Regions, f.in.Members[0].All = 403, 403
	f.want(f.run(20*time.Second), scaling.Spacing, 2)
	f.want(f.run(20*time.Second), scaling.Load, 3)
	first := f.memory.Wishes
	f.want(f.run(time.Minute), scaling.Load, 3)
	if f.memory.Wishes != first || first != 1 {
		t.Errorf("in a minute there were %d wishes", f.memory.Wishes)
	}
	f.come("m3", 0) // it is met
	f.in.Members[0].Regions, f.in.Members[0].All = 500, 500
	f.in.Members[2].Regions, f.in.Members[2].All = 400, 400
	f.want(f.run(100*time.Second), scaling.Spacing, 3)
	f.want(f.run(30*time.Second), scaling.Load, 4)

	f = games(t, 150, 150, 150, 150)
	f.want(f.run(time.Hour), scaling.Steady, 4)
	f.in.Members[2].Regions, f.in.Members[2].All = 149, 149
	v := f.run(time.Hour)
	if v.Drain != "m3" || v.Full != 299 {
		t.Errorf("the victim is %+v, want m3, which has least", v)
	}
}

// A victim drains first; only then is it to end. Whoever judges next goes on from there.
func TestC33C34VictimDrainsBeforeItEnds(t *testing.T) {
	f := games(t, 10, 20, 5)
	f.in.Settings.Min = 1
	if v := f.run(time.Hour); v.Drain != "m3" {
		t.Fatalf("the victim is %+v", v)
	}
	f.in.Members[2].Active, f.in.Members[2].Victim = false, true
	v := f.run(time.Minute)
	f.want(v, scaling.Draining, 2)
	if v.Victim != "m3" || v.Drained || v.More {
		t.Errorf("while it drains: %+v", v)
	}
	f.memory = scaling.Memory{Changed: f.now} // of another holder
	f.in.Members[0].Regions, f.in.Members[0].All, f.in.Members[2].Regions, f.in.Members[2].All = 15, 15, 0, 0
	v = f.run(time.Hour)
	f.want(v, scaling.Load, 2)
	if v.Victim != "m3" || !v.Drained || v.Drain != "" {
		t.Errorf("when it has drained: %+v", v)
	}
	f.in.Members = f.in.Members[:2] // it ended
	f.want(f.run(time.Minute), scaling.Spacing, 2)
	if v := f.run(time.Hour); v.Drain != "m1" {
		t.Errorf("the next one is %+v", v)
	}
}

// Nothing is wished for between min and max that is not between them, nor what members'
// health explains, nor where nobody knows how full they are.
func TestC60C31ScalingIsHeldBack(t *testing.T) {
	many := []int{500, 500, 500, 500, 500, 500, 500, 500, 500, 500}
	for name, c := range map[string]struct {
		regions []int
		set     func(f *fleet)
		want    scaling.Reason
		desired int
	}{
		"at max":       {many, func(*fleet) {}, scaling.AtMax, 10},
		"at min":       {[]int{0, 0}, func(*fleet) {}, scaling.AtMin, 2},
		"below min":    {[]int{0}, func(*fleet) {}, scaling.BelowMin, 2},
		"nobody":       {nil, func(f *fleet) { f.in.Orphaned = 7 }, scaling.BelowMin, 2},
		"one unwell":   {[]int{450, 450}, func(f *fleet) { f.in.Members[0].Well = false }, scaling.MembersUnwell, 2},
		"held":         {[]int{450, 450}, func(f *fleet) { f.in.Held = true }, scaling.MembersUnwell, 2},
		"one drains":   {[]int{450, 450, 20}, func(f *fleet) { f.in.Members[2].Active = false }, scaling.Draining, 2},
		"has drained":  {[]int{450, 450, 0}, func(f *fleet) { f.in.Members[2].Active = false }, scaling.Load, 3},
		"no limit":     {[]int{450, 450}, func(f *fleet) { f.in.Settings.PerMember = 0 }, scaling.NoLimit, 2},
		"orphans fill": {[]int{390, 390}, func(f *fleet) { f.in.Orphaned = 100 }, scaling.Load, 3},
		"orphans stay": {[]int{1, 1, 1}, func(f *fleet) { f.in.Orphaned = 1 }, scaling.Orphaned, 3},
		"others' regions": {[]int{1, 1, 1}, func(f *fleet) {
			for i := range f.in.Members {
				f.in.Members[i].All++
			}
		}, scaling.NoVictim, 3},
		"too full then":    {[]int{300, 300, 300}, func(f *fleet) { f.in.Settings.Down, f.in.Settings.Up = 700, 800 }, scaling.TooFullThen, 3},
		"by load, unknown": {[]int{1, 1, 1}, func(f *fleet) { f.in.Settings.ByLoad = true }, scaling.LoadUnknown, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := games(t, c.regions...)
			c.set(f)
			f.want(f.run(time.Hour), c.want, c.desired)
		})
	}
}

// By load, what members say that they can take counts, and the victim is who has least load.
func TestC31ScalesByLoad(t *testing.T) {
	f := games(t, 1, 1, 1)
	f.in.Settings.ByLoad = true
	set := func(loads ...load.Amount) {
		for i, w := range loads {
			f.in.Members[i].Load, f.in.Members[i].Capacity = w*load.One, 100*load.One
		}
	}
	set(90, 90, 70)
	f.want(f.run(time.Hour), scaling.Load, 4)
	set(50, 50, 40)
	f.want(f.run(time.Second), scaling.Steady, 3) // clearly less full: nothing is wished for
	set(20, 30, 10)
	if v := f.run(time.Hour); v.Drain != "m3" || v.Full != 200 {
		t.Errorf("%+v", v)
	}
}

// A spike changes nothing.
func TestC32SpikesScaleNothing(t *testing.T) {
	f := games(t, 300, 300, 300)
	f.run(time.Hour)
	for range 100 {
		f.in.Orphaned = 600
		f.run(20 * time.Second)
		f.in.Orphaned = 0
		f.run(20 * time.Second)
	}
	if f.memory.Wishes != 0 {
		t.Errorf("%d wishes", f.memory.Wishes)
	}
}

// wave has a keyspace that has so many regions for half of a period, and so many for the other, for a day.
// Members come and end as they are wished for.
func (f *fleet) wave(period time.Duration, high, low int) (wishes uint64, drains int) {
	for begun := f.now; f.now.Sub(begun) < 24*time.Hour; {
		total := low
		if f.now.Sub(begun)%period < period/2 {
			total = high
		}
		for i := range f.in.Members {
			f.in.Members[i].Regions = total / len(f.in.Members)
			f.in.Members[i].All = f.in.Members[i].Regions
		}
		switch v := f.run(time.Second); {
		case v.Drain != "":
			drains++
			f.in.Members = f.in.Members[:len(f.in.Members)-1]
		case v.More:
			f.come(fmt.Sprint("w", len(f.in.Members)), 0)
		}
	}
	return f.memory.Wishes, drains
}

// Load that comes and goes within minutes has the members that it needs at its height, and keeps them; what
// is less for half an hour has fewer.
func TestASquareWaveIsNotFollowed(t *testing.T) {
	if wishes, drains := games(t, 400, 400, 400, 400).wave(6*time.Minute, 1700, 500); wishes > 2 || drains > 0 {
		t.Errorf("6 minutes: %d wishes for more and %d drains in a day", wishes, drains)
	}
	if wishes, drains := games(t, 400, 400, 400, 400).wave(time.Hour, 1700, 500); wishes < 24 || drains < 24 || wishes > 72 {
		t.Errorf("an hour: %d wishes for more and %d drains in a day", wishes, drains)
	}
}

// Whatever comes, there are at least two minutes between two wishes or drains, the wish is one
// more at most and within the bounds, and nothing panics.
func TestC32ScalingLaws(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		f := games(t, random.IntN(600), random.IntN(600), random.IntN(600))
		f.in.Settings.ByLoad = random.IntN(3) == 0
		last := f.now
		for range 1000 {
			m := &f.in.Members[random.IntN(len(f.in.Members))]
			switch random.IntN(20) {
			case 0:
				m.Active = !m.Active
			case 1:
				m.Victim = random.IntN(2) == 0
			case 2:
				m.Well = random.IntN(8) > 0
			case 3, 4:
				m.Regions = random.IntN(600)
				m.All = m.Regions + random.IntN(2)
			case 5:
				m.Load, m.Capacity = load.Amount(random.Int64N(math.MaxInt64>>random.IntN(40))), load.Amount(random.Int64N(math.MaxInt64>>random.IntN(40)))
			case 6:
				f.in.Orphaned = random.IntN(2) * random.IntN(1000)
			}
			f.now = f.now.Add(time.Duration(random.IntN(20)) * time.Second)
			f.in.Now = f.now
			wishes := f.memory.Wishes
			var v scaling.Verdict
			v, f.memory = scaling.Judge(f.in, f.memory)
			if f.memory.Wishes != wishes && v.Desired > max(v.Active+1, f.in.Settings.Min) || v.More && v.Desired > f.in.Settings.Max || v.Desired < v.Active || v.More && v.Drain != "" {
				t.Fatalf("%+v", v)
			}
			if f.memory.Wishes != wishes && v.Reason == scaling.Load || v.Drain != "" {
				if f.now.Sub(last) < f.in.Settings.Spacing {
					t.Fatalf("%v after the last wish: %+v", f.now.Sub(last), v)
				}
				last = f.now
			}
		}
	}
}

func TestC58C59SettingsOf(t *testing.T) {
	s, on := scaling.SettingsOf(&rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Scaling: &rootv1.Scaling{MinMembers: 30}})
	if want := (scaling.Settings{Up: 800, Down: 300, Spacing: 2 * time.Minute, Min: 30, Max: 30}); s != want || on {
		t.Errorf("what counts is %+v, %v", s, on)
	}
	if _, on := scaling.SettingsOf(&rootv1.KeyspaceSettings{Scaling: &rootv1.Scaling{Enabled: true}}); on {
		t.Error("nobody plans it, and it wishes")
	}
}
