// Package hints says what members of reported keyspaces may do to even out what they
// lead.
//
// It is deliberately small: such members own their regions, and a hint is soft; nothing
// depends on whether it is obeyed. It looks at what a member reported with each of its
// heartbeats and promises: at most MaxHints a heartbeat, by at most maxLooks regions; a
// lead goes only from who leads more to an owner that leads at least two fewer, and was
// heard lately; what is split is above the keyspace's limit, and what is merged stays
// below a quarter of it and has the same owners, so that no hint undoes another one. A hint names
// the epoch that it was judged by, so that it is obeyed once.
package hints

import (
	"fmt"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// MaxHints is the most hints of one heartbeat.
	MaxHints = 4
	// maxLooks is how many of a member's regions one heartbeat looks at; the next one
	// goes on.
	maxLooks = 256
	// maxNotes bounds what is remembered of members; behind it all is forgotten, which
	// costs a hint too many.
	maxNotes = 1 << 17
	// heardWithin is how old the heartbeat may be of who takes a lead.
	heardWithin = 15 * time.Second
)

// Planner gives hints. Make it with New. Its methods may overlap.
type Planner struct {
	soft *catalog.Soft

	mu sync.Mutex
	// Guarded by mu. after is where the next look at a member's regions begins; members
	// with few regions have none. given counts leads that were hinted to a member since
	// the heartbeat that it was judged by.
	after map[state.MemberID]state.RegionID
	given map[state.MemberID]given
}

type given struct {
	since clock.Instant
	leads uint64
}

// New makes a Planner over what members report.
func New(soft *catalog.Soft) *Planner {
	return &Planner{soft: soft, after: map[state.MemberID]state.RegionID{}, given: map[state.MemberID]given{}}
}

// look is one heartbeat being answered.
type look struct {
	*Planner
	st     *state.State
	member state.MemberID
	now    clock.Instant
	leads  uint64 // of the member, with what was hinted at
	merged map[state.RegionID]bool
	out    []*coordinatorv1.SchedulerOperation
}

// For returns hints for a member whose heartbeat has been taken.
func (p *Planner) For(st *state.State, member state.MemberID, now clock.Instant) []*coordinatorv1.SchedulerOperation {
	report, ok := p.soft.Store(member)
	if !ok || report.Heartbeat.GetLeaderCount() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.after) > maxNotes || len(p.given) > maxNotes {
		clear(p.after)
		clear(p.given)
	}
	l := look{Planner: p, st: st, member: member, now: now, leads: report.Heartbeat.GetLeaderCount(), merged: map[state.RegionID]bool{}}
	looks, last := 0, state.RegionID(0)
	st.MemberRegionsAfter(member, p.after[member], func(r *state.Region) bool {
		looks, last = looks+1, r.ID
		l.region(r)
		return looks < maxLooks && len(l.out) < MaxHints
	})
	delete(p.after, member)
	if looks == maxLooks || len(l.out) == MaxHints {
		p.after[member] = last
	}
	era := uint64(st.Tenure().GetEra())
	for _, op := range l.out {
		op.Era = era
	}
	return l.out
}

// region looks at one region of the member.
func (l *look) region(r *state.Region) {
	k := l.st.Keyspace(r.Keyspace)
	if k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_REPORTED || l.merged[r.ID] ||
		l.st.PendingTransition(r.ID) != nil || l.soft.Leader(l.st, r, l.now) != l.member {
		return
	}
	if most := k.GetSettings().GetLimits().GetMaxKeysPerRegion(); most > 0 && k.GetSettings().GetLayout().GetRanges() != nil && l.reshape(r, most) {
		return
	}
	l.transfer(r)
}

// reshape hints to split what has more keys than the keyspace's limit, and to merge what
// has few with its neighbour.
func (l *look) reshape(r *state.Region, most uint64) bool {
	report, _ := l.soft.Region(r.ID)
	if report.Keys > most {
		l.hint(&coordinatorv1.SchedulerOperation{
			Kind:       &coordinatorv1.SchedulerOperation_Split{Split: &coordinatorv1.SplitHint{RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto()}},
			ReasonCode: rootv1.OperationReason_OPERATION_REASON_LIMIT,
			Reason:     fmt.Sprintf("split region %d: it has %d keys, and the keyspace's limit is %d", r.ID, report.Keys, most),
		})
		return true
	}
	if r.End == "" {
		return false
	}
	right := l.st.RegionAt(r.Keyspace, r.End)
	if right == nil || right.Start != r.End || !sameOwners(r, right) || l.st.PendingTransition(right.ID) != nil || l.soft.Leader(l.st, right, l.now) != l.member {
		return false
	}
	other, _ := l.soft.Region(right.ID)
	if report.Keys+other.Keys >= most/4 {
		return false
	}
	l.merged[right.ID] = true
	l.hint(&coordinatorv1.SchedulerOperation{
		Kind: &coordinatorv1.SchedulerOperation_Merge{Merge: &coordinatorv1.MergeHint{
			LeftRegionId: uint64(r.ID), RightRegionId: uint64(right.ID), LeftExpectedEpoch: r.Epoch.Proto(), RightExpectedEpoch: right.Epoch.Proto(),
		}},
		ReasonCode: rootv1.OperationReason_OPERATION_REASON_COLD,
		Reason:     fmt.Sprintf("merge regions %d and %d: they have %d keys, and the keyspace's limit is %d", r.ID, right.ID, report.Keys+other.Keys, most),
	})
	return true
}

// sameOwners reports whether the same members own both: a merge leaves those of one.
func sameOwners(a, b *state.Region) bool {
	if len(a.Owners) != len(b.Owners) {
		return false
	}
	for _, o := range a.Owners {
		if _, both := b.Owner(o.Member); !both {
			return false
		}
	}
	return true
}

// transfer hints to give the lead to the owner that leads fewest.
func (l *look) transfer(r *state.Region) {
	var to state.MemberID
	var fewest uint64
	for _, o := range r.Owners {
		if o.Member == l.member || !l.st.HostsIn(o.Member, r.Keyspace) || o.Role == rootv1.OwnerRole_OWNER_ROLE_LEARNER || l.st.Member(o.Member).GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
			continue
		}
		if n, heard := l.leadsOf(o.Member); heard && (to == "" || n < fewest) {
			to, fewest = o.Member, n
		}
	}
	if to == "" || l.leads < fewest+2 {
		return
	}
	l.hint(&coordinatorv1.SchedulerOperation{
		Kind: &coordinatorv1.SchedulerOperation_TransferLeader{TransferLeader: &coordinatorv1.TransferLeader{
			RegionId: uint64(r.ID), FromMemberId: string(l.member), ToMemberId: string(to), ExpectedEpoch: r.Epoch.Proto(),
		}},
		ReasonCode: rootv1.OperationReason_OPERATION_REASON_COUNT,
		Reason:     fmt.Sprintf("give the lead of region %d to %.64q: it leads %d regions, and %.64q %d", r.ID, to, fewest, l.member, l.leads),
	})
	l.leads--
	g := l.given[to]
	g.leads++
	l.given[to] = g
}

// leadsOf is how many regions a member leads, with what it was given since it said so.
func (l *look) leadsOf(id state.MemberID) (leads uint64, heard bool) {
	report, ok := l.soft.Store(id)
	if !ok || l.now.Sub(report.At) > heardWithin || report.Heartbeat.GetIncarnation() != l.st.Member(id).GetIncarnation() {
		delete(l.given, id)
		return 0, false
	}
	if l.given[id].since != report.At {
		l.given[id] = given{since: report.At}
	}
	return report.Heartbeat.GetLeaderCount() + l.given[id].leads, true
}

func (l *look) hint(op *coordinatorv1.SchedulerOperation) { l.out = append(l.out, op) }
