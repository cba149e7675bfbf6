package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
)

// A store that is started while nobody answers serves what it hosted, changed regions
// too, from its workdir.
func TestN65RestartFromLocalState(t *testing.T) {
	w := newWorld(t, 2)
	n := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1", "store-2")
	for i := range 10 {
		n.put(r, fmt.Sprintf("k%d", i), "v")
	}
	left, right, err := n.host.Split(t.Context(), at(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	if right.Start != "k5" {
		t.Errorf("the middle of k0 to k9 is %q", right.Start)
	}
	w.trouble(true, false)
	n.restart()
	n.run()
	n.wantValue(left, "k1", "v")
	n.put(right, "k7", "new")
	n.wantValue(right, "k7", "new")
	_, err = n.host.Put(at(r), []byte("k1"), nil, nil)
	if d := want(t, err, rootv1.Reason_REASON_EPOCH_STALE); rooted.EpochFromProto(d.GetRegion().GetEpoch()) != left.Epoch {
		t.Errorf("the refusal says %v", d)
	}
	if shown, _ := n.host.Status(); len(shown) != 2 || shown[0].GetTransitionId() != "split-1-"+r.Epoch.String() {
		t.Errorf("hosts %v", shown)
	}
	if _, _, err := n.host.Split(t.Context(), at(right), []byte("k8")); err == nil {
		t.Error("a region was split without the root")
	} else {
		want(t, err, rootv1.Reason_REASON_OUTCOME_UNKNOWN)
	}
}

// A crash between the change in the root and the one in the workdir: the old region is
// served until the watch tells, and then what has become of it, with its data.
func TestN65CrashBetweenPublishAndCatalogHeals(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1")
	n.put(r, "a", "1")
	n.put(r, "z", "2")
	w.trouble(false, true) // rooted, and never heard of
	if _, _, err := n.host.Split(t.Context(), at(r), []byte("m")); err == nil {
		t.Fatal("the answer came")
	}
	n.restart()
	w.trouble(false, false)
	n.wantValue(r, "z", "2")
	n.hear()
	left := w.rooted(1)
	if left.End != "m" {
		t.Fatalf("rooted: %v", left)
	}
	n.wantValue(left, "a", "1")
	shown, _ := n.host.Status()
	right := rooted.RegionFromProto(shown[1].GetRegion())
	n.wantValue(right, "z", "2")

	w.trouble(false, true)
	if _, err := n.host.Merge(t.Context(), at(left), at(right)); err == nil {
		t.Fatal("the answer came")
	}
	n.restart()
	w.trouble(false, false)
	n.hear()
	whole := w.rooted(1)
	n.wantValue(whole, "a", "1")
	n.wantValue(whole, "z", "2")
	if shown, _ := n.host.Status(); len(shown) != 1 {
		t.Errorf("hosts %v", shown)
	}
}

// The lead takes the data with it, its versions too, and the old leader refuses.
func TestLeaderTransferMovesData(t *testing.T) {
	w := newWorld(t, 2)
	one, two := w.hosts["store-1"], w.hosts["store-2"]
	r := w.region(1, "", "", "store-1", "store-2")
	for i := range 3000 {
		n := fmt.Sprintf("k%04d", i)
		if i%1000 == 0 {
			n = fmt.Sprintf("k%04d", i)
			one.put(r, n, string(make([]byte, 700<<10)))
			continue
		}
		if i%50 == 0 {
			one.put(r, n, n)
		}
	}
	before, err := one.host.Get(at(r), []byte("k0050"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = two.host.Get(at(r), []byte("k0050"))
	if d := want(t, err, rootv1.Reason_REASON_NOT_LEADER); d.GetLeaderAddress() != "store-1:1" {
		t.Errorf("the way out is %v", d)
	}
	w.onCopy = func() { // read, and not written, while it is copied
		one.wantValue(r, "k0050", "k0050")
		_, err := one.host.Put(at(r), []byte("k0050"), []byte("lost"), nil)
		want(t, err, rootv1.Reason_REASON_RANGE_CHANGE_PENDING)
	}
	now, keys, err := one.host.TransferLeader(t.Context(), at(r), "store-2")
	if err != nil || keys != 60 {
		t.Fatalf("%d keys, %v", keys, err)
	}
	_, err = one.host.Get(at(now), []byte("k0050"))
	want(t, err, rootv1.Reason_REASON_NOT_LEADER)
	_, err = two.host.Get(at(now), []byte("k0050")) // before it has heard
	want(t, err, rootv1.Reason_REASON_EPOCH_STALE)
	two.hear()
	two.restart()
	after, err := two.host.Get(at(now), []byte("k0050"))
	if err != nil || after.Version != before.Version || string(after.Value) != "k0050" {
		t.Fatalf("%+v, %v; was %+v", after, err, before)
	}
	version, err := two.host.Put(at(now), []byte("k0050"), []byte("new"), &after.Version)
	if err != nil || version <= after.Version {
		t.Fatalf("version %d, %v behind %d", version, err, after.Version)
	}
	// And back, over what was left there.
	w.onCopy = nil
	again, _, err := two.host.TransferLeader(t.Context(), at(now), "store-1")
	if err != nil {
		t.Fatal(err)
	}
	one.hear()
	one.wantValue(again, "k0050", "new")
}

// Nobody knows what became of a transfer: neither store serves before the root has said,
// also behind a restart, and then exactly one does.
func TestN65CrashDuringTransferHeals(t *testing.T) {
	for _, c := range []struct {
		name       string
		away, mute bool
		leader     rooted.MemberID
	}{{"it never came", true, false, "store-1"}, {"it was applied", false, true, "store-2"}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2)
			one, two := w.hosts["store-1"], w.hosts["store-2"]
			r := w.region(1, "", "", "store-1", "store-2")
			one.put(r, "a", "1")
			w.trouble(c.away, c.mute)
			_, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2")
			want(t, err, rootv1.Reason_REASON_OUTCOME_UNKNOWN)
			one.restart()
			_, err = one.host.Get(at(r), []byte("a"))
			want(t, err, rootv1.Reason_REASON_RANGE_CHANGE_PENDING)
			_, err = two.host.Get(at(r), []byte("a"))
			want(t, err, rootv1.Reason_REASON_NOT_LEADER)
			w.trouble(false, false)
			one.run()
			w.until(func() bool { return one.role(1) != "handing_over" }, "nobody asked the root")
			w.everybody()
			now := w.rooted(1)
			if now.Owners[0].Member != c.leader {
				t.Fatalf("%v leads", now.Owners)
			}
			w.hosts[c.leader].wantValue(now, "a", "1")
			if one.role(1) == two.role(1) {
				t.Errorf("both are %s", one.role(1))
			}
		})
	}
}

// A copy that does not arrive whole, or an owner that is none, leaves the lead and writes as they were.
func TestFailedTransferChangesNothing(t *testing.T) {
	w := newWorld(t, 3)
	one, two := w.hosts["store-1"], w.hosts["store-2"]
	r := w.region(1, "", "", "store-1", "store-2")
	one.put(r, "a", "1")
	two.stop()
	if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-3"); err == nil {
		t.Fatal("no owner leads")
	}
	w.hosts["store-2"] = &node{host: refusing(t, w)}
	if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2"); err == nil {
		t.Fatal("a store that does not know the region took it")
	}
	w.hosts["store-2"] = two
	one.put(r, "a", "2")
	one.wantValue(r, "a", "2")
}

// refusing is a store that has heard of nothing.
func refusing(t *testing.T, w *world) *host.Host {
	disk, err := local.Open(t.TempDir(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	h, err := host.Open(host.Config{Self: "store-2", Disk: disk, Root: asker{w, "store-2"}, Peers: w})
	if err != nil {
		t.Fatal(err)
	}
	h.Serve()
	return h
}

// A workdir that was wiped, and an owner that was made the first one by hand, do not
// serve emptiness in the data's place.
func TestN56DataIsServedOnlyWhereItIs(t *testing.T) {
	w := newWorld(t, 2)
	one, two := w.hosts["store-1"], w.hosts["store-2"]
	r := w.region(1, "", "", "store-1", "store-2")
	one.put(r, "a", "1")
	one.stop()
	if err := os.RemoveAll(one.dir); err != nil {
		t.Fatal(err)
	}
	one.start()
	one.hear()
	_, err := one.host.Get(at(r), []byte("a"))
	want(t, err, rootv1.Reason_REASON_NOT_FOUND)

	swapped := r.Clone()
	swapped.Owners[0], swapped.Owners[1] = swapped.Owners[1], swapped.Owners[0]
	swapped.Epoch.ConfVersion++
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: swapped.Proto()}}})
	two.hear()
	_, err = two.host.Get(at(swapped), []byte("a"))
	want(t, err, rootv1.Reason_REASON_NOT_FOUND)
}

// A range is claimed empty, whatever was left there of regions that were here once, and a
// second claim does not touch what was written since.
func TestClaimedRegionsAreEmptyOnce(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1")
	n.put(r, "a", "old")
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}})
	n.hear()
	if n.role(1) != "" {
		t.Fatalf("a region that is gone is %s", n.role(1))
	}
	w.trouble(false, true) // the claim is rooted, and the answer lost
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
		Region: &rootv1.Region{Id: 2, KeyspaceId: 1, Owners: []*rootv1.Owner{{MemberId: "store-1"}}},
	}}})
	n.hear()
	n.run()
	w.until(func() bool { return w.rooted(2).Frontier != "" }, "nobody claimed it")
	n.restart()
	n.hear()
	now := w.rooted(2)
	n.wantValue(now, "a", "")
	n.put(now, "a", "new")
	w.trouble(false, false)
	n.run()
	n.hear()
	n.wantValue(w.rooted(2), "a", "new")
}

// What somebody else changed is not overwritten: by version, by epoch, by range.
func TestStaleWritesAreRefused(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "m", "store-1")
	var none uint64
	first, err := n.host.Put(at(r), []byte("a"), []byte("1"), &none)
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.host.Put(at(r), []byte("a"), []byte("again"), &none)
	if d := want(t, err, rootv1.Reason_REASON_VERSION_STALE); d.GetKeyVersion() != first {
		t.Errorf("the refusal says version %d, want %d", d.GetKeyVersion(), first)
	}
	if done, err := n.host.Delete(at(r), []byte("a"), &first); !done || err != nil {
		t.Fatal(done, err)
	}
	second, err := n.host.Put(at(r), []byte("a"), []byte("2"), &none)
	if err != nil || second <= first {
		t.Fatalf("version %d behind %d, %v", second, first, err)
	}
	_, err = n.host.Put(at(r), []byte("z"), nil, nil)
	want(t, err, rootv1.Reason_REASON_INVALID_RANGE)
	_, err = n.host.Put(&storev1.RegionAt{RegionId: 9}, []byte("z"), nil, nil)
	want(t, err, rootv1.Reason_REASON_NOT_FOUND)
	for _, key := range []string{"", string(make([]byte, local.MaxKeyBytes+1))} {
		_, err = n.host.Put(at(r), []byte(key), nil, nil)
		want(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	}
	_, _, err = n.host.Split(context.Background(), at(r), []byte("z"))
	want(t, err, rootv1.Reason_REASON_INVALID_RANGE)
}

// A scan is bounded in entries and in bytes, and goes on where it ended.
func TestScanIsBounded(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1")
	for i := range 5 {
		n.put(r, fmt.Sprintf("k%d", i), string(make([]byte, 400<<10)))
	}
	var got []string
	var start []byte
	for rounds := 0; rounds == 0 || start != nil; rounds++ {
		entries, next, err := n.host.Scan(at(r), start, nil, 3)
		if err != nil || len(entries) == 0 || len(entries) > 2 || rounds > 3 {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for _, e := range entries {
			got = append(got, string(e.Key))
		}
		start = next
	}
	if fmt.Sprint(got) != "[k0 k1 k2 k3 k4]" {
		t.Errorf("scanned %v", got)
	}
	_, _, err := n.host.Scan(at(r), nil, nil, host.MaxScan+1)
	want(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, _, err = n.host.Scan(at(r), []byte("b"), []byte("a"), 1)
	want(t, err, rootv1.Reason_REASON_INVALID_RANGE)
}

// A watch that lags behind what the store did itself takes nothing back.
func TestALateWatchTakesNothingBack(t *testing.T) {
	w := newWorld(t, 2)
	one := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1", "store-2")
	one.put(r, "a", "1")
	now, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2")
	if err != nil {
		t.Fatal(err)
	}
	if err := one.host.Follow([]host.Change{{Region: r}}, true, r.Revision); err != nil {
		t.Fatal(err)
	}
	if err := one.host.Follow(nil, true, r.Revision); err != nil {
		t.Fatal(err)
	}
	_, err = one.host.Get(at(now), []byte("a"))
	want(t, err, rootv1.Reason_REASON_NOT_LEADER)
}

// A region that took in what another store has is not served as if it were all here.
func TestN56MergedWithWhatIsElsewhere(t *testing.T) {
	w := newWorld(t, 2)
	one := w.hosts["store-1"]
	left := w.region(1, "", "m", "store-1", "store-2")
	right := w.region(2, "m", "", "store-2", "store-1")
	one.put(left, "a", "1")
	w.hosts["store-2"].put(right, "z", "2")
	if _, err := one.host.Merge(t.Context(), at(left), at(right)); err == nil {
		t.Fatal("it does not lead the right one")
	} else {
		want(t, err, rootv1.Reason_REASON_NOT_LEADER)
	}
	one.put(left, "b", "1")                                                                    // the refusal has left it as it was
	w.apply(&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{ // an operator
		LeftRegionId: 1, LeftExpectedEpoch: left.Epoch.Proto(), RightRegionId: 2, RightExpectedEpoch: right.Epoch.Proto(),
	}}}, &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
		TransitionId: rooted.TransitionID(rootv1.TransitionKind_TRANSITION_KIND_MERGE, 1, left.Epoch),
	}}})
	one.hear()
	_, err := one.host.Get(at(w.rooted(1)), []byte("z"))
	want(t, err, rootv1.Reason_REASON_NOT_FOUND)
}

// Writers go on while leads go back and forth: what was acknowledged is there at the end.
func TestAcknowledgedWritesSurviveTransfers(t *testing.T) {
	w := newWorld(t, 2)
	w.region(1, "", "", "store-1", "store-2")
	var writers sync.WaitGroup
	stop := make(chan struct{})
	last, wrote := make([]string, 4), make([]chan struct{}, 4)
	for i := range last {
		wrote[i] = make(chan struct{}, 1)
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r := w.rooted(1)
				value := fmt.Sprint(n)
				if _, err := w.hosts[r.Owners[0].Member].host.Put(at(r), fmt.Appendf(nil, "k%d", i), []byte(value), nil); err == nil {
					last[i] = value
					select {
					case wrote[i] <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	for round := range 12 {
		for i := range wrote { // there is something to lose
			<-wrote[i]
		}
		r := w.rooted(1)
		from, to := w.hosts[r.Owners[0].Member], r.Owners[1].Member
		if _, _, err := from.host.TransferLeader(t.Context(), at(r), to); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		w.hosts[to].hear()
	}
	close(stop)
	writers.Wait()
	r := w.rooted(1)
	for i, value := range last {
		w.hosts[r.Owners[0].Member].wantValue(r, fmt.Sprintf("k%d", i), value)
	}
}

// A write that was admitted before a transfer is copied, and one whose turn comes behind
// its beginning is refused, however long both have waited for the disk.
func TestWritesThatWaitWhenATransferBegins(t *testing.T) {
	w := newWorld(t, 2)
	one, two := w.hosts["store-1"], w.hosts["store-2"]
	r := w.region(1, "", "", "store-1", "store-2")
	entered, release, copied := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.onCopy = sync.OnceFunc(func() { close(copied) })
	var all sync.WaitGroup
	all.Go(func() { // admitted, and on its way to the disk
		_, err := one.disk.Write(local.Write{Key: []byte("a"), Value: []byte("1"), Admit: func() error {
			close(entered)
			<-release
			return nil
		}})
		if err != nil {
			t.Error(err)
		}
	})
	<-entered
	var late error
	all.Go(func() { _, late = one.host.Put(at(r), []byte("b"), []byte("lost"), nil) })
	moment(copied) // in which it comes to wait
	all.Go(func() {
		if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2"); err != nil {
			t.Error(err)
		}
	})
	w.until(func() bool { return one.role(1) == "copying" }, "it is not copied")
	moment(copied)
	close(release)
	all.Wait()
	if late == nil {
		t.Error("a write behind the beginning of the transfer is acknowledged")
	}
	two.hear()
	two.wantValue(w.rooted(1), "a", "1")
	two.wantValue(w.rooted(1), "b", "")
}

// moment is a time in which what must not happen would; nothing waits for it.
func moment(unless <-chan struct{}) {
	select {
	case <-unless:
	case <-time.After(50 * time.Millisecond):
	}
}

// An older copy of the workdir does not lead again what was given away since, whatever an
// operator says.
func TestN56OlderWorkdir(t *testing.T) {
	w := newWorld(t, 2)
	one := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1", "store-2")
	one.put(r, "a", "old")
	one.stop()
	file := filepath.Join(one.dir, local.File)
	older, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	one.start()
	now, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2")
	if err != nil {
		t.Fatal(err)
	}
	one.stop()
	if err := os.WriteFile(file, older, 0o600); err != nil {
		t.Fatal(err)
	}
	one.start()
	one.hear()
	_, err = one.host.Get(at(now), []byte("a"))
	want(t, err, rootv1.Reason_REASON_NOT_LEADER)
	one.stop()
	if err := os.WriteFile(file, older, 0o600); err != nil {
		t.Fatal(err)
	}
	one.start()
	swapped := now.Clone()
	swapped.Owners[0], swapped.Owners[1] = swapped.Owners[1], swapped.Owners[0]
	swapped.Epoch.ConfVersion++
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: swapped.Proto()}}})
	one.hear()
	_, err = one.host.Get(at(w.rooted(1)), []byte("a"))
	want(t, err, rootv1.Reason_REASON_NOT_FOUND)
}

// A process that has not registered, or is said to have failed, serves nothing of what it
// leads and asks the root for nothing; one that is not the store any more does not answer
// a write as done that was on its way.
func TestOnlyARegisteredProcessServes(t *testing.T) {
	w := newWorld(t, 1)
	one := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1")
	one.put(r, "a", "1")
	refused := func(what string, reason rootv1.Reason) {
		t.Helper()
		_, err := one.host.Put(at(r), []byte("a"), []byte("2"), nil)
		want(t, err, reason)
		_, err = one.host.Get(at(r), []byte("a"))
		if d := want(t, err, reason); d.GetRegion().GetId() != uint64(r.ID) {
			t.Fatalf("%s: %v names no region, by which a router knows a store's refusal", what, err)
		}
		_, _, err = one.host.Scan(at(r), nil, nil, 0)
		want(t, err, reason)
		_, _, err = one.host.Split(t.Context(), at(r), []byte("k"))
		want(t, err, reason)
		if t.Failed() {
			t.Fatal(what)
		}
	}
	one.host.Suspend()
	refused("it is said to have failed", rootv1.Reason_REASON_RANGE_CHANGE_PENDING)
	one.host.Serve()
	one.wantValue(r, "a", "1")
	one.stop()
	var err error
	if one.disk, err = local.Open(one.dir, one.id); err != nil {
		t.Fatal(err)
	}
	if one.host, err = host.Open(host.Config{Self: one.self, Disk: one.disk, Root: asker{w, one.self}, Peers: w}); err != nil {
		t.Fatal(err)
	}
	refused("it has not registered", rootv1.Reason_REASON_RANGE_CHANGE_PENDING)
	one.host.Serve()
	one.wantValue(r, "a", "1")
	one.host.End()
	one.host.Serve() // an answer that comes late
	refused("another process is the store", rootv1.Reason_REASON_MEMBER_RETIRED)
}
