package claims_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func within(t *testing.T, members int, change func(*rootv1.KeyspaceSettings), fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, members, change)
		stop := w.run()
		defer stop()
		fn(t, w)
	})
}

// A key that has no region gets one, with an owner, in the era that is held; who claims it
// again finds that one.
func TestP38P42P43P57FirstTouchMakesARegion(t *testing.T) {
	within(t, 3, nil, func(t *testing.T, w *world) {
		a := w.one("alice")
		if !a.Made || len(a.Region.GetOwners()) != 1 || a.Region.GetOwners()[0].GetIncarnation() == 0 || a.Region.GetId() == 0 || a.Token.Index == 0 {
			t.Errorf("made: %v", a)
		}
		if b := w.one("alice"); b.Made || b.Region.GetId() != a.Region.GetId() {
			t.Errorf("%v, and then %v", a, b)
		}
		both := w.claim("bob", "alice", "bob")
		if both[0].Err != nil || both[1].Region.GetId() != a.Region.GetId() || both[2].Region.GetId() != both[0].Region.GetId() {
			t.Errorf("together: %v", both)
		}
	})
}

// Of many who touch a key at once all get one region, of one command. A region that
// somebody else made is adopted, also where the view does not have it yet.
func TestP40P57X22ConcurrentTouchesMakeOneRegion(t *testing.T) {
	within(t, 3, nil, func(t *testing.T, w *world) {
		w.slow = make(chan struct{})
		ids := make([]uint64, 64)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() { ids[i] = w.one("alice").Region.GetId() })
		}
		synctest.Wait()
		close(w.slow)
		all.Wait()
		for _, id := range ids {
			if id == 0 || id != ids[0] {
				t.Fatalf("regions %v", ids)
			}
		}
		if n := w.View().State.KeyspaceRegionCount(w.ks); n != 1 || w.entries != 1 {
			t.Errorf("%d regions in %d entries", n, w.entries)
		}
		w.freeze(true)
		other := w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: uint32(w.ks), StartKey: []byte("bob"), Owners: []*rootv1.Owner{{MemberId: "m001"}},
		}}}}).GetEvents()[0].GetRegion()
		for range 2 { // the second one is not the first member's turn
			if a := w.one("bob"); a.Made || a.Region.GetId() != other.GetId() || a.Region.GetOwners()[0].GetMemberId() != "m001" {
				t.Errorf("somebody else made %v, and it is %v", other, a)
			}
		}
	})
}

// What is given counts at once: while no view shows anything of it, many claims spread.
func TestP57P59BookedUntilTheViewHasIt(t *testing.T) {
	within(t, 100, nil, func(t *testing.T, w *world) {
		w.freeze(true)
		for part := range 10 {
			keys := make([]string, 1000)
			for i := range keys {
				keys[i] = fmt.Sprintf("%d/%d", part, i)
			}
			for i, a := range w.claim(keys...) {
				if a.Err != nil || !a.Made {
					t.Fatalf("key %d: %v", i, a)
				}
			}
			time.Sleep(100 * time.Millisecond) // members are looked at anew now and then
		}
		w.freeze(false)
		w.one("another")
		for id, n := range w.owned() {
			if n < 100 || n > 101 {
				t.Errorf("%s has %d of 10,001", id, n)
			}
		}
		if w.entries > 100 {
			t.Errorf("%d entries for 10,000 claims", w.entries)
		}
	})
}

// Each strategy names members; a member that is suspected, drains or has failed is named by none.
func TestP56P58P60R10EveryStrategyClaims(t *testing.T) {
	for _, s := range []rootv1.Strategy{
		rootv1.Strategy_STRATEGY_BALANCED, rootv1.Strategy_STRATEGY_LEAST_LOADED, rootv1.Strategy_STRATEGY_ROUND_ROBIN,
		rootv1.Strategy_STRATEGY_RANDOM, rootv1.Strategy_STRATEGY_TWO_CHOICES, rootv1.Strategy_STRATEGY_RING,
	} {
		t.Run(s.String(), func(t *testing.T) {
			within(t, 6, func(k *rootv1.KeyspaceSettings) { k.Policy.Strategy = s }, func(t *testing.T, w *world) {
				w.one("before")
				w.mu.Lock()
				w.away["m000"] = true
				w.mu.Unlock()
				w.setState("m001", rootv1.MemberState_MEMBER_STATE_DRAINING)
				w.setState("m002", rootv1.MemberState_MEMBER_STATE_FAILED)
				had := w.owned()
				for i := range 300 {
					w.one(fmt.Sprint("key", i))
				}
				for id, n := range w.owned() {
					if got := n - had[id]; id < "m003" && got > 0 {
						t.Errorf("%s got %d", id, got)
					} else if id >= "m003" && (got < 60 || got > 150) {
						t.Errorf("%s got %d of 300", id, got)
					}
				}
			})
		})
	}
}

// Loads count where the keyspace says so: who has much of it gets less.
func TestP45P59LoadsCountWhereTheyAreWanted(t *testing.T) {
	within(t, 3, func(k *rootv1.KeyspaceSettings) {
		k.Policy.Rebalance = &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD}
	}, func(t *testing.T, w *world) {
		for i := range 30 {
			w.one(fmt.Sprint("early", i))
		}
		had := w.owned()
		w.mu.Lock()
		w.loads["m000"], w.loads["m001"], w.loads["m002"] = 800, 100, 100
		w.mu.Unlock()
		time.Sleep(time.Minute)
		for i := range 20 {
			w.one(fmt.Sprint("late", i))
		}
		now := w.owned()
		if now["m000"] != had["m000"] || now["m001"]-had["m001"] != 10 {
			t.Errorf("by load, of %v it became %v", had, now)
		}
	})
}

// Label rules bind keys: dedicated tenants get their members, and nobody else's.
func TestP55P61LabelRulesBindKeys(t *testing.T) {
	within(t, 3, func(k *rootv1.KeyspaceSettings) {
		k.Policy.LabelRules = []*rootv1.LabelRule{
			{KeyPrefix: []byte("big/"), Labels: map[string]string{"n": "2"}}, {KeyPrefix: []byte("none/"), Labels: map[string]string{"n": "9"}},
		}
	}, func(t *testing.T, w *world) {
		for i := range 10 {
			if a := w.one(fmt.Sprint("big/", i)); a.Region.GetOwners()[0].GetMemberId() != "m002" {
				t.Errorf("%v", a.Region)
			}
		}
		if err := w.refused("none/1", rootv1.Reason_REASON_NO_ACTIVE_MEMBERS); !strings.Contains(err.Error(), "label rules") {
			t.Error(err)
		}
		w.one("small/1") // one that nobody may have is nobody else's trouble
	})
}

// Limits refuse with what to do; what is above them is not sent to the root.
func TestA35P53LimitsRefuse(t *testing.T) {
	within(t, 2, func(k *rootv1.KeyspaceSettings) { k.Limits = &rootv1.Limits{MaxRegions: 5, MaxRegionsPerMember: 2} }, func(t *testing.T, w *world) {
		for i := range 4 {
			w.one(fmt.Sprint(i))
		}
		if err := w.refused("4", rootv1.Reason_REASON_CAPACITY_EXCEEDED); !strings.Contains(err.Error(), "max_regions_per_member") {
			t.Error(err)
		}
		w.join("m009", nil)
		time.Sleep(time.Second)
		w.one("4")
		before := w.calls
		if err := w.refused("5", rootv1.Reason_REASON_CAPACITY_EXCEEDED); !strings.Contains(err.Error(), "limits.max_regions") || w.calls != before {
			t.Errorf("%v, after %d calls", err, w.calls-before)
		}
	})
	// Many at once: as many as fit, and no more.
	within(t, 2, func(k *rootv1.KeyspaceSettings) { k.Limits = &rootv1.Limits{MaxRegions: 7} }, func(t *testing.T, w *world) {
		keys, made := make([]string, 20), 0
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		for _, a := range w.claim(keys...) {
			if a.Made {
				made++
			} else if reason.Of(a.Err) != rootv1.Reason_REASON_CAPACITY_EXCEEDED {
				t.Error(a.Err)
			}
		}
		if made != 7 {
			t.Errorf("%d are made", made)
		}
	})
}

// Without a member that is heard nobody gets a region; one that comes gets it at once.
func TestP44NobodyLiveIsNobody(t *testing.T) {
	within(t, 1, nil, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.away["m000"] = true
		w.mu.Unlock()
		// Who is new does not know that there is nobody: members may be about to find it.
		if err := w.refused("alice", rootv1.Reason_REASON_OVERLOADED); !strings.Contains(err.Error(), "is new") {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		w.refused("alice", rootv1.Reason_REASON_NO_ACTIVE_MEMBERS)
		w.mu.Lock()
		w.away["m000"] = false
		w.mu.Unlock()
		time.Sleep(30 * time.Millisecond)
		w.one("alice")
	})
}

// Keyspaces without claims say which setting it is.
func TestP42RefusedByTheNameOfTheSetting(t *testing.T) {
	for want, change := range map[string]func(*rootv1.KeyspaceSettings){
		"on_miss": func(k *rootv1.KeyspaceSettings) { k.Policy.OnMiss = rootv1.OnMiss_ON_MISS_NOT_FOUND },
		"points": func(k *rootv1.KeyspaceSettings) {
			k.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
		},
		"placement": func(k *rootv1.KeyspaceSettings) { k.Placement = rootv1.Placement_PLACEMENT_REPORTED; k.Ownership = nil },
	} {
		t.Run(want, func(t *testing.T) {
			within(t, 1, change, func(t *testing.T, w *world) {
				if err := w.refused("alice", rootv1.Reason_REASON_LAYOUT_MISMATCH); !strings.Contains(err.Error(), want) {
					t.Error(err)
				}
			})
		})
	}
}

// Answers that are lost are asked for again, under the same identity: one region, and it
// counts as made by who asked.
func TestP40ALostAnswerIsFound(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		w.spoil = func(call int) error {
			if call <= 3 {
				return errLost
			}
			return nil
		}
		a := w.one("alice")
		if !a.Made || w.View().State.KeyspaceRegionCount(w.ks) != 1 || w.calls != 4 {
			t.Errorf("%v after %d calls", a, w.calls)
		}
		// Removed in between by somebody: what is sent again does not make it anew.
		w.spoil = func(call int) error {
			if call > 5 {
				return nil
			}
			r := w.state.RegionAt(w.ks, "bob")
			w.appendLocked(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(r.ID)}}}}})
			return errLost
		}
		first := w.state.Token().Index
		w.claim("bob")
		if w.state.Token().Index-first > 4 {
			t.Errorf("%d entries for one claim", w.state.Token().Index-first)
		}
	})
}

// What an era's end finds under way is refused there, and whoever claims it again elsewhere
// gets one.
func TestA22P40ADeposedHolderMakesNothing(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		w.freeze(true)
		w.hold("c2", 5)
		w.refused("alice", rootv1.Reason_REASON_TENURE_NOT_HELD)
		if n := w.state.KeyspaceRegionCount(w.ks); n != 0 {
			t.Errorf("%d regions", n)
		}
		w.freeze(false)
		calls := w.calls
		w.refused("alice", rootv1.Reason_REASON_TENURE_NOT_HELD)
		if w.calls != calls {
			t.Error("it asked the root in an era that is over")
		}
	})
}

// A member that fails between being chosen and the root's word is replaced by another.
func TestP37AnOwnerThatIsGoneIsReplaced(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		w.freeze(true)
		w.setState("m000", rootv1.MemberState_MEMBER_STATE_FAILED)
		var all sync.WaitGroup
		all.Go(func() {
			for i, a := range w.claim("a", "b", "c", "d") {
				if a.Err != nil || a.Region.GetOwners()[0].GetMemberId() != "m001" {
					t.Errorf("key %d: %v", i, a)
				}
			}
		})
		synctest.Wait()
		w.freeze(false)
		all.Wait()
	})
}

// Nobody waits longer than its context, and what nobody waits for is not sent.
func TestClaimsEndWithTheirContexts(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		w.slow = make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range 2 { // as many calls as there may be
			all.Go(func() { w.desk.Claim(ctx, w.ks, [][]byte{fmt.Append(nil, "blocker", i)}, "") })
			synctest.Wait()
		}
		began := time.Now()
		a := w.desk.Claim(ctx, w.ks, [][]byte{[]byte("alice")}, "")[0]
		if reason.Of(a.Err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN || time.Since(began) != time.Second {
			t.Errorf("%v after %v", a.Err, time.Since(began))
		}
		all.Wait()
		close(w.slow)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r := w.state.RegionAt(w.ks, "alice"); r != nil {
			t.Error("it was made for nobody")
		}
		w.one("alice")
	})
}

// What one caller brings that no command can have is refused for it alone.
func TestA27OnesBadWordsAreNobodyElses(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		w.slow = make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() { w.claim("x"); w.claim("y") })
		synctest.Wait()
		all.Go(func() {
			if a := w.desk.Claim(ctx, w.ks, [][]byte{[]byte("bad")}, "\xff"+strings.Repeat("x", 300))[0]; reason.Of(a.Err) != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Error(a.Err)
			}
		})
		all.Go(func() { w.one("good") })
		synctest.Wait()
		close(w.slow)
		all.Wait()
	})
}

// A stop answers everybody, and what comes later.
func TestAStopAnswersClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, nil)
		stop := w.run()
		w.slow = make(chan struct{})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() { w.refused(fmt.Sprint(i), rootv1.Reason_REASON_TENURE_NOT_HELD) })
		}
		synctest.Wait()
		stop()
		all.Wait()
		w.refused("late", rootv1.Reason_REASON_TENURE_NOT_HELD)
	})
}

// A key whose region was removed under a ttl fence is made anew without an owner: that of before
// may still act for it, and the planner gives the region away when that is over.
func TestRule5ClaimedKeyThatWasTakenFromItsOwner(t *testing.T) {
	ttl := func(s *rootv1.KeyspaceSettings) {
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, 1000
	}
	within(t, 3, ttl, func(t *testing.T, w *world) {
		old := w.one("alice").Region
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: old.GetId()}}})
		a := w.one("alice")
		if !a.Made || len(a.Region.GetOwners()) != 0 || a.Region.GetEpoch().GetVersion() <= old.GetEpoch().GetVersion() {
			t.Errorf("behind %v it is %v", old, a)
		}
		if b := w.one("bob"); len(b.Region.GetOwners()) != 1 {
			t.Errorf("another key has no owner: %v", b)
		}
	})
}

// A claim is given to members that may own regions of the keyspace: the one whose grant was taken back a
// moment ago gets nothing, and the caller is not told that it may not.
func TestAClaimIsGivenToWhoMayHost(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		keyspace := w.View().State.Keyspace(w.ks).GetName()
		for _, id := range []string{"member/m000", "member/m001"} {
			w.must(&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
				Principal: id, Keyspace: keyspace, Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST},
			}}}})
		}
		w.one("before")
		w.must(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/m000", Keyspace: keyspace}}})
		for i := range 10 {
			if a := w.one(fmt.Sprint(i)); a.Region.GetOwners()[0].GetMemberId() != "m001" {
				t.Errorf("%v", a.Region)
			}
		}
		// The desk does not know yet of one that is taken back now.
		w.freeze(true)
		w.must(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/m001", Keyspace: keyspace}}},
			&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
				Principal: "member/m000", Keyspace: keyspace, Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST},
			}}}})
		time.AfterFunc(100*time.Millisecond, func() { w.freeze(false) })
		if a := w.one("late"); a.Region.GetOwners()[0].GetMemberId() != "m000" {
			t.Errorf("%v", a.Region)
		}
	})
}

// A member that fails to acquire what it was given gets nothing by a first touch that another one may have.
func TestRule11ClaimsPassOverWhoCannotAcquire(t *testing.T) {
	within(t, 2, nil, func(t *testing.T, w *world) {
		unfit := func(id rooted.MemberID, is bool) {
			w.mu.Lock()
			w.unfit[id] = is
			w.mu.Unlock()
			time.Sleep(time.Second) // what is known of members is used for less than that
		}
		owners := func(from, to int) (n int) {
			for i := from; i < to; i++ {
				if w.one(fmt.Sprint(i)).Region.GetOwners()[0].GetMemberId() == "m000" {
					n++
				}
			}
			return n
		}
		unfit("m000", true)
		if n := owners(0, 10); n > 0 {
			t.Errorf("m000, which fails to acquire, got %d of 10", n)
		}
		unfit("m001", true)
		if n := owners(10, 20); n != 10 {
			t.Errorf("both fail, and m000, which has fewer, got %d of 10", n)
		}
		unfit("m000", false)
		unfit("m001", false)
		if n := owners(20, 30); n == 0 {
			t.Error("m000 is well again, and got none of 10")
		}
	})
}

// A keyspace leaves room for claims of others, however many of its own wait, and turns with them:
// what waits of it holds up none.
func TestAKeyspaceLeavesRoomAndTurnsToOthers(t *testing.T) {
	within(t, 3, nil, func(t *testing.T, w *world) {
		other := state.KeyspaceID(w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
			Name: "other", Settings: w.View().State.Keyspace(w.ks).GetSettings(),
		}}}).GetEvents()[0].GetKeyspace().GetId())
		w.slow = make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		var all sync.WaitGroup
		var taken, full atomic.Int64
		for part := range 70 {
			all.Go(func() {
				keys := make([][]byte, 1024)
				for i := range keys {
					keys[i] = fmt.Appendf(nil, "%d/%d", part, i)
				}
				for _, a := range w.desk.Claim(ctx, w.ks, keys, "") {
					switch reason.Of(a.Err) {
					case rootv1.Reason_REASON_UNSPECIFIED, rootv1.Reason_REASON_OUTCOME_UNKNOWN:
						taken.Add(1)
					case rootv1.Reason_REASON_OVERLOADED:
						full.Add(1)
					default:
						t.Error(a.Err)
					}
				}
			})
		}
		synctest.Wait()
		answered := make(chan error, 1)
		go func() { answered <- w.desk.Claim(ctx, other, [][]byte{[]byte("k")}, "")[0].Err }()
		calls := 0
		for ; len(answered) == 0 && calls < 20; calls++ { // one after another
			synctest.Wait()
			if len(answered) == 0 {
				w.slow <- struct{}{}
			}
		}
		if err := <-answered; err != nil {
			t.Errorf("the claim of another keyspace: %v", err)
		}
		if calls > 5 { // two were under way, and it was in the next one
			t.Errorf("the claim of another keyspace waited for %d calls", calls)
		}
		cancel() // nobody waits for the rest
		close(w.slow)
		all.Wait()
		if taken.Load() < 40_000 || full.Load() == 0 {
			t.Errorf("%d of the claims of one keyspace were taken, %d were too many", taken.Load(), full.Load())
		}
	})
}
