package router_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/written"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

const (
	active = rootv1.MemberState_MEMBER_STATE_ACTIVE
	failed = rootv1.MemberState_MEMBER_STATE_FAILED

	absent = rootv1.Reason_REASON_NOT_FOUND
	there  = rootv1.Reason_REASON_UNSPECIFIED
)

// claims makes regions of one member.
type claims struct {
	made int
	err  error
}

func (c *claims) Claim(_ context.Context, _ string, key []byte) (client.Route, bool, error) {
	if c.err != nil {
		return client.Route{}, false, c.err
	}
	c.made++
	r := rooted.RegionFromProto(region(90, string(key), string(key)+"\x00", 90, 2))
	return client.Route{Region: r, At: rooted.Token{Incarnation: 1, Term: 1, Index: 90}}, true, nil
}

// The decision table: what there is, what is wanted, and what becomes of it.
func TestP35P38P42P43P57ResolveDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{}
		b, end := start(t, router.Config{Claim: c})
		defer end()
		b.snapshot(region(1, "a", "b", 2, 1), region(2, "b", "c", 2), region(3, "c", "d", 2, 4))
		b.members(member(4, failed))
		for _, row := range []struct {
			key       string
			o         router.Options
			want      rooted.MemberID
			err       error
			questions int
		}{
			{key: "ab", want: "m1"},
			{key: "ab", o: router.Options{ClaimOnMiss: true, ReassignOrphans: true}, want: "m1"},
			{key: "x", err: client.ErrNotFound, questions: 1},
			{key: "x", o: router.Options{ReassignOrphans: true}, err: client.ErrNotFound, questions: 1},
			{key: "x", o: router.Options{ClaimOnMiss: true}, want: "m2", questions: 1},
			{key: "x", o: router.Options{}, want: "m2"},
			{key: "bb", err: client.ErrUnhealthyMember},
			{key: "bb", o: router.Options{ClaimOnMiss: true}, err: client.ErrUnhealthyMember},
			{key: "cc", err: client.ErrUnhealthyMember},
		} {
			before := b.c.questions()
			got, err := b.Resolve(t.Context(), []byte(row.key), row.o)
			if got.Member != row.want || !errors.Is(err, row.err) {
				t.Errorf("%q %+v: %q %v, want %q %v", row.key, row.o, got.Member, err, row.want, row.err)
			}
			if n := b.c.questions() - before; n != row.questions {
				t.Errorf("%q %+v: %d questions, want %d", row.key, row.o, n, row.questions)
			}
			if row.want != "" && (got.Region == nil || got.Epoch != got.Region.Epoch || got.Token.Index == 0 || got.Address == "") {
				t.Errorf("%q: %+v", row.key, got)
			}
		}
		if c.made != 1 {
			t.Errorf("%d claims, want 1", c.made)
		}
	})
}

// A region whose owners are dead is waited for, until it is given to another one.
func TestP37P43ResolveWaitsForTheNextOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{Hold: time.Minute})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		b.members(member(1, failed))
		got := make(chan router.Target, 1)
		go func() {
			target, err := b.Resolve(context.Background(), []byte("k"), router.Options{ReassignOrphans: true})
			if err != nil {
				t.Error(err)
			}
			got <- target
		}()
		synctest.Wait()
		b.members(member(3, active)) // changes nothing of it
		b.regions(region(1, "", "", 3, 3))
		if target := <-got; target.Member != "m3" || !target.Reassigned || target.Epoch != epoch(3) {
			t.Errorf("%+v", target)
		}
		// Within the caller's time, or the longest wait.
		b.members(member(3, failed))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := b.Resolve(ctx, []byte("k"), router.Options{ReassignOrphans: true})
		if !errors.Is(err, client.ErrUnhealthyMember) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		begun = time.Now()
		_, err = b.Resolve(t.Context(), []byte("k"), router.Options{ReassignOrphans: true})
		if !errors.Is(err, client.ErrUnhealthyMember) || time.Since(begun) != time.Minute {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// As many wait as may; the next one is told at once.
func TestCallersWhoWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{MaxWaiting: 2})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		b.members(member(1, failed))
		for range 2 {
			go func() { _, _ = b.Resolve(context.Background(), []byte("k"), router.Options{ReassignOrphans: true}) }()
		}
		synctest.Wait()
		if n := b.State()[0].Waiting; n != 2 {
			t.Errorf("%d wait", n)
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{ReassignOrphans: true}); !errors.Is(err, client.ErrOverloaded) {
			t.Errorf("a third one: %v", err)
		}
		b.regions(region(1, "", "", 3, 2))
		if n := b.State()[0].Waiting; n != 0 {
			t.Errorf("%d wait still", n)
		}
	})
}

func TestP44NobodyIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		elsewhere := member(4, active)
		elsewhere.Keyspaces = []string{"another"}
		b.members(member(1, failed), member(2, failed), member(3, rootv1.MemberState_MEMBER_STATE_DRAINING), elsewhere)
		begun := time.Now()
		_, err := b.Resolve(t.Context(), []byte("k"), router.Options{ReassignOrphans: true})
		if !errors.Is(err, client.ErrNoActiveMembers) || time.Since(begun) != 0 {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		// Where members go and come back it is so no more.
		b.members(member(2, active))
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); !errors.Is(err, client.ErrUnhealthyMember) {
			t.Errorf("with a member: %v", err)
		}
	})
}

// An owner of an earlier incarnation is dead, whatever runs under its name.
func TestP69ResolveKnowsIncarnations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		again := member(1, active)
		again.Incarnation, again.Address = 2, "10.0.0.99:1"
		b.members(again)
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); !errors.Is(err, client.ErrUnhealthyMember) {
			t.Errorf("the dead incarnation: %v", err)
		}
		owned := region(1, "", "", 3, 1)
		owned.Owners[0].Incarnation = 2
		b.regions(owned)
		if got, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); err != nil || got.Address != "10.0.0.99:1" || got.Incarnation != 2 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

func TestResolveBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{Keyspaces: []string{"default"}})
		defer end()
		b.snapshot(region(1, "", "m", 2, 1), region(2, "m", "", 2, 2))
		bare := member(2, active)
		bare.Address = ""
		b.members(bare)
		for _, row := range []struct {
			key  string
			o    router.Options
			err  error
			says string
		}{
			{"", router.Options{}, client.ErrInvalidRequest, "0 bytes"},
			{strings.Repeat("k", rooted.MaxKeyBytes+1), router.Options{}, client.ErrInvalidRequest, "4097 bytes"},
			{"k", router.Options{Keyspace: "other"}, client.ErrInvalidRequest, "Config.Keyspaces"},
			{"z", router.Options{}, client.ErrUnhealthyMember, "has no address"},
		} {
			if _, err := b.Resolve(t.Context(), []byte(row.key), row.o); !errors.Is(err, row.err) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%.20q: %v, want %v: %s", row.key, err, row.err, row.says)
			}
		}
		if _, err := b.Resolve(t.Context(), []byte(strings.Repeat("k", rooted.MaxKeyBytes)), router.Options{}); err != nil {
			t.Error(err)
		}
		// Without a Claimer the client's is asked.
		b.regions(region(2, "y", "", 5, 2))
		b.c.claimed = region(91, "x", "x\x00", 6, 1)
		if got, err := b.Resolve(t.Context(), []byte("x"), router.Options{ClaimOnMiss: true}); err != nil || !got.Claimed || got.Member != "m1" {
			t.Errorf("without a claimer: %+v %v", got, err)
		}
	})
}

// A keyspace that goes has no routes, and another one under its name has its own.
func TestResolveThroughTheEndOfAKeyspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		gone := []*coordinatorv1.KeyspaceChange{{Keyspace: keyspace(1, "default"), Removed: true}}
		b.send(&coordinatorv1.WatchRegionsResponse{Keyspaces: gone})
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("of a keyspace that is gone: %v", err)
		}
		fresh := region(9, "", "", 12, 2)
		fresh.KeyspaceId = 4
		b.send(&coordinatorv1.WatchRegionsResponse{
			Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: keyspace(4, "default")}}, Changes: now(fresh),
		})
		if got, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); err != nil || got.Member != "m2" {
			t.Errorf("of the next one: %+v %v", got, err)
		}
	})
}

// What is held: a key is found without asking although the truth is another by now, until that is
// heard of; behind the end of its region it is not found; who has failed is passed while another
// owner lives, and is nobody's way where none does.
func TestP86WhatIsHeldFollowsTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "a", "b", 2, 1), region(2, "b", "c", 2, 2, 3), region(3, "c", "d", 2, 4))
		var truth *rootv1.Region
		b.c.answers(func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			if truth == nil {
				return nil, errors.New("there is no region")
			}
			return answer(truth)
		})
		finds := func(step, key string, want rooted.MemberID, fails error, questions int) {
			t.Helper()
			before := b.c.questions()
			got, err := b.Resolve(t.Context(), []byte(key), router.Options{})
			if n := b.c.questions() - before; got.Member != want || !errors.Is(err, fails) || n != questions {
				t.Errorf("%s: %q: %q %v after %d questions, want %q %v after %d", step, key, got.Member, err, n, want, fails, questions)
			}
		}
		truth = region(1, "a", "b", 9, 2)
		finds("the truth has changed", "ab", "m1", nil, 0)
		b.regions(truth)
		finds("that was heard of", "ab", "m2", nil, 0)

		truth = nil
		b.send(&coordinatorv1.WatchRegionsResponse{Changes: []*coordinatorv1.RegionChange{{Region: region(1, "a", "b", 10), Removed: true}}})
		finds("it was deregistered", "ab", "", client.ErrNotFound, 1)

		b.members(member(2, failed), member(4, failed))
		for range 4 {
			finds("one of two owners has failed", "bb", "m3", nil, 0)
		}
		finds("the only owner has failed", "cc", "", client.ErrUnhealthyMember, 0)
		b.regions(region(2, "b", "c", 11, 3), region(3, "c", "d", 12, 3)) // put right behind the calls
		finds("the dead owner was removed", "bb", "m3", nil, 0)
		finds("another owner was given it", "cc", "m3", nil, 0)
	})
}

// Keyspaces are apart: one key is of two regions, and what changes in one keyspace changes nothing
// of the other.
func TestP86KeyspacesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{Keyspaces: []string{"default", "other"}})
		defer end()
		b.c.mu.Lock()
		b.c.fed, b.c.index = "default", 5
		b.c.mu.Unlock()
		b.serveAgain()
		time.Sleep(time.Minute)
		b.c.answers(func(req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			if req.GetKeyspace() != "other" {
				return nil, errors.New("there is no region")
			}
			r := region(7, "", "", 3, 2)
			r.KeyspaceId = 2
			return answer(r)
		})
		finds := func(keyspace string, want rooted.MemberID, fails error) {
			t.Helper()
			if got, err := b.Resolve(t.Context(), []byte("k"), router.Options{Keyspace: keyspace}); got.Member != want || !errors.Is(err, fails) {
				t.Errorf("%s: %q %v, want %q %v", keyspace, got.Member, err, want, fails)
			}
		}
		b.snapshot(region(1, "", "", 2, 1))
		finds("default", "m1", nil)
		finds("other", "m2", nil)
		b.send(&coordinatorv1.WatchRegionsResponse{Changes: []*coordinatorv1.RegionChange{{Region: region(1, "", "", 9), Removed: true}}})
		finds("default", "", client.ErrNotFound)
		finds("other", "m2", nil)
	})
}

// What is held of a keyspace goes with the permission to read it, also for who follows a key, and is what there is then when it is given again.
func TestResolveThroughTheLossOfAGrant(t *testing.T) {
	for _, why := range []rootv1.Reason{rootv1.Reason_REASON_PERMISSION_DENIED, absent} {
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{})
			defer end()
			b.snapshot(region(1, "", "", 2, 1))
			var last error
			followed := make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() {
				defer close(followed)
				_ = b.Follow(ctx, []byte("k"), router.Options{}, func(_ router.Target, err error) bool {
					last = err
					return err == nil
				})
			}()
			synctest.Wait()
			b.c.mu.Lock()
			b.c.gone = why
			b.c.mu.Unlock()
			begun := time.Now()
			b.serveAgain() // a coordinator that has heard of it
			<-followed
			if took := time.Since(begun); !errors.Is(last, client.ErrNotFound) || took > 2*time.Second {
				t.Errorf("%v: who follows the key hears of %v after %v", why, last, took)
			}
			if got, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("%v: %+v %v", why, got, err)
			}
			b.c.mu.Lock()
			b.c.gone = there
			b.c.mu.Unlock()
			time.Sleep(10 * time.Second)
			b.snapshot(region(1, "", "", 9, 2))
			if got, err := b.Resolve(t.Context(), []byte("k"), router.Options{}); err != nil || got.Member != "m2" {
				t.Errorf("%v: with the grant again: %+v %v", why, got, err)
			}
		})
	}
}

// Why a keyspace is not followed is said once, and again when that changes or when it was
// followed meanwhile.
func TestRunWarnsOnceOfAKeyspaceThatIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log written.Text
		b, end := start(t, router.Config{Logger: log.Logger(hclog.Warn)})
		defer end()
		said := func(want int, when string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := strings.Count(log.String(), "a keyspace is not followed"); got != want {
				t.Errorf("%s: %d warnings, want %d:\n%s", when, got, want, log.String())
			}
		}
		refused := func(gone rootv1.Reason) {
			b.c.mu.Lock()
			b.c.gone = gone
			b.c.mu.Unlock()
			b.serveAgain()
		}
		refused(absent)
		said(1, "it is not there")
		refused(rootv1.Reason_REASON_PERMISSION_DENIED)
		said(2, "it may not be read")
		refused(absent)
		said(3, "it is not there again")
		refused(there)
		time.Sleep(10 * time.Second)
		b.snapshot(region(1, "", "", 2, 1))
		must(t, b.Wait(t.Context()))
		refused(absent)
		said(4, "it was there meanwhile")
	})
}

// A keyspace that is not there yet is waited for in the background.
func TestRunWaitsForAKeyspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.c.mu.Lock()
		b.c.gone = absent
		b.c.mu.Unlock()
		b.serveAgain()
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ready without a keyspace: %v", err)
		}
		b.c.mu.Lock()
		b.c.gone = there
		b.c.mu.Unlock()
		time.Sleep(10 * time.Second)
		b.snapshot(region(1, "", "", 2, 1))
		must(t, b.Wait(t.Context()))
	})
}

// What is held is served while no coordinator answers, with how old it is; not to a
// caller who wants it newer.
func TestP10ResolveThroughTheLossOfAllCoordinators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		b.c.server.Stop()
		time.Sleep(time.Hour)
		got, err := b.Resolve(t.Context(), []byte("k"), router.Options{})
		if err != nil || got.Member != "m1" {
			t.Fatalf("%+v %v", got, err)
		}
		if age := got.Age(); age < time.Hour || age > time.Hour+time.Second {
			t.Errorf("age %v", age)
		}
		_, err = b.Resolve(t.Context(), []byte("k"), router.Options{MaxAge: time.Minute})
		if !errors.Is(err, client.ErrRootLagExceeded) || !strings.Contains(err.Error(), "up to 1h0m") {
			t.Errorf("with MaxAge: %v", err)
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{Strong: true}); err == nil {
			t.Error("strong without a coordinator")
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{AtLeast: rooted.Token{Incarnation: 1, Index: 99}}); err == nil {
			t.Error("at a position that nobody knows")
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{MaxAge: 2 * time.Hour}); err != nil {
			t.Errorf("old enough: %v", err)
		}
	})
}

// Conditions that what is held does not meet are asked for, and one answer serves those
// who want the same for as long as it holds.
func TestResolveAsksForWhatIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "", "", 2, 1))
		var asked *coordinatorv1.ReadOptions
		b.c.answers(func(req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			asked = req.GetRead()
			return answer(region(1, "", "", 2, 1))
		})
		time.Sleep(time.Minute)
		for range 3 {
			got, err := b.Resolve(t.Context(), []byte("k"), router.Options{MaxAge: time.Second})
			if err != nil || got.Age() > time.Second {
				t.Errorf("%v of age %v", err, got.Age())
			}
		}
		if n := b.c.questions(); n != 1 || asked.GetMaxRootLagMillis() != 1000 {
			t.Errorf("%d questions, as %v", n, asked)
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{Strong: true}); err != nil || asked.GetFreshness() != coordinatorv1.Freshness_FRESHNESS_STRONG {
			t.Errorf("%v, as %v", err, asked)
		}
		if _, err := b.Resolve(t.Context(), []byte("k"), router.Options{AtLeast: rooted.Token{Incarnation: 1, Index: 1}}); err != nil || b.c.questions() != 2 {
			t.Errorf("a position that it has: %v", err)
		}
	})
}

func TestResolveHitDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{Pick: router.LeastLoaded})
		defer end()
		b.snapshot(region(1, "", "m", 2, 1), region(2, "m", "", 2, 1, 2, 3))
		for _, o := range []router.Options{{}, {MaxAge: time.Hour, ClaimOnMiss: true, ReassignOrphans: true}} {
			for _, key := range []string{"a", "z"} {
				k := bytes.Repeat([]byte(key), 60)
				if n := testing.AllocsPerRun(100, func() {
					if _, err := b.Resolve(t.Context(), k, o); err != nil {
						t.Error(err)
					}
				}); n != 0 {
					t.Errorf("%q %+v: %v allocations a hit", key, o, n)
				}
			}
		}
		if b.c.questions() != 0 {
			t.Error("it asked")
		}
	})
}
