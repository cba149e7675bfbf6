package client_test

import (
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// owned is a region with one owner.
func owned(r *rootv1.Region, by string) *rootv1.Region {
	r.Owners = []*rootv1.Owner{{MemberId: by, Incarnation: 1}}
	return r
}

// Who waits for a key is woken by what changes of its region and its owner, and by nothing else.
func TestP37P84WhoWaitsForAKeyIsWokenByItsChangesAlone(t *testing.T) {
	is := func(id string, state rootv1.MemberState) *coordinatorv1.WatchRegionsResponse {
		return &coordinatorv1.WatchRegionsResponse{Members: members(&rootv1.Member{Id: id, Address: id + ":1", State: state, Incarnation: 1})}
	}
	regions := func(all ...*rootv1.Region) *coordinatorv1.WatchRegionsResponse {
		return &coordinatorv1.WatchRegionsResponse{Changes: now(all...)}
	}
	const up, failed = rootv1.MemberState_MEMBER_STATE_ACTIVE, rootv1.MemberState_MEMBER_STATE_FAILED
	for _, row := range []struct {
		name  string
		says  *coordinatorv1.WatchRegionsResponse // the watch, or
		do    func(*client.Cache)
		woken string // of the keys b, d and x; x is in no region
	}{
		{name: "a sign of life", says: &coordinatorv1.WatchRegionsResponse{}},
		{name: "the region moves", says: regions(owned(region(1, "a", "c", 5), "m2")), woken: "b"},
		{name: "the region moves, as is known", says: regions(owned(region(1, "a", "c", 2), "m1"))},
		{name: "another region moves", says: regions(owned(region(2, "c", "e", 5), "m1")), woken: "d"},
		{name: "both move", says: regions(region(1, "a", "c", 5), region(2, "c", "e", 5)), woken: "bd"},
		{name: "a region is made", says: regions(region(3, "x", "", 5)), woken: "x"},
		{name: "a region ends", says: &coordinatorv1.WatchRegionsResponse{Changes: []*coordinatorv1.RegionChange{{Region: region(2, "c", "e", 5), Removed: true}}}, woken: "d"},
		{name: "a split", says: regions(region(1, "a", "b", 5), region(4, "b", "c", 5)), woken: "b"},
		{name: "a merge", says: regions(region(1, "a", "e", 5)), woken: "bd"},
		{name: "the owner fails", says: is("m1", failed), woken: "b"},
		{name: "another member fails", says: is("m3", failed)},
		{name: "the owner is as it was", says: is("m1", up)},
		{name: "a snapshot", says: &coordinatorv1.WatchRegionsResponse{Snapshot: true, Changes: now(owned(region(1, "a", "c", 2), "m1"))}, woken: "bdx"},
		{name: "a member says that it is stale", woken: "b", do: func(k *client.Cache) {
			held, _ := k.Lookup([]byte("b"))
			k.Invalidate(held)
		}},
		{name: "a coordinator says something new", woken: "b", do: func(k *client.Cache) {
			k.Keep(client.Route{Region: rooted.RegionFromProto(owned(region(1, "a", "c", 5), "m2")), At: rooted.Token{Incarnation: 1, Term: 1, Index: 5}})
		}},
		{name: "a coordinator says what is known", do: func(k *client.Cache) {
			held, _ := k.Lookup([]byte("b"))
			k.Keep(held)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, ch, end := cached(t, &fake{}, client.CacheConfig{})
				defer end()
				first := is("m1", up)
				first.Snapshot, first.Token, first.Changes = true, at(4), now(owned(region(1, "a", "c", 2), "m1"), owned(region(2, "c", "e", 2), "m2"))
				for _, id := range []string{"m2", "m3"} {
					first.Members = append(first.Members, is(id, up).Members...)
				}
				ch.send(first)
				type wait struct {
					changed <-chan struct{}
					end     func()
				}
				waits := map[string][]wait{}
				for range 2 { // two of each key, of which one ends
					for _, key := range []string{"b", "d", "x"} {
						changed, end := k.ChangedAt([]byte(key))
						waits[key] = append(waits[key], wait{changed, end})
					}
				}
				if row.do != nil {
					row.do(k)
				} else {
					row.says.Token = at(5)
					ch.send(row.says)
				}
				woken := ""
				for _, key := range []string{"b", "d", "x"} {
					waits[key][0].end()
					waits[key][0].end() // which does nothing to the other one
					select {
					case <-waits[key][1].changed:
						woken += key
					default:
					}
				}
				if woken != row.woken {
					t.Errorf("%q are woken, want %q", woken, row.woken)
				}
				// Behind a change it is waited for the next one.
				changed, again := k.ChangedAt([]byte("b"))
				defer again()
				select {
				case <-changed:
					t.Error("who waits for the next change is told of the last")
				default:
				}
				ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: now(owned(region(1, "a", "c", 6), "m3"))})
				select {
				case <-changed:
				default:
					t.Error("the next change wakes nobody")
				}
			})
		})
	}
}

// What makes room for others is as it was: those who wait for it are not told, but of what the watch says of it.
func TestP37WhoWaitsForWhatIsNotHeldIsWokenByTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ch, end := cached(t, &fake{}, client.CacheConfig{MaxRegions: 1, MaxAnswers: 1})
		defer end()
		first := &coordinatorv1.WatchRegionsResponse{Snapshot: true, Token: at(4), Changes: now(region(1, "a", "b", 2), region(2, "b", "c", 2), region(3, "c", "d", 2))}
		ch.send(first)
		keep := func(r *rootv1.Region) {
			k.Keep(client.Route{Region: rooted.RegionFromProto(r), At: rooted.Token{Incarnation: 1, Term: 1, Index: 4}})
		}
		keep(region(2, "b", "c", 2))
		changed, over := k.ChangedAt([]byte("b"))
		defer over()
		keep(region(3, "c", "d", 2)) // in its place
		if _, held := k.Lookup([]byte("b")); held {
			t.Fatal("it is held: nothing made room")
		}
		select {
		case <-changed:
			t.Error("who waits is woken by what made room")
		default:
		}
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(5), Changes: now(region(2, "b", "c", 5))})
		select {
		case <-changed:
		default:
			t.Error("who waits for what is not held is not told of its change")
		}
	})
}
