package simulation

import (
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestIDsBesideCreations: regions that get their ids from the root raise the fence
// of ids all the time. Ids are given beside them, few commands are refused, and a
// takeover under that load closes its handover.
func TestIDsBesideCreations(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	k := knobsOf(1, noVariant)
	k.loses, k.coordinators = false, 2
	r, err := newRun(k)
	if err != nil {
		t.Fatal(err)
	}
	// A root that takes 4 ms to answer; nothing is lost, and nobody is disturbed.
	r.calm = true
	r.roots.Net.Lose, r.roots.Net.Repeat, r.roots.Net.Slow = 0, 0, 0
	r.roots.Net.MaxDelay = 4 * time.Millisecond
	for _, n := range r.nodes {
		n.start()
	}
	if !r.RunFor(5*time.Second, func() bool {
		return r.holding().holder.Era() == 1 && r.handover() == rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
	}) {
		t.Fatal("no coordinator serves")
	}
	created := 0
	link := r.roots.NewLink("creator")
	var create func()
	create = func() {
		created++
		key := func(n int) []byte { return fmt.Appendf(nil, "%08d", n) }
		proposeOver(link, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{
			RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 1, StartKey: key(created), EndKey: key(created + 1)}},
		}}}}, askLimit, func(*rootv1.CommandResult) {})
		r.After(3*time.Millisecond, create)
	}
	create()

	served := 0
	var ask func()
	ask = func() {
		if n := r.holding(); n.up {
			n.then(func() { n.holder.Serve(ids, 1, func(uint64, uint64) { served++ }) })()
		}
		r.After(time.Millisecond, ask)
	}
	ask()
	for second := range 3 {
		before := served
		r.RunFor(time.Second, nil)
		if got := served - before; got < 500 {
			t.Errorf("second %d: %d ids beside %d creations, want 500", second+1, got, created)
		}
	}
	if n := r.count.windowsRefused; n > 5 {
		t.Errorf("%d windows were refused", n)
	}

	r.holding().stop()
	if !r.RunFor(3*time.Second, func() bool {
		return r.holding().holder.Era() == 2 && r.handover() == rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
	}) {
		t.Fatalf("under that load the handover to era %d is at %v", r.holding().holder.Era(), r.handover())
	}
	before := served
	r.RunFor(time.Second, nil)
	if served-before < 500 {
		t.Errorf("after the takeover: %d ids in a second", served-before)
	}
	t.Logf("%d ids beside %d creations, %d windows refused", served, created, r.count.windowsRefused)
}

// handover is the stage of the newest one, as its holder knows it.
func (r *run) handover() rootv1.HandoverStage {
	n := r.holding()
	return n.holder.Raw.Status(n.now()).Stage
}
