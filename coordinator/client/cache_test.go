package client_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func (f *fake) GetKeyspace(ctx context.Context, req *coordinatorv1.GetKeyspaceRequest) (*coordinatorv1.GetKeyspaceResponse, error) {
	if err := f.note(ctx, "GetKeyspace"); err != nil {
		return nil, err
	}
	return &coordinatorv1.GetKeyspaceResponse{Keyspace: &rootv1.Keyspace{Id: 1, Name: req.GetName(), Settings: &rootv1.KeyspaceSettings{Layout: f.layout}}}, nil
}

// feed is a watch that the test speaks for.
type feed chan *coordinatorv1.WatchRegionsResponse

// serve sends what the test says; what it does not say of the coordinator and of
// the keyspace is added.
func (ch feed) serve(layout *rootv1.Layout, req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
	for {
		select {
		case m := <-ch:
			m.Disclosure = says(m.GetToken().GetIndex())
			if m.GetSnapshot() && !m.GetPartial() && m.GetKeyspaces() == nil {
				k := &rootv1.Keyspace{Id: 1, Name: req.GetKeyspace(), Settings: &rootv1.KeyspaceSettings{Layout: layout}}
				m.Keyspaces = []*coordinatorv1.KeyspaceChange{{Keyspace: k}}
			}
			if err := s.Send(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// cached is a cache in a bubble, fed by the test.
func cached(t *testing.T, f *fake, cfg client.CacheConfig) (*client.Cache, feed, func()) {
	return cachedBy(t, f, f, cfg)
}

// cachedBy is cached by a server that is more than a fake.
func cachedBy(t *testing.T, f *fake, server coordinatorv1.CoordinatorServer, cfg client.CacheConfig) (*client.Cache, feed, func()) {
	w := newWorld(t)
	ch := make(feed)
	f.cluster = newCluster(7)
	f.watch = func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error { return ch.serve(f.layout, req, s) }
	w.start("a", server)
	c, end := w.client(client.Config{WatchSilence: 1 << 60}, "a")
	k := c.NewCache(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return k, ch, func() {
		cancel()
		must(t, <-done)
		end()
	}
}

func (ch feed) send(m *coordinatorv1.WatchRegionsResponse) {
	ch <- m
	synctest.Wait()
}

func (ch feed) snapshot(index uint64, regions ...*rootv1.Region) {
	ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(index), Snapshot: true, Changes: now(regions...)})
}

func now(regions ...*rootv1.Region) []*coordinatorv1.RegionChange {
	var out []*coordinatorv1.RegionChange
	for _, r := range regions {
		out = append(out, &coordinatorv1.RegionChange{Region: r})
	}
	return out
}

func members(all ...*rootv1.Member) []*coordinatorv1.MemberChange {
	var out []*coordinatorv1.MemberChange
	for _, m := range all {
		out = append(out, &coordinatorv1.MemberChange{Member: m})
	}
	return out
}

func region(id uint64, start, end string, revision uint64) *rootv1.Region {
	return &rootv1.Region{
		Id: id, KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end), Revision: revision,
		Epoch: &rootv1.RegionEpoch{Version: revision, ConfVersion: 1}, Owners: []*rootv1.Owner{{MemberId: "m1"}},
	}
}

// The cache answers as a plain list would, through random splits, merges,
// moves and removals, and shows each batch at once.
func TestCacheAnswersAsAPlainListWould(t *testing.T) {
	for _, prefix := range []string{"", "tenant/000000/", "x"} {
		synctest.Test(t, func(t *testing.T) {
			k, ch, end := cached(t, &fake{}, client.CacheConfig{})
			defer end()
			synctest.Wait()
			if _, ok := k.At(); ok {
				t.Error("complete before a snapshot")
			}
			r := rand.New(rand.NewPCG(1, 2))
			var model []*rootv1.Region
			for i := range 600 {
				end := fmt.Sprintf("%s%05d", prefix, i*10+10)
				if i == 599 {
					end = ""
				}
				model = append(model, region(uint64(i+1), fmt.Sprintf("%s%05d", prefix, i*10), end, 1))
			}
			ch.snapshot(1, slices.Clone(model)...)
			<-k.Ready()
			nextID := uint64(1000)
			for index := uint64(2); index < 120; index++ {
				var changes []*coordinatorv1.RegionChange
				for range 1 + r.IntN(8) {
					var c []*coordinatorv1.RegionChange
					model, c = mutate(r, model, &nextID, index)
					changes = append(changes, c...)
				}
				for len(changes) > 1 && r.IntN(3) > 0 { // in parts, which show nothing yet
					ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(index - 1), Partial: true, Changes: changes[:1]})
					changes = changes[1:]
				}
				if token, _ := k.At(); token.Token.Index != index-1 {
					t.Fatalf("at %v inside batch %d", token, index)
				}
				ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(index), Changes: changes})
				if token, _ := k.At(); token.Token.Index != index || k.Len() != len(model) {
					t.Fatalf("at %v with %d regions, want %d with %d", token, k.Len(), index, len(model))
				}
				for range 50 {
					compare(t, k, model, fmt.Sprintf("%s%05d", prefix, r.IntN(6100)))
				}
				for _, key := range []string{"", "\x00", "zzz", prefix, prefix + "0", "tenant/000001"} {
					compare(t, k, model, key)
				}
			}
		})
	}
}

// mutate splits, merges, removes or replaces a random region of a sorted list.
func mutate(r *rand.Rand, model []*rootv1.Region, nextID *uint64, index uint64) ([]*rootv1.Region, []*coordinatorv1.RegionChange) {
	i := r.IntN(len(model) - 1)
	old := model[i]
	switch r.IntN(4) {
	case 0: // split
		cut := string(old.GetStartKey()) + "5"
		if cut >= string(old.GetEndKey()) {
			return model, nil
		}
		*nextID++
		left, right := region(old.GetId(), string(old.GetStartKey()), cut, index), region(*nextID, cut, string(old.GetEndKey()), index)
		return slices.Replace(slices.Clone(model), i, i+1, left, right), now(left, right)
	case 1: // merge with the neighbour, if it is one
		next := model[i+1]
		if string(old.GetEndKey()) != string(next.GetStartKey()) {
			return model, nil
		}
		whole := region(old.GetId(), string(old.GetStartKey()), string(next.GetEndKey()), index)
		gone := []*coordinatorv1.RegionChange{{Region: next, Removed: true}}
		return slices.Replace(slices.Clone(model), i, i+2, whole), append(gone, now(whole)...)
	case 2: // removal
		return slices.Delete(slices.Clone(model), i, i+1), []*coordinatorv1.RegionChange{{Region: old, Removed: true}}
	default: // another owner
		same := region(old.GetId(), string(old.GetStartKey()), string(old.GetEndKey()), index)
		return slices.Replace(slices.Clone(model), i, i+1, same), now(same)
	}
}

func compare(t *testing.T, k *client.Cache, model []*rootv1.Region, key string) {
	t.Helper()
	var want uint64
	for _, r := range model {
		if string(r.GetStartKey()) <= key && (len(r.GetEndKey()) == 0 || key < string(r.GetEndKey())) {
			want = r.GetId()
		}
	}
	got, ok := k.Lookup([]byte(key))
	if ok != (want != 0) || (ok && uint64(got.Region.ID) != want) {
		t.Fatalf("key %q: %v %t, want region %d", key, got.Region, ok, want)
	}
}

func TestCacheSwapsASnapshotWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{})
		defer end()
		ch.snapshot(5, region(1, "", "m", 2), region(2, "m", "", 2))
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(9), Snapshot: true, Partial: true, Changes: now(region(3, "", "", 8))})
		if r, ok := k.Lookup([]byte("a")); !ok || r.Region.ID != 1 {
			t.Errorf("in the middle of a snapshot: %+v", r.Region)
		}
		ch.send(&coordinatorv1.WatchRegionsResponse{
			Token: at(9), Snapshot: true, Changes: now(),
			Members: members(&rootv1.Member{Id: "m1", Address: "10.0.0.9:1", State: rootv1.MemberState_MEMBER_STATE_ACTIVE}),
		})
		r, ok := k.Lookup([]byte("z"))
		if !ok || r.Region.ID != 3 || r.At.Index != 9 || r.Address() != "10.0.0.9:1" || k.Len() != 1 {
			t.Errorf("after it: %+v at %v, %q, %d regions", r.Region, r.At, r.Address(), k.Len())
		}
		// A member that moves is found at its new address.
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(10), Members: members(&rootv1.Member{Id: "m1", Address: "10.0.0.10:1"})})
		if r, _ := k.Lookup([]byte("z")); r.Address() != "10.0.0.10:1" {
			t.Errorf("address %q", r.Address())
		}
		// The keyspace goes, and another one comes under its name.
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(11), Keyspaces: []*coordinatorv1.KeyspaceChange{{Removed: true, Keyspace: &rootv1.Keyspace{Id: 1, Name: "default"}}}})
		if _, ok := k.Lookup([]byte("z")); ok || k.Len() != 0 {
			t.Error("a removed keyspace has a route")
		}
		fresh := region(9, "", "", 12)
		fresh.KeyspaceId = 4
		ch.send(&coordinatorv1.WatchRegionsResponse{
			Token: at(12), Changes: now(fresh),
			Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: &rootv1.Keyspace{Id: 4, Name: "default"}}},
		})
		if r, ok := k.Lookup([]byte("z")); !ok || r.Region.ID != 9 {
			t.Errorf("after creation again: %+v", r.Region)
		}
	})
}

func TestCacheInvalidateAndFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.lookup = func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			return &coordinatorv1.GetRegionByKeyResponse{
				Region:     region(1, "", "", 9),
				Owners:     []*coordinatorv1.OwnerAddress{{MemberId: "m1", Address: "new:1"}},
				Disclosure: &coordinatorv1.Disclosure{ClusterId: 7, ServedRootToken: at(9)},
			}, nil
		}
		k, ch, end := cached(t, f, client.CacheConfig{})
		defer end()
		ch.snapshot(5, region(1, "", "m", 2), region(2, "m", "", 2))
		stale, _ := k.Lookup([]byte("a"))
		k.Invalidate(stale)
		if _, ok := k.Lookup([]byte("a")); ok {
			t.Error("an invalidated route was found")
		}
		if _, ok := k.Lookup([]byte("z")); !ok {
			t.Error("another route went too")
		}
		r, err := k.Route(t.Context(), []byte("a"))
		must(t, err)
		if r.Region.Revision != 9 || r.Address() != "new:1" {
			t.Errorf("route %+v", r)
		}
		// It was kept, and what it overlaps went. News that are older change nothing.
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(8), Changes: now(region(1, "", "m", 6), region(2, "m", "", 7))})
		if r, ok := k.Lookup([]byte("z")); !ok || r.Region.Revision != 9 || r.Address() != "new:1" {
			t.Errorf("after older news: %+v", r.Region)
		}
		k.Invalidate(stale)
		if _, ok := k.Lookup([]byte("a")); !ok {
			t.Error("a newer route was invalidated by an older one")
		}
		if n := f.called("GetRegionByKey"); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{MaxRegions: 3})
		defer end()
		var all []*rootv1.Region
		for i := range 5 {
			all = append(all, region(uint64(i+1), fmt.Sprint(i), fmt.Sprint(i+1), 1))
		}
		ch.snapshot(5, all...)
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: now(region(9, "9", "", 6))})
		if k.Len() != 3 {
			t.Errorf("%d regions, want 3", k.Len())
		}
	})
}

func TestCacheOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layout := &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 64}}}
		k, ch, end := cached(t, &fake{layout: layout}, client.CacheConfig{Keyspace: "actors"})
		defer end()
		var all []*rootv1.Region
		for i := range 64 {
			start, end := binary.BigEndian.AppendUint64(nil, uint64(i)), binary.BigEndian.AppendUint64(nil, uint64(i+1))
			all = append(all, region(uint64(i+1), string(start), string(end), 1))
		}
		ch.snapshot(5, all...)
		for i := range 500 {
			key := fmt.Appendf(nil, "actor-%d", i)
			r, ok := k.Lookup(key)
			if !ok || !r.Region.Contains(rooted.RouteKey(layout, key)) {
				t.Fatalf("key %q: %+v", key, r.Region)
			}
		}
	})
}

func TestCacheHitDoesNotAllocate(t *testing.T) {
	for name, layout := range map[string]*rootv1.Layout{
		"ranges": nil,
		"slots":  {Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			k, ch, end := cached(t, &fake{layout: layout}, client.CacheConfig{})
			defer end()
			ch.snapshot(5, region(1, "", "", 2))
			key := []byte(strings.Repeat("key", 20))
			if n := testing.AllocsPerRun(100, func() {
				if r, ok := k.Lookup(key); !ok || r.Region.ID != 1 {
					t.Error("missed")
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations a hit", name, n)
			}
		})
	}
}

// 8,000 members that join one by one cost what 8,000 changes cost: the others
// are not copied.
func TestCacheMembersCostWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{})
		defer end()
		ch.snapshot(1, region(1, "", "", 1))
		join := func(i uint64) {
			m := &rootv1.Member{Id: fmt.Sprintf("m%d", i), Address: fmt.Sprintf("10.0.0.%d:1", i)}
			ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(i), Members: members(m)})
		}
		for i := range uint64(8000) {
			join(i + 2)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range uint64(100) {
			join(i + 9000)
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / 100; each > 100<<10 {
			t.Errorf("a member more among 8,000 costs %d bytes", each)
		}
		gone := members(&rootv1.Member{Id: "m5"})
		gone[0].Removed = true
		owned := region(1, "", "", 20000)
		owned.Owners = []*rootv1.Owner{{MemberId: "m5"}, {MemberId: "m6"}}
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(20000), Members: gone, Changes: now(owned)})
		if r, ok := k.Lookup([]byte("a")); !ok || r.Address() != "10.0.0.6:1" || r.Members()[0].Address != "" {
			t.Errorf("after a member went: %q, %v", r.Address(), r.Members())
		}
	})
}

// What a member refuted does not come back: not from a coordinator that lags,
// not by the watch, not by a snapshot; unless the root says that it is so.
func TestCacheDoesNotGoBackBehindInvalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var asked []*coordinatorv1.ReadOptions
		strong := region(1, "", "m", 9)
		f.lookup = func(req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			asked = append(asked, req.GetRead())
			found, index := region(1, "", "m", 4), max(req.GetRead().GetRequiredRootToken().GetIndex(), 3)
			if req.GetRead().GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG {
				found, index = strong, 9
			}
			return &coordinatorv1.GetRegionByKeyResponse{Region: found, Disclosure: says(index)}, nil
		}
		k, ch, end := cached(t, f, client.CacheConfig{})
		defer end()
		ch.snapshot(5, region(1, "", "m", 4), region(2, "m", "", 2))
		stale, _ := k.Lookup([]byte("a"))
		k.Invalidate(stale)
		absent := func(when string) {
			t.Helper()
			if r, ok := k.Lookup([]byte("a")); ok {
				t.Errorf("%s: %+v", when, r.Region)
			}
		}
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: now(region(1, "", "m", 4))})
		absent("the watch said it again")
		ch.snapshot(7, region(1, "", "m", 4), region(2, "m", "", 2))
		absent("a snapshot said it again")
		r, err := k.Route(t.Context(), []byte("a"))
		must(t, err)
		if r.Region.Revision != 9 || len(asked) != 2 || asked[0].GetRequiredRootToken().GetIndex() != 7 {
			t.Errorf("route %+v after asking %v", r.Region, asked)
		}
		// A snapshot that is older than what was asked for does not take it away.
		ch.snapshot(8, region(1, "", "m", 4), region(2, "m", "", 2))
		if r, ok := k.Lookup([]byte("a")); !ok || r.Region.Revision != 9 {
			t.Errorf("after a snapshot from before: %+v", r.Region)
		}
		// The member was wrong: the root has nothing newer.
		k.Invalidate(r)
		r, err = k.Route(t.Context(), []byte("a"))
		must(t, err)
		if _, ok := k.Lookup([]byte("a")); !ok || r.Region.Revision != 9 {
			t.Errorf("confirmed by the root: %+v", r.Region)
		}
	})
}

// All and OnChange show the same as lookups do.
func TestCacheAllAndOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		cfg := client.CacheConfig{OnChange: func(u client.Update) {
			line := fmt.Sprint(u.At.Token.Index, " ", u.Whole)
			for _, r := range u.Regions {
				line += fmt.Sprintf(" %d>%d", revision(r.Old), revision(r.New))
			}
			said = append(said, line)
		}}
		k, ch, end := cached(t, &fake{}, cfg)
		defer end()
		ch.snapshot(5, region(1, "", "m", 2), region(2, "m", "", 3))
		gone := now(region(2, "m", "", 3))
		gone[0].Removed = true
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: append(now(region(1, "", "k", 6), region(3, "k", "", 6)), gone...)})
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(7)})
		if want := []string{"5 true", "6 false 2>6 3>0 0>6", "7 false"}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		var all []string
		for r := range k.All() {
			all = append(all, fmt.Sprint(r.Region.ID, " ", r.Region.Start, " ", r.At.Index))
		}
		if want := []string{"1  7", "3 k 7"}; !slices.Equal(all, want) {
			t.Errorf("all %q, want %q", all, want)
		}
	})
}

// Whoever keeps a copy by OnChange has what All has: also when an answer that was
// newer than the watch has taken regions out of the cache before, when a member
// refused one, and when both happen while OnChange reads a snapshot.
func TestOnChangeMissesNothingBesideAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer *rootv1.Region
		f := &fake{lookup: func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			return &coordinatorv1.GetRegionByKeyResponse{Region: answer, Disclosure: says(answer.GetRevision())}, nil
		}}
		var k *client.Cache
		ask := func(r *rootv1.Region) client.Route {
			answer = r
			route, err := k.Route(t.Context(), []byte("a"), client.Strong())
			must(t, err)
			return route
		}
		copied := map[rooted.RegionID]uint64{}
		cfg := client.CacheConfig{OnChange: func(u client.Update) {
			if u.Whole {
				answered := ask(region(7, "", "", u.At.Token.Index+1))
				clear(copied)
				for r := range k.All() {
					copied[r.Region.ID] = r.Region.Revision
				}
				k.Invalidate(answered)
			}
			for _, r := range u.Regions {
				if revision(r.Old) != copied[cmp.Or(r.Old, r.New).ID] {
					t.Errorf("at %d: region %d, told %d before", u.At.Token.Index, cmp.Or(r.Old, r.New).ID, revision(r.Old))
				}
				if r.New != nil {
					copied[r.New.ID] = r.New.Revision
				} else {
					delete(copied, r.Old.ID)
				}
			}
		}}
		k, ch, end := cached(t, f, cfg)
		defer end()
		same := func() {
			t.Helper()
			all := map[rooted.RegionID]uint64{}
			for r := range k.All() {
				all[r.Region.ID] = r.Region.Revision
			}
			if at, _ := k.At(); !maps.Equal(all, copied) {
				t.Errorf("at %d the cache has regions %v, who follows OnChange has %v", at.Token.Index, all, copied)
			}
		}
		ch.snapshot(5, region(1, "", "m", 2), region(2, "m", "", 3))
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(6)})
		same()
		whole := region(1, "", "", 9) // what a merge makes of both
		ask(whole)
		gone := now(region(2, "m", "", 3))
		gone[0].Removed = true
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(9), Changes: append(gone, now(whole)...)})
		same()
		k.Invalidate(ask(whole))
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(10)})
		same()
	})
}

func revision(r *rooted.Region) uint64 {
	if r == nil {
		return 0
	}
	return r.Revision
}

// One entry of the root may change a region twice: what it made of it in the end is shown.
func TestP86TheLastChangeOfARevisionIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{})
		defer end()
		ch.snapshot(4, owned(region(1, "a", "c", 2), "m1"))
		for _, batch := range [][]*rootv1.Region{
			{owned(region(1, "a", "c", 5), "m2"), owned(region(1, "a", "c", 5), "m3")},
			{owned(region(1, "a", "c", 6), "m3"), owned(region(1, "a", "b", 6), "m2"), owned(region(1, "a", "b", 6), "m4")},
		} {
			last := batch[len(batch)-1]
			ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(last.GetRevision()), Changes: now(batch...)})
			r, ok := k.Lookup([]byte("a"))
			if want := rooted.RegionFromProto(last); !ok || !reflect.DeepEqual(r.Region, want) {
				t.Errorf("got %+v, want %+v", r.Region, want)
			}
		}
	})
}
