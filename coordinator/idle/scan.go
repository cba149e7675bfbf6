package idle

import (
	"math"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// never is later than every moment.
const never = clock.Instant(math.MaxInt64)

// scan is a look through reports, one part after the other.
type scan struct {
	// part is the next one; catalog.UnusedParts: none is under way. of are the keyspaces that
	// it is for; what members have stopped is looked for whatever their keyspace is.
	part int
	of   map[state.KeyspaceID]struct{}
	// idle are the idle times of those, and rested is when the next part's turn is.
	idle   catalog.IdleTimes
	rested clock.Instant
	// due is when keyspaces are to be looked through, of those whose regions are released, and
	// pauses how long after that again. These were listed at a moment, and a position.
	due      map[state.KeyspaceID]clock.Instant
	pauses   map[state.KeyspaceID]time.Duration
	listed   clock.Instant
	listedAt state.Token
	// next is when reports are to be looked through anyway, and at when there is something to do.
	next, at clock.Instant
	room     []catalog.Unused
}

func newScan() scan {
	return scan{part: catalog.UnusedParts, of: map[state.KeyspaceID]struct{}{}, idle: catalog.IdleTimes{}, due: map[state.KeyspaceID]clock.Instant{}, next: never, at: never}
}

// begin has reports looked through from the beginning.
func (s *scan) begin(now clock.Instant) { s.part, s.next = 0, min(s.next, now) }

func (s *scan) soon(at clock.Instant) { s.next = min(s.next, at) }
func (s *scan) look(at clock.Instant) { s.at = min(s.at, at) }

// every is the time between two looks of a keyspace; 0: nothing of it is released.
func every(k *rootv1.Keyspace) (idle, every time.Duration) {
	s := k.GetSettings()
	idle = time.Duration(s.GetCadence().GetIdleEvictMillis()) * time.Millisecond
	if idle == 0 || s.GetLayout().GetPoints() == nil || s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		return 0, 0
	}
	every = time.Duration(state.IdleScanMillis(s)) * time.Millisecond
	return idle, max(every, leastScan)
}

// look looks through a part of the reports, if it is time.
func (r *Releaser) look(v *rootview.View, now clock.Instant) {
	s := &r.scan
	s.at = never
	if s.part == catalog.UnusedParts {
		s.plan(v, now)
	}
	if s.part < catalog.UnusedParts && r.finds < maxFound && len(r.leaving) < maxStopped && s.rested <= now {
		r.lookThrough(v, now)
		after := r.cfg.Clock.Now()
		s.rested = after.Add(scanRest * after.Sub(now))
		if s.part++; s.part == catalog.UnusedParts {
			r.looked(now)
		}
	}
}

// looked ends a look through all reports.
func (r *Releaser) looked(now clock.Instant) {
	r.counts.scans.Add(1)
	clear(r.scan.of)
	clear(r.scan.idle)
	for id, since := range r.going {
		if since != 0 && now.Sub(since) > 2*againAfter {
			delete(r.going, id) // it is what it was no more
		}
	}
}

// pause is for how long there is nothing to do.
func (r *Releaser) pause(now clock.Instant) time.Duration {
	s := &r.scan
	switch {
	case s.part < catalog.UnusedParts && r.finds < maxFound && len(r.leaving) < maxStopped:
		s.look(s.rested)
	case s.part < catalog.UnusedParts: // what comes back has it go on
		s.look(now.Add(againAfter))
	default:
		s.look(s.next)
		for _, at := range s.due {
			s.look(at)
		}
	}
	if len(r.asked) > 0 {
		s.look(now.Add(answerTime))
	}
	return time.Duration(min(max(s.at.Sub(now), 0), time.Hour))
}

// plan finds out what is to be looked through now.
func (s *scan) plan(v *rootview.View, now clock.Instant) {
	switch {
	case v.Token == s.listedAt:
	case now.Sub(s.listed) < listEvery && s.listed != 0:
		s.look(s.listed.Add(listEvery))
	default:
		s.list(v, now)
	}
	begin := s.next <= now
	if begin {
		s.next = never
	}
	for id, at := range s.due {
		if at <= now {
			s.of[id] = struct{}{}
			if idle, _ := every(v.State.Keyspace(id)); idle > 0 {
				s.idle.Add(id, idle)
			}
			s.due[id] = now.Add(s.pauses[id])
			begin = true
		}
	}
	if begin {
		s.part = 0
	}
}

// list finds the keyspaces whose regions are released.
func (s *scan) list(v *rootview.View, now clock.Instant) {
	s.listed, s.listedAt, s.pauses = now, v.Token, map[state.KeyspaceID]time.Duration{}
	due := map[state.KeyspaceID]clock.Instant{}
	v.State.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if _, pause := every(k); pause > 0 {
			id := state.KeyspaceID(k.GetId())
			s.pauses[id], due[id] = pause, now.Add(pause)
			if old, known := s.due[id]; known {
				due[id] = min(due[id], old)
			}
		}
		return true
	})
	s.due = due
}

// lookThrough finds regions to be asked for, and those that are stopped.
func (r *Releaser) lookThrough(v *rootview.View, now clock.Instant) {
	s := &r.scan
	s.room = r.cfg.Soft.Unused(s.part, s.idle, now, s.room[:0])
	for i := range s.room {
		u := &s.room[i]
		at := v.State.Region(u.Region)
		if at == nil || at.Epoch != u.Epoch {
			continue
		}
		if released(u.Phase, u.IdleSeconds) {
			if since, going := r.going[u.Region]; going && since != 0 && now.Sub(since) >= againAfter {
				delete(r.going, u.Region) // the root refused it
			}
			r.leave(stopped{u.Region, u.Incarnation, u.Epoch})
			continue
		}
		if _, due := s.of[at.Keyspace]; !due || u.Phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
			continue
		}
		idle, _ := every(v.State.Keyspace(at.Keyspace))
		long := time.Duration(u.IdleSeconds)*time.Second + now.Sub(u.At)
		if idle == 0 || long < idle || len(at.Owners) != 1 || at.Owners[0].Incarnation != u.Incarnation || !v.State.Acts(at.Owners[0]) {
			continue
		}
		if _, asking := r.asking[u.Region]; asking {
			continue
		}
		r.asking[u.Region] = struct{}{}
		o := r.found[u.Incarnation]
		if o == nil {
			o = &owner{id: at.Owners[0].Member}
			r.found[u.Incarnation] = o
		}
		o.found = append(o.found, stopped{u.Region, u.Incarnation, u.Epoch})
		r.finds++
	}
}
