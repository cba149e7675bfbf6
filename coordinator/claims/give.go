package claims

import (
	"cmp"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// next makes a call of what waits; nil: nothing does. A claim is judged by a view that is read behind
// its coming: what its caller has seen of the keyspace is in that.
func (d *Desk) next() *batch {
	b := &batch{era: d.era(d.cfg.Views.View())}
	bytes := 0
	for len(b.claims) < maxCommands && bytes < maxBytes {
		c := d.take()
		if c == nil {
			break
		}
		if d.deserted(c) {
			continue
		}
		if cmd := d.command(d.cfg.Views.View(), b.era, c); cmd != nil {
			bytes += proto.Size(cmd)
			b.claims, b.commands = append(b.claims, c), append(b.commands, cmd)
		}
	}
	if len(b.claims) == 0 {
		return nil
	}
	d.counts.entries.Add(1)
	return b
}

// command is what makes the region of a claim; nil: the claim is answered.
func (d *Desk) command(v *rootview.View, era state.Era, c *claim) *rootv1.Command {
	if r := v.State.RegionAt(c.at.keyspace, c.at.key); r != nil && r.Start == c.at.key {
		d.finish(c, Answer{Region: r.Proto(), Token: v.Token, Made: c.made})
		return nil
	}
	if era == 0 {
		d.finish(c, Answer{Err: reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "another coordinator makes regions")})
		return nil
	}
	if err := Claimable(v.State, c.at.keyspace); err != nil {
		d.finish(c, Answer{Err: err})
		return nil
	}
	if d.full(v) {
		d.counts.overloaded.Add(1)
		e := reason.New(rootv1.Reason_REASON_OVERLOADED, "this coordinator's view is behind %d regions that it has made", maxGiven)
		e.Detail.Limit, e.Detail.RetryAfterMillis = maxGiven, 100
		d.finish(c, Answer{Err: e})
		return nil
	}
	if d.asks(v, c) {
		return nil
	}
	owners, err := d.owners(v, c)
	if err != nil {
		d.finish(c, Answer{Err: err})
		return nil
	}
	cmd := &rootv1.Command{
		Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: uint32(c.at.keyspace), StartKey: []byte(c.at.key), Owners: owners,
		}}}}},
		RequireEra: uint64(era), Identity: d.cfg.Identities.Next(max(v.Known.Index, v.Token.Index)), Why: c.why,
	}
	if refused := state.CheckCommand(cmd); refused != nil { // which would refuse those beside it
		d.unbook(c)
		d.finish(c, Answer{Err: &reason.Error{Detail: refused}})
		return nil
	}
	return cmd
}

// owners is who gets the region of a claim. Nobody does whose key somebody may still act for from
// whom it was taken: it is given away as other regions without an owner are, when that is over.
func (d *Desk) owners(v *rootview.View, c *claim) (owners []*rootv1.Owner, err error) {
	free := true
	v.State.Vacated(c.at.keyspace, c.at.key, c.at.key+"\x00", func(*rooted.FormerOwner) bool {
		free = false
		return false
	})
	if !free {
		c.grant = new(grant) // of nobody
		return nil, nil
	}
	owner, err := d.give(v, c)
	if err != nil {
		return nil, err
	}
	return []*rootv1.Owner{owner.Proto()}, nil
}

// Claimable says why no region of a keyspace is made by a claim; nil: some are.
func Claimable(st *state.State, id state.KeyspaceID) error {
	k := st.Keyspace(id)
	s := k.GetSettings()
	refuse := func(format string, args ...any) error {
		return reason.New(rootv1.Reason_REASON_LAYOUT_MISMATCH, format, args...)
	}
	limit := cmp.Or(s.GetLimits().GetMaxRegions(), uint64(state.MaxRegions))
	switch name := k.GetName(); {
	case k == nil:
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %d any more", id)
	case s.GetLayout().GetPoints() == nil:
		return refuse("keyspace %q has no points: only their regions are claimed; a keyspace of points is made by `nokv keyspace create --layout points`", name)
	case s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED:
		return refuse("keyspace %q is reported: its members publish their own regions; claims need placement assigned", name)
	case s.GetPolicy().GetOnMiss() != rootv1.OnMiss_ON_MISS_CLAIM:
		return refuse("keyspace %q has policy.on_miss not_found: its regions are made by `nokv region publish`; to have them claimed, set policy.on_miss to claim", name)
	case uint64(st.KeyspaceRegionCount(id)) >= limit:
		e := reason.New(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "keyspace %q has %d regions, no more fit: raise limits.max_regions, or remove some", name, limit)
		e.Detail.Limit = limit
		return e
	}
	return nil
}

// field is what is known of the members of a keyspace.
type field struct {
	claims *placement.Claims
	made   clock.Instant
	// settings it was made with, and how many members there were.
	settings *rootv1.Keyspace
	members  int
	stale    bool
	// said: a hook names members.
	said said
	// deaf: this process is new, and has not heard every member that may take regions.
	deaf bool
}

// deafFor is how long a process is new: members find it meanwhile.
const deafFor = 10 * time.Second

// fieldOf is what is known of a keyspace's members, not long ago.
func (d *Desk) fieldOf(v *rootview.View, ks state.KeyspaceID) *field {
	now := d.cfg.Clock.Now()
	f := d.fields[ks]
	if f == nil || f.stale || f.settings != v.State.Keyspace(ks) || now.Sub(f.made) > freshFor+freshEach*time.Duration(f.members) {
		return d.look(v, ks, now)
	}
	return f
}

// give says who gets the region of a claim.
func (d *Desk) give(v *rootview.View, c *claim) (state.Owner, error) {
	ks := c.at.keyspace
	now := d.cfg.Clock.Now()
	old := d.fields[ks]
	f := d.fieldOf(v, ks)
	looked := f != old
	for gone := 0; ; {
		f.said.member = c.named
		owner, why := f.claims.Take(c.at.key)
		if why == 0 && d.takes(v, ks, owner) {
			c.grant = d.given.add(ks, owner.Member)
			return owner, nil
		}
		switch {
		case !looked && (why == 0 || now.Sub(f.made) > sureFor+sureEach*time.Duration(f.members)):
			f, looked = d.look(v, ks, now), true
		case why == 0 && gone < maxTries:
			gone++ // since it was looked at, just now
		case why != placement.MembersFull && f.deaf:
			e := reason.New(rootv1.Reason_REASON_OVERLOADED, "this coordinator is new, and has not heard all members of keyspace %q yet: try again", f.settings.GetName())
			e.Detail.RetryAfterMillis = 100
			return state.Owner{}, e
		default:
			return state.Owner{}, refusal(v.State, ks, why)
		}
	}
}

// takes reports whether a member is still what it was when it was looked at.
func (d *Desk) takes(v *rootview.View, ks state.KeyspaceID, o state.Owner) bool {
	m := v.State.Member(o.Member)
	return m.GetIncarnation() == o.Incarnation && m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE &&
		placement.Accepts(v.State, m, v.State.Keyspace(ks).GetName()) &&
		(d.cfg.Observed.Takes(o.Member) || d.cfg.Observed.Damped(o.Member))
}

// refusal is why nobody gets a region.
func refusal(st *state.State, ks state.KeyspaceID, why placement.Why) error {
	k := st.Keyspace(ks)
	if why == placement.MembersFull {
		limit := k.GetSettings().GetLimits().GetMaxRegionsPerMember()
		e := reason.New(rootv1.Reason_REASON_CAPACITY_EXCEEDED,
			"all members that take regions of keyspace %q have %d: register more, or raise limits.max_regions_per_member", k.GetName(), limit)
		e.Detail.Limit = limit
		return e
	}
	return reason.New(rootv1.Reason_REASON_NO_ACTIVE_MEMBERS,
		"no member takes the region in keyspace %q: none is active, heard and fit for its label rules; `nokv member list` shows them", k.GetName())
}

// look looks at all members.
func (d *Desk) look(v *rootview.View, ks state.KeyspaceID, now clock.Instant) *field {
	if len(d.fields) >= maxFields && d.fields[ks] == nil {
		clear(d.fields)
	}
	d.given.forget(v.Token)
	var old *placement.Claims
	if f := d.fields[ks]; f != nil {
		old = f.claims
	}
	if d.moves == nil || now.Sub(d.movesAt) > freshFor {
		d.moves, d.movesAt = placement.MovesOf(v.State, now), now
	}
	f := &field{made: now, settings: v.State.Keyspace(ks), members: v.State.MemberCount()}
	in := placement.Input{State: v.State, Observed: d.cfg.Observed, Now: now, Moves: d.moves, Strategies: map[state.KeyspaceID]propose.Strategy{}}
	switch code := d.cfg.Strategies[f.settings.GetName()]; {
	case code != nil:
		in.Strategies[ks] = &brought{desk: d, strategy: code, keyspace: f.settings.GetName()}
	case f.settings.GetSettings().GetPolicy().GetStrategy() == rootv1.Strategy_STRATEGY_HOOK:
		in.Strategies[ks] = &f.said
	}
	load := func(m *rootv1.Member) (float64, bool) {
		return d.cfg.Load(state.MemberID(m.GetId()), m.GetIncarnation())
	}
	if now.Sub(d.began) < deafFor {
		v.State.Members(func(m *rootv1.Member) bool {
			f.deaf = m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && placement.Accepts(v.State, m, f.settings.GetName()) && !d.cfg.Observed.Takes(state.MemberID(m.GetId()))
			return !f.deaf
		})
	}
	f.claims = placement.NewClaims(in, ks, d.given.of(ks), load, old)
	d.fields[ks] = f
	return f
}

// given are regions that were given and may not be in a view yet.
type given struct {
	all []*grant
	// fullAt is the position of the view that all of maxGiven are behind.
	fullAt state.Token
}

// full reports whether the view is too far behind what was given.
func (d *Desk) full(v *rootview.View) bool {
	g := &d.given
	if len(g.all) >= maxGiven && g.fullAt != v.Token {
		g.forget(v.Token)
		g.fullAt = v.Token
	}
	return len(g.all) >= maxGiven
}

// grant is a region that was given to a member.
type grant struct {
	keyspace state.KeyspaceID
	member   state.MemberID
	// at is where it was made; zero: it is not known yet. over: it was not.
	at   state.Token
	over bool
}

func (g *given) add(ks state.KeyspaceID, id state.MemberID) *grant {
	x := &grant{keyspace: ks, member: id}
	g.all = append(g.all, x)
	return x
}

// forget drops what a view at a position has, and what is over.
func (g *given) forget(at state.Token) {
	g.all = slices.DeleteFunc(g.all, func(x *grant) bool {
		return x.over || x.at != (state.Token{}) && x.at.Compare(at) <= 0
	})
}

// of is how many regions of a keyspace members were given.
func (g *given) of(ks state.KeyspaceID) map[state.MemberID]int {
	counts := map[state.MemberID]int{}
	for _, x := range g.all {
		if x.keyspace == ks {
			counts[x.member]++
		}
	}
	return counts
}
