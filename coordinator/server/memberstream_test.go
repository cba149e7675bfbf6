package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/shownsum"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// games is keyspace 2, assigned and exclusive, with points.
func games() *rootv1.Event {
	settings, _ := state.Preset("games")
	return create("games", settings)
}

// hosting is a world in which m1 owns a and b, and m2 nothing.
func hosting(t testing.TB, change ...func(*server.Config)) *world {
	t.Helper()
	w := start(t, change...)
	w.root.must(t, games())
	w.root.must(t, join("m1"))
	w.root.must(t, join("m2"))
	w.root.must(t, point("a", "m1"))
	w.must(t, point("b", "m1"))
	return w
}

func point(key, owner string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
		Region: &rootv1.Region{KeyspaceId: 2, StartKey: []byte(key), Owners: []*rootv1.Owner{{MemberId: owner}}},
	}}}
}

func assign(region uint64, owner string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
		Assignments: []*rootv1.Assignment{{RegionId: region, Owners: []*rootv1.Owner{{MemberId: owner}}}},
	}}}
}

// speaker is a member with a stream.
type speaker struct {
	t        testing.TB
	stream   grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]
	end      context.CancelFunc
	sequence uint64
	id       string
	life     uint64
	has      map[uint64]*coordinatorv1.ShownRegion
	at       *rootv1.RootToken
}

// speak opens a stream, without a word.
func (w *world) speak(t testing.TB, id string, incarnation uint64) *speaker {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := w.client.MemberStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &speaker{t: t, stream: stream, end: cancel, id: id, life: incarnation, has: map[uint64]*coordinatorv1.ShownRegion{}}
}

// hosted opens the stream of a member's current incarnation, and takes the first answer.
func (w *world) hosted(t testing.TB, id string) *speaker {
	t.Helper()
	s := w.speak(t, id, w.incarnation(state.MemberID(id)))
	s.say(&coordinatorv1.MemberFrame{Complete: true})
	if a := s.hear(); a.GetSequence() != 1 || !a.GetSet().GetComplete() || a.GetTerms() == nil {
		t.Fatalf("the first answer is %v", a)
	}
	return s
}

func (s *speaker) say(f *coordinatorv1.MemberFrame) {
	s.t.Helper()
	s.sequence++
	if f.Sequence = s.sequence; s.sequence == 1 {
		f.Hello = &coordinatorv1.MemberHello{MemberId: s.id, Incarnation: s.life}
	}
	if err := s.stream.Send(f); err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatal(err)
	}
}

// hear takes an answer, and what it shows.
func (s *speaker) hear() *coordinatorv1.MemberAnswer {
	s.t.Helper()
	a, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	if set := a.GetSet(); set != nil {
		if set.GetComplete() {
			clear(s.has)
		}
		for _, r := range set.GetRegions() {
			s.has[r.GetRegion().GetId()] = r
		}
		for _, id := range set.GetEnded() {
			delete(s.has, id)
		}
		s.at = set.GetToken()
	}
	return a
}

// fails takes answers until the stream ends.
func (s *speaker) fails() error {
	for {
		if _, err := s.stream.Recv(); err != nil {
			return err
		}
	}
}

func (s *speaker) shown() *coordinatorv1.ShownState {
	p := &coordinatorv1.ShownState{Token: s.at, Count: uint64(len(s.has))}
	for _, r := range s.has {
		p.Checksum ^= shownsum.Of(r)
	}
	return p
}

func reported(region uint64, phase coordinatorv1.RegionPhase) *coordinatorv1.RegionReport {
	return &coordinatorv1.RegionReport{RegionId: region, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Phase: phase, Load: 2, KeyCount: 3, Bytes: 4}
}

const phaseServing = coordinatorv1.RegionPhase_REGION_PHASE_SERVING

// TestC04C39R12R14OneStreamFromStartOn: a member is shown what is its own at the start and when it
// changes, without asking; it is told how to speak, and confirmed for what it said.
func TestC04C39R12R14OneStreamFromStartOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m := w.speak(t, "m1", w.incarnation("m1"))
		m.say(&coordinatorv1.MemberFrame{Complete: true})
		a := m.hear()
		if !a.GetConfirmed() || a.GetEra() != 7 || a.GetSequence() != 1 || !a.GetSet().GetComplete() || len(m.has) != 2 ||
			a.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
			t.Fatalf("the first answer is %v", a)
		}
		terms := a.GetTerms()
		if terms.GetIntervalMillis() != 200 || len(terms.GetKeyspaces()) != 1 || terms.GetKeyspaces()[0].GetName() != "games" ||
			terms.GetKeyspaces()[0].GetHoldRequestsMillis() != 2000 || terms.GetKeyspaces()[0].GetFence() != rootv1.Fence_FENCE_EPOCH {
			t.Errorf("terms %v", terms)
		}
		w.must(t, assign(2, "m2"))
		if a := m.hear(); a.GetSet().GetComplete() || len(m.has) != 1 || a.GetConfirmed() || a.GetTerms() != nil {
			t.Errorf("behind the end of b: %v", a)
		}
		m.say(&coordinatorv1.MemberFrame{Shown: m.shown()})
		if a := m.hear(); !a.GetConfirmed() || a.GetSequence() != 2 || a.GetSet() != nil || a.GetTerms() != nil || a.GetReportAgain() {
			t.Errorf("when nothing changed: %v", a)
		}
		wrong := m.shown()
		wrong.Checksum ^= 1
		m.say(&coordinatorv1.MemberFrame{Shown: wrong})
		if a := m.hear(); !a.GetSet().GetComplete() || len(m.has) != 1 {
			t.Errorf("to another sum: %v", a)
		}
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m1", State: rootv1.MemberState_MEMBER_STATE_DRAINING}}})
		if a := m.hear(); a.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
			t.Errorf("of a drain it is told %v", a)
		}
		short, _ := state.Preset("games")
		short.Liveness.IntervalMillis = 10
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: "games", ExpectedVersion: 1, Settings: short}}})
		if a := m.hear(); a.GetTerms().GetIntervalMillis() != 100 {
			t.Errorf("of other settings it is told %v", a)
		}
	})
}

// TestFramesThatEndAStream is bad input that leaves no sense in the rest.
func TestFramesThatEndAStream(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		frame *coordinatorv1.MemberFrame
		want  rootv1.Reason
		says  string
	}{
		"no hello":        {&coordinatorv1.MemberFrame{Sequence: 1}, rootv1.Reason_REASON_INVALID_REQUEST, "hello"},
		"no sequence":     {&coordinatorv1.MemberFrame{Hello: &coordinatorv1.MemberHello{MemberId: "m1", Incarnation: 1}}, rootv1.Reason_REASON_INVALID_REQUEST, "sequence"},
		"no id":           {hello("", 1), rootv1.Reason_REASON_INVALID_REQUEST, "member_id"},
		"no incarnation":  {hello("m1", 0), rootv1.Reason_REASON_INVALID_REQUEST, "incarnation"},
		"long id":         {hello(long[:256], 1), rootv1.Reason_REASON_INVALID_REQUEST, "member_id"},
		"unknown":         {hello("stranger", 1), rootv1.Reason_REASON_REGISTER_FIRST, "stranger"},
		"old incarnation": {hello("m3", 3), rootv1.Reason_REASON_MEMBER_RETIRED, "4 registered"},
		"not rooted yet":  {hello("m3", 9), rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "m3"},
		"failed":          {hello("m2", 2), rootv1.Reason_REASON_MEMBER_RETIRED, "failed"},
		"300 KiB":         {&coordinatorv1.MemberFrame{Sequence: 1, Goodbye: &coordinatorv1.Goodbye{Reason: long[:300<<10]}}, rootv1.Reason_REASON_INVALID_REQUEST, "262144"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := hosting(t)
				defer w.end(t)
				w.root.must(t, join("m3"))
				again := join("m3")
				again.GetMemberJoined().Member.StartNonce, again.GetMemberJoined().Follows = 6, 3
				w.root.must(t, again)
				w.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m2", State: rootv1.MemberState_MEMBER_STATE_FAILED}}})
				s := w.speak(t, "", 0)
				if err := s.stream.Send(c.frame); err != nil {
					t.Fatal(err)
				}
				if d := refused(t, s.fails(), c.want); !strings.Contains(d.GetMessage(), c.says) {
					t.Errorf("%v does not say %q", d, c.says)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m := w.hosted(t, "m1")
		m.say(&coordinatorv1.MemberFrame{Goodbye: &coordinatorv1.Goodbye{Reason: strings.Repeat("x", 10<<20)}})
		if err := m.fails(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("10 MB: %v", err)
		}
		m = w.hosted(t, "m1")
		m.sequence++
		m.say(&coordinatorv1.MemberFrame{})
		refused(t, m.fails(), rootv1.Reason_REASON_INVALID_REQUEST)
		m = w.hosted(t, "m1")
		m.say(&coordinatorv1.MemberFrame{Hello: &coordinatorv1.MemberHello{MemberId: "m1", Incarnation: 1}})
		refused(t, m.fails(), rootv1.Reason_REASON_INVALID_REQUEST)
	})
}

func hello(id string, incarnation uint64) *coordinatorv1.MemberFrame {
	return &coordinatorv1.MemberFrame{Sequence: 1, Complete: true, Hello: &coordinatorv1.MemberHello{MemberId: id, Incarnation: incarnation}}
}

// TestReportsThatAreRefused is bad input that is said so, and leaves the rest of a frame
// and the stream alone.
func TestReportsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := hosting(t, func(c *server.Config) { c.Soft = soft })
		defer w.end(t)
		m := w.hosted(t, "m2")
		change := func(f func(*coordinatorv1.RegionReport)) *coordinatorv1.RegionReport {
			r := reported(3, phaseServing)
			f(r)
			return r
		}
		w.must(t, point("c", "m2"))
		m.hear()
		bad := map[string]*coordinatorv1.RegionReport{
			"not a load":       change(func(r *coordinatorv1.RegionReport) { r.Load = math.NaN() }),
			"is not a load":    change(func(r *coordinatorv1.RegionReport) { r.Load = math.Inf(1) }),
			"phase":            change(func(r *coordinatorv1.RegionReport) { r.Phase = 99 }),
			"epoch is missing": change(func(r *coordinatorv1.RegionReport) { r.Epoch = nil }),
			"frontier":         change(func(r *coordinatorv1.RegionReport) { r.Frontier = make([]byte, state.MaxFrontierBytes+1) }),
			"hot keys":         change(func(r *coordinatorv1.RegionReport) { r.HotKeys = make([]*coordinatorv1.HotKey, 17) }),
			"too long":         change(func(r *coordinatorv1.RegionReport) { r.MedianKey = make([]byte, state.MaxKeyBytes+1) }),
			"is not member":    reported(1, phaseServing),
			"no region":        reported(99, phaseServing),
		}
		for says, r := range bad {
			m.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{r, reported(3, phaseServing)}, Load: &coordinatorv1.MemberLoad{Load: 1}})
			a := m.hear()
			if len(a.GetRefusals()) != 1 || !strings.Contains(a.GetRefusals()[0].GetMessage(), says) || !a.GetConfirmed() {
				t.Errorf("%s: %v", says, a)
			}
			if got, ok := soft.Own(state.RegionID(r.GetRegionId()), 2); ok != (r.GetRegionId() == 3) || ok && (got.Load != 2 || got.Phase != phaseServing) {
				t.Errorf("%s: kept is %+v", says, got)
			}
		}
		words := change(func(r *coordinatorv1.RegionReport) { r.Error = "no\r\ndisk" + strings.Repeat("x", 1025) })
		m.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{words}})
		a := m.hear()
		if got, _ := soft.Own(3, 2); len(a.GetRefusals()) != 0 || got.More == nil || !strings.HasPrefix(got.More.Error, "no diskxxx") || len(got.More.Error) != state.MaxTextBytes {
			t.Errorf("words that are too long, of two lines: %v, kept is %+v", a, got.More)
		}
		m.say(&coordinatorv1.MemberFrame{Load: &coordinatorv1.MemberLoad{Load: math.Inf(-1)}})
		if a := m.hear(); len(a.GetRefusals()) != 1 || w.server.Load("m2", 2).GetLoad() != 1 {
			t.Errorf("an infinite load: %v, kept is %v", a, w.server.Load("m2", 2))
		}
		many := &coordinatorv1.MemberFrame{}
		for range 1000 {
			many.Regions = append(many.Regions, reported(1, phaseServing))
		}
		m.say(many)
		if a := m.hear(); len(a.GetRefusals()) != 64 {
			t.Errorf("%d refusals", len(a.GetRefusals()))
		}
		// What was refused for it was not the member's is asked for once it is.
		w.must(t, assign(1, "m2"))
		if a := m.hear(); a.GetReportAgain() || !slices.Contains(a.GetReportAgainRegions(), 1) {
			t.Errorf("the region that it spoke of is its own now, and it is told %v", a)
		}
	})
}

// TestSoftStateOfRegions: what is said of regions is kept by who says it, through the
// stages of a move, until it is said no more or is about another owner.
func TestSoftStateOfRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft, heard := catalog.NewSoft(catalog.SoftConfig{}), &listener{}
		w := hosting(t, func(c *server.Config) { c.Soft, c.Members = soft, heard })
		defer w.end(t)
		own := func(region state.RegionID, life uint64) string {
			r, ok := soft.Own(region, life)
			if !ok {
				return "nothing"
			}
			return strings.ToLower(strings.TrimPrefix(r.Phase.String(), "REGION_PHASE_")) + " " + r.Frontier
		}
		expect := func(region state.RegionID, life uint64, want string) {
			t.Helper()
			synctest.Wait()
			if got := own(region, life); got != want {
				t.Errorf("of region %d incarnation %d says %q, want %q", region, life, got, want)
			}
		}
		m1, m2 := w.hosted(t, "m1"), w.hosted(t, "m2")
		m1.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing), reported(2, phaseServing)}})
		m1.hear()
		expect(1, 1, "serving ")
		plan := w.must(t, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
		}}}).GetEvents()[0].GetTransition().GetId()
		if m1.hear(); m1.has[1].GetMove().GetRole() != coordinatorv1.MoveRole_MOVE_ROLE_GIVES {
			t.Errorf("the old owner is shown %v", m1.has[1])
		}
		if m2.hear(); m2.has[1].GetMove().GetRole() != coordinatorv1.MoveRole_MOVE_ROLE_TAKES || m2.has[1].GetMove().GetPeerAddress() != "m1:1000" {
			t.Errorf("the next owner is shown %v", m2.has[1])
		}
		m2.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, coordinatorv1.RegionPhase_REGION_PHASE_READY)}})
		m2.hear()
		expect(1, 2, "ready ")
		released := reported(1, coordinatorv1.RegionPhase_REGION_PHASE_RELEASED)
		released.Frontier, released.SetFrontier, released.TransitionId = []byte("f9"), true, plan
		m1.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{released}})
		m1.hear()
		expect(1, 1, "released f9")
		if r, _ := soft.Own(1, 1); r.More.TransitionID != plan || !r.FrontierSet {
			t.Errorf("kept is %+v", r)
		}
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: plan, Frontier: []byte("f9"), SetFrontier: true}}})
		expect(1, 1, "nothing")
		expect(1, 2, "ready ")
		m1.hear()
		m1.say(&coordinatorv1.MemberFrame{Gone: []uint64{2}})
		m1.hear()
		expect(2, 1, "nothing")
		m1.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(2, phaseServing)}})
		m1.hear()
		time.Sleep(time.Millisecond)
		m1.say(&coordinatorv1.MemberFrame{Complete: true, Partial: true})
		m1.hear()
		expect(2, 1, "serving ")
		m1.say(&coordinatorv1.MemberFrame{})
		m1.hear()
		expect(2, 1, "nothing")
		if want := "m1 1 2, m2 1, m1 1, m1 2"; heard.turns() != want {
			t.Errorf("turned are %q, want %q", heard.turns(), want)
		}
	})
}

// listener hears of streams.
type listener struct {
	mu      sync.Mutex
	told    []string
	turned  []string
	forbids bool
	lost    bool // the last frame said so
}

func (l *listener) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf(format, args...))
}

func (l *listener) Opened(id state.MemberID, incarnation, stream uint64, _ clock.Instant) {
	l.note("%s.%d opened %d", id, incarnation, stream)
}

func (l *listener) Closed(id state.MemberID, incarnation, stream uint64, _ clock.Instant) {
	l.note("%s.%d closed %d", id, incarnation, stream)
}

func (l *listener) Frame(f server.HeardFrame) {
	l.note("%s.%d frame on %d, %d replies", f.Member, f.Incarnation, f.Stream, len(f.Replies))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = f.Lost
	if len(f.Turned) > 0 {
		l.turned = append(l.turned, string(f.Member)+" "+strings.Trim(fmt.Sprint(f.Turned), "[]"))
	}
}

func (l *listener) Answered(state.MemberID, uint64, clock.Instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.forbids
}

func (l *listener) turns() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.turned, ", ")
}

// TestRule4OnlyTheConfirmedHolderConfirms: not a standby, not one whose era nobody
// confirms, not behind a verdict, and never for what was not said anew.
func TestRule4OnlyTheConfirmedHolderConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := &listener{}
		w := hosting(t, func(c *server.Config) { c.Members = heard })
		defer w.end(t)
		m := w.hosted(t, "m1")
		confirmed := func(want bool, why string) {
			t.Helper()
			m.say(&coordinatorv1.MemberFrame{})
			if a := m.hear(); a.GetConfirmed() != want || a.GetSequence() != m.sequence {
				t.Errorf("%s: %v", why, a)
			}
		}
		confirmed(true, "the holder")
		w.authority.status.Store(&tenure.Status{Phase: tenure.Standby, Era: 7})
		confirmed(false, "a standby")
		w.authority.status.Store(&tenure.Status{Phase: tenure.Holding, Era: 8})
		confirmed(false, "an era that is not confirmed")
		w.authority.status.Store(nil)
		heard.mu.Lock()
		heard.forbids = true
		heard.mu.Unlock()
		confirmed(false, "behind a verdict")
		heard.mu.Lock()
		heard.forbids = false
		heard.mu.Unlock()
		w.must(t, assign(2, "m2"))
		if a := m.hear(); a.GetSet() == nil || a.GetConfirmed() {
			t.Errorf("what it did not speak for: %v", a)
		}
		confirmed(true, "the holder again")
	})
}

// TestRule7GoneCountsWithTheLastPart: what a process reported as released before it ended comes in
// frames of their own when it is much, and all of it counts.
func TestRule7GoneCountsWithTheLastPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := &goodbyes{}
		w := hosting(t, func(c *server.Config) { c.Members = heard })
		defer w.end(t)
		m := w.hosted(t, "m1")
		for _, f := range []*coordinatorv1.MemberFrame{
			{Goodbye: &coordinatorv1.Goodbye{Reason: "drains"}, Partial: true},
			{Goodbye: &coordinatorv1.Goodbye{Gone: true}, Partial: true},
			{Goodbye: &coordinatorv1.Goodbye{Gone: true}},
		} {
			m.say(f)
			m.hear()
		}
		if got := heard.turns(); got != "gone false, gone true" {
			t.Errorf("heard %q", got)
		}
	})
}

// A goodbye is heard in one line, and why the root does not let the member drain is told it once.
func TestARefusedDrainIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard reasons
		w := hosting(t, func(c *server.Config) { c.Members = &heard })
		defer w.end(t)
		m := w.hosted(t, "m1")
		m.say(&coordinatorv1.MemberFrame{Goodbye: &coordinatorv1.Goodbye{Reason: "a roll:\n\tmachine 7"}})
		m.hear()
		if got := heard.turns(); got != "a roll: machine 7" {
			t.Errorf("heard %q", got)
		}
		w.server.RefuseDrain("m1", m.life+1, &rootv1.ErrorDetail{Message: "of another process"})
		w.server.RefuseDrain("m2", 2, &rootv1.ErrorDetail{Message: "of nobody here"})
		w.server.RefuseDrain("m1", m.life, &rootv1.ErrorDetail{Message: "no"})
		if a := m.hear(); a.GetDrainRefused().GetMessage() != "no" {
			t.Errorf("answered %v", a)
		}
		m.say(&coordinatorv1.MemberFrame{})
		if a := m.hear(); a.GetDrainRefused() != nil {
			t.Errorf("told again: %v", a)
		}
	})
}

// reasons hears those of goodbyes.
type reasons struct{ listener }

func (l *reasons) Frame(f server.HeardFrame) {
	if f.Goodbye != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.turned = append(l.turned, f.Goodbye.GetReason())
	}
}

// goodbyes hears them.
type goodbyes struct{ listener }

func (l *goodbyes) Frame(f server.HeardFrame) {
	if f.Goodbye != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.turned = append(l.turned, fmt.Sprint("gone ", f.Goodbye.GetGone()))
	}
}

// TestRule4OneCheckForAll: frames that come while a check is under way are answered
// behind one more.
func TestRule4OneCheckForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		var all []*speaker
		for i := range 50 {
			id := fmt.Sprintf("n%02d", i)
			w.must(t, join(id))
			all = append(all, w.hosted(t, id))
		}
		synctest.Wait()
		before := w.authority.checks.Load()
		release := w.authority.block()
		for _, m := range all {
			m.say(&coordinatorv1.MemberFrame{})
		}
		synctest.Wait()
		release()
		for _, m := range all {
			if a := m.hear(); !a.GetConfirmed() {
				t.Fatalf("%s is answered %v", m.id, a)
			}
		}
		if n := w.authority.checks.Load() - before; n > 2 {
			t.Errorf("%d checks for %d frames", n, len(all))
		}
	})
}

// TestOneIDFromTwoMachines: one serves, the other is told; and a stream takes the place
// of an older one of the same process.
func TestOneIDFromTwoMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := &listener{}
		w := hosting(t, func(c *server.Config) { c.Members = heard })
		defer w.end(t)
		first := w.hosted(t, "m1")
		again := w.hosted(t, "m1")
		if err := first.fails(); status.Code(err) != codes.Aborted {
			t.Errorf("the stream that another one took the place of ends with %v", err)
		}
		other := join("m1")
		other.GetMemberJoined().Member.StartNonce, other.GetMemberJoined().Follows = 6, 1
		w.must(t, other)
		if d := refused(t, again.fails(), rootv1.Reason_REASON_MEMBER_RETIRED); !strings.Contains(d.GetMessage(), "3 registered") {
			t.Errorf("the one that was overtaken is told %v", d)
		}
		m := w.hosted(t, "m1")
		if len(m.has) != 0 {
			t.Errorf("the new incarnation is shown %v", m.has)
		}
		late := w.speak(t, "m1", 1)
		late.say(&coordinatorv1.MemberFrame{Complete: true})
		refused(t, late.fails(), rootv1.Reason_REASON_MEMBER_RETIRED)
		m.say(&coordinatorv1.MemberFrame{})
		m.hear()
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m1", State: rootv1.MemberState_MEMBER_STATE_FAILED}}})
		refused(t, m.fails(), rootv1.Reason_REASON_MEMBER_RETIRED)
		synctest.Wait()
		heard.mu.Lock()
		defer heard.mu.Unlock()
		want := "m1.1 opened 1, m1.1 frame on 1, 0 replies, m1.1 opened 2, m1.1 frame on 2, 0 replies, m1.3 opened 3, m1.3 frame on 3, 0 replies, m1.3 frame on 3, 0 replies, m1.3 closed 3"
		var got []string
		for _, line := range heard.told {
			if !strings.HasPrefix(line, "m1.1 closed") { // when they are read to their end
				got = append(got, line)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("heard was\n%s, want\n%s", strings.Join(got, ", "), want)
		}
	})
}

// TestHeardMembers: what is asked before a verdict, and what operators see.
func TestHeardMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m1, m2 := w.hosted(t, "m1"), w.hosted(t, "m2")
		time.Sleep(time.Second)
		m1.say(&coordinatorv1.MemberFrame{})
		m1.hear()
		m2.end()
		synctest.Wait()
		time.Sleep(time.Second)
		resp, err := w.client.HeardMembers(within(t), &coordinatorv1.HeardMembersRequest{MemberIds: []string{"m1", "m2", "m9"}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range resp.GetMembers() {
			got = append(got, fmt.Sprint(h.GetMemberId(), h.GetIncarnation(), h.GetAgeMillis(), h.GetConnected()))
		}
		if want := []string{"m11 1000 true", "m22 2000 false"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("heard are %v, want %v", got, want)
		}
		list, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{})
		if s := list.GetMembers()[0]; err != nil || !s.GetConnected() || s.GetFrames() != 2 || s.GetHeartbeatAgeMillis() != 1000 {
			t.Errorf("%v, %v", s, err)
		}
		for _, n := range []int{0, server.MaxHeardMembers + 1} {
			_, err := w.client.HeardMembers(within(t), &coordinatorv1.HeardMembersRequest{MemberIds: make([]string, n)})
			refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		}
	})
}

// TestC45CommandsGoOutOnce: with the next answer, bounded, and to the incarnation that is
// meant.
func TestC45CommandsGoOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m := w.hosted(t, "m1")
		command := &coordinatorv1.MemberCommand{Era: 7, Id: 1, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT, RegionId: 1}
		if err := w.server.Command("m1", 1, command); err != nil {
			t.Fatal(err)
		}
		if a := m.hear(); len(a.GetCommands()) != 1 || a.GetCommands()[0].GetId() != 1 || a.GetConfirmed() {
			t.Errorf("it is told %v", a)
		}
		m.say(&coordinatorv1.MemberFrame{Replies: []*coordinatorv1.MemberCommandReply{{Era: 7, Id: 1, Done: true}}})
		if a := m.hear(); len(a.GetCommands()) != 0 {
			t.Errorf("again: %v", a)
		}
		for _, err := range []error{w.server.Command("m1", 2, command), w.server.Command("m2", 2, command)} {
			if reason.Of(err) != rootv1.Reason_REASON_NOT_FOUND {
				t.Errorf("to who is not here: %v", err)
			}
		}
	})
}

// TestOneThatNeverReads: its stream is cut, and nobody waits for it meanwhile.
func TestOneThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		for i := range 300 {
			w.root.must(t, point(fmt.Sprintf("%03d%s", i, strings.Repeat("x", 4000)), "m2"))
		}
		w.catchUp(t)
		deaf := w.speak(t, "m2", 2)
		deaf.say(&coordinatorv1.MemberFrame{Complete: true})
		synctest.Wait()
		m := w.hosted(t, "m1")
		begun := time.Now()
		for range 100 {
			time.Sleep(150 * time.Millisecond)
			deaf.say(&coordinatorv1.MemberFrame{})
			m.say(&coordinatorv1.MemberFrame{})
			at := time.Now()
			if a := m.hear(); !a.GetConfirmed() || time.Since(at) > 0 {
				t.Fatalf("another one is answered %v after %v", a, time.Since(at))
			}
		}
		list, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{})
		if err != nil || list.GetMembers()[1].GetConnected() {
			t.Errorf("after %v: %v, %v", time.Since(begun), list.GetMembers()[1], err)
		}
		refused(t, deaf.fails(), rootv1.Reason_REASON_OVERLOADED)
	})
}
