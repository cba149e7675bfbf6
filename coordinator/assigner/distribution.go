package assigner

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// maxMemberVars bounds the members that are shown one by one: those with most regions, then
// load.
const maxMemberVars = 64

// Distribution is how regions and loads are spread over the members that are active or
// drain. The field names stay.
type Distribution struct {
	Members     int     `json:"members"`
	Regions     int     `json:"regions"`
	RegionsMost int     `json:"regions_most"`
	RegionsMean float64 `json:"regions_mean"`
	// Load is what members say, of those that are connected here.
	Load     float64 `json:"load"`
	LoadMost float64 `json:"load_most"`
	LoadMean float64 `json:"load_mean"`
}

// Nodes are how many members are in which state; those that left as they were to are not among
// them. The field names stay.
type Nodes struct {
	Active   int `json:"active"`
	Draining int `json:"draining"`
	Failed   int `json:"failed"`
}

// MemberVars is one member. The field names stay.
type MemberVars struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Health  string `json:"health"`
	Regions int    `json:"regions"`
	// Load and Capacity are what it last said here.
	Load     float64 `json:"load"`
	Capacity float64 `json:"capacity"`
	// HeartbeatAgeMillis is how long ago its last frame came, HeartbeatGapMillis how long
	// behind the one before that was; -1: not known here.
	HeartbeatAgeMillis int64 `json:"heartbeat_age_millis"`
	HeartbeatGapMillis int64 `json:"heartbeat_gap_millis"`
}

// distribution looks at every member.
func (a *Raw) distribution(v *Vars) {
	st := a.cfg.View().State
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	d, loads := &v.Distribution, 0
	st.Members(func(m *rootv1.Member) bool {
		switch m.GetState() {
		case rootv1.MemberState_MEMBER_STATE_ACTIVE:
			v.Nodes.Active++
		case rootv1.MemberState_MEMBER_STATE_DRAINING:
			v.Nodes.Draining++
		case rootv1.MemberState_MEMBER_STATE_FAILED:
			if !rooted.HasLeft(m) {
				v.Nodes.Failed++
			}
			return true
		default:
			return true
		}
		id := state.MemberID(m.GetId())
		one := MemberVars{
			ID: m.GetId(), State: word(m.GetState().String(), "MEMBER_STATE_"), Health: a.core.Standing(id).Health.String(),
			Regions: st.MemberRegionCount(id), HeartbeatAgeMillis: -1, HeartbeatGapMillis: -1,
		}
		d.Members++
		d.Regions, d.RegionsMost = d.Regions+one.Regions, max(d.RegionsMost, one.Regions)
		if s := a.speakers[id]; s != nil && s.incarnation == m.GetIncarnation() {
			one.HeartbeatAgeMillis, one.HeartbeatGapMillis = now.Sub(s.at).Milliseconds(), s.gap.Milliseconds()
			if s.load != nil {
				one.Load, one.Capacity = s.load.GetLoad(), s.load.GetCapacity()
				d.Load, d.LoadMost = d.Load+one.Load, max(d.LoadMost, one.Load)
				loads++
			}
		}
		v.Members = append(v.Members, one)
		return true
	})
	if d.Members > 0 {
		d.RegionsMean = float64(d.Regions) / float64(d.Members)
	}
	if loads > 0 {
		d.LoadMean = d.Load / float64(loads)
	}
	slices.SortFunc(v.Members, func(a, b MemberVars) int {
		return cmp.Or(cmp.Compare(b.Regions, a.Regions), cmp.Compare(b.Load, a.Load), cmp.Compare(a.ID, b.ID))
	})
	v.MembersHidden = max(len(v.Members)-maxMemberVars, 0)
	v.Members = slices.Clip(v.Members[:min(len(v.Members), maxMemberVars)])
}
