package catalog

import (
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// SoftConfig bounds the soft state.
type SoftConfig struct {
	// MaxMembers is how many members' heartbeats are kept. Default 131,072: as
	// many as the root has members.
	MaxMembers int
	// MaxRegions is how many regions' reports are kept, about 100 bytes each.
	// What comes above is answered and forgotten. Default 4,194,304.
	MaxRegions int
	// MaxReportBytes bounds what members choose the size of in reports of regions: frontiers,
	// keys, errors. Default 256 MiB.
	MaxReportBytes int
	// LeaderFor is how long a report of leadership counts. Default 5 minutes.
	LeaderFor time.Duration
}

// Soft is what members reported here. It is gone with the process; nothing
// depends on it for being right. Its methods may overlap.
type Soft struct {
	cfg     SoftConfig
	members [softShards]memberShard
	regions [softShards]regionShard
}

// softShards keeps concurrent heartbeats out of each other's way.
const softShards = 64

type memberShard struct {
	mu   sync.Mutex
	last map[state.MemberID]StoreReport // guarded by mu
	// ended are incarnations that have said their last word. Guarded by mu.
	ended map[state.MemberID]uint64
	_     [40]byte // a cache line each
}

type regionShard struct {
	mu sync.Mutex
	// Guarded by mu. ownBytes is the sum of the sizes of own.
	last     map[state.RegionID]RegionReport
	own      map[reportKey]keptReport
	ownBytes int
	// unserved is since when who said it says that it gets ready, or lets go, of regions of which that is
	// the last word.
	unserved map[reportKey]clock.Instant
	// early are last words that are ahead of the view, of earlyBytes.
	early      map[reportKey]earlyReport
	earlyBytes int
	_          [8]byte // a cache line each
}

// StoreReport is a member's last heartbeat.
type StoreReport struct {
	// Heartbeat as it was sent. It is shared: nobody changes it.
	Heartbeat *coordinatorv1.StoreHeartbeatRequest
	// At is when it came.
	At clock.Instant
}

// RegionReport is what was last reported of a region.
type RegionReport struct {
	// Member that reported.
	Member state.MemberID
	// Incarnation of the member.
	Incarnation uint64
	// Leader: the member leads the region's replication group.
	Leader bool
	// Keys and Bytes in the region.
	Keys, Bytes uint64
	// At is when it came.
	At clock.Instant
}

// NewSoft returns an empty Soft.
func NewSoft(cfg SoftConfig) *Soft {
	if cfg.MaxMembers == 0 {
		cfg.MaxMembers = 1 << 17
	}
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = 1 << 22
	}
	if cfg.MaxReportBytes == 0 {
		cfg.MaxReportBytes = 256 << 20
	}
	if cfg.LeaderFor == 0 {
		cfg.LeaderFor = 5 * time.Minute
	}
	s := &Soft{cfg: cfg}
	for i := range softShards {
		s.members[i].last, s.members[i].ended = map[state.MemberID]StoreReport{}, map[state.MemberID]uint64{}
		s.regions[i].last = map[state.RegionID]RegionReport{}
		s.regions[i].own, s.regions[i].unserved = map[reportKey]keptReport{}, map[reportKey]clock.Instant{}
		s.regions[i].early = map[reportKey]earlyReport{}
	}
	return s
}

// Sender judges whether an incarnation of a member may report. It refuses with
//
//	REASON_INVALID_REQUEST    no incarnation
//	REASON_REGISTER_FIRST     the member is not registered
//	REASON_ROOT_LAG_EXCEEDED  the incarnation is newer than this view: report again later
//	REASON_MEMBER_RETIRED     it is removed, or a newer incarnation registered
func Sender(st *state.State, id state.MemberID, incarnation uint64) (*rootv1.Member, error) {
	m := st.Member(id)
	switch {
	case incarnation == 0:
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "a report of member %.64q names no incarnation", string(id))
	case m == nil:
		return nil, reason.New(rootv1.Reason_REASON_REGISTER_FIRST, "member %.64q is not registered", string(id))
	case incarnation > m.GetIncarnation():
		e := reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED,
			"this coordinator knows incarnation %d of member %.64q, not %d yet", m.GetIncarnation(), string(id), incarnation)
		e.Detail.CurrentToken = st.Token().Proto()
		return nil, e
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED:
		return nil, reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "member %.64q is removed", string(id))
	case incarnation < m.GetIncarnation():
		return nil, reason.New(rootv1.Reason_REASON_MEMBER_RETIRED,
			"incarnation %d of member %.64q is over: %d registered", incarnation, string(id), m.GetIncarnation())
	}
	return m, nil
}

// StoreHeartbeat takes a member's heartbeat, judged against st: see Sender.
// taken is false for one that is not newer than the last, and when there is no
// room. The member is returned as rooted.
func (s *Soft) StoreHeartbeat(st *state.State, hb *coordinatorv1.StoreHeartbeatRequest, now clock.Instant) (m *rootv1.Member, taken bool, err error) {
	m, err = Sender(st, state.MemberID(hb.GetMemberId()), hb.GetIncarnation())
	if err != nil {
		return nil, false, err
	}
	id := state.MemberID(m.GetId())
	shard := &s.members[shardOfMember(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	old, known := shard.last[id]
	if known && !newer(hb, old.Heartbeat) || !known && len(shard.last) >= share(s.cfg.MaxMembers) {
		return m, false, nil
	}
	shard.last[id] = StoreReport{Heartbeat: copyHeartbeat(hb, m), At: now}
	return m, true, nil
}

func newer(hb, old *coordinatorv1.StoreHeartbeatRequest) bool {
	if hb.GetIncarnation() != old.GetIncarnation() {
		return hb.GetIncarnation() > old.GetIncarnation()
	}
	return hb.GetSequence() > old.GetSequence()
}

// copyHeartbeat keeps the fields and nothing else that came with the message.
func copyHeartbeat(hb *coordinatorv1.StoreHeartbeatRequest, m *rootv1.Member) *coordinatorv1.StoreHeartbeatRequest {
	return &coordinatorv1.StoreHeartbeatRequest{
		MemberId: m.GetId(), Incarnation: hb.GetIncarnation(), Sequence: hb.GetSequence(),
		CapacityBytes: hb.GetCapacityBytes(), AvailableBytes: hb.GetAvailableBytes(),
		RegionCount: hb.GetRegionCount(), LeaderCount: hb.GetLeaderCount(), Load: hb.GetLoad(),
	}
}

// Store returns a member's last heartbeat.
func (s *Soft) Store(id state.MemberID) (StoreReport, bool) {
	shard := &s.members[shardOfMember(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r, ok := shard.last[id]
	return r, ok
}

// RegionHeartbeat takes a member's report of a region, judged against st: see
// Sender. The region must be rooted: REASON_NOT_FOUND. taken is false for the
// report of a follower while the leader's counts, and when there is no room.
// The region is returned as rooted.
func (s *Soft) RegionHeartbeat(st *state.State, hb *coordinatorv1.RegionHeartbeatRequest, now clock.Instant) (r *state.Region, taken bool, err error) {
	m, err := Sender(st, state.MemberID(hb.GetMemberId()), hb.GetIncarnation())
	if err != nil {
		return nil, false, err
	}
	r, err = Get(st, state.RegionID(hb.GetRegion().GetId()))
	if err != nil {
		return nil, false, err
	}
	report := RegionReport{
		Member: state.MemberID(m.GetId()), Incarnation: hb.GetIncarnation(),
		Leader: hb.GetLeader() && st.HostsIn(state.MemberID(m.GetId()), r.Keyspace), Keys: hb.GetKeyCount(), Bytes: hb.GetBytes(), At: now,
	}
	shard := &s.regions[shardOfRegion(r.ID)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	old, known := shard.last[r.ID]
	if known && !s.supersedes(r, report, old) || !known && len(shard.last) >= share(s.cfg.MaxRegions) {
		return r, false, nil
	}
	shard.last[r.ID] = report
	return r, true, nil
}

// supersedes says whether a report takes the place of another one: the leader's
// last word counts until it is too old, its sender says otherwise, or the
// sender no longer owns the region.
func (s *Soft) supersedes(r *state.Region, report, old RegionReport) bool {
	return report.Leader || report.Member == old.Member || !s.leads(r, old, report.At)
}

func (s *Soft) leads(r *state.Region, report RegionReport, now clock.Instant) bool {
	if !report.Leader || now.Sub(report.At) > s.cfg.LeaderFor {
		return false
	}
	_, owns := r.Owner(report.Member)
	return owns
}

// Region returns what was last reported of a region.
func (s *Soft) Region(id state.RegionID) (RegionReport, bool) {
	shard := &s.regions[shardOfRegion(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r, ok := shard.last[id]
	return r, ok
}

// Leader is the owner that said last that it leads the region; empty when none of the
// owners did in SoftConfig.LeaderFor, and when the one that did has ended since, or may not own the region any
// more.
func (s *Soft) Leader(st *state.State, r *state.Region, now clock.Instant) state.MemberID {
	report, ok := s.Region(r.ID)
	if !ok || !s.leads(r, report, now) || !st.Acts(state.Owner{Member: report.Member, Incarnation: report.Incarnation}) {
		return ""
	}
	if !st.HostsIn(report.Member, r.Keyspace) {
		return ""
	}
	if o, _ := r.Owner(report.Member); o.Incarnation != 0 && o.Incarnation != report.Incarnation {
		return ""
	}
	return report.Member
}

// Forget drops what is kept of members and regions that a batch of changes
// removed.
func (s *Soft) Forget(changes []state.Change) {
	for i := range changes {
		c := &changes[i]
		s.forgetOwners(c)
		switch {
		case c.Kind == state.ChangeRegion && c.Removed:
			s.forgetRegion(c.Region.ID)
		case c.Kind == state.ChangeMember && (c.Removed || c.Member.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED):
			s.forgetMember(state.MemberID(c.Member.GetId()))
		}
	}
}

func (s *Soft) forgetRegion(id state.RegionID) {
	shard := &s.regions[shardOfRegion(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	delete(shard.last, id)
}

func (s *Soft) forgetMember(id state.MemberID) {
	shard := &s.members[shardOfMember(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	delete(shard.last, id)
	delete(shard.ended, id)
}

// End notes that an incarnation has said its last word: what comes of it on other streams behind that
// was said before, and counts no more.
func (s *Soft) End(id state.MemberID, incarnation uint64) {
	shard := &s.members[shardOfMember(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.ended[id] = max(shard.ended[id], incarnation)
}

// Ended reports whether an incarnation has said its last word here.
func (s *Soft) Ended(id state.MemberID, incarnation uint64) bool {
	shard := &s.members[shardOfMember(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.ended[id] >= incarnation
}

// Sweep drops what is kept of members and regions that st does not have: after
// a view jumped, when no changes tell, and now and then, because a report that
// was judged against an older view may come after Forget. It holds one small
// lock at a time.
func (s *Soft) Sweep(st *state.State) {
	for i := range softShards {
		s.members[i].sweep(st)
		s.regions[i].sweep(st)
	}
}

func (h *memberShard) sweep(st *state.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.last {
		if m := st.Member(id); m == nil || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
			delete(h.last, id)
		}
	}
	for id, incarnation := range h.ended {
		if m := st.Member(id); m == nil || m.GetIncarnation() > incarnation || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
			delete(h.ended, id)
		}
	}
}

func (h *regionShard) sweep(st *state.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.last {
		if st.Region(id) == nil {
			delete(h.last, id)
		}
	}
	h.sweepOwn(st)
}

// Len is the number of members and regions that something is kept of by unary heartbeats.
func (s *Soft) Len() (members, regions int) {
	for i := range softShards {
		s.members[i].mu.Lock()
		members += len(s.members[i].last)
		s.members[i].mu.Unlock()
		s.regions[i].mu.Lock()
		regions += len(s.regions[i].last)
		s.regions[i].mu.Unlock()
	}
	return members, regions
}

// share is one shard's part of a bound. Hashes spread evenly enough for it.
func share(limit int) int { return max(1, limit/softShards) }

func shardOfRegion(id state.RegionID) int {
	return int(uint64(id) * 0x9E3779B97F4A7C15 >> 58)
}

func shardOfMember(id state.MemberID) int {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return int(h % softShards)
}
