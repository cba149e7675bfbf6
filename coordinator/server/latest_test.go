package server

import (
	"container/list"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	"google.golang.org/grpc/peer"
)

func at(index uint64) state.Token { return state.Token{Incarnation: 1, Term: 1, Index: index} }

// gathered are the changes of n entries, of as many regions, and the frames of each.
func gathered(n, bytes int) (*latest, []*frame) {
	l := &latest{since: at(0), byRegion: map[state.RegionID]*list.Element{}}
	var frames []*frame
	for i := range uint64(n) {
		data := make([]byte, bytes)
		l.add(&state.Change{Kind: state.ChangeRegion, Region: region(i + 1)}, at(i+1), data)
		frames = append(frames, &frame{from: at(i), to: at(i + 1), parts: [][]byte{data}, bytes: bytes})
	}
	return l, frames
}

// What is sent as shared is shared, also where watches stand at many positions: what
// one watch alone holds counts for it.
func TestACrowdAtManyPositionsSharesItsMessages(t *testing.T) {
	l, frames := gathered(100, 2000)
	made, bytes := map[*frame]int{}, 0
	for range 50 { // a crowd of 5000
		for _, first := range frames {
			k := l.instead(first, at(100), true)
			if made[k]++; made[k] == 1 && !k.own && k != first {
				bytes += k.bytes
			}
		}
	}
	if bytes > maxFramesBytes {
		t.Errorf("%d messages of %d MiB are made for a round of 5000, and count for nobody", len(made), bytes>>20)
	}
}

// One caller's watches that open, however many, hold up nobody else's for long.
func TestWatchesThatOpenWaitForTheirOwnCallersTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o opening
		of := func(ctx context.Context) *watch {
			return &watch{live: &live{ctx: ctx, end: make(chan struct{})}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		greedy := of(peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{Port: 1}}))
		for range 4000 {
			o.watches.Add(1)
			go func() {
				for o.wait(greedy, snapshotPartBytes) == nil {
				}
			}()
		}
		time.Sleep(time.Minute)
		o.watches.Add(1)
		begun := time.Now()
		for range 100 { // 3 MiB of an honest one
			if err := o.wait(of(t.Context()), snapshotPartBytes); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("a snapshot of 3 MiB took %v beside one greedy caller", took)
		}
		cancel()
		synctest.Wait()
	})
}

func region(id uint64) *state.Region {
	r := new(state.Region)
	r.ID = state.RegionID(id)
	return r
}
