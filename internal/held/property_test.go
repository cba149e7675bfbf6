package held_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/internal/shownsum"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	gives = coordinatorv1.MoveRole_MOVE_ROLE_GIVES
	takes = coordinatorv1.MoveRole_MOVE_ROLE_TAKES
)

// owned is what the log says of a region to the member; conf 0: nothing.
type owned struct {
	conf     uint64
	role     coordinatorv1.MoveRole
	release  bool
	frontier string
}

func (o owned) proto(id rooted.RegionID) *coordinatorv1.ShownRegion {
	p := &coordinatorv1.ShownRegion{Region: &rootv1.Region{
		Id: uint64(id), KeyspaceId: 1 + uint32(id)%2, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: o.conf},
		StartKey: []byte{byte(id)}, EndKey: []byte{byte(id) + 1}, Frontier: []byte(o.frontier),
	}}
	if o.role != 0 {
		p.Move = &coordinatorv1.ShownMove{TransitionId: fmt.Sprintf("move-%d-1.%d", id, o.conf), Role: o.role, PeerId: "m2", PeerIncarnation: 4, PeerAddress: "m2:1", ReleaseNow: o.release}
	}
	return p
}

type truth map[rooted.RegionID]owned

type job struct {
	grant *held.Grant
	conf  uint64
}

// walk is a Core between coordinators that lag, break off and repeat themselves, and
// an application that fails and is slow.
type walk struct {
	*rapid.T
	evicts bool
	core   *held.Core
	clock  *clock.Manual
	log    []truth // by index; the first is nothing
	conf   map[rooted.RegionID]uint64

	position [2]int // shown on the stream; -1: it is closed
	sequence [2]uint64
	told     [2]time.Duration // the ttl of keyspace b
	goodFor  [2]map[uint64]clock.Instant
	old      [2][]*coordinatorv1.MemberAnswer
	goodTo   clock.Instant // what whoever confirmed the member reckons with
	calls    map[uint64]held.Call
	jobs     []job
	released map[string]bool // region@conf that the application said it has released
	lost     int             // work that went on when its region was lost
}

func newWalk(t *rapid.T) *walk {
	evicts := rapid.Bool().Draw(t, "evicts")
	w := &walk{
		T: t, evicts: evicts, core: held.New(held.Config{Member: "m1", Incarnation: 3, Evicts: evicts}), clock: &clock.Manual{Elapsed: 1},
		log: []truth{nil, {}}, conf: map[rooted.RegionID]uint64{}, position: [2]int{-1, -1},
		calls: map[uint64]held.Call{}, released: map[string]bool{},
	}
	return w
}

func (w *walk) head() int { return len(w.log) - 1 }

// region is any; often one that work goes on in.
func (w *walk) region(t *rapid.T) rooted.RegionID {
	if len(w.jobs) > 0 && rapid.Bool().Draw(t, "in use") {
		return w.jobs[rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job")].grant.Region.ID
	}
	return rooted.RegionID(rapid.IntRange(1, 4).Draw(t, "region"))
}

// serve does what takes many steps otherwise: a stream shows the newest, what is asked for
// succeeds, and a frame is confirmed.
func (w *walk) serve(t *rapid.T) {
	i := w.open(t)
	w.whole(t, i, w.set(i, w.head(), false))
	w.take(10)
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		w.done(id, false)
	}
	w.clock.Advance(100 * time.Millisecond)
	w.frame(i)
	if n := w.sequence[i]; n > 0 {
		w.confirmed(i, n, true)
	}
}

// use has work let in where the member serves, and gives it a region first.
func (w *walk) use(t *rapid.T) {
	id := rooted.RegionID(rapid.IntRange(1, 4).Draw(t, "region"))
	now := maps.Clone(w.log[w.head()])
	if o, is := now[id]; !is || o.role != 0 {
		w.conf[id]++
		now[id] = owned{conf: w.conf[id], frontier: fmt.Sprintf("f%d", w.conf[id])}
		w.log = append(w.log, now)
	}
	w.serve(t)
	_, at := w.core.Phase(id)
	w.work(t, id, at)
}

// lose takes a region away that work goes on in, maybe to give it back, and shows that.
func (w *walk) lose(t *rapid.T) {
	if len(w.jobs) == 0 {
		w.use(t)
	}
	if len(w.jobs) == 0 {
		return
	}
	id := w.jobs[rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job")].grant.Region.ID
	now := maps.Clone(w.log[w.head()])
	w.conf[id]++
	if delete(now, id); rapid.Bool().Draw(t, "given back") {
		w.conf[id]++
		now[id] = owned{conf: w.conf[id], frontier: fmt.Sprintf("f%d", w.conf[id])}
	}
	w.log = append(w.log, now)
	i := w.open(t)
	w.whole(t, i, w.set(i, w.head(), rapid.Bool().Draw(t, "complete")))
}

// work is let in at an epoch, or not.
func (w *walk) work(t *rapid.T, id rooted.RegionID, at rooted.Epoch) {
	q := held.Request{Region: id, Epoch: at}
	if rapid.Bool().Draw(t, "by key") {
		q = held.Request{Keyspace: []string{"a", "b"}[id%2], Key: []byte{byte(id)}, Epoch: at}
	}
	g, _ := w.core.Table().Admit(q, w.clock)
	if g == nil {
		return
	}
	if g.Region.Epoch != at {
		t.Fatalf("asked for %s and let in at %s", at, g.Region.Epoch)
	}
	w.mayAct(id, at.ConfVersion)
	if w.released[fmt.Sprint(id, "@", at.ConfVersion)] {
		t.Fatalf("region %d was let in at %s, which was released", id, at)
	}
	w.jobs = append(w.jobs, job{g, at.ConfVersion})
}

// Change roots something.
func (w *walk) change(t *rapid.T) {
	id := w.region(t)
	now := maps.Clone(w.log[w.head()])
	o, is := now[id]
	grant := func() {
		w.conf[id]++
		now[id] = owned{conf: w.conf[id], frontier: fmt.Sprintf("f%d", w.conf[id])}
	}
	switch {
	case !is && rapid.Bool().Draw(t, "move"):
		now[id] = owned{conf: max(w.conf[id], 1), role: takes}
		w.conf[id] = max(w.conf[id], 1)
	case !is:
		grant()
	case o.role == takes && rapid.Bool().Draw(t, "comes"):
		grant()
	case o.role == takes:
		delete(now, id)
	case o.role == gives && rapid.Bool().Draw(t, "on") && !o.release:
		o.release = true
		now[id] = o
	case o.role == gives && rapid.Bool().Draw(t, "cancel"):
		now[id] = owned{conf: o.conf, frontier: o.frontier}
	case o.role == 0 && rapid.Bool().Draw(t, "give"):
		o.role = gives
		now[id] = o
	case rapid.Bool().Draw(t, "taken and given back"):
		w.conf[id]++
		grant()
	default:
		w.conf[id]++
		delete(now, id)
	}
	w.log = append(w.log, now)
}

func (w *walk) answer(i int, a *coordinatorv1.MemberAnswer) {
	if err := w.core.Answer(i, a, w.clock.Now()); err != nil {
		w.Fatalf("stream %d: %v", i, err)
	}
	if !a.GetSet().GetPartial() {
		w.old[i] = append(w.old[i], a)
	}
}

func (w *walk) set(i, to int, complete bool) *coordinatorv1.ShownSet {
	set := &coordinatorv1.ShownSet{Token: at(uint64(to)), Complete: complete}
	if !complete {
		for id := range w.log[w.position[i]] {
			if _, is := w.log[to][id]; !is {
				set.Ended = append(set.Ended, uint64(id))
			}
		}
		// What was its own meanwhile is told, too.
		for j := w.position[i] + 1; j < to; j++ {
			for id := range w.log[j] {
				if _, is := w.log[to][id]; !is && !slices.Contains(set.Ended, uint64(id)) {
					set.Ended = append(set.Ended, uint64(id))
				}
			}
		}
	}
	for id, o := range w.log[to] {
		changed := complete
		for j := max(w.position[i], 0); j < to && !complete; j++ {
			changed = changed || w.log[j][id] != o
		}
		if changed {
			set.Regions = append(set.Regions, o.proto(id))
		}
	}
	w.position[i] = to
	return set
}

// open is a stream that has shown something.
func (w *walk) open(t *rapid.T) int {
	i := rapid.IntRange(0, 1).Draw(t, "stream")
	if w.position[i] < 0 {
		w.core.Open(i)
		w.sequence[i], w.goodFor[i], w.old[i] = 0, map[uint64]clock.Instant{}, nil
		w.terms(t, i)
		w.whole(t, i, w.set(i, rapid.IntRange(1, w.head()).Draw(t, "lags"), true))
	}
	return i
}

// terms tells them, in a ttl that is another one now and then.
func (w *walk) terms(t *rapid.T, i int) {
	w.told[i] = time.Second
	if rapid.IntRange(0, 3).Draw(t, "another ttl") == 0 {
		w.told[i] = time.Duration(rapid.IntRange(500, 3000).Draw(t, "ttl")) * time.Millisecond
	}
	w.tell(i)
}

func (w *walk) tell(i int) {
	w.answer(i, &coordinatorv1.MemberAnswer{Era: 1, Terms: &coordinatorv1.MemberTerms{IntervalMillis: 100, Keyspaces: []*coordinatorv1.KeyspaceTerms{
		{KeyspaceId: 1, Name: "a", Fence: rootv1.Fence_FENCE_EPOCH, HoldRequestsMillis: 10},
		{KeyspaceId: 2, Name: "b", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: uint64(w.told[i].Milliseconds()), HoldRequestsMillis: 10},
	}}})
}

// outlive has the ttl get longer, as told by one stream while the other is gone, and asks
// when the one before is over, whatever is confirmed late.
func (w *walk) outlive(t *rapid.T) {
	w.use(t)
	i := w.open(t)
	w.core.Close(1 - i)
	w.position[1-i] = -1
	w.clock.Advance(100 * time.Millisecond)
	w.frame(i)
	w.clock.Advance(time.Millisecond)
	w.told[i] = 3 * time.Second
	w.tell(i)
	if n := w.sequence[i]; n > 0 && rapid.Bool().Draw(t, "late") {
		w.confirmed(i, n, true)
	}
	w.clock.Advance(max(w.goodTo.Sub(w.clock.Now()), 0) + time.Millisecond)
	for id := range rooted.RegionID(4) {
		_, at := w.core.Phase(id + 1)
		w.work(t, id+1, at)
	}
}

// Show opens a stream, and goes on with it.
func (w *walk) show(t *rapid.T) {
	i := w.open(t)
	to := rapid.IntRange(w.position[i], w.head()).Draw(t, "to")
	w.whole(t, i, w.set(i, to, rapid.IntRange(0, 9).Draw(t, "complete") == 0))
}

// whole sends a set in one part or in two.
func (w *walk) whole(t *rapid.T, i int, set *coordinatorv1.ShownSet) {
	if n := len(set.GetRegions()); n > 1 && rapid.Bool().Draw(t, "parts") {
		first := &coordinatorv1.ShownSet{Token: set.GetToken(), Complete: set.GetComplete(), Partial: true, Regions: set.GetRegions()[:n/2]}
		w.answer(i, &coordinatorv1.MemberAnswer{Era: 1, Set: first})
		set.Regions = set.GetRegions()[n/2:]
		defer func() { w.old[i] = w.old[i][:len(w.old[i])-1] }() // half of it is no set
	}
	w.answer(i, &coordinatorv1.MemberAnswer{Era: 1, Set: set})
}

func (w *walk) frame(i int) {
	if f := w.core.Frame(i, w.clock.Now()); f != nil {
		w.sequence[i]++
		w.goodFor[i][f.GetSequence()] = w.clock.Now().Add(w.told[i])
		w.checkFrame(i, f)
	}
}

func (w *walk) confirmed(i int, n uint64, holder bool) {
	if holder {
		w.goodTo = max(w.goodTo, w.goodFor[i][n]) // or it is too late for it
	}
	w.answer(i, &coordinatorv1.MemberAnswer{Era: 1, Sequence: n, Confirmed: holder})
}

func (w *walk) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"change": w.change,
		"show":   w.show,
		"break": func(t *rapid.T) {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			w.core.Close(i)
			w.position[i] = -1
		},
		"serve":   w.serve,
		"terms":   func(t *rapid.T) { w.terms(t, w.open(t)) },
		"outlive": w.outlive,
		"use":     w.use,
		"lose":    w.lose,
		"frame":   func(t *rapid.T) { w.frame(rapid.IntRange(0, 1).Draw(t, "stream")) },
		"confirm": func(t *rapid.T) {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			if w.position[i] < 0 || w.sequence[i] == 0 {
				t.Skip()
			}
			w.confirmed(i, rapid.Uint64Range(1, w.sequence[i]).Draw(t, "sequence"), rapid.Bool().Draw(t, "holder"))
		},
		"repeat": func(t *rapid.T) {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			if w.position[i] < 0 || len(w.old[i]) == 0 {
				t.Skip()
			}
			// It may be refused; it must not be obeyed.
			_ = w.core.Answer(i, w.old[i][rapid.IntRange(0, len(w.old[i])-1).Draw(t, "old")], w.clock.Now())
			w.core.Close(i)
			w.position[i] = -1
		},
		"time": func(t *rapid.T) {
			w.clock.Advance(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
			w.core.Tick(w.clock.Now())
		},
		"call": func(t *rapid.T) { w.take(rapid.IntRange(1, 3).Draw(t, "calls")) },
		"done": func(t *rapid.T) {
			if len(w.calls) == 0 {
				t.Skip()
			}
			ids := slices.Sorted(maps.Keys(w.calls))
			w.done(ids[rapid.IntRange(0, len(ids)-1).Draw(t, "call")], rapid.IntRange(0, 3).Draw(t, "fails") == 0)
		},
		"work": func(t *rapid.T) {
			id := rooted.RegionID(rapid.IntRange(1, 4).Draw(t, "region"))
			_, at := w.core.Phase(id)
			if at.ConfVersion == 0 || rapid.IntRange(0, 2).Draw(t, "another epoch") == 0 {
				at = rooted.Epoch{Version: 1, ConfVersion: rapid.Uint64Range(1, w.conf[id]+2).Draw(t, "conf")}
			}
			w.work(t, id, at)
		},
		"worked": func(t *rapid.T) {
			if len(w.jobs) == 0 {
				t.Skip()
			}
			i := rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job")
			w.leave(i)
		},
		"clone": func(t *rapid.T) {
			if len(w.jobs) > 0 {
				t.Skip()
			}
			n := w.core.Clone()
			a, b := w.core.AppendFingerprint(nil, w.clock.Now()), n.AppendFingerprint(nil, w.clock.Now())
			if !bytes.Equal(a, b) {
				t.Fatalf("a clone differs:\n%x\n%x", a, b)
			}
			w.core = n
		},
		"": func(*rapid.T) {},
	}
}

func (w *walk) leave(i int) {
	j := w.jobs[i]
	if o := w.log[w.core.Obeyed().Index][j.grant.Region.ID]; o.conf != j.conf {
		w.lost++
	}
	if w.core.Table().Check(j.grant, w.clock) == nil {
		w.mayAct(j.grant.Region.ID, j.conf)
	}
	w.jobs = slices.Delete(w.jobs, i, i+1)
	if w.core.Table().Leave(j.grant) {
		w.core.Drained(j.grant.Region.ID, w.clock.Now())
	}
}

// mayAct is rules 2 and 4: the newest set that the member has seen shows the region
// as its own at that epoch, and where the fence is a ttl somebody confirmed it.
func (w *walk) mayAct(id rooted.RegionID, conf uint64) {
	o := w.log[w.core.Obeyed().Index][id]
	if o.conf != conf || o.role == takes {
		w.Fatalf("acts for region %d at %d, and at %s %+v is shown", id, conf, w.core.Obeyed(), o)
	}
	if id%2 == 1 && w.clock.Now() >= w.goodTo {
		w.Fatalf("acts for region %d, and others may since %v", id, w.clock.Now().Sub(w.goodTo))
	}
}

func (w *walk) checkFrame(i int, f *coordinatorv1.MemberFrame) {
	if w.position[i] < 0 || f.GetShown() == nil {
		return
	}
	if got := f.GetShown().GetToken().GetIndex(); got != uint64(w.position[i]) {
		w.Fatalf("stream %d was shown %d and says %d", i, w.position[i], got)
	}
	sum := uint64(0)
	for id, o := range w.log[w.position[i]] {
		sum ^= shownsum.Of(o.proto(id))
	}
	if n := len(w.log[w.position[i]]); f.GetShown().GetCount() != uint64(n) || f.GetShown().GetChecksum() != sum {
		w.Fatalf("stream %d at %d: %v is told of %d regions, sum %x", i, w.position[i], f.GetShown(), n, sum)
	}
	for _, r := range f.GetRegions() {
		if r.GetPhase() == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
			for _, j := range w.jobs {
				if uint64(j.grant.Region.ID) == r.GetRegionId() && j.conf == r.GetEpoch().GetConfVersion() {
					w.Fatalf("region %d is told to be released, and work goes on", r.GetRegionId())
				}
			}
		}
	}
}

func (w *walk) take(most int) {
	for _, c := range w.core.Calls(most, w.clock.Now()) {
		if c.Kind == held.Cancel {
			continue // it may have ended meanwhile
		}
		for _, other := range w.calls {
			if c.Region != nil && other.Region != nil && other.Region.ID == c.Region.ID {
				w.Fatalf("%s of region %d overlaps %s", c.Kind, c.Region.ID, other.Kind)
			}
		}
		if c.Kind == held.Release {
			for _, j := range w.jobs {
				if j.grant.Region.ID == c.Region.ID && j.conf == c.Region.Epoch.ConfVersion {
					w.Fatalf("region %d is released, and work goes on", c.Region.ID)
				}
			}
		}
		if c.Kind == held.Acquire || c.Kind == held.Evict && !w.evicts {
			for _, j := range w.jobs {
				if j.grant.Region.ID == c.Region.ID {
					w.Fatalf("%s of region %d at %s, and work goes on that was let in at %d", c.Kind, c.Region.ID, c.Region.Epoch, j.conf)
				}
			}
		}
		w.calls[c.ID] = c
	}
}

func (w *walk) done(id uint64, fails bool) {
	c := w.calls[id]
	delete(w.calls, id)
	res := held.Result{Frontier: fmt.Sprintf("r%d", id)}
	if fails {
		res = held.Result{Err: "it fails"}
	}
	if c.Region != nil && !fails {
		key := fmt.Sprint(c.Region.ID, "@", c.Region.Epoch.ConfVersion)
		switch c.Kind {
		case held.Release:
			w.released[key] = true
		case held.Acquire:
			delete(w.released, key)
		}
	}
	w.core.Done(id, res, w.clock.Now())
}

// Whatever order, loss and repetition of sets and answers: nothing is admitted outside
// of what the newest set shows, released or unconfirmed; calls of a region do not
// overlap; and in the end the member has exactly what the log says.
func TestRule2Rule4Rule8WhateverHappens(t *testing.T) {
	walks, reached, lost := 0, 0, 0
	defer func() {
		t.Logf("in %d of %d walks work went on when its region was lost, %d times", reached, walks, lost)
		if walks >= 100 && reached < walks/4 {
			t.Error("that is too rare: the walks show little of it")
		}
	}()
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t)
		defer func() {
			walks, lost = walks+1, lost+w.lost
			if w.lost > 0 {
				reached++
			}
		}()
		t.Repeat(w.actions())
		for len(w.jobs) > 0 {
			w.leave(0)
		}
		w.core.Open(0)
		w.sequence[0], w.goodFor[0] = 0, map[uint64]clock.Instant{}
		w.position[0] = -1
		w.show2head()
		for range 100 {
			w.take(100)
			for id := range w.calls {
				w.done(id, false)
			}
			w.clock.Advance(11 * time.Second)
			w.core.Tick(w.clock.Now())
		}
		want := w.log[w.head()]
		for id := range rooted.RegionID(6) {
			phase, epoch := w.core.Phase(id)
			o, is := want[id]
			expect := map[bool]coordinatorv1.RegionPhase{true: coordinatorv1.RegionPhase_REGION_PHASE_SERVING}[is]
			switch {
			case o.role == takes:
				expect = coordinatorv1.RegionPhase_REGION_PHASE_READY
			case o.role == gives && o.release:
				expect = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
			}
			if phase != expect || epoch.ConfVersion != o.conf {
				t.Fatalf("region %d is %v at %s in the end, the log says %+v", id, phase, epoch, o)
			}
		}
	})
}

func (w *walk) show2head() {
	w.answer(0, &coordinatorv1.MemberAnswer{Era: 1, Terms: &coordinatorv1.MemberTerms{Keyspaces: []*coordinatorv1.KeyspaceTerms{
		{KeyspaceId: 1, Name: "a", Fence: rootv1.Fence_FENCE_EPOCH}, {KeyspaceId: 2, Name: "b", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000},
	}}})
	w.answer(0, &coordinatorv1.MemberAnswer{Era: 1, Set: w.set(0, w.head(), true)})
}
