package assigner_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// applied is what an application brings to a world. It is guarded by the world's mu.
type applied struct {
	// place answers a hook; nil: it hangs. scale takes a wish.
	place  func(url string, p *hook.Placement) (map[state.RegionID]state.MemberID, error)
	scale  func(w *hook.Wish) error
	places []*hook.Placement
	wishes []*hook.Wish
	at     []time.Time // of wishes
	// asking is how many hooks are asked now, most how many were.
	asking, most int
	propose      func(q *propose.Question) (int, bool)
}

// Place implements assigner.Hooks.
func (w *world) Place(ctx context.Context, url string, p *hook.Placement) (map[state.RegionID]state.MemberID, error) {
	w.mu.Lock()
	if _, ok := ctx.Deadline(); !ok {
		w.t.Error("a hook is asked without a deadline")
	}
	w.places = append(w.places, p)
	place := w.place
	w.asking++
	w.most = max(w.most, w.asking)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.asking--
		w.mu.Unlock()
	}()
	if place == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return place(url, p)
}

// Scale implements assigner.Hooks.
func (w *world) Scale(_ context.Context, _ string, wish *hook.Wish) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wishes, w.at = append(w.wishes, wish), append(w.at, time.Now())
	if w.scale == nil {
		return nil
	}
	return w.scale(wish)
}

// answers has hooks answer so from now on.
func (w *world) answers(place func(url string, p *hook.Placement) (map[state.RegionID]state.MemberID, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.place = place
}

func (w *world) questions() []*hook.Placement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.places)
}

// code is a strategy that is brought.
type code struct{ w *world }

func (c code) Propose(q *propose.Question) (int, bool) {
	c.w.mu.Lock()
	fn := c.w.applied.propose
	c.w.mu.Unlock()
	return fn(q)
}

// all names one member for everything.
func all(member state.MemberID) func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error) {
	return func(_ string, p *hook.Placement) (map[state.RegionID]state.MemberID, error) {
		owners := map[state.RegionID]state.MemberID{}
		for _, r := range p.Regions {
			owners[state.RegionID(r.ID)] = member
		}
		return owners, nil
	}
}

// turns names members one after the other, by the id of a region, in an order of its own.
func turns(_ string, p *hook.Placement) (map[state.RegionID]state.MemberID, error) {
	owners := map[state.RegionID]state.MemberID{}
	for _, r := range p.Regions {
		owners[state.RegionID(r.ID)] = state.MemberID(p.Candidates[int(r.ID*7%13)%len(p.Candidates)].ID)
	}
	return owners, nil
}

// hooking are settings with a hook, whose fallback is one.
func hooking(slots uint32, fallback rootv1.Strategy) *rootv1.KeyspaceSettings {
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: slots}}}
	s.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: "http://user:secret@place.example/games?key=1", HookTimeoutMillis: 2000, HookFallback: fallback}
	return s
}

func (w *world) keyspaceOf(name string, s *rootv1.KeyspaceSettings) state.KeyspaceID {
	w.t.Helper()
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: s}}})
	return state.KeyspaceID(w.now().KeyspaceByName(name).GetId())
}

// crew are members that are heard by who holds the Tenure.
func (w *world) crew(n int) (ids []state.MemberID) {
	w.t.Helper()
	for i := range n {
		w.join(name(i))
		ids = append(ids, name(i))
	}
	w.claim(self, life)
	for _, id := range ids {
		w.open(id)
	}
	w.pass(200*time.Millisecond, ids...)
	return ids
}

func (w *world) ownersOf(ks state.KeyspaceID) map[state.RegionID]state.MemberID {
	owners := map[state.RegionID]state.MemberID{}
	w.now().RegionsFrom(ks, "", func(r *state.Region) bool {
		if len(r.Owners) > 0 {
			owners[r.ID] = r.Owners[0].Member
		}
		return true
	})
	return owners
}

// whys are the reasons of commands, each once.
func (w *world) whys() (all []string) {
	for _, c := range w.commands() {
		if c.GetWhy() != "" && !slices.Contains(all, c.GetWhy()) {
			all = append(all, c.GetWhy())
		}
	}
	return all
}

// Regions go to whom a hook names: it is asked once about all of them, and told who there is.
func TestP55P61HookPlacesRegions(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.answers(turns)
		ids := w.crew(5)
		ks := w.keyspaceOf("hooked", hooking(20, 0))
		w.pass(time.Second, ids...)
		asked := w.questions()
		if len(asked) != 1 || len(asked[0].Regions) != 20 || len(asked[0].Candidates) != 5 || asked[0].Keyspace != "hooked" || asked[0].Probe {
			t.Fatalf("the hook was asked %d times, at first %+v", len(asked), asked)
		}
		want, _ := turns("", asked[0])
		over := 0
		for id, owner := range w.ownersOf(ks) {
			if owner != want[id] {
				over++ // who would have had more than 1.25 of its part
			}
		}
		if over > 6 || len(w.ownersOf(ks)) != 20 {
			t.Errorf("of %d regions %d are not where the hook has them", len(w.ownersOf(ks)), over)
		}
		slots := map[uint64]bool{}
		for _, r := range asked[0].Regions {
			slots[*r.Slot] = true
			if r.Reason != "first_touch" {
				t.Errorf("a region is asked about for %s", r.Reason)
			}
		}
		if len(slots) != 20 || !slots[19] {
			t.Errorf("the slots are %v", slots)
		}
		w.close("m1") // and nobody listens there any more
		w.pass(time.Second, ids[1:]...)
		if again := w.questions(); len(again) < 2 || again[1].Regions[0].Reason != "member_failed" || len(again[1].Candidates) != 4 || w.now().Orphaned() != 0 {
			t.Errorf("behind a death it was asked %d times, %d are orphaned", len(again), w.now().Orphaned())
		}
		if v := w.a.Vars(); v.Hooks["answered"] != uint64(len(w.questions())) {
			t.Errorf("%+v", v)
		}
	})
}

// A hook that hangs holds up its keyspace for its timeout, once, and nobody else: regions
// go by the fallback, the log says why, and it is not waited for until it answers a probe.
func TestP61HookThatHangsIsWaitedForOnce(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		ids := w.crew(4)
		ks := w.keyspaceOf("hooked", hooking(16, rootv1.Strategy_STRATEGY_RING))
		other := w.keyspaceOf("other", func() *rootv1.KeyspaceSettings {
			s := hooking(16, 0)
			s.Policy.Strategy = 0
			return s
		}())
		w.pass(1900*time.Millisecond, ids...)
		if a, b := len(w.ownersOf(ks)), len(w.ownersOf(other)); a != 0 || b != 16 {
			t.Errorf("before the timeout %d regions have owners, and %d of another keyspace", a, b)
		}
		w.pass(200*time.Millisecond, ids...)
		if n := len(w.ownersOf(ks)); n != 16 {
			t.Errorf("behind the timeout %d regions have owners", n)
		}
		if whys := w.whys(); len(whys) != 1 || whys[0] != "the hook of hooked is of no use (late): placed by ring" {
			t.Errorf("the log says %q", whys)
		}
		if all := w.a.RestingHooks(); len(all) != 1 || all[0].GetKeyspace() != "hooked" || all[0].GetWhy() != "late" || all[0].GetInstead() != "ring" {
			t.Errorf("the hooks that rest are %v", all)
		}
		claim := []hook.Region{{ID: 77, Reason: "first_touch"}}
		if _, err := w.a.AskHook(t.Context(), w.now().Keyspace(ks), claim, nil); hook.WhyOf(err) != hook.Late || len(w.questions()) != 1 {
			t.Errorf("a claim asks a hook that nobody waits for: %v", err)
		}
		if _, err := w.a.AskHook(t.Context(), w.now().Keyspace(other), claim, nil); !errors.Is(err, assigner.ErrNoHook) {
			t.Errorf("a claim without a hook: %v", err)
		}
		before := time.Now()
		w.close("m1")
		for w.now().Orphaned() > 0 || w.now().Member("m1").GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE {
			w.pass(50*time.Millisecond, ids[1:]...)
		}
		if took := time.Since(before); took > 500*time.Millisecond {
			t.Errorf("while the hook is known to hang, a repair takes %v", took)
		}
		w.pass(3*time.Minute, ids[1:]...)
		probes := w.questions()[1:]
		if len(probes) < 4 || len(probes) > 12 {
			t.Errorf("in 3 minutes there were %d probes", len(probes))
		}
		for _, p := range probes {
			if !p.Probe || len(p.Regions) != 1 || len(p.Candidates) == 0 {
				t.Errorf("a probe is %+v", p)
			}
		}
		w.answers(all("m3"))
		w.pass(40*time.Second, ids[1:]...)
		if named, err := w.a.AskHook(t.Context(), w.now().Keyspace(ks), claim, nil); err != nil || named[77] != "m3" {
			t.Errorf("a claim: %v, %v", named, err)
		}
		if all := w.a.RestingHooks(); len(all) != 0 {
			t.Errorf("it answers, and rests: %v", all)
		}
		n := len(w.questions())
		w.keyspaceOf("rest", func() *rootv1.KeyspaceSettings { s := hooking(3, 0); return s }())
		w.close("m2")
		w.pass(time.Second, "m3", "m4")
		after := w.questions()[n:]
		if !slices.ContainsFunc(after, func(p *hook.Placement) bool { return p.Keyspace == "hooked" && !p.Probe && len(p.Regions) > 1 }) {
			t.Errorf("when it answers again it is asked %d times: %+v", len(after), after)
		}
	})
}

// A hook that fails, or names who is dead, unknown or unfit, holds nothing up: the region has
// an owner, and the reason is counted.
func TestP61HookThatNamesNobodyHoldsNothingUp(t *testing.T) {
	for name, c := range map[string]struct {
		place func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error)
		count string
		why   string
	}{
		"dead":   {all("m9"), "named_nobody", "who was named could not be taken: named_nobody"},
		"nobody": {all(""), "named_nobody", "named_nobody"},
		"unfit":  {all("m1"), "named_unfit", "who was named could not be taken: named_unfit"},
		"full":   {all("m2"), "named_full", "who was named could not be taken: named_full"},
		"failing": {func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error) {
			return nil, &hook.Error{Why: hook.Status, Err: errors.New("500")}
		}, "status", "(status): placed by balanced"},
		"nonsense": {func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error) {
			return nil, &hook.Error{Why: hook.Malformed, Err: errors.New("x")}
		}, "malformed", "(malformed)"},
		"broken":     {func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error) { return nil, errors.New("x") }, "unreachable", "(unreachable)"},
		"no opinion": {func(string, *hook.Placement) (map[state.RegionID]state.MemberID, error) { return nil, nil }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.answers(c.place)
				w.join("m9")
				w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m9", State: rootv1.MemberState_MEMBER_STATE_FAILED}}})
				for _, id := range []string{"m2", "m3"} {
					w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
						Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: 77, Labels: map[string]string{"for": "x"}},
					}}})
				}
				w.crew(1)
				ids := []state.MemberID{"m1", "m2", "m3"}
				w.open("m2")
				w.open("m3")
				w.pass(200*time.Millisecond, ids...)
				s := hooking(12, 0)
				s.Policy.LabelRules = []*rootv1.LabelRule{{Labels: map[string]string{"for": "x"}}}
				ks := w.keyspaceOf("hooked", s)
				w.pass(time.Second, ids...)
				owners := map[state.MemberID]int{}
				for _, owner := range w.ownersOf(ks) {
					owners[owner]++
				}
				if owners["m2"]+owners["m3"] != 12 || owners["m2"] > 8 || owners["m3"] < 4 {
					t.Errorf("the owners are %v", owners)
				}
				v, whys := w.a.Vars(), strings.Join(w.whys(), "; ")
				if c.count != "" && v.Fallbacks[c.count] == 0 || c.count == "" && len(v.Fallbacks) > 0 {
					t.Errorf("fallbacks are %v", v.Fallbacks)
				}
				if !strings.Contains(whys, c.why) {
					t.Errorf("the log says %q, want %q", whys, c.why)
				}
			})
		})
	}
}

// As many hooks are asked at a time as may be, each about as much as one call carries; what had no
// place in time is placed without one. Nobody waits longer than the timeout.
func TestHooksAreAskedWithinBounds(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		ids := w.crew(3)
		for i := range 100 {
			w.keyspaceOf(fmt.Sprintf("k%03d", i), hooking(2, 0))
		}
		w.keyspaceOf("wide", hooking(6000, 0))
		w.pass(2100*time.Millisecond, ids...)
		if n := w.now().Orphaned(); n != 0 {
			t.Errorf("behind the timeout %d are orphaned", n)
		}
		w.mu.Lock()
		most := w.most
		w.mu.Unlock()
		if most != 64 {
			t.Errorf("%d hooks were asked at a time", most)
		}
		for _, p := range w.questions() {
			if len(p.Regions) > 4096 {
				t.Errorf("one call is about %d regions", len(p.Regions))
			}
		}
		if v := w.a.Vars(); v.Fallbacks["late"]+v.Fallbacks["busy"] != 6200 || v.Fallbacks["busy"] == 0 {
			t.Errorf("fallbacks are %v", v.Fallbacks)
		}
	})
}

// What waits for a hook does not wait any more when the settings have another one, or none, and
// what the old one says is of no use. An era that ends takes all of it with it.
func TestHookThatIsReplacedIsNotHeeded(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		ids := w.crew(3)
		s := hooking(8, 0)
		s.Policy.HookTimeoutMillis = 60_000
		ks := w.keyspaceOf("hooked", s)
		w.pass(5*time.Second, ids...)
		if n := len(w.ownersOf(ks)); n != 0 {
			t.Fatalf("%d have owners", n)
		}
		w.claim(other, 1)
		w.pass(100*time.Millisecond, ids...)
		w.claim(self, life)
		w.pass(5*time.Second, ids...)
		if n := len(w.questions()); n != 2 {
			t.Errorf("in two eras it was asked %d times", n)
		}
		w.answers(all("m2"))
		next := hooking(8, 0)
		next.Policy.HookUrl = "http://new.example"
		w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: "hooked", ExpectedVersion: 1, Settings: next}}})
		w.pass(time.Second, ids...)
		owners := w.ownersOf(ks)
		n := 0
		for _, owner := range owners {
			if owner == "m2" {
				n++
			}
		}
		if len(owners) != 8 || n < 3 {
			t.Errorf("the owners are %v", owners)
		}
		w.pass(time.Minute, ids...) // the first call is late, and nobody asked
		if v := w.a.Vars(); v.Fallbacks["late"] != 0 {
			t.Errorf("fallbacks are %v", v.Fallbacks)
		}
	})
}

// Code that an application brings places regions; a panic, and one that takes long, are
// contained, and cost the rest of a plan at most.
func TestA34CodePlacesRegions(t *testing.T) {
	for what, c := range map[string]struct {
		fn    func(q *propose.Question) (int, bool)
		count string
	}{
		"names":    {func(q *propose.Question) (int, bool) { return int(q.Region) % len(q.Candidates), true }, ""},
		"panics":   {func(*propose.Question) (int, bool) { panic("no") }, "code_panic"},
		"indexes":  {func(q *propose.Question) (int, bool) { q.Allowed(99); return 0, true }, "code_panic"},
		"is slow":  {func(*propose.Question) (int, bool) { time.Sleep(200 * time.Millisecond); return 0, true }, "code_slow"},
		"nonsense": {func(*propose.Question) (int, bool) { return -7, true }, "named_nobody"},
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.applied.propose = c.fn
				ids := w.crew(4)
				s := hooking(16, 0) // code counts, and no hook is asked
				ks := w.keyspaceOf("code", s)
				w.pass(time.Second, ids...)
				owners := w.ownersOf(ks)
				if len(owners) != 16 || len(w.questions()) != 0 {
					t.Errorf("%d have owners, a hook was asked %d times", len(owners), len(w.questions()))
				}
				counts := map[state.MemberID]int{}
				for id, owner := range owners {
					counts[owner]++
					if want := name(int(id) % 4); c.count == "" && owner != want {
						t.Errorf("region %d is %s's, want %s", id, owner, want)
					}
				}
				if slices.Max(slices.Collect(maps.Values(counts))) > 5 {
					t.Errorf("the members have %v", counts)
				}
				if v := w.a.Vars(); c.count != "" && v.Fallbacks[c.count] == 0 || c.count == "" && len(v.Fallbacks) != 0 {
					t.Errorf("fallbacks are %v", v.Fallbacks)
				}
				synctest.Wait()
			})
		})
	}
}
