package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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
