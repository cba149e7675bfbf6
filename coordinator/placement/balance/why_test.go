package balance_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
)

// weigh has the first n regions be m1's and the others m2's, by load.
func weigh(in *balance.Input, n int) {
	in.Policy.By = balance.Load
	for i := range in.Regions {
		in.Regions[i].Owners[0] = state.Owner{Member: in.Members[0].ID, Incarnation: 1}
		if i >= n {
			in.Regions[i].Owners[0] = state.Owner{Member: in.Members[1].ID, Incarnation: 2}
		}
	}
}

// What is refused has its true reason, says of how many regions, and names the member, the
// label, or both.
func TestP55C24RefusalsHaveTheirReason(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*balance.Input)
		want   balance.Refusal
		steps  int
	}{
		{
			"members with more than they may have, and nobody with less",
			func(in *balance.Input) { in.Policy.PerMember = 4 },
			balance.Refusal{Region: 1, Regions: 6, Member: "m1", Why: balance.MembersFull},
			0,
		},
		{
			"the same, and all of it is on its way to the only other one",
			func(in *balance.Input) {
				in.Policy.PerMember, in.Policy.InFlight = 9, 2
				in.Members[1].Gets = 2
				in.Regions = in.Regions[:10]
			},
			balance.Refusal{Regions: 1, Member: "m1", Why: balance.TooManyMoves},
			0,
		},
		{
			"labels that nobody has",
			func(in *balance.Input) {
				in.Policy.Rules = []balance.Rule{{Prefix: "k", Labels: map[string]string{"zone": "c", "tier": "gold"}}}
			},
			balance.Refusal{Region: 1, Regions: 10, Member: "m1", Why: balance.NoneMatches, Wants: `tier=gold,zone=c for keys that begin with "k"`},
			0,
		},
		{
			"labels of one who has as many as it may",
			func(in *balance.Input) {
				in.Members[1].Labels = map[string]string{"zone": "b"}
				in.Policy.Rules, in.Policy.PerMember = []balance.Rule{{Labels: map[string]string{"zone": "b"}}}, 10
			},
			balance.Refusal{Region: 1, Regions: 10, Member: "m1", Why: balance.MembersFull},
			0,
		},
		{
			"nobody takes anything",
			func(in *balance.Input) {
				in.Policy.OwnersMin, in.Policy.OwnersMax = 2, 2
				in.Members[0].Takes, in.Members[1].Takes = false, false
			},
			balance.Refusal{Region: 1, Regions: 20, Why: balance.NoMember},
			0,
		},
		{
			"more owners than there are members",
			func(in *balance.Input) {
				in.Policy.OwnersMin, in.Policy.OwnersMax = 2, 2
				in.Members[1].Takes = false
				in.Regions = in.Regions[:10]
			},
			balance.Refusal{Region: 1, Regions: 10, Why: balance.NoOther},
			0,
		},
		{
			"more owners than there are zones",
			func(in *balance.Input) {
				in.Policy.OwnersMin, in.Policy.OwnersMax, in.Policy.Spread = 2, 2, "zone"
				for i := range in.Members {
					in.Members[i].Labels = map[string]string{"zone": "a"}
				}
			},
			balance.Refusal{Region: 1, Regions: 20, Why: balance.NoOther},
			0,
		},
		{
			"a joiner, and moves of others keep whoever has too much from giving",
			func(in *balance.Input) {
				in.Members = append(in.Members, balance.Member{ID: "m3", Incarnation: 3, Takes: true})
				in.Members[0].Gives, in.Members[1].Gives = 16, 16
			},
			balance.Refusal{Member: "m2", Why: balance.TooManyMoves},
			0,
		},
		{
			"a joiner to which as much is on its way as may be",
			func(in *balance.Input) {
				in.Members = append(in.Members, balance.Member{ID: "m3", Incarnation: 3, Takes: true, Gets: 16})
			},
			balance.Refusal{Member: "m3", Why: balance.TooManyMoves},
			0,
		},
		{
			"a joiner gets what may be on its way at a time",
			func(in *balance.Input) {
				in.Policy.InFlight = 2
				in.Members = append(in.Members, balance.Member{ID: "m3", Incarnation: 3, Takes: true})
			},
			balance.Refusal{Member: "m3", Why: balance.TooManyMoves},
			2,
		},
		{
			"one that has too much is being given to",
			func(in *balance.Input) {
				in.Regions = in.Regions[:12]
				in.Members[0].Gives, in.Members[0].Joined = 16, 0
				in.Members[1].Joined = 0
			},
			balance.Refusal{Member: "m1", Why: balance.TooManyMoves},
			0,
		},
		{
			"more than it can take at all",
			func(in *balance.Input) {
				in.Policy.By, in.Policy.Relative = balance.Load, 0
				in.Members[0].Most, in.Members[1].Most = 5*load.One, 5*load.One
			},
			balance.Refusal{Member: "m1", Why: balance.NoRoom},
			0,
		},
		{
			"one has room for next to nothing of what another has too much",
			func(in *balance.Input) {
				weigh(in, 16)
				in.Members[1].Most = 4*load.One + load.One/2
			},
			balance.Refusal{Member: "m1", Why: balance.NoRoom},
			0,
		},
		{
			"more than others, and next to nothing of what it can take",
			func(in *balance.Input) {
				weigh(in, 16)
				in.Members[0].Most = 1000 * load.One
			},
			balance.Refusal{Member: "m1", Why: balance.LittleLoad},
			0,
		},
		{
			"what others may have that have too many moves on their way is not what it has",
			func(in *balance.Input) {
				weigh(in, 16)
				in.Policy.Rules = []balance.Rule{{Labels: map[string]string{"tier": "a"}}}
				in.Members[0].Labels, in.Members[1].Labels = map[string]string{"tier": "a"}, map[string]string{"tier": "a"}
				in.Members[1].Most = 4*load.One + load.One/2
				in.Members = append(in.Members, balance.Member{ID: "m3", Incarnation: 3, Takes: true, Gets: 16})
			},
			balance.Refusal{Member: "m1", Why: balance.NoRoom},
			0,
		},
		{
			"as many as the absolute limit says, everywhere",
			func(in *balance.Input) {
				in.Policy.Relative, in.Policy.Absolute = 0, 5
			},
			balance.Refusal{Member: "m1", Why: balance.MembersFull},
			0,
		},
	} {
		now := newWorld(t, byCount).now
		in := balance.Input{
			Keyspace: 7, Now: now, Policy: balance.Policy{Even: true, Relative: 1200, Cooldown: time.Minute},
			Members: []balance.Member{{ID: "m1", Incarnation: 1, Takes: true}, {ID: "m2", Incarnation: 2, Takes: true}},
		}
		for i := range 20 {
			in.Regions = append(in.Regions, balance.Region{
				ID: state.RegionID(i + 1), Start: "k", Owners: []state.Owner{{Member: in.Members[i/10].ID, Incarnation: uint64(i/10 + 1)}},
				Load: load.Same(load.One), Known: true,
			})
		}
		c.change(&in)
		out := balance.Make(in)
		told := slices.ContainsFunc(out.Refusals, func(f balance.Refusal) bool {
			return f.Member == c.want.Member && f.Why == c.want.Why && max(f.Regions, 1) == max(c.want.Regions, 1) && f.Wants == c.want.Wants
		})
		if !told || len(out.Steps) != c.steps {
			t.Errorf("%s: %d steps, and refused is %+v; want %d and %+v", c.name, len(out.Steps), out.Refusals, c.steps, c.want)
		}
		for _, f := range out.Refusals {
			if f.Why != c.want.Why {
				t.Errorf("%s: %+v is refused, too", c.name, f)
			}
		}
	}
}

// What rests is no_gain for nobody: it says when that is over.
func TestWhatRestsIsNotWithoutGain(t *testing.T) {
	in := having(times(10, 3), times(4, 3))
	for _, r := range in.Regions[:10] {
		in.Budget = in.Budget.Failed(r.ID, in.Policy, in.Now)
	}
	out := balance.Make(in)
	if want := []balance.Refusal{{Member: "m1", Why: balance.Resting, At: in.Now.Add(5 * time.Minute)}}; !slices.Equal(out.Refusals, want) || len(out.Steps) > 0 {
		t.Errorf("%+v is refused, want %+v: %+v", out.Refusals, want, out.Steps)
	}
}
