package held

import (
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/hotkeys"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

const (
	// maxSent is how many frames without an answer are remembered by stream. An
	// answer to an older one confirms nothing.
	maxSent = 1024
	// gap is the least time between two frames that are not due: what happens within
	// it goes into one.
	gap = 2 * time.Millisecond
	// hotShare is the part of a member's load above which keys of a region are counted.
	hotShare = 100
)

type goodbye struct {
	deadline clock.Instant
	reason   string
	gone     bool
}

// Report takes what the application tells of a region. False: there is none such.
func (c *Core) Report(id rooted.RegionID, s rooted.Stats) bool {
	r := c.regions[id]
	if r == nil {
		return false
	}
	s.Load = finite(s.Load)
	if idle := c.idleAfter(r); r.gate != nil && (s.Load > 0 || s.Idle > 0 && s.Idle < idle) {
		r.gate.used.Store(true)
	}
	hot := s.Load > 0 && s.Load*hotShare > c.load.Load && r.phase == phaseServing
	if hot != (r.hot != nil) {
		r.hot = nil
		if hot {
			r.hot = hotkeys.New(c.cfg.Chance)
		}
		c.publish(r, c.want(r))
	}
	old := r.stats
	if old == nil || old.Leader != s.Leader || old.Saturated != s.Saturated {
		c.mark(r, true)
	} else if apart(old.Load, s.Load) || apart(float64(old.Keys), float64(s.Keys)) || apart(float64(old.Bytes), float64(s.Bytes)) || (old.Idle == 0) != (s.Idle == 0) || hot {
		c.mark(r, false)
	} else {
		return true // what was told is near enough
	}
	r.stats = &s
	return true
}

// apart says whether two numbers differ by more than a sixteenth.
func apart(a, b float64) bool { return math.Abs(a-b) > math.Max(a, b)/16 }

func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		return 0
	}
	return x
}

// SetLoad takes the load of the member as a whole.
func (c *Core) SetLoad(l rooted.Load) {
	l.Load, l.Capacity = finite(l.Load), finite(l.Capacity)
	if l == c.load {
		return
	}
	c.load = l
	for _, s := range c.streams {
		if s != nil {
			s.load = true
		}
	}
}

// Goodbye says with every frame that the process wants to leave by a deadline.
func (c *Core) Goodbye(deadline clock.Instant, reason string) {
	c.goodbye = &goodbye{deadline: deadline, reason: bounded(reason)}
	c.allUrgent()
}

// Gone says with every frame that the process serves nothing any more and ends. That is so
// before it is said: what it has is granted to others at once.
func (c *Core) Gone(reason string) {
	c.end()
	c.goodbye = &goodbye{reason: bounded(reason), gone: true}
	for _, id := range c.ids() {
		if r := c.regions[id]; r.phase == phaseReleased && r.shown != nil && r.shown.left == id {
			c.changed(r) // it was reported as the left one of a merge
		}
	}
	c.allUrgent()
}

func (c *Core) allUrgent() {
	for _, s := range c.streams {
		if s != nil {
			s.urgent = true
		}
	}
}

// Due is when the next frame of a stream is to be sent.
func (c *Core) Due(id int) clock.Instant {
	s := c.streams[id]
	switch {
	case s == nil:
		return math.MaxInt64
	case s.sequence == 0 || s.whole:
		return 0
	case s.urgent:
		return s.lastSent.Add(gap)
	}
	return s.lastSent.Add(s.interval)
}

// Frame makes the next frame of a stream if one is due; nil: none is. The time that a
// confirmation is good for runs from now.
func (c *Core) Frame(id int, now clock.Instant) *coordinatorv1.MemberFrame {
	s := c.streams[id]
	if s == nil || now < c.Due(id) {
		return nil
	}
	s.sequence++
	c.saying = now
	f := &coordinatorv1.MemberFrame{Sequence: s.sequence, Complete: s.whole, Shown: s.shownState(), Goodbye: c.goodbye.frame(now)}
	if s.sequence == 1 {
		f.Hello = &coordinatorv1.MemberHello{MemberId: string(c.cfg.Member), Incarnation: c.cfg.Incarnation}
		if c.obeyed != (rooted.Token{}) {
			f.Hello.Obeyed = c.obeyed.Proto()
		}
	}
	if s.load {
		f.Load, s.load = &coordinatorv1.MemberLoad{Load: c.load.Load, Capacity: c.load.Capacity}, false
	}
	room := MaxFrameBytes - proto.Size(f) - 320 // the way of a first frame is written into it by those who send it
	for len(s.replies) > 0 && room > 0 {
		room -= proto.Size(s.replies[0]) + 8
		f.Replies, s.replies = append(f.Replies, s.replies[0]), s.replies[1:]
	}
	if s.whole {
		if !s.begun {
			s.begun, s.todo = true, c.ids()
		}
		s.todo = c.fill(f, id, s.todo, &room)
		s.whole, s.begun = len(s.todo) > 0, len(s.todo) > 0
		if !s.whole {
			s.dirty = slices.DeleteFunc(s.dirty, func(at rooted.RegionID) bool { return c.regions[at] != nil && c.regions[at].dirty&(1<<id) == 0 })
		}
		f.Partial = s.whole || len(s.dirty) > 0 // what changed behind its part is said before all is
	} else {
		s.dirty = c.fill(f, id, s.dirty, &room)
		f.Partial = len(s.dirty) > 0
	}
	s.urgent = len(s.dirty) > 0 || len(s.replies) > 0
	s.lastSent = now
	if len(s.sent) == maxSent {
		s.sent = s.sent[1:]
	}
	s.sent = append(s.sent, sentFrame{s.sequence, now})
	c.counts.Frames++
	c.counts.Reports += uint64(len(f.GetRegions()))
	return f
}

// fill reports regions while there is room, and returns those that are left.
func (c *Core) fill(f *coordinatorv1.MemberFrame, id int, todo []rooted.RegionID, room *int) []rooted.RegionID {
	for i, at := range todo {
		if *room < 1<<14 { // the longest report, with its keys, is shorter
			return todo[i:]
		}
		r := c.regions[at]
		if r == nil {
			if !f.Complete {
				f.Gone = append(f.Gone, uint64(at))
				*room -= 12
			}
			continue
		}
		if !f.Complete && r.dirty&(1<<id) == 0 {
			continue // it was told meanwhile, in a complete report
		}
		r.dirty &^= 1 << id
		report := c.report(r)
		*room -= proto.Size(report) + 8
		f.Regions = append(f.Regions, report)
	}
	return nil
}

func (c *Core) report(r *region) *coordinatorv1.RegionReport {
	at := r.at
	if at == nil {
		at = &r.shown.region
	}
	p := &coordinatorv1.RegionReport{
		RegionId: uint64(r.id), Epoch: at.Epoch.Proto(), Phase: r.phase, TransitionId: r.transition, Error: r.err,
		Calling: r.call != 0 && !c.calls[r.call].late,
	}
	if r.phase == phaseNone {
		p.Phase = phaseAcquiring // its terms have not come
	}
	if r.fronted {
		p.Frontier, p.SetFrontier = []byte(r.frontier), true
	}
	switch {
	case c.over: // with the process ends what it has begun: of a merge the parts are what they were
	case r.phase != phaseReleased || r.shown == nil || r.shown.left != r.id || r.transition != r.shown.transition:
	case r.joined:
		p.Frontier = []byte(r.whole)
	default: // it is released with its neighbour
		p.Phase = phaseReleasing
	}
	if s := r.stats; s != nil {
		p.Load, p.KeyCount, p.Bytes, p.Leader, p.Saturated = s.Load, s.Keys, s.Bytes, s.Leader, s.Saturated
	}
	p.IdleMillis = c.idleMillis(r)
	if r.hot != nil {
		hot, median := r.hot.Top(MaxHotKeys)
		for _, h := range hot {
			p.HotKeys = append(p.HotKeys, &coordinatorv1.HotKey{Key: []byte(h.Key), Permille: h.Permille})
		}
		p.MedianKey = []byte(median)
	}
	return p
}

func (s *stream) shownState() *coordinatorv1.ShownState {
	if s.token == (rooted.Token{}) {
		return nil
	}
	sum := s.sum
	if s.broken {
		sum = ^sum
	}
	return &coordinatorv1.ShownState{Token: s.token.Proto(), Count: uint64(len(s.hashes)), Checksum: sum}
}

func (g *goodbye) frame(now clock.Instant) *coordinatorv1.Goodbye {
	if g == nil {
		return nil
	}
	return &coordinatorv1.Goodbye{DeadlineMillis: uint64(max(g.deadline.Sub(now), 0).Milliseconds()), Reason: g.reason, Gone: g.gone}
}

// commandLog is what became of the commands of an era.
type commandLog struct {
	era     uint64
	replies map[uint64]*coordinatorv1.MemberCommandReply // nil while it is carried out
	order   []uint64
}

// commandRef is the command that a call carries out.
type commandRef struct {
	era, id uint64
	stream  int
	to      rooted.MemberID
	made    *checkpoint // of a command to make one; nil: it is not made
}

type checkpoint struct {
	region   rooted.RegionID
	epoch    rooted.Epoch
	frontier string
}

// carryOut carries a command out at most once.
func (c *Core) carryOut(stream int, m *coordinatorv1.MemberCommand, now clock.Instant) {
	ref := &commandRef{era: m.GetEra(), id: m.GetId(), stream: stream, to: rooted.MemberID(m.GetToMemberId())}
	log := &c.answers
	if m.GetEra() < c.era {
		c.send(ref, rootv1.Reason_REASON_ERA_STALE, "the era of the command is over")
		return
	}
	if c.era = m.GetEra(); log.era != c.era {
		*log = commandLog{era: c.era, replies: map[uint64]*coordinatorv1.MemberCommandReply{}}
	}
	if old, known := log.replies[ref.id]; known {
		if s := c.streams[stream]; old != nil && s != nil {
			s.replies = append(s.replies, old)
			s.urgent = true
		}
		return
	}
	if len(log.order) == maxReplies {
		delete(log.replies, log.order[0])
		log.order = log.order[1:]
	}
	log.replies[ref.id] = nil
	log.order = append(log.order, ref.id)
	kind := map[coordinatorv1.MemberCommandKind]CallKind{
		coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT:      Checkpoint,
		coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_RELEASE_IF_IDLE: Idle,
		coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_TRANSFER_LEADER: TransferLeader,
	}[m.GetKind()]
	r := c.regions[rooted.RegionID(m.GetRegionId())]
	switch {
	case kind == 0:
		c.send(ref, rootv1.Reason_REASON_INVALID_REQUEST, "no such command is known here")
	case r == nil || r.phase != phaseServing || c.want(r) != wantOwn:
		c.send(ref, rootv1.Reason_REASON_NOT_FOUND, "the region is not served here")
	case r.at.Epoch != rooted.EpochFromProto(m.GetEpoch()):
		c.send(ref, rootv1.Reason_REASON_EPOCH_STALE, "the region is served at epoch "+r.at.Epoch.String())
	case kind == Idle && c.inUse(r):
		c.send(ref, rootv1.Reason_REASON_UNSPECIFIED, "it is in use")
	case r.call != 0:
		c.send(ref, rootv1.Reason_REASON_OVERLOADED, "the application is busy with the region")
	default:
		r.command = ref
		c.begin(r, kind)
		c.publish(r, c.want(r))
	}
}

// reply answers the command that a region was busy with.
func (c *Core) reply(r *region, why string) {
	ref := r.command
	r.command = nil
	c.send(ref, rootv1.Reason_REASON_UNSPECIFIED, why)
}

// send answers a command on the stream that it came on, and remembers the answer.
func (c *Core) send(ref *commandRef, reason rootv1.Reason, why string) {
	reply := &coordinatorv1.MemberCommandReply{Era: ref.era, Id: ref.id, Done: why == ""}
	if why != "" {
		reply.Error = &rootv1.ErrorDetail{Reason: reason, Message: why, Era: c.era}
	}
	if m := ref.made; m != nil && why == "" {
		reply.RegionId, reply.Epoch, reply.Frontier, reply.SetFrontier = uint64(m.region), m.epoch.Proto(), []byte(m.frontier), true
	}
	if _, known := c.answers.replies[ref.id]; known && ref.era == c.answers.era {
		c.answers.replies[ref.id] = reply
	}
	if s := c.streams[ref.stream]; s != nil && len(s.replies) < maxReplies {
		s.replies = append(s.replies, reply)
		s.urgent = true
	}
}
