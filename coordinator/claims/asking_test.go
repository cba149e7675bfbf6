package claims_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func hooked(k *rootv1.KeyspaceSettings) {
	k.Policy.Strategy, k.Policy.HookUrl = rootv1.Strategy_STRATEGY_HOOK, "http://h:1/"
}

// A hook says who gets what is claimed, in one question for many; whom it names and who may
// not have it, and whom it does not name, go by the fallback.
func TestP61AHookNamesWhoGetsClaims(t *testing.T) {
	within(t, 4, hooked, func(t *testing.T, w *world) {
		w.hook = func(_ context.Context, regions []hook.Region, candidates []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
			if len(candidates) != 3 {
				t.Errorf("candidates %v", candidates)
			}
			out := map[state.RegionID]state.MemberID{}
			for _, r := range regions {
				key := string(r.StartKey)
				switch {
				case r.Reason != "first_touch" || string(r.EndKey) != key+"\x00":
					t.Errorf("asked about %+v", r)
				case strings.HasPrefix(key, "dead"):
					out[state.RegionID(r.ID)] = "m003"
				case strings.HasPrefix(key, "named"):
					out[state.RegionID(r.ID)] = "m002"
				}
			}
			return out, nil
		}
		w.setState("m003", rootv1.MemberState_MEMBER_STATE_DRAINING)
		for i, a := range w.claim("named", "dead", "other", "more") {
			switch owner := a.Region.GetOwners(); {
			case a.Err != nil || !a.Made:
				t.Errorf("key %d: %v", i, a.Err)
			case i == 0 && owner[0].GetMemberId() != "m002", owner[0].GetMemberId() == "m003":
				t.Errorf("key %d went to %v", i, owner)
			}
		}
		if w.asked != 1 {
			t.Errorf("it was asked %d times", w.asked)
		}
	})
}

// A hook that hangs is waited for once: claims go by the fallback when it is late, and it is
// let rest. Nobody waits longer than its context, and another keyspace not at all.
func TestP61AHookThatHangsIsWaitedForOnce(t *testing.T) {
	within(t, 4, hooked, func(t *testing.T, w *world) {
		w.hook = func(ctx context.Context, _ []hook.Region, _ []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if a := w.desk.Claim(ctx, w.ks, [][]byte{[]byte("impatient")}, "")[0]; reason.Of(a.Err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
				t.Error(a)
			}
		})
		for i := range 10 {
			all.Go(func() { w.one(fmt.Sprint(i)) })
		}
		all.Wait()
		if took := time.Since(began); took != time.Second || w.asked != 1 {
			t.Errorf("it took %v, asked %d times", took, w.asked)
		}
		if w.View().State.RegionAt(w.ks, "impatient") != nil {
			t.Error("it is made for nobody")
		}
		w.one("next")
		if took := time.Since(began); took != time.Second {
			t.Errorf("the next one waits too: %v", took)
		}
		time.Sleep(time.Second)
		w.mu.Lock()
		var named state.MemberID
		w.hook = func(_ context.Context, regions []hook.Region, candidates []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
			for i := range candidates { // the last of those with least
				if i == 0 || candidates[i].Load <= candidates[0].Load {
					candidates[0], named = candidates[i], candidates[i].ID
				}
			}
			return map[state.RegionID]state.MemberID{state.RegionID(regions[0].ID): named}, nil
		}
		w.mu.Unlock()
		if a := w.one("later"); a.Region.GetOwners()[0].GetMemberId() != string(named) || w.asked != 2 || w.desk.Vars().Asked != 1 {
			t.Errorf("when it answers again: %v, asked %d times", a.Region, w.asked)
		}
	})
}

// Slow answers of many hooks hold up no claim for long: what was not asked about goes by the fallback.
func TestSlowHooksHoldUpNoOther(t *testing.T) {
	within(t, 4, hooked, func(t *testing.T, w *world) {
		w.hook = func(ctx context.Context, _ []hook.Region, _ []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
			<-ctx.Done() // for a second, and answers then
			return nil, nil
		}
		settings := w.View().State.Keyspace(w.ks).GetSettings()
		var ids []state.KeyspaceID
		for i := range 200 {
			k := w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprint("k", i), Settings: settings}}}).GetEvents()[0].GetKeyspace()
			ids = append(ids, state.KeyspaceID(k.GetId()))
		}
		synctest.Wait()
		var all sync.WaitGroup
		for _, id := range ids {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				began := time.Now()
				a := w.desk.Claim(ctx, id, [][]byte{[]byte("k")}, "")[0]
				if took := time.Since(began); a.Err != nil || took > 3*time.Second {
					t.Errorf("a claim of keyspace %d took %v: %v", id, took, a.Err)
				}
			})
		}
		all.Wait()
		if w.asked < 16 || w.asked > 48 {
			t.Errorf("%d hooks were asked", w.asked)
		}
	})
}

// Code that is brought for a keyspace says who gets what is claimed; what it does wrong is
// contained.
func TestP61BroughtCodeNamesWhoGetsClaims(t *testing.T) {
	within(t, 4, nil, func(t *testing.T, w *world) {
		s := w.View().State.Keyspace(w.ks).GetSettings()
		w.ks = state.KeyspaceID(w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "code", Settings: s}}}).GetEvents()[0].GetKeyspace().GetId())
		var named []string
		w.code = func(q *propose.Question) (int, bool) {
			i := len(q.Candidates) - 1 - len(named) // none of whom has any
			named = append(named, string(q.Candidates[i].ID))
			return i, true
		}
		for i, a := range w.claim("a", "b", "c", "d") {
			if a.Err != nil || i >= len(named) || a.Region.GetOwners()[0].GetMemberId() != named[i] {
				t.Errorf("named are %v, and key %d went to %v", named, i, a.Region)
			}
		}
		w.code = func(*propose.Question) (int, bool) { panic("oh") }
		w.one("bad")
		w.one("behind")
	})
}

// A claim of a keyspace that is made while others are given away is judged by a view that has it.
func TestAClaimIsJudgedByWhatItsCallerHasSeen(t *testing.T) {
	within(t, 4, nil, func(t *testing.T, w *world) {
		settings := w.View().State.Keyspace(w.ks).GetSettings()
		made := func(name string) state.KeyspaceID {
			return state.KeyspaceID(w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: settings}}}).GetEvents()[0].GetKeyspace().GetId())
		}
		w.ks = made("code")
		answer := make(chan error, 1)
		w.code = func(*propose.Question) (int, bool) {
			id := made("late")
			go func() { answer <- w.desk.Claim(t.Context(), id, [][]byte{[]byte("k")}, "")[0].Err }()
			synctest.Wait() // it waits in its line
			return 0, true
		}
		w.one("a")
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// Moves under way count for whom they bring regions: claims go to the others.
func TestP59MovesUnderWayCount(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		for i := range 10 {
			r := w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: uint32(w.ks), StartKey: fmt.Append(nil, "had", i), Owners: []*rootv1.Owner{{MemberId: "m000"}},
			}}}}).GetEvents()[0].GetRegion()
			w.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
				RegionId: r.GetId(), ExpectedEpoch: r.GetEpoch(), From: &rootv1.Owner{MemberId: "m000"}, To: &rootv1.Owner{MemberId: "m001"}, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
			}}})
		}
		keys := make([]string, 10)
		for i := range keys {
			keys[i] = fmt.Sprint("new", i)
		}
		w.claim(keys...)
		if n := w.owned()["m001"]; n != 5 {
			t.Errorf("m001, which is about to get 10 of 10, got %d of 10 more", n)
		}
	})
}

// What is given and in no view is bounded: behind it claims are refused, until the view comes.
func TestAViewThatStandsStillBoundsWhatIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, nil)
		stop := w.run()
		defer stop()
		w.freeze(true)
		made := 0
		for part := range 80 {
			keys := make([]string, 1024)
			for i := range keys {
				keys[i] = fmt.Sprint(part, "/", i)
			}
			for _, a := range w.claim(keys...) {
				if a.Err == nil {
					made++
				} else if reason.Of(a.Err) != rootv1.Reason_REASON_OVERLOADED {
					t.Fatal(a.Err)
				}
			}
		}
		if made != 65_536 {
			t.Errorf("%d regions are made behind a view that stands still", made)
		}
		w.freeze(false)
		w.one("again")
	})
}
