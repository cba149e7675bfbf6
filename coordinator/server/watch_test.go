package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// mirror is what a watcher knows.
type mirror struct {
	regions   map[uint64]*rootv1.Region
	keyspaces map[string]*rootv1.Keyspace
	members   map[string]*rootv1.Member
	token     state.Token
	batches   int
}

func newMirror() *mirror {
	return &mirror{regions: map[uint64]*rootv1.Region{}, keyspaces: map[string]*rootv1.Keyspace{}, members: map[string]*rootv1.Member{}}
}

func (m *mirror) apply(t *testing.T, resp *coordinatorv1.WatchRegionsResponse) {
	t.Helper()
	token, says := state.TokenFromProto(resp.GetToken()), resp.GetDisclosure()
	if resp.GetPartial() != (token == m.token) && len(resp.GetChanges()) > 0 {
		t.Errorf("partial: %t, and the token goes from %s to %s", resp.GetPartial(), m.token, token)
	}
	if token.Compare(m.token) < 0 {
		t.Errorf("the token went back from %s to %s", m.token, token)
	}
	if says.GetClusterId() != clusterID || says.GetCoordinatorId() != coordinatorID || state.TokenFromProto(says.GetServedRootToken()).Compare(token) < 0 {
		t.Errorf("batch %v", resp)
	}
	m.token = token
	m.batches++
	for _, c := range resp.GetChanges() {
		m.regions[c.GetRegion().GetId()] = c.GetRegion()
		if c.GetRemoved() {
			delete(m.regions, c.GetRegion().GetId())
		}
	}
	for _, c := range resp.GetKeyspaces() {
		m.keyspaces[c.GetKeyspace().GetName()] = c.GetKeyspace()
		if c.GetRemoved() {
			delete(m.keyspaces, c.GetKeyspace().GetName())
		}
	}
	for _, c := range resp.GetMembers() {
		m.members[c.GetMember().GetId()] = c.GetMember()
		if c.GetRemoved() {
			delete(m.members, c.GetMember().GetId())
		}
	}
}

// until receives batches until the mirror is at a position.
func (m *mirror) until(t *testing.T, stream coordinatorv1.Coordinator_WatchRegionsClient, at state.Token) {
	t.Helper()
	for m.token.Compare(at) < 0 {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m.apply(t, resp)
	}
}

// load receives a snapshot.
func (m *mirror) load(t *testing.T, stream coordinatorv1.Coordinator_WatchRegionsClient) {
	t.Helper()
	for {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !resp.GetSnapshot() {
			t.Fatalf("in the middle of a snapshot: %v", resp)
		}
		if size := proto.Size(resp); size > 512<<10 {
			t.Errorf("a batch of %d bytes", size)
		}
		m.apply(t, resp)
		if !resp.GetPartial() {
			return
		}
	}
}

// check compares with the root; keyspace 0 is all.
func (m *mirror) check(t *testing.T, w *world, keyspace state.KeyspaceID) {
	t.Helper()
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	want := 0
	w.root.state.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if keyspace != 0 && k.GetId() != uint32(keyspace) {
			return true
		}
		w.root.state.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
			want++
			if !proto.Equal(m.regions[uint64(r.ID)], r.Proto()) {
				t.Errorf("region %d: %v, want %v", r.ID, m.regions[uint64(r.ID)], r.Proto())
			}
			return true
		})
		if !proto.Equal(m.keyspaces[k.GetName()], k) {
			t.Errorf("keyspace %v, want %v", m.keyspaces[k.GetName()], k)
		}
		return true
	})
	if len(m.regions) != want || len(m.members) != w.root.state.MemberCount() {
		t.Errorf("%d regions and %d members, want %d and %d", len(m.regions), len(m.members), want, w.root.state.MemberCount())
	}
}

func TestWatchFromSnapshotAndFromToken(t *testing.T) {
	w := routed(t)
	w.must(t, create("other", slots(16)))
	other := state.KeyspaceID(w.root.state.KeyspaceByName("other").GetId())
	all, one := newMirror(), newMirror()
	streamAll, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Members: true})
	if err != nil {
		t.Fatal(err)
	}
	all.load(t, streamAll)
	all.check(t, w, 0)
	streamOne, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "other", Members: true})
	if err != nil {
		t.Fatal(err)
	}
	one.load(t, streamOne)
	one.check(t, w, other)

	begun := w.root.token()
	late := newMirror()
	w.root.must(t, publish(1, 1, "", "c", 2, "m1"), publish(90000, 1, "c", "g", 1, "m2"), join("m3"))
	w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2}}})
	w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: uint32(other), ExpectedVersion: 1}}})
	w.root.must(t, create("other", slots(4)))
	other = state.KeyspaceID(w.root.state.KeyspaceByName("other").GetId())
	all.until(t, streamAll, w.root.token())
	all.check(t, w, 0)
	one.until(t, streamOne, w.root.token())
	one.check(t, w, other)

	streamLate, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{After: begun.Proto(), Members: true})
	if err != nil {
		t.Fatal(err)
	}
	late.until(t, streamLate, w.root.token())
	if late.regions[90000] == nil || late.regions[2] != nil || late.members["m3"] == nil || late.regions[3] != nil {
		t.Errorf("from a token: %v", late)
	}
}

func slots(n uint32) *rootv1.KeyspaceSettings {
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: n}}}
	s.Placement = rootv1.Placement_PLACEMENT_ASSIGNED
	return s
}

// A snapshot that does not fit in one batch comes in several.
func TestWatchSnapshotIsCut(t *testing.T) {
	w := start(t)
	w.must(t, create("big", slots(16384)))
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "big"})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.load(t, stream)
	if len(m.regions) != 16384 || m.batches < 3 {
		t.Errorf("%d regions in %d batches", len(m.regions), m.batches)
	}
}

// Readers that take nothing of their snapshots hold up nobody else's, neither when
// they hang up nor when the coordinator stops.
func TestSnapshotsThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.must(t, create("big", slots(16384)))
		conn := w.dial(t, grpc.WithInitialWindowSize(64<<10))
		defer conn.Close()
		open := func() (coordinatorv1.Coordinator_WatchRegionsClient, context.CancelFunc) {
			ctx, hangUp := context.WithCancel(t.Context())
			stream, err := coordinatorv1.NewCoordinatorClient(conn).WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "big"})
			if err != nil {
				t.Fatal(err)
			}
			return stream, hangUp
		}
		for i := range 64 {
			if _, hangUp := open(); i%2 == 0 {
				defer hangUp()
			} else {
				go hangUp() // wherever it is
			}
		}
		begun := time.Now()
		stream, hangUp := open()
		defer hangUp()
		newMirror().load(t, stream)
		if took := time.Since(begun); took > 500*time.Millisecond { // for what the others were sent, and its own
			t.Errorf("the snapshot took %s, with nothing to wait for", took)
		}
		w.end(t)
		if took := time.Since(begun); took > 6*time.Second { // Limits.StopTimeout, and a little
			t.Errorf("the stop took %s", took)
		}
	})
}

// One entry that changes more than a message may hold comes in several
// batches, of which only the last moves the token.
func TestWatchBatchIsCut(t *testing.T) {
	w := start(t)
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Members: true})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.load(t, stream)
	before := m.token
	w.root.must(t, create("big", slots(16384)))
	for m.token == before {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(resp); size > 512<<10 {
			t.Errorf("a batch of %d bytes", size)
		}
		m.apply(t, resp)
	}
	m.check(t, w, 0)
}

func TestWatchSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default", After: w.root.token().Proto()})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 5 {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(resp.GetChanges()) != 0 || state.TokenFromProto(resp.GetToken()) != w.root.token() || resp.GetSnapshot() {
				t.Errorf("sign of life %v", resp)
			}
			if sent := begun.Add(time.Duration(resp.GetSentMillis()-1) * time.Millisecond); resp.GetSentMillis() == 0 || sent.After(time.Now()) || time.Since(sent) > 2*time.Millisecond {
				t.Errorf("sent %d ms after the call, read %v after it", resp.GetSentMillis(), time.Since(begun))
			}
		}
		if took := time.Since(begun); took < 3*time.Second || took > 6*time.Second {
			t.Errorf("five signs of life took %s", took)
		}
		w.must(t, create("other", slots(2))) // nothing of it is sent, but the position moves
		for moved := false; !moved; {
			resp, err := stream.Recv()
			if err != nil || len(resp.GetChanges())+len(resp.GetKeyspaces()) != 0 {
				t.Fatalf("%v, %v", resp, err)
			}
			moved = state.TokenFromProto(resp.GetToken()) == w.root.token()
		}
		cancel()
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestWatchRefusals(t *testing.T) {
	w := routed(t)
	watch := func(req *coordinatorv1.WatchRegionsRequest) error {
		stream, err := w.client.WatchRegions(within(t), req)
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	refused(t, watch(&coordinatorv1.WatchRegionsRequest{Keyspace: "nope"}), rootv1.Reason_REASON_NOT_FOUND)
	refused(t, watch(&coordinatorv1.WatchRegionsRequest{Keyspace: strings.Repeat("x", 64)}), rootv1.Reason_REASON_INVALID_REQUEST)
	refused(t, watch(&coordinatorv1.WatchRegionsRequest{After: &rootv1.RootToken{Incarnation: 2, Index: 1}}), rootv1.Reason_REASON_CLUSTER_MISMATCH)
	early := w.root.token()
	for i := range 1100 { // more than is retained
		w.must(t, publish(1, 1, "", "g", uint64(i+2), "m1"))
	}
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{After: early.Proto(), Members: true})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.token = early // parts of the snapshot are not behind it yet
	m.load(t, stream)
	m.check(t, w, 0)
}

// A watcher that does not read is cut, and finds out when it reads.
func TestSlowWatcherIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		stream, err := w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4000 {
			w.root.must(t, publish(1, 1, "", strings.Repeat("f", 3000+i%2), uint64(i+2), "m1"))
			w.catchUp(t)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(30 * time.Second)
		_, err = drain(stream.Recv)
		refused(t, err, rootv1.Reason_REASON_OVERLOADED)
		cancel()
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A reader that is ahead of a lagging coordinator is sent elsewhere, whether it
// resumes or begins behind what it has read, also in a keyspace that the
// coordinator has not heard of; a position that the root has not reached is of
// another cluster.
func TestWatchAheadOfTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		w.root.mute(true)
		w.root.must(t, create("late", slots(4)))
		at := w.root.token()
		watch := func(req *coordinatorv1.WatchRegionsRequest) error {
			stream, err := w.client.WatchRegions(within(t), req)
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}
		resumes := &coordinatorv1.WatchRegionsRequest{Keyspace: "late", After: at.Proto()}
		begins := &coordinatorv1.WatchRegionsRequest{Keyspace: "late", Read: &coordinatorv1.ReadOptions{RequiredRootToken: at.Proto()}}
		refused(t, watch(resumes), rootv1.Reason_REASON_REQUIRED_TOKEN)
		refused(t, watch(begins), rootv1.Reason_REASON_REQUIRED_TOKEN)
		w.root.mute(false)
		w.catchUp(t)
		if err := errors.Join(watch(resumes), watch(begins)); err != nil {
			t.Error(err)
		}
		for _, foreign := range []state.Token{
			{Incarnation: 1, Term: 1, Index: at.Index + 1}, {Incarnation: 1, Term: 2, Index: at.Index}, {Incarnation: 2, Term: 1, Index: 1},
		} {
			refused(t, watch(&coordinatorv1.WatchRegionsRequest{After: foreign.Proto()}), rootv1.Reason_REASON_CLUSTER_MISMATCH)
		}
		w.end(t)
	})
}

// A watch on a coordinator that is cut off from the root says so, and ends when
// it has a bound, by entries or by time.
func TestWatchOnACoordinatorThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		open := func(read *coordinatorv1.ReadOptions) coordinatorv1.Coordinator_WatchRegionsClient {
			stream, err := w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Read: read})
			if err != nil {
				t.Fatal(err)
			}
			newMirror().load(t, stream)
			return stream
		}
		entries, millis, bounded := uint64(100), uint64(500), coordinatorv1.Freshness_FRESHNESS_BOUNDED
		free := open(nil)
		byEntries := open(&coordinatorv1.ReadOptions{Freshness: bounded, MaxRootLag: &entries})
		byTime := open(&coordinatorv1.ReadOptions{Freshness: bounded, MaxRootLagMillis: &millis})
		time.Sleep(10 * time.Second) // while all is well they last
		w.root.setDown(true)
		cut := time.Now()
		for _, stream := range []coordinatorv1.Coordinator_WatchRegionsClient{byTime, byEntries} {
			_, err := drain(stream.Recv)
			refused(t, err, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
			if took := time.Since(cut); took > unavailableAfter+time.Second {
				t.Errorf("it ended after %s", took)
			}
		}
		for {
			m, err := free.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if d := m.GetDisclosure(); d.GetDegradedMode() == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE && d.GetRootLagMillis() > 5000 {
				break
			}
			if time.Since(cut) > 2*unavailableAfter {
				t.Fatalf("long behind it it says %v", m.GetDisclosure())
			}
		}
		w.end(t)
	})
}

// Who resumes by name over a keyspace that was deleted and made again hears of
// both: of what went, and of what came.
func TestWatchOverAKeyspaceMadeAgain(t *testing.T) {
	w := start(t)
	w.must(t, create("k", slots(8)))
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "k"})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.load(t, stream)
	again := func(n uint32) {
		id := w.root.state.KeyspaceByName("k").GetId()
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: id, ExpectedVersion: 1}}})
		if n > 0 {
			w.must(t, create("k", slots(n)))
		}
	}
	resume := func(want int) {
		t.Helper()
		other := startOn(t, w.root) // where nobody has watched the name
		stream, err := other.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "k", After: m.token.Proto()})
		if err != nil {
			t.Fatal(err)
		}
		m.until(t, stream, w.root.token())
		if len(m.regions) != want || len(m.keyspaces) != min(want, 1) {
			t.Errorf("%d regions and %d keyspaces, want %d", len(m.regions), len(m.keyspaces), want)
		}
	}
	again(4)
	again(2)
	resume(2)
	again(0)
	resume(0) // it is gone, and waited for
	w.must(t, create("k", slots(3)))
	resume(3)
}

// What became of a keyspace before it was deleted is brought too, also in a batch
// that ends before the deletion.
func TestWatchOfAKeyspaceThatIsGone(t *testing.T) {
	w := start(t)
	w.must(t, join("m1"))
	w.must(t, create("k", slots(2)))
	k := w.root.state.KeyspaceByName("k")
	begun := w.root.token()
	var slot *state.Region
	w.root.state.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool { slot = r; return false })
	assign := func(owners ...*rootv1.Owner) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
			Assignments: []*rootv1.Assignment{{RegionId: uint64(slot.ID), Owners: owners}},
		}}}
	}
	w.must(t, assign(&rootv1.Owner{MemberId: "m1"}))
	assigned := w.root.token()
	for i := range 400 { // more than one batch
		key := fmt.Sprintf("%03d%s", i, strings.Repeat("x", 3000))
		w.must(t, publish(uint64(100+i), 1, key, key+"~", 1))
	}
	w.must(t, assign(), &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: k.GetId(), ExpectedVersion: 1}}})
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "k", After: begun.Proto()})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.until(t, stream, assigned)
	if m.token.Compare(w.root.token()) >= 0 {
		t.Fatalf("the first batch came to %s, past what became of the slot at %s", m.token, assigned)
	}
	if r := m.regions[uint64(slot.ID)]; len(r.GetOwners()) != 1 {
		t.Errorf("at %s the slot is %v", m.token, r)
	}
	if m.until(t, stream, w.root.token()); len(m.regions) != 0 {
		t.Errorf("at the end there are %v", m.regions)
	}
}

// Who was at a position before the cluster was restored gets everything anew, and
// nothing of a keyspace that there is no more.
func TestWatchFromBeforeARestore(t *testing.T) {
	root := restoredRoot(t)
	root.must(t, create("k", slots(4)))
	w := startOn(t, root)
	before := state.Token{Incarnation: 1, Term: 1, Index: 500}
	for keyspace, want := range map[string]int{"": 4, "k": 4, "gone": 0} {
		stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: keyspace, After: before.Proto()})
		if err != nil {
			t.Fatal(err)
		}
		m := newMirror()
		m.load(t, stream)
		if len(m.regions) != want || m.token != root.token() {
			t.Errorf("%q: %d regions at %s, want %d at %s", keyspace, len(m.regions), m.token, want, root.token())
		}
	}
}

// A watch brings what it asks for, in whatever company.
func TestWatchBringsWhatItAsksFor(t *testing.T) {
	w := routed(t)
	w.must(t, create("k", slots(2)))
	id := state.KeyspaceID(w.root.state.KeyspaceByName("k").GetId())
	type asked struct {
		keyspace string
		members  bool
	}
	streams := map[asked]coordinatorv1.Coordinator_WatchRegionsClient{}
	mirrors := map[asked]*mirror{}
	for _, a := range []asked{{"", false}, {"", true}, {"k", false}, {"k", true}} {
		stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: a.keyspace, Members: a.members})
		if err != nil {
			t.Fatal(err)
		}
		streams[a], mirrors[a] = stream, newMirror()
		mirrors[a].load(t, stream)
	}
	w.must(t, publish(1, 1, "", "g", 2, "m1"), join("m9"))
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: uint32(id), ExpectedVersion: 1}}})
	w.must(t, create("k", slots(5)))
	for a, m := range mirrors {
		m.until(t, streams[a], w.root.token())
		if (m.members["m9"] != nil) != a.members || (m.regions[1].GetEpoch().GetVersion() == 2) != (a.keyspace == "") || m.keyspaces["k"] == nil {
			t.Errorf("%+v: %d members, %d regions, %d keyspaces", a, len(m.members), len(m.regions), len(m.keyspaces))
		}
		if a.keyspace == "k" && len(m.regions) != 5 {
			t.Errorf("%+v: %d regions", a, len(m.regions))
		}
	}
}

// What a watch catches up with comes in parts of some size, of which only the last one moves its position: who
// goes on behind a part is told all of it again.
func TestPartsOfWhatAWatchCatchesUpWith(t *testing.T) {
	w := routed(t)
	w.must(t, create("large", &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_REPORTED, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}}))
	id := w.root.state.KeyspaceByName("large").GetId()
	begun := w.root.token()
	key := func(i int) string { return fmt.Sprintf("%03d", i) + strings.Repeat("k", 3000) }
	for i := range 200 {
		w.must(t, publish(uint64(i+100), id, key(i), key(i+1), 1, "m1"))
	}
	stream, err := w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "large", After: begun.Proto()})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror()
	m.token = begun
	m.until(t, stream, w.root.token())
	if len(m.regions) != 200 || m.batches < 3 {
		t.Errorf("%d regions in %d messages", len(m.regions), m.batches)
	}
}
