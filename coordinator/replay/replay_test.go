package replay_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/replay"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// day is a recording of a keyspace whose load goes up and down in places.
type day struct {
	settings *rootv1.KeyspaceSettings
	members  int
	regions  int
	load     func(region int, at time.Duration) float64
	// leaves is when m1 fails, if not 0.
	leaves time.Duration
}

func slots(n uint32, r *rootv1.Rebalance) *rootv1.KeyspaceSettings {
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: n}}}
	s.Policy.Rebalance = r
	return s
}

func slotKey(i int) []byte { return []byte{0, 0, 0, 0, 0, 0, byte(i >> 8), byte(i)} }

// record is what a recorder says of so much time, a frame each 10 s, ten a segment.
func (d *day) record(took time.Duration) (all []*coordinatorv1.RecordedSegment) {
	for at := time.Duration(0); at <= took; at += 10 * time.Second {
		f := &coordinatorv1.RecordedFrame{AtMillis: 5000 + uint64(at.Milliseconds()), Era: 3}
		if f.Whole = at%(100*time.Second) == 0; f.Whole {
			all = append(all, &coordinatorv1.RecordedSegment{Version: 1})
			f.Keyspaces = []*coordinatorv1.RecordedKeyspace{{Id: 2, Name: "games", Settings: d.settings}}
		}
		gone := d.leaves > 0 && at >= d.leaves
		for m := range d.members {
			if f.Whole && (m > 0 || !gone) {
				f.Members = append(f.Members, &coordinatorv1.RecordedMember{Id: fmt.Sprintf("m%d", m+1), Incarnation: uint64(m + 1), Takes: true})
			}
		}
		if !f.Whole && gone {
			f.GoneMembers = []string{"m1"}
		}
		for i := range d.regions {
			r := &coordinatorv1.RecordedRegion{Id: uint64(i + 100), LoadMilli: uint64(d.load(i, at)*1000) + 1}
			if f.Whole {
				r.KeyspaceId, r.StartKey, r.EndKey, r.Owners = 2, slotKey(i), slotKey(i+1), []string{fmt.Sprintf("m%d", i%d.members+1)}
			}
			f.Regions = append(f.Regions, r)
		}
		s := all[len(all)-1]
		s.Frames = append(s.Frames, f)
	}
	return all
}

func run(t *testing.T, all []*coordinatorv1.RecordedSegment, cfg replay.Config) *replay.Outcome {
	t.Helper()
	p, err := replay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := p.Segment(s); err != nil {
			t.Fatal(err)
		}
	}
	out, err := p.Outcome()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func byLoad() *rootv1.Rebalance {
	return &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200, IntervalMillis: 10_000}
}

// wander is load of which a third is in places that go round once in two hours.
func wander(i int, at time.Duration) float64 {
	return 10 + 8*math.Sin(2*math.Pi*(float64(i%3)/3+float64(at)/float64(2*time.Hour)))
}

// A recording of a keyspace that was never evened out, replayed with a policy, is evener: the
// planner that runs over it is the real one. The same is the same again.
func TestReplayWithAnotherPolicy(t *testing.T) {
	d := &day{settings: slots(48, nil), members: 3, regions: 48, load: wander}
	all := d.record(time.Hour)
	as := run(t, all, replay.Config{})
	k := as.Keyspaces[0]
	if as.Frames != 361 || as.Took != time.Hour || as.Eras != 1 || k.Name != "games" || k.Regions != 48 || !k.ByLoad || k.Moves() != 0 || len(k.Permille) != 361 || k.Quantile(990) < 1500 {
		t.Fatalf("as recorded: %+v, %+v", as, k)
	}
	with := run(t, all, replay.Config{Settings: &rootv1.KeyspaceSettings{Policy: &rootv1.Policy{Rebalance: byLoad()}}})
	x := with.Keyspaces[0]
	if x.Moves() == 0 || x.LoadMoved == 0 || x.Quantile(500) > 1300 || x.Quantile(1000) < x.Quantile(500) || math.Abs(x.LoadMean-k.LoadMean) > 1 {
		t.Errorf("evened out: p50 %v, p99 %v, %d moves of %v of %v: %v", x.Quantile(500), x.Quantile(990), x.Moves(), x.LoadMoved, x.LoadMean, x.Changes)
	}
	if again := run(t, all, replay.Config{Settings: &rootv1.KeyspaceSettings{Policy: &rootv1.Policy{Rebalance: byLoad()}}}); !reflect.DeepEqual(with, again) {
		t.Errorf("again it is another: %+v, %+v", x, again.Keyspaces[0])
	}
	if other := run(t, all, replay.Config{Keyspace: "another", Settings: &rootv1.KeyspaceSettings{Policy: &rootv1.Policy{Rebalance: byLoad()}}}); other.Keyspaces[0].Moves() != 0 {
		t.Error("the settings of another keyspace count")
	}
}

// A member that is gone in the recording is gone: its regions are granted to others, with the
// reason. By numbers of regions, where nobody tells loads.
func TestReplayOfAFailure(t *testing.T) {
	d := &day{settings: slots(30, &rootv1.Rebalance{MeanPermille: 1200}), members: 3, regions: 30, load: func(int, time.Duration) float64 { return 0 }, leaves: 5 * time.Minute}
	out := run(t, d.record(10*time.Minute), replay.Config{})
	k := out.Keyspaces[0]
	grants := k.Changes[replay.Change{Operation: "grant", Reason: rootv1.OperationReason_OPERATION_REASON_MEMBER_FAILED}]
	if k.ByLoad || grants != 10 || k.Permille[len(k.Permille)-1] != 1000 || k.Moves() != 0 {
		t.Errorf("%+v", k)
	}
}

// Points and ranges come and go as they were recorded, also cut ones: their parts stay with
// who had the whole.
func TestReplayOfRegionsThatComeAndGo(t *testing.T) {
	ranges := state.DefaultSettings()
	points := state.DefaultSettings()
	points.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
	first := &coordinatorv1.RecordedFrame{
		AtMillis: 1, Era: 1, Whole: true,
		Keyspaces: []*coordinatorv1.RecordedKeyspace{{Id: 1, Name: "default", Settings: ranges}, {Id: 7, Name: "p", Settings: points}},
		Members:   []*coordinatorv1.RecordedMember{{Id: "a", Incarnation: 1, Takes: true}, {Id: "b", Incarnation: 2, Takes: true}},
		Regions: []*coordinatorv1.RecordedRegion{
			{Id: 1, KeyspaceId: 1, LoadMilli: 5001, Owners: []string{"a"}},
			{Id: 2, KeyspaceId: 7, StartKey: []byte("x"), LoadMilli: 1, Owners: []string{"b"}},
		},
	}
	then := &coordinatorv1.RecordedFrame{
		AtMillis: 10_001, Era: 1, GoneRegions: []uint64{1, 2},
		Regions: []*coordinatorv1.RecordedRegion{
			{Id: 3, KeyspaceId: 1, EndKey: []byte("m"), LoadMilli: 3001, Owners: []string{"b"}},
			{Id: 4, KeyspaceId: 1, StartKey: []byte("m"), LoadMilli: 2001, Owners: []string{"b"}},
			{Id: 5, KeyspaceId: 7, StartKey: []byte("y"), LoadMilli: 1},
		},
		Members: []*coordinatorv1.RecordedMember{{Id: "b", Incarnation: 9, Takes: true, Draining: true}},
	}
	out := run(t, []*coordinatorv1.RecordedSegment{{Version: 1, Frames: []*coordinatorv1.RecordedFrame{first, then}}}, replay.Config{})
	if len(out.Keyspaces) != 2 || out.Keyspaces[0].Name != "default" || out.Keyspaces[0].Regions != 2 || out.Keyspaces[1].Regions != 1 {
		t.Fatalf("%+v", out)
	}
	if k := out.Keyspaces[0]; k.Permille[0] != 2000 || k.Permille[1] != 1000 { // a has all of it, beside b, which is drained then
		t.Errorf("%+v", k)
	}
	if n := out.Keyspaces[1].Changes[replay.Change{Operation: "grant", Reason: rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH}]; n != 1 {
		t.Errorf("the new point: %+v", out.Keyspaces[1])
	}
}

// What cannot be is refused, or does no harm: it is a file that somebody brought.
func TestReplayOfNonsense(t *testing.T) {
	frame := func(change func(*coordinatorv1.RecordedFrame)) []*coordinatorv1.RecordedSegment {
		f := &coordinatorv1.RecordedFrame{Whole: true, Keyspaces: []*coordinatorv1.RecordedKeyspace{{Id: 2, Name: "k", Settings: slots(4, nil)}}}
		change(f)
		return []*coordinatorv1.RecordedSegment{{Version: 1, Frames: []*coordinatorv1.RecordedFrame{f, f}}}
	}
	for what, all := range map[string][]*coordinatorv1.RecordedSegment{
		"a region of no keyspace": frame(func(f *coordinatorv1.RecordedFrame) {
			f.Regions = []*coordinatorv1.RecordedRegion{{Id: 1, KeyspaceId: 9}}
		}),
		"settings of nothing":     frame(func(f *coordinatorv1.RecordedFrame) { f.Keyspaces[0].Settings = nil }),
		"a member without a name": frame(func(f *coordinatorv1.RecordedFrame) { f.Members = []*coordinatorv1.RecordedMember{{}} }),
		"a slot that is none": frame(func(f *coordinatorv1.RecordedFrame) {
			f.Regions = []*coordinatorv1.RecordedRegion{{Id: 1, KeyspaceId: 2, StartKey: []byte("far away"), LoadMilli: math.MaxUint64}}
		}),
		"the same region twice": frame(func(f *coordinatorv1.RecordedFrame) {
			f.Regions = []*coordinatorv1.RecordedRegion{{Id: 1, KeyspaceId: 2, StartKey: slotKey(1)}, {Id: 1, KeyspaceId: 2, StartKey: slotKey(2)}}
		}),
		"time that is over": frame(func(f *coordinatorv1.RecordedFrame) { f.AtMillis = math.MaxUint64 }),
	} {
		p, err := replay.New(replay.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if err := p.Segment(s); err != nil && err.Error() == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	p, err := replay.New(replay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Outcome(); !errors.Is(err, replay.ErrEmpty) {
		t.Errorf("of nothing: %v", err)
	}
}

// Behind a takeover the new holder has not heard all loads, and some members not yet: what nobody
// tells at a moment is as it was told last, so that the replay makes no moves for that.
func TestReplayAcrossATakeover(t *testing.T) {
	d := &day{settings: slots(48, byLoad()), members: 3, regions: 48, load: wander}
	took, over := time.Hour, 30*time.Minute
	calm := run(t, d.record(took), replay.Config{})
	for what, told := range map[string]func(region int) bool{
		"nothing is told":      func(int) bool { return false },
		"of one member":        func(region int) bool { return region%3 == 0 },
		"of all but one of it": func(region int) bool { return region != 7 },
	} {
		all := d.record(took)
		for _, s := range all {
			for _, f := range s.Frames {
				at := time.Duration(f.AtMillis-5000) * time.Millisecond
				if at < over {
					continue
				}
				f.Era = 4
				for i, r := range f.Regions {
					if at < over+30*time.Second && !told(i) {
						r.LoadMilli = 0
					}
				}
			}
		}
		out := run(t, all, replay.Config{})
		k, want := out.Keyspaces[0], calm.Keyspaces[0]
		if out.Eras != 2 || want.Moves() == 0 {
			t.Fatalf("%d eras, %d moves in one", out.Eras, want.Moves())
		}
		if k.Moves() > want.Moves() || k.Quantile(1000) > want.Quantile(1000)*1.02 || k.LoadMean < want.LoadMean*0.999 {
			t.Errorf("%s: %d moves, at worst %v of a mean load of %v; without a takeover %d, %v, %v", what, k.Moves(), k.Quantile(1000), k.LoadMean, want.Moves(), want.Quantile(1000), want.LoadMean)
		}
	}
}
