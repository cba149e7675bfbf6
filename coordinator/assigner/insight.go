package assigner

import (
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// insight is what a plan is told of members and regions to even out.
type insight struct{ *Raw }

var _ placement.Insight = insight{}

// Member implements placement.Insight.
func (o insight) Member(id state.MemberID) placement.MemberInsight {
	e := o.past.ended[id]
	return placement.MemberInsight{Joined: o.past.joined[id], RestsUntil: o.Standing(id).SettlingUntil, Ended: e.incarnation, EndedAt: e.at}
}

// Region implements placement.Insight.
func (o insight) Region(id state.RegionID) placement.RegionInsight {
	in := placement.RegionInsight{Quarantined: o.past.poison.Quarantined(id), CutAt: o.past.cut[id]}
	if r := o.st.Region(id); r != nil {
		if x := o.rounds.of[r.Keyspace]; x != nil {
			o.tell(&in, r, &x.policy, x.cool)
		}
	}
	return in
}

// tell adds what owners of a region say of it.
func (a *Raw) tell(in *placement.RegionInsight, r *state.Region, p *balance.Policy, cool map[state.RegionID]clock.Instant) {
	if p.MaxKeys > 0 && len(r.Owners) == 1 {
		if said, ok := a.cfg.Soft.Own(r.ID, r.Owners[0].Incarnation); ok {
			in.Keys = said.Keys
		}
	}
	switch {
	case p.OwnersMax > 1:
		in.CoolSince = cool[r.ID]
		said, all := a.saturated(r)
		in.Saturated = said && all
	case p.Ranges && len(r.Owners) == 1:
		in.CoolSince = cool[r.ID]
		if said, ok := a.cfg.Soft.Own(r.ID, r.Owners[0].Incarnation); ok {
			in.Median, in.HotKey, in.HotPermille = keysOf(&said)
		}
	}
}

func keysOf(said *catalog.OwnReport) (median, hot string, permille uint64) {
	if said.More == nil {
		return "", "", 0
	}
	for _, k := range said.More.HotKeys {
		if part := uint64(k.GetPermille()); part > permille {
			hot, permille = string(k.GetKey()), min(part, 1000)
		}
	}
	return string(said.More.MedianKey), hot, permille
}

// saturated reports whether an owner of a region as it is says that its share is too much,
// and whether all of them serve it: one that is on its way is waited for.
func (a *Raw) saturated(r *state.Region) (said, all bool) {
	all = true
	for _, o := range r.Owners {
		report, ok := a.cfg.Soft.Own(r.ID, o.Incarnation)
		ok = ok && report.Phase == coordinatorv1.RegionPhase_REGION_PHASE_SERVING && report.Epoch.ConfVersion >= r.Epoch.ConfVersion
		all, said = all && ok, said || ok && report.Saturated
	}
	return said, all
}

// maxCool bounds the regions of a keyspace that are known to be cool.
const maxCool = 1 << 20

// cools notes which regions of a keyspace have become cool, or are not any more: no owner
// is saturated, and of a range the load is a small part of what a member has.
func (a *Raw) cools(id state.KeyspaceID, x *pace, now clock.Instant) {
	if !x.policy.Even || x.policy.OwnersMax == 1 && !x.policy.Ranges {
		return
	}
	was := x.cool
	x.cool = make(map[state.RegionID]clock.Instant, len(was))
	a.st.RegionsFrom(id, "", func(r *state.Region) bool {
		if len(x.cool) < maxCool && a.isCool(r, x, now) {
			if since, ok := was[r.ID]; ok {
				x.cool[r.ID] = since
			} else {
				x.cool[r.ID] = now
			}
		}
		return true
	})
}

func (a *Raw) isCool(r *state.Region, x *pace, now clock.Instant) bool {
	if x.policy.OwnersMax > 1 {
		said, _ := a.saturated(r)
		return !said
	}
	w, known := a.loads.book.Region(r.ID, now)
	return known && w.High <= x.cold
}

// coldOf is below which load a region is cold, by what all of them have, of a keyspace.
func (a *Raw) coldOf(total load.Amount, keyspace string) load.Amount {
	members := uint64(0)
	a.st.Members(func(m *rootv1.Member) bool {
		if m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && placement.Accepts(a.st, m, keyspace) {
			members++
		}
		return true
	})
	return total.Share(1, balance.ColdPart*max(members, 1))
}
