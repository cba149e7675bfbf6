package assigner

import (
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxBook bounds the regions whose loads are kept: 160 MiB.
	maxBook = 1 << 20
	// maxSaid bounds what members have said of loads since Look, in reports: what is above
	// is read where the newest report of each region is. manySaid of them have Look called.
	maxSaid, manySaid = 1 << 17, 1 << 13
)

// speaker is a member that has a stream here. It is kept without the Tenure as well.
type speaker struct {
	incarnation, stream uint64
	// complete: it has said on this stream everything that it has.
	complete bool
	// lost: there was no room for something that it said on this stream.
	lost bool
	load *coordinatorv1.MemberLoad
	at   clock.Instant
	// gap is how long behind the frame before the last one came; negative: there is one only.
	gap time.Duration
}

// loads are what members say of loads, of those keyspaces where that counts. It belongs to
// Look, in an era.
type loads struct {
	book      *load.Book
	sums      *placement.Sums
	keyspaces map[state.KeyspaceID]struct{}
}

func newLoads() loads {
	return loads{book: load.NewBook(maxBook), sums: &placement.Sums{}, keyspaces: map[state.KeyspaceID]struct{}{}}
}

func (l *loads) has(id state.KeyspaceID) bool {
	_, ok := l.keyspaces[id]
	return ok
}

// weighs reports whether loads count in a keyspace.
func weighs(k *rootv1.Keyspace) bool {
	s := k.GetSettings()
	return s.GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED && placement.PolicyOf(s).By != balance.Count
}

// weighAll begins anew at a state of which nothing is known.
func (a *Raw) weighAll(now clock.Instant) {
	a.loads = newLoads()
	a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		a.weigh(state.KeyspaceID(k.GetId()), a.st, now)
		return true
	})
}

// weigh begins, or ends, to keep the loads of a keyspace as its settings say.
func (a *Raw) weigh(id state.KeyspaceID, st *state.State, now clock.Instant) {
	switch wanted := weighs(st.Keyspace(id)); {
	case wanted && !a.loads.has(id):
		a.loads.keyspaces[id] = struct{}{}
		if len(a.loads.keyspaces) == 1 {
			a.weighMembers(now)
		}
		st.RegionsFrom(id, "", func(r *state.Region) bool {
			a.loads.book.Follow(r.ID, r.Epoch, r.Owners, now)
			return true
		})
		a.reread(id, st, now)
	case !wanted && a.loads.has(id):
		delete(a.loads.keyspaces, id)
		st.RegionsFrom(id, "", func(r *state.Region) bool {
			a.loads.book.Forget(r.ID, now)
			return true
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard.weighs = len(a.loads.keyspaces) > 0
}

// weighMembers takes what members with a stream here have said before it mattered.
func (a *Raw) weighMembers(now clock.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.speakers {
		a.total(s.incarnation, s.load, now)
		a.loads.book.Heard(s.incarnation, s.at)
	}
}

func (a *Raw) total(incarnation uint64, l *coordinatorv1.MemberLoad, now clock.Instant) {
	if l != nil {
		a.loads.book.Total(incarnation, l.GetLoad(), l.GetCapacity(), now)
	}
}

// reread takes what owners last said of the regions of a keyspace.
func (a *Raw) reread(id state.KeyspaceID, st *state.State, now clock.Instant) {
	st.RegionsFrom(id, "", func(r *state.Region) bool {
		for _, o := range r.Owners {
			if said, ok := a.cfg.Soft.Own(r.ID, o.Incarnation); ok && said.Phase == coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
				a.loads.book.Report(r.ID, o.Incarnation, said.Epoch, said.Load, now)
			}
		}
		return true
	})
}

// listen takes what members have said of loads.
func (a *Raw) listen(h *heard, now clock.Instant) {
	if len(a.loads.keyspaces) == 0 {
		return
	}
	told := map[state.KeyspaceID]bool{}
	book := a.loads.book
	for i := range h.said {
		f := &h.said[i]
		book.Heard(f.Incarnation, f.At)
		for _, x := range f.Loads {
			if r := a.st.Region(x.Region); r != nil && a.loads.has(r.Keyspace) {
				book.Report(x.Region, f.Incarnation, x.Epoch, x.Load, f.At)
				told[r.Keyspace] = true
			}
		}
		for _, id := range f.Gone {
			book.Gone(id, f.Incarnation, f.At)
		}
		a.total(f.Incarnation, f.Load, f.At)
	}
	for id := range a.loads.keyspaces {
		if h.lost {
			a.reread(id, a.st, now)
		}
		if h.lost || told[id] {
			a.rounds.stay(a, id, now)
		}
	}
	if h.lost {
		a.weighMembers(now)
	}
}

// overheard keeps what a frame says of loads, for listen. a.mu is held.
func (h *heard) overheard(f *server.HeardFrame, now clock.Instant) {
	if !h.weighs || h.lost {
		return
	}
	if h.reports += 1 + len(f.Loads) + len(f.Gone); h.reports > maxSaid {
		h.lost, h.said = true, nil
		return
	}
	h.said = append(h.said, server.HeardFrame{Member: f.Member, Incarnation: f.Incarnation, At: now, Load: f.Load, Loads: f.Loads, Gone: f.Gone})
}

// followLoads goes on to a state.
func (a *Raw) followLoads(st *state.State, changes []state.Change, now clock.Instant) {
	if len(a.loads.keyspaces) == 0 {
		return
	}
	a.loads.sums.Follow(a.loads.book, changes, now)
	for i := range changes {
		if c := &changes[i]; c.Kind == state.ChangeTransition && !c.Removed && c.Transition.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
			a.reshaped(c.Transition, now)
		}
	}
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeRegion:
			switch {
			case !a.loads.has(c.Region.Keyspace):
			case c.Removed:
				a.loads.book.Forget(c.Region.ID, now)
			default:
				a.loads.book.Follow(c.Region.ID, c.Region.Epoch, c.Region.Owners, now)
			}
		case state.ChangeMember:
			old := a.st.Member(state.MemberID(c.Member.GetId()))
			if m := c.Member; old != nil && (c.Removed || m.GetIncarnation() != old.GetIncarnation() || m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED) {
				a.loads.book.ForgetMember(old.GetIncarnation())
			}
		}
	}
}

// reshaped gives the parts of a region that was cut their loads, and one that was joined
// with another both.
func (a *Raw) reshaped(t *rootv1.Transition, now clock.Instant) {
	left, right := state.RegionID(t.GetRegionId()), state.RegionID(t.GetRightRegionId())
	if !a.loads.has(state.KeyspaceID(t.GetKeyspaceId())) {
		return
	}
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		a.loads.book.Merge(left, right, now)
	case rootv1.TransitionKind_TRANSITION_KIND_SPLIT:
		a.loads.book.Split(left, right, a.rightPart(left, string(t.GetSplitKey())), now)
	}
}

// moved is how much load a transition that begins takes off an owner, as owners say now: the next
// holder hears that as well, and learns no other way what has been moved. They are those of the state
// before: what begins may have ended in the next one.
func (a *Raw) moved(t *rootv1.Transition) (most load.Amount) {
	for _, id := range []uint64{t.GetRegionId(), t.GetRightRegionId()} {
		r := a.st.Region(state.RegionID(id))
		if r == nil {
			continue
		}
		for _, o := range r.Owners {
			if said, ok := a.cfg.Soft.Own(r.ID, o.Incarnation); ok {
				w, _ := load.Read(said.Load)
				most = max(most, w) // of an owner that is one of many only its part leaves
			}
		}
	}
	return most
}

// rightPart is how many of 1,000 of a region's load are behind a key, by what its owner said of
// its keys: what is of no key that it named is taken to be even.
func (a *Raw) rightPart(id state.RegionID, key string) uint64 {
	r := a.st.Region(id)
	if r == nil || len(r.Owners) != 1 {
		return 500
	}
	said, _ := a.cfg.Soft.Own(id, r.Owners[0].Incarnation)
	if said.More == nil || string(said.More.MedianKey) == key {
		return 500
	}
	named, behind := uint64(0), uint64(0)
	for _, k := range said.More.HotKeys {
		part := min(uint64(k.GetPermille()), 1000-named)
		if named += part; string(k.GetKey()) >= key {
			behind += part
		}
	}
	return behind + (1000-named)/2
}
