package catalog

import (
	"math"
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// MaxHotKeys bounds the hot keys of a report.
const MaxHotKeys = 16

// OwnReport is what an incarnation of a member last said of a region that it owns, or
// is to own next.
type OwnReport struct {
	// Epoch that it speaks of, and Phase that it is in there.
	Epoch state.Epoch
	Phase coordinatorv1.RegionPhase
	// Leader, Saturated, FrontierSet and Calling are flags of the report.
	Leader, Saturated, FrontierSet, Calling bool
	// IdleSeconds since the region was last used; 0: not told.
	IdleSeconds uint32
	Load        float64
	Keys, Bytes uint64
	Frontier    string
	// At is when it came.
	At clock.Instant
	// More is nil for a report without any of it.
	More *OwnReportMore
}

// OwnReportMore is what few reports have.
type OwnReportMore struct {
	TransitionID, Error string
	HotKeys             []*coordinatorv1.HotKey
	MedianKey           []byte
}

// reportKey: what one incarnation says of one region. No two members have the same.
type reportKey struct {
	region      state.RegionID
	incarnation uint64
}

// keptReport is an OwnReport as it is kept, of which there may be millions.
type keptReport struct {
	epoch       state.Epoch
	load        float64
	keys, bytes uint64
	at          clock.Instant
	// rest is nil for a report without any of it.
	rest  *keptRest
	idle  uint32
	phase uint8
	flags uint8
	// keyspace is the low half of the region's.
	keyspace uint16
}

type keptRest struct {
	frontier string
	more     *OwnReportMore
}

const (
	flagLeader = 1 << iota
	flagSaturated
	flagFrontierSet
	flagCalling
)

func keep(r *OwnReport) keptReport {
	k := keptReport{epoch: r.Epoch, load: r.Load, keys: r.Keys, bytes: r.Bytes, at: r.At, idle: r.IdleSeconds, phase: uint8(r.Phase)}
	if r.Leader {
		k.flags |= flagLeader
	}
	if r.Saturated {
		k.flags |= flagSaturated
	}
	if r.FrontierSet {
		k.flags |= flagFrontierSet
	}
	if r.Calling {
		k.flags |= flagCalling
	}
	if r.Frontier != "" || r.More != nil {
		k.rest = &keptRest{r.Frontier, r.More}
	}
	return k
}

func (r *keptReport) report() OwnReport {
	all := OwnReport{
		Epoch: r.epoch, Phase: coordinatorv1.RegionPhase(r.phase), Leader: r.flags&flagLeader != 0, Saturated: r.flags&flagSaturated != 0,
		FrontierSet: r.flags&flagFrontierSet != 0, Calling: r.flags&flagCalling != 0, IdleSeconds: r.idle, Load: r.load, Keys: r.keys, Bytes: r.bytes, At: r.at,
	}
	if r.rest != nil {
		all.Frontier, all.More = r.rest.frontier, r.rest.more
	}
	return all
}

// size is how many bytes the parts of a report have whose size is the sender's choice.
func (r *keptReport) size() int {
	if r.rest == nil {
		return 0
	}
	n := 64 + len(r.rest.frontier)
	if m := r.rest.more; m != nil {
		n += 128 + len(m.TransitionID) + len(m.Error) + len(m.MedianKey)
		for _, k := range m.HotKeys {
			n += 64 + len(k.GetKey())
		}
	}
	return n
}

// Report takes what an incarnation of a member says of a region, judged against st:
// it owns it, or is to own it next. It refuses with
//
//	REASON_INVALID_REQUEST  what is too long, or no number: where the phase and the epoch are right the rest is
//	                        kept without that, and with the load that was said before
//	REASON_NOT_FOUND        there is no such region, or it is neither its own nor of a keyspace where it may be
//	REASON_EPOCH_STALE      it is not the member's
//	REASON_OVERLOADED       there is no room for more
//
// turned says that the phase is another one than before, or of another epoch.
func (s *Soft) Report(st *state.State, m *rootv1.Member, p *coordinatorv1.RegionReport, now clock.Instant) (turned bool, err error) {
	flaw, isLoad := checkReport(p), IsLoad(p.GetLoad())
	switch {
	case flaw != nil && !speaks(p):
		return false, flaw
	case flaw != nil:
		p = sound(p)
	}
	r := st.Region(state.RegionID(p.GetRegionId()))
	if r == nil {
		s.keepEarly(m, p, now)
		return false, NoRegion(state.RegionID(p.GetRegionId()))
	}
	if !concerns(st, r, m) {
		if rooted.EpochFromProto(p.GetEpoch()).NewerThan(r.Epoch) {
			s.keepEarly(m, p, now)
		}
		if !st.Hosts(state.MemberID(m.GetId()), st.Keyspace(r.Keyspace).GetName()) {
			return false, NoRegion(r.ID) // ids would tell what others have
		}
		e := reason.New(rootv1.Reason_REASON_EPOCH_STALE, "region %d at epoch %s is not member %.64q's", r.ID, r.Epoch, m.GetId())
		e.Detail.Region = &rootv1.Region{Id: uint64(r.ID), Epoch: r.Epoch.Proto()}
		return false, e
	}
	report, key := read(p, now), reportKey{r.ID, m.GetIncarnation()}
	kept := keep(&report)
	kept.keyspace = uint16(r.Keyspace)
	shard := &s.regions[shardOfRegion(r.ID)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	old, known := shard.own[key]
	if !isLoad {
		kept.load = old.load
	}
	grown := kept.size() - old.size()
	if !known && len(shard.own) >= share(s.cfg.MaxRegions) || grown > 0 && shard.ownBytes+grown > share(s.cfg.MaxReportBytes) {
		return false, reason.New(rootv1.Reason_REASON_OVERLOADED, "no more reports of regions are kept here: region %d", r.ID)
	}
	shard.ownBytes += grown
	shard.own[key] = kept
	shard.dropEarly(key)
	turned = !known || old.phase != kept.phase || old.epoch != kept.epoch
	switch report.Phase {
	case coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING, coordinatorv1.RegionPhase_REGION_PHASE_PREPARING, coordinatorv1.RegionPhase_REGION_PHASE_RELEASING:
		if turned {
			shard.unserved[key] = now
		}
	default:
		delete(shard.unserved, key)
	}
	if report.Leader || shard.last[r.ID].Member == state.MemberID(m.GetId()) {
		shard.last[r.ID] = RegionReport{
			Member: state.MemberID(m.GetId()), Incarnation: m.GetIncarnation(), Leader: report.Leader, Keys: report.Keys, Bytes: report.Bytes, At: now,
		}
	}
	return turned, flaw
}

// earlyReport is a last word of a region that st did not have as the member's yet.
type earlyReport struct {
	keptReport
	member state.MemberID
}

const (
	// maxEarly and maxEarlyBytes bound the reports that are ahead of the view.
	maxEarly      = 1 << 16
	maxEarlyBytes = 16 << 20
)

// keepEarly keeps what a member says when it has released a region that this view does not have as its
// own yet: it may end before it can be asked again, and whoever owns the region next begins there. What
// else it says of the region at that epoch takes it back.
func (s *Soft) keepEarly(m *rootv1.Member, p *coordinatorv1.RegionReport, now clock.Instant) {
	key := reportKey{state.RegionID(p.GetRegionId()), m.GetIncarnation()}
	shard := &s.regions[shardOfRegion(key.region)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.early[key].epoch.NewerThan(rooted.EpochFromProto(p.GetEpoch())) {
		return
	}
	shard.dropEarly(key) // It may have taken the region up again.
	if p.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED || !p.GetSetFrontier() {
		return
	}
	report := read(p, now)
	early := earlyReport{keep(&report), state.MemberID(m.GetId())}
	for other := range shard.early { // Where there is no room any one makes it.
		if len(shard.early) < share(maxEarly) && shard.earlyBytes+early.size() <= share(maxEarlyBytes) {
			break
		}
		shard.dropEarly(other)
	}
	shard.early[key] = early
	shard.earlyBytes += early.size()
}

func (h *regionShard) dropEarly(key reportKey) {
	if old, ok := h.early[key]; ok {
		h.earlyBytes -= old.size()
		delete(h.early, key)
	}
}

// concerns reports whether a region is a member's, or is to be next.
func concerns(st *state.State, r *state.Region, m *rootv1.Member) bool {
	if o, ok := r.Owner(state.MemberID(m.GetId())); ok && (o.Incarnation == m.GetIncarnation() || o.Incarnation == 0) {
		return true
	}
	next := st.PendingTransition(r.ID).GetOwner()
	return next.GetMemberId() == m.GetId() && next.GetIncarnation() == m.GetIncarnation()
}

func checkReport(p *coordinatorv1.RegionReport) error {
	bad := func(format string, args ...any) error {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "the report of region %d: "+format, append([]any{p.GetRegionId()}, args...)...)
	}
	switch {
	case !IsLoad(p.GetLoad()):
		return bad("%v is not a load; it is 0 or more", p.GetLoad())
	case !isPhase(p.GetPhase()):
		return bad("phase %d is none", p.GetPhase())
	case p.GetEpoch() == nil:
		return bad("the epoch is missing")
	case len(p.GetFrontier()) > state.MaxFrontierBytes:
		return bad("the frontier has %d bytes, at most %d fit", len(p.GetFrontier()), state.MaxFrontierBytes)
	case len(p.GetTransitionId()) > state.MaxIDBytes, len(p.GetMedianKey()) > state.MaxKeyBytes:
		return bad("transition id or median key is too long")
	case len(p.GetHotKeys()) > MaxHotKeys:
		return bad("%d hot keys, at most %d fit", len(p.GetHotKeys()), MaxHotKeys)
	}
	for _, k := range p.GetHotKeys() {
		if len(k.GetKey()) > state.MaxKeyBytes {
			return bad("a hot key has %d bytes, at most %d fit", len(k.GetKey()), state.MaxKeyBytes)
		}
	}
	return nil
}

func isPhase(p coordinatorv1.RegionPhase) bool {
	_, known := coordinatorv1.RegionPhase_name[int32(p)]
	return known && p != coordinatorv1.RegionPhase_REGION_PHASE_UNSPECIFIED
}

// speaks reports whether a report says in which phase the member is, at which epoch.
func speaks(p *coordinatorv1.RegionReport) bool { return isPhase(p.GetPhase()) && p.GetEpoch() != nil }

// sound is a report without what it is refused for.
func sound(p *coordinatorv1.RegionReport) *coordinatorv1.RegionReport {
	p = proto.CloneOf(p)
	if !IsLoad(p.GetLoad()) {
		p.Load = 0
	}
	if len(p.GetFrontier()) > state.MaxFrontierBytes {
		p.Frontier, p.SetFrontier = nil, false
	}
	if len(p.GetTransitionId()) > state.MaxIDBytes {
		p.TransitionId = ""
	}
	if len(p.GetMedianKey()) > state.MaxKeyBytes {
		p.MedianKey = nil
	}
	long := func(k *coordinatorv1.HotKey) bool { return len(k.GetKey()) > state.MaxKeyBytes }
	if len(p.GetHotKeys()) > MaxHotKeys || slices.ContainsFunc(p.GetHotKeys(), long) {
		p.HotKeys = nil
	}
	return p
}

// IsLoad reports whether a number can be compared with other loads.
func IsLoad(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

// read keeps the fields and nothing else that came with the message.
func read(p *coordinatorv1.RegionReport, now clock.Instant) OwnReport {
	r := OwnReport{
		Epoch: rooted.EpochFromProto(p.GetEpoch()), Phase: p.GetPhase(), Leader: p.GetLeader(), Saturated: p.GetSaturated(), FrontierSet: p.GetSetFrontier(), Calling: p.GetCalling(),
		IdleSeconds: uint32(min((p.GetIdleMillis()+999)/1000, math.MaxUint32)),
		Load:        p.GetLoad(), Keys: p.GetKeyCount(), Bytes: p.GetBytes(), Frontier: string(p.GetFrontier()), At: now,
	}
	if p.GetTransitionId() != "" || p.GetError() != "" || len(p.GetHotKeys()) > 0 || len(p.GetMedianKey()) > 0 {
		r.More = &OwnReportMore{TransitionID: p.GetTransitionId(), Error: oneline.Within(state.MaxTextBytes, p.GetError()), MedianKey: p.GetMedianKey()}
		for _, k := range p.GetHotKeys() {
			r.More.HotKeys = append(r.More.HotKeys, &coordinatorv1.HotKey{Key: k.GetKey(), Permille: k.GetPermille()})
		}
	}
	return r
}

// Own returns what an incarnation last said of a region.
func (s *Soft) Own(id state.RegionID, incarnation uint64) (OwnReport, bool) {
	shard := &s.regions[shardOfRegion(id)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	key := reportKey{id, incarnation}
	r, ok := shard.own[key]
	if early, there := shard.early[key]; there && (!ok || early.epoch.NewerThan(r.epoch)) {
		return early.report(), true
	}
	return r.report(), ok
}

// Early calls fn for the last words of an incarnation that are ahead of the view.
func (s *Soft) Early(incarnation uint64, fn func(id state.RegionID, report *OwnReport)) {
	for i := range softShards {
		s.regions[i].eachEarly(incarnation, fn)
	}
}

func (h *regionShard) eachEarly(incarnation uint64, fn func(state.RegionID, *OwnReport)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, early := range h.early {
		if key.incarnation == incarnation {
			report := early.report()
			fn(key.region, &report)
		}
	}
}

// Unserved calls fn for regions of which somebody's last word is that it gets ready for them, to
// serve them or to take them over, or that it lets them go. It says since when, and why not, in the
// words of the application, if what it tried last has failed.
func (s *Soft) Unserved(fn func(id state.RegionID, incarnation uint64, since clock.Instant, report *OwnReport)) {
	for i := range softShards {
		s.regions[i].eachUnserved(fn)
	}
}

func (h *regionShard) eachUnserved(fn func(state.RegionID, uint64, clock.Instant, *OwnReport)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, since := range h.unserved {
		r := h.own[key]
		report := r.report()
		fn(key.region, key.incarnation, since, &report)
	}
}

// Gone drops what an incarnation said of a region.
func (s *Soft) Gone(id state.RegionID, incarnation uint64) {
	s.drop(reportKey{id, incarnation}, state.Epoch{Version: math.MaxUint64})
}

// drop drops what an incarnation said of a region at an epoch and before.
func (s *Soft) drop(key reportKey, until state.Epoch) {
	shard := &s.regions[shardOfRegion(key.region)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if own, ok := shard.own[key]; ok && !own.epoch.NewerThan(until) {
		shard.dropOwn(key)
	}
	if early, ok := shard.early[key]; ok && !early.epoch.NewerThan(until) {
		shard.dropEarly(key)
	}
}

// Complete drops what an incarnation said of its regions before a moment.
func (s *Soft) Complete(st *state.State, incarnation uint64, since clock.Instant) {
	st.IncarnationRegions(incarnation, func(r *state.Region) bool {
		if old, ok := s.Own(r.ID, incarnation); ok && old.At < since {
			s.Gone(r.ID, incarnation)
		}
		return true
	})
}

func (h *regionShard) dropOwn(key reportKey) {
	if old, ok := h.own[key]; ok {
		h.ownBytes -= old.size()
		delete(h.own, key)
		delete(h.unserved, key)
	}
}

// forgetOwners drops what was said by those who own a region no longer, or who are not
// to own it any more.
func (s *Soft) forgetOwners(c *state.Change) {
	switch {
	case c.Kind == state.ChangeRegion && c.OldRegion != nil:
		for _, o := range c.OldRegion.Owners {
			switch now, ok := c.Region.Owner(o.Member); {
			case c.Removed:
				s.Gone(c.OldRegion.ID, o.Incarnation)
			case !ok || now.Incarnation != o.Incarnation:
				s.drop(reportKey{c.OldRegion.ID, o.Incarnation}, c.Region.Epoch)
			}
		}
	case c.Kind == state.ChangeTransition && !c.Removed:
		st := c.Transition.GetStatus()
		if st != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING && st != rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
			key := reportKey{state.RegionID(c.Transition.GetRegionId()), c.Transition.GetOwner().GetIncarnation()}
			s.drop(key, rooted.EpochFromProto(c.Transition.GetBaseEpoch()))
		}
	}
}

// sweepOwn drops what is said of regions by who does not own them.
func (h *regionShard) sweepOwn(st *state.State) {
	for key := range h.own {
		r, kept := st.Region(key.region), false
		if r != nil {
			own := h.own[key]
			kept = own.epoch.NewerThan(r.Epoch)
			for _, o := range r.Owners {
				kept = kept || o.Incarnation == key.incarnation || o.Incarnation == 0
			}
			kept = kept || st.PendingTransition(r.ID).GetOwner().GetIncarnation() == key.incarnation
		}
		if !kept {
			h.dropOwn(key)
		}
	}
	for key, early := range h.early {
		if !early.counts(st, key) {
			h.dropEarly(key)
		}
	}
}

// counts reports whether an early word may be about a region as it is, also if its member has
// another process by now, or as it will be.
func (r *earlyReport) counts(st *state.State, key reportKey) bool {
	now := st.Region(key.region)
	if now == nil || r.epoch.NewerThan(now.Epoch) {
		return st.Member(r.member).GetIncarnation() == key.incarnation
	}
	o, ok := now.Owner(r.member)
	return ok && (o.Incarnation == key.incarnation || o.Incarnation == 0) && now.Epoch == r.epoch
}
