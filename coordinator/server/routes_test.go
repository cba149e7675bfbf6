package server_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// routed is a world with three regions of two members: [,g) [g,n) [n,).
func routed(t testing.TB, change ...func(*server.Config)) *world {
	w := start(t, change...)
	w.must(t, join("m1"), join("m2"))
	w.must(t, publish(1, 1, "", "g", 1, "m1"), publish(2, 1, "g", "n", 1, "m2", "m1"), publish(3, 1, "n", "", 1, "m2"))
	return w
}

func byKey(key string) *coordinatorv1.GetRegionByKeyRequest {
	return &coordinatorv1.GetRegionByKeyRequest{Key: []byte(key)}
}

// The answer, put together from the root's state by the generated code.
func TestGetRegionByKey(t *testing.T) {
	w := routed(t)
	for _, c := range []struct {
		key, keyspace string
		region        state.RegionID
		owners        []string
	}{
		{"a", "", 1, []string{"m1"}},
		{"g", "default", 2, []string{"m2", "m1"}},
		{"mzz", "", 2, []string{"m2", "m1"}},
		{"n", "", 3, []string{"m2"}},
		{strings.Repeat("z", server.MaxKeyBytes), "", 3, []string{"m2"}},
	} {
		resp, err := w.client.GetRegionByKey(within(t), &coordinatorv1.GetRegionByKeyRequest{Key: []byte(c.key), Keyspace: c.keyspace})
		if err != nil {
			t.Fatal(err)
		}
		region := w.root.state.Region(c.region)
		if !proto.Equal(resp.GetRegion(), region.Proto()) || resp.GetDescriptorRevision() != region.Revision {
			t.Errorf("key %.10q: got %v, want %v", c.key, resp.GetRegion(), region)
		}
		checkOwners(t, resp.GetOwners(), c.owners)
		checkDisclosure(t, w, resp.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
		got, err := w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: uint64(c.region)})
		if err != nil || !proto.Equal(got.GetRegion(), resp.GetRegion()) {
			t.Errorf("GetRegion(%d) = %v, %v", c.region, got, err)
		}
		checkOwners(t, got.GetOwners(), c.owners)
	}
}

func checkOwners(t *testing.T, got []*coordinatorv1.OwnerAddress, want []string) {
	t.Helper()
	var ids []string
	for _, o := range got {
		ids = append(ids, o.GetMemberId())
		if o.GetAddress() != o.GetMemberId()+":1000" || o.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || o.GetIncarnation() == 0 {
			t.Errorf("owner %v", o)
		}
	}
	if fmt.Sprint(ids) != fmt.Sprint(want) {
		t.Errorf("owners %v, want %v", ids, want)
	}
}

// N-88: all that an answer is worth.
func checkDisclosure(t *testing.T, w *world, d *coordinatorv1.Disclosure, freshness coordinatorv1.Freshness) {
	t.Helper()
	classes := map[coordinatorv1.Freshness]coordinatorv1.ServingClass{
		coordinatorv1.Freshness_FRESHNESS_STRONG:      coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE,
		coordinatorv1.Freshness_FRESHNESS_BOUNDED:     coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED,
		coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT: coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT,
	}
	token := w.root.token().Proto()
	want := &coordinatorv1.Disclosure{
		ServedRootToken: token, CurrentRootToken: token, ServedFreshness: freshness, ServingClass: classes[freshness],
		DegradedMode: coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY, CatchUpState: coordinatorv1.CatchUpState_CATCH_UP_STATE_FRESH,
		CatchUpAction: coordinatorv1.CatchUpAction_CATCH_UP_ACTION_NONE, SyncHealth: coordinatorv1.SyncHealth_SYNC_HEALTH_STREAMING,
		CoordinatorId: coordinatorID, ClusterId: clusterID, RootLagMillis: d.GetRootLagMillis(),
		Era: w.root.state.Tenure().GetEra(),
	}
	if !proto.Equal(d, want) || d.GetRootLagMillis() > 10_000 {
		t.Errorf("disclosure %v\nwant %v", d, want)
	}
}

func TestReadOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		for freshness, read := range map[coordinatorv1.Freshness]*coordinatorv1.ReadOptions{
			coordinatorv1.Freshness_FRESHNESS_STRONG:      {Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG},
			coordinatorv1.Freshness_FRESHNESS_BOUNDED:     {Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: proto.Uint64(0)},
			coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT: {},
		} {
			req := byKey("a")
			req.Read = read
			resp, err := w.client.GetRegionByKey(within(t), req)
			if err != nil {
				t.Fatal(err)
			}
			checkDisclosure(t, w, resp.GetDisclosure(), freshness)
		}
		req := byKey("a")
		ahead := w.root.token()
		ahead.Index++
		req.Read = &coordinatorv1.ReadOptions{RequiredRootToken: ahead.Proto()}
		soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := w.client.GetRegionByKey(soon, req)
		refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
		w.root.must(t, join("m3"))
		resp, err := w.client.GetRegionByKey(within(t), req)
		if err != nil || resp.GetDisclosure().GetServedRootToken().GetIndex() < ahead.Index {
			t.Errorf("read of its own write: %v, %v", resp, err)
		}
	})
}

// The descriptor revision is waited for, and refused when the log has passed it.
func TestRequiredDescriptorRevision(t *testing.T) {
	w := routed(t)
	revision := w.root.state.Region(1).Revision
	req := byKey("a")
	req.Read = &coordinatorv1.ReadOptions{RequiredDescriptorRevision: revision}
	if _, err := w.client.GetRegionByKey(within(t), req); err != nil {
		t.Error(err)
	}
	w.must(t, join("m3"))
	req.Read.RequiredDescriptorRevision = w.root.token().Index
	_, err := w.client.GetRegionByKey(within(t), req)
	refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
	_, err = w.client.GetRegionsByKeys(within(t), &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}, Read: req.Read})
	refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
	_, err = w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 1, Read: req.Read})
	refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)

	req.Read.RequiredDescriptorRevision = w.root.token().Index + 1
	answered := make(chan error, 1)
	go func() {
		resp, err := w.client.GetRegionByKey(within(t), req)
		if err == nil && resp.GetDescriptorRevision() < req.GetRead().GetRequiredDescriptorRevision() {
			err = fmt.Errorf("revision %d", resp.GetDescriptorRevision())
		}
		answered <- err
	}()
	w.root.must(t, publish(1, 1, "", "g", 2, "m1"))
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestGetRegionsByKeysNamesEachRegionOnce(t *testing.T) {
	w := routed(t)
	w.must(t, publish(3, 1, "p", "", 2, "m2")) // a hole at [n, p)
	resp, err := w.client.GetRegionsByKeys(within(t), &coordinatorv1.GetRegionsByKeysRequest{
		Keys: [][]byte{[]byte("z"), []byte("a"), []byte("o"), []byte("b"), []byte("h"), []byte("y")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(resp.GetRegionOfKey()); got != "[1 2 0 2 3 1]" {
		t.Errorf("region_of_key %s", got)
	}
	var ids []uint64
	for _, r := range resp.GetRegions() {
		ids = append(ids, r.GetId())
	}
	if fmt.Sprint(ids) != "[3 1 2]" {
		t.Errorf("regions %v", ids)
	}
	checkOwners(t, resp.GetOwners(), []string{"m2", "m1"})
	checkDisclosure(t, w, resp.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
}

// The three layouts answer by the route key.
func TestLayouts(t *testing.T) {
	w := start(t)
	w.must(t, create("slots", &rootv1.KeyspaceSettings{
		Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 64}}},
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
	}))
	layout := w.root.state.KeyspaceByName("slots").GetSettings().GetLayout()
	for _, key := range []string{"alice", "bob", "carol"} {
		resp, err := w.client.GetRegionByKey(within(t), &coordinatorv1.GetRegionByKeyRequest{Key: []byte(key), Keyspace: "slots"})
		if err != nil {
			t.Fatal(err)
		}
		if want := rooted.RouteKey(layout, []byte(key)); string(resp.GetRegion().GetStartKey()) != want {
			t.Errorf("%s: slot %x, want %x", key, resp.GetRegion().GetStartKey(), want)
		}
	}
}

func TestScanRegions(t *testing.T) {
	w := routed(t)
	req := &coordinatorv1.ScanRegionsRequest{Limit: 2}
	var ids []uint64
	for range 3 {
		resp, err := w.client.ScanRegions(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.GetRegions() {
			ids = append(ids, r.GetId())
		}
		checkDisclosure(t, w, resp.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
		checkOwners(t, resp.GetOwners(), map[int][]string{2: {"m1", "m2"}, 1: {"m2"}}[len(resp.GetRegions())])
		if req.StartKey = resp.GetNextStartKey(); len(req.StartKey) == 0 {
			break
		}
	}
	if fmt.Sprint(ids) != "[1 2 3]" {
		t.Errorf("scanned %v", ids)
	}
	resp, err := w.client.ScanRegions(within(t), &coordinatorv1.ScanRegionsRequest{StartKey: []byte("h"), EndKey: []byte("n")})
	if err != nil || len(resp.GetRegions()) != 1 || resp.GetRegions()[0].GetId() != 2 {
		t.Errorf("scan [h, n) = %v, %v", resp, err)
	}
}

func TestRouteRefusals(t *testing.T) {
	w := routed(t)
	long := bytes.Repeat([]byte("k"), server.MaxKeyBytes+1)
	many := make([][]byte, server.MaxKeys+100)
	for i := range many {
		many[i] = []byte("k")
	}
	get := func(r *coordinatorv1.GetRegionByKeyRequest) func() error {
		return func() error { _, err := w.client.GetRegionByKey(within(t), r); return err }
	}
	batch := func(r *coordinatorv1.GetRegionsByKeysRequest) func() error {
		return func() error { _, err := w.client.GetRegionsByKeys(within(t), r); return err }
	}
	scan := func(r *coordinatorv1.ScanRegionsRequest) func() error {
		return func() error { _, err := w.client.ScanRegions(within(t), r); return err }
	}
	read := func(r *coordinatorv1.ReadOptions) func() error {
		req := byKey("a")
		req.Read = r
		return get(req)
	}
	const invalid = rootv1.Reason_REASON_INVALID_REQUEST
	revision := &coordinatorv1.ReadOptions{RequiredDescriptorRevision: 1}
	for name, c := range map[string]struct {
		call  func() error
		want  rootv1.Reason
		field string
		limit uint64
	}{
		"empty key":        {get(byKey("")), invalid, "key", 0},
		"long key":         {get(&coordinatorv1.GetRegionByKeyRequest{Key: long}), invalid, "key", server.MaxKeyBytes},
		"unknown keyspace": {get(&coordinatorv1.GetRegionByKeyRequest{Key: []byte("a"), Keyspace: "nope"}), rootv1.Reason_REASON_NOT_FOUND, "nope", 0},
		"long keyspace":    {get(&coordinatorv1.GetRegionByKeyRequest{Key: []byte("a"), Keyspace: strings.Repeat("x", 64)}), invalid, "keyspace", 63},
		"no keys":          {batch(&coordinatorv1.GetRegionsByKeysRequest{}), invalid, "keys", 0},
		"too many keys":    {batch(&coordinatorv1.GetRegionsByKeysRequest{Keys: many}), invalid, "keys", server.MaxKeys},
		"one empty key":    {batch(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a"), {}}}), invalid, "keys[1]", 0},
		"one long key":     {batch(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{long}}), invalid, "keys[0]", server.MaxKeyBytes},
		"batch keyspace":   {batch(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}, Keyspace: "nope"}), rootv1.Reason_REASON_NOT_FOUND, "nope", 0},
		"scan limit":       {scan(&coordinatorv1.ScanRegionsRequest{Limit: 4097}), invalid, "limit", 4096},
		"scan start":       {scan(&coordinatorv1.ScanRegionsRequest{StartKey: long}), invalid, "start_key", server.MaxKeyBytes},
		"scan end":         {scan(&coordinatorv1.ScanRegionsRequest{EndKey: long}), invalid, "end_key", server.MaxKeyBytes},
		"inverted range":   {scan(&coordinatorv1.ScanRegionsRequest{StartKey: []byte("b"), EndKey: []byte("a")}), rootv1.Reason_REASON_INVALID_RANGE, "", 0},
		"empty range":      {scan(&coordinatorv1.ScanRegionsRequest{StartKey: []byte("b"), EndKey: []byte("b")}), rootv1.Reason_REASON_INVALID_RANGE, "", 0},
		"scan keyspace":    {scan(&coordinatorv1.ScanRegionsRequest{Keyspace: "nope"}), rootv1.Reason_REASON_NOT_FOUND, "nope", 0},
		"freshness":        {read(&coordinatorv1.ReadOptions{Freshness: 9}), invalid, "read.freshness", 0},
		"negative":         {read(&coordinatorv1.ReadOptions{Freshness: -1}), invalid, "read.freshness", 0},
		"lag unbounded":    {read(&coordinatorv1.ReadOptions{MaxRootLag: proto.Uint64(1)}), invalid, "read.max_root_lag", 0},
		"millis unbounded": {read(&coordinatorv1.ReadOptions{MaxRootLagMillis: proto.Uint64(1)}), invalid, "read.max_root_lag_millis", 0},
		"other cluster":    {read(&coordinatorv1.ReadOptions{RequiredRootToken: &rootv1.RootToken{Incarnation: 9, Index: 1}}), rootv1.Reason_REASON_CLUSTER_MISMATCH, "", 0},
		"no position":      {read(&coordinatorv1.ReadOptions{RequiredRootToken: &rootv1.RootToken{Incarnation: 7}}), invalid, "read.required_root_token", 0},
		"scan revision":    {scan(&coordinatorv1.ScanRegionsRequest{Read: revision}), invalid, "read.required_descriptor_revision", 0},
		"keyspace revision": {func() error {
			_, err := w.client.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "default", Read: revision})
			return err
		}, invalid, "read.required_descriptor_revision", 0},
		"list revision": {func() error {
			_, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{Read: revision})
			return err
		}, invalid, "read.required_descriptor_revision", 0},
		"region 0": {func() error { _, err := w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{}); return err }, invalid, "region_id", 0},
		"no region": {func() error {
			_, err := w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 99})
			return err
		}, rootv1.Reason_REASON_NOT_FOUND, "99", 0},
	} {
		detail := refused(t, c.call(), c.want)
		if !strings.Contains(detail.GetMessage(), c.field) {
			t.Errorf("%s: %q does not name %s", name, detail.GetMessage(), c.field)
		}
		if c.limit != 0 && detail.GetLimit() != c.limit {
			t.Errorf("%s: limit %d, want %d", name, detail.GetLimit(), c.limit)
		}
		if c.want == rootv1.Reason_REASON_NOT_FOUND && detail.GetCurrentToken() == nil {
			t.Errorf("%s: not found as of when?", name)
		}
	}
}

// Each answer names its request and is under its own options, and a refusal is one of them.
func TestRouteStream(t *testing.T) {
	w := routed(t)
	stream, err := w.client.RouteStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
	const requests = 300
	go func() {
		for i := range requests {
			req := &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a"), []byte("h"), []byte("z")}[i%3 : i%3+1], RequestId: uint64(i)}
			switch i % 5 {
			case 1:
				req.Read = strong
			case 2:
				req.Keys = nil
			}
			if stream.Send(req) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	got, err := drain(stream.Recv)
	if err != nil || len(got) != requests {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	slices.SortFunc(got, func(a, b *coordinatorv1.GetRegionsByKeysResponse) int {
		return cmp.Compare(a.GetRequestId(), b.GetRequestId())
	})
	for i, resp := range got {
		if resp.GetRequestId() != uint64(i) {
			t.Fatalf("answer %d is to request %d", i, resp.GetRequestId())
		}
		if i%5 == 2 {
			if resp.GetError().GetReason() != rootv1.Reason_REASON_INVALID_REQUEST || len(resp.GetRegions()) != 0 {
				t.Fatalf("answer %d: %v", i, resp)
			}
			continue
		}
		if resp.GetError() != nil || resp.GetRegions()[0].GetId() != uint64(i%3+1) {
			t.Fatalf("answer %d: %v", i, resp)
		}
		want := coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT
		if i%5 == 1 {
			want = coordinatorv1.Freshness_FRESHNESS_STRONG
		}
		checkDisclosure(t, w, resp.GetDisclosure(), want)
	}
}

// A view that was never loaded is not served as an empty one.
func TestNothingLoaded(t *testing.T) {
	root := newMemoryRoot(t)
	w := startOn(t, root)
	root.setDown(true)
	fresh := startDown(t, root)
	_, err := fresh.client.GetRegionByKey(within(t), byKey("a"))
	refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	if _, err := fresh.client.Status(within(t), &coordinatorv1.StatusRequest{}); err != nil {
		t.Errorf("Status needs no view: %v", err)
	}
	_, err = w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{})
	if err != nil {
		t.Errorf("best effort without the root: %v", err)
	}
}

// What a request of a stream asks for beside a strong read is judged as it is
// for a request alone.
func TestStrongReadsThatShareOneStillMeetTheirToken(t *testing.T) {
	w := start(t)
	stream, err := w.client.RouteStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	var id uint64
	strong := func(token *rootv1.RootToken) *coordinatorv1.GetRegionsByKeysRequest {
		id++
		return &coordinatorv1.GetRegionsByKeysRequest{RequestId: id - 1, Keys: [][]byte{[]byte("k")}, Read: &coordinatorv1.ReadOptions{
			Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG, RequiredRootToken: token,
		}}
	}
	const pairs = 80 // so that none is above the limit of those that wait
	for range pairs {
		_ = stream.Send(strong(nil))
		_ = stream.Send(strong(&rootv1.RootToken{Incarnation: 9, Term: 1, Index: 1}))
		_ = stream.Send(strong(&rootv1.RootToken{Incarnation: 0, Term: 1, Index: 1}))
	}
	_ = stream.CloseSend()
	got, err := drain(stream.Recv)
	if err != nil || len(got) != 3*pairs {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	for _, resp := range got {
		if refused := resp.GetError().GetReason() == rootv1.Reason_REASON_CLUSTER_MISMATCH; refused != (resp.GetRequestId()%3 != 0) {
			t.Fatalf("answer %d: %v", resp.GetRequestId(), resp.GetError())
		}
	}
}

// A lookup that waits for a revision of the future holds up none behind it, and
// is answered when its own time is over; only so many wait.
func TestALookupThatWaitsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, limits(func(l *server.Limits) { l.MaxQueued, l.MaxWaitingReads = 3, 5 }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := w.client.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(s coordinatorv1.Coordinator_RouteStreamClient, id, revision uint64) {
			t.Helper()
			if err := s.Send(&coordinatorv1.GetRegionsByKeysRequest{
				Keys: [][]byte{[]byte("a")}, RequestId: id, WaitMillis: 300, Read: &coordinatorv1.ReadOptions{RequiredDescriptorRevision: revision},
			}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(s coordinatorv1.Coordinator_RouteStreamClient, id uint64, r rootv1.Reason) {
			t.Helper()
			resp, err := s.Recv()
			if err != nil || resp.GetRequestId() != id || resp.GetError().GetReason() != r {
				t.Fatalf("got %v, %v; want an answer to %d, reason %v", resp, err, id, r)
			}
		}
		const future = 1 << 40
		began := time.Now()
		ask(stream, 1, future)
		ask(stream, 2, 0)
		want(stream, 2, 0)
		if waited := time.Since(began); waited >= 300*time.Millisecond {
			t.Errorf("the one behind was answered after %v", waited)
		}
		for id := range uint64(2) {
			ask(stream, 3+id, future)
		}
		ask(stream, 9, future)
		want(stream, 9, rootv1.Reason_REASON_OVERLOADED)
		synctest.Wait() // each of the three has its place
		// All streams together are bounded too.
		other, err := w.client.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for id := range uint64(3) {
			ask(other, 1+id, future)
		}
		resp, err := other.Recv()
		if err != nil || resp.GetError().GetReason() != rootv1.Reason_REASON_OVERLOADED {
			t.Fatalf("got %v, %v", resp, err)
		}
		for range 3 {
			resp, err := stream.Recv()
			if err != nil || resp.GetError().GetReason() != rootv1.Reason_REASON_REQUIRED_TOKEN {
				t.Errorf("got %v, %v", resp, err)
			}
		}
		ask(stream, 10, 0)
		want(stream, 10, 0)
		w.end(t)
	})
}

// The longest lookup that the protocol allows is answered: in parts on a stream,
// and on a call of its own as far as an answer goes.
func TestLongAnswersComeInParts(t *testing.T) {
	w := start(t)
	w.root.must(t, join("m1"))
	long := strings.Repeat("k", server.MaxKeyBytes-4)
	key := func(i int) string { return fmt.Sprintf("%s%04d", long, i) }
	for i := range server.MaxKeys {
		w.root.must(t, publish(uint64(i+1), 1, key(i), key(i+1), 1, "m1"))
	}
	w.catchUp(t)
	req := &coordinatorv1.GetRegionsByKeysRequest{RequestId: 7}
	for i := range server.MaxKeys {
		req.Keys = append(req.Keys, []byte(key(i)))
	}
	stream, err := w.client.RouteStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		var view *rootv1.RootToken
		for answered, more := 0, true; more; {
			resp, err := stream.Recv()
			if err != nil || resp.GetError() != nil || resp.GetRequestId() != 7 {
				t.Fatalf("after %d keys: %v, %v", answered, resp.GetError(), err)
			}
			if n := proto.Size(resp); n > 1<<20+4096 {
				t.Errorf("a part has %d bytes", n)
			}
			if at := resp.GetDisclosure().GetServedRootToken(); view == nil {
				view = at
			} else if !proto.Equal(view, at) {
				t.Errorf("parts of two views: %v, %v", view, at)
			}
			for _, n := range resp.GetRegionOfKey() {
				if got := string(resp.GetRegions()[n-1].GetStartKey()); got != key(answered) {
					t.Fatalf("key %d: another region", answered)
				}
				answered++
			}
			if more = resp.GetPartial(); !more && answered != server.MaxKeys {
				t.Errorf("%d keys answered", answered)
			}
		}
	}
	answered := 0
	for answered < len(req.GetKeys()) {
		rest := &coordinatorv1.GetRegionsByKeysRequest{Keys: req.GetKeys()[answered:]}
		resp, err := w.client.GetRegionsByKeys(within(t), rest)
		if err != nil || proto.Size(resp) > 4<<20 || len(resp.GetRegionOfKey()) == 0 {
			t.Fatalf("%d bytes, %v", proto.Size(resp), err)
		}
		answered += len(resp.GetRegionOfKey())
		if resp.GetPartial() != (answered < len(req.GetKeys())) {
			t.Errorf("partial is %v after %d keys", resp.GetPartial(), answered)
		}
	}
}
