package held

import (
	"fmt"
	"testing"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/tidwall/btree"
)

var layouts = map[string]*rootv1.Layout{
	"ranges": {Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}},
	"points": {Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
	"slots":  {Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1024}}},
}

// Who waits for a key hears of the regions that come to hold it, change there or go, and of no others. Who waits in a keyspace
// that is not known hears of it when it is.
func TestWhoWaitsForAKeyHearsOfItsRegion(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			c := New(Config{Member: "m1", Incarnation: 1})
			c.Open(0)
			index := uint64(0)
			answer := func(a *coordinatorv1.MemberAnswer) {
				t.Helper()
				index++
				if a.Era = 1; a.Set != nil {
					a.Set.Token = &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
				}
				if err := c.Answer(0, a, 1); err != nil {
					t.Fatal(err)
				}
			}
			wait := func(key string) (woken func() bool) {
				turn, end := c.Table().Changed(0, &Request{Keyspace: "k", Key: []byte(key)})
				t.Cleanup(end)
				return func() bool {
					select {
					case <-turn:
						return true
					default:
						return false
					}
				}
			}
			terms := func(id uint32) {
				answer(&coordinatorv1.MemberAnswer{Terms: &coordinatorv1.MemberTerms{Keyspaces: []*coordinatorv1.KeyspaceTerms{{KeyspaceId: id, Name: "k", Layout: layout}}}})
			}
			at := rooted.RouteKey(layout, []byte("key"))
			shown := func(conf uint64) *coordinatorv1.ShownRegion {
				return &coordinatorv1.ShownRegion{Region: &rootv1.Region{
					Id: 1, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: conf}, StartKey: []byte(at), EndKey: []byte(at + "\x00"),
				}}
			}
			early := wait("key")
			terms(1)
			if !early() {
				t.Error("the keyspace is known, and who waited for that was not woken")
			}
			for _, step := range []struct {
				what string
				set  *coordinatorv1.ShownSet
			}{
				{"comes", &coordinatorv1.ShownSet{Complete: true, Regions: []*coordinatorv1.ShownRegion{shown(3)}}},
				{"changes", &coordinatorv1.ShownSet{Regions: []*coordinatorv1.ShownRegion{shown(4)}}},
				{"goes", &coordinatorv1.ShownSet{Ended: []uint64{1}}},
			} {
				of, other := wait("key"), wait("another key")
				answer(&coordinatorv1.MemberAnswer{Set: step.set})
				for _, call := range c.Calls(10, 1) {
					c.Done(call.ID, Result{}, 1)
				}
				if !of() || other() {
					t.Errorf("a region %s: its key was told %t, and another one %t", step.what, of(), other())
				}
			}
			before := wait("key")
			terms(2)
			if !before() {
				t.Error("another keyspace has the name, and who waited was not woken")
			}
			last := wait("key")
			if c.Retire(1); !last() {
				t.Error("the incarnation ends, and who waited was not woken")
			}
		})
	}
}

// puts has a region change again and again in a table where so many wait for keys of other regions.
func puts(t testing.TB, layout *rootv1.Layout, waits int) (put func()) {
	table, k := newTable(), &keyspace{exact: map[string]*Grant{}, ranges: btree.NewMap[string, *Grant](0)}
	k.now.Store(&Keyspace{ID: 1, Name: "k", Layout: layout})
	table.names.Store(&map[string]*keyspace{"k": k})
	at := rooted.RouteKey(layout, []byte("key"))
	for i := range waits {
		key := fmt.Appendf(nil, "another key/%d", i)
		if rooted.RouteKey(layout, key) == at {
			continue
		}
		_, end := table.Changed(0, &Request{Keyspace: "k", Key: key})
		t.Cleanup(end)
	}
	g := &Grant{space: k, shown: true, Region: &rooted.Region{ID: 1, Keyspace: 1, Start: at, End: at + "\x00"}}
	return func() { table.put(g) }
}

// What a change costs does not grow with the number of those who wait for other keys: it is made under the lock that confirmations
// need, and any caller can wait.
func TestAChangeCostsNothingForWhoWaitsElsewhere(t *testing.T) {
	for name, layout := range layouts {
		best := func(waits int) time.Duration {
			put, least := puts(t, layout, waits), time.Hour
			for range 50 {
				begun := time.Now()
				for range 10 {
					put()
				}
				least = min(least, time.Since(begun))
			}
			return least
		}
		if alone, beside := best(1), best(7500); beside > 30*alone {
			t.Errorf("%s: 10 changes take %v beside 7,500 who wait, and %v beside one", name, beside, alone)
		}
	}
}

func BenchmarkChangeBesideWaits(b *testing.B) {
	for name, layout := range layouts {
		for _, waits := range []int{0, 7500} {
			b.Run(fmt.Sprintf("%s/%d", name, waits), func(b *testing.B) {
				put := puts(b, layout, waits)
				for b.Loop() {
					put()
				}
			})
		}
	}
}
