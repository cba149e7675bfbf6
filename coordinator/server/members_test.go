package server_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What members and operators do, by typed calls; repeated under their identity
// they change nothing, whatever others did in between.
func TestC49A27A32MembersByTypedCalls(t *testing.T) {
	w := start(t)
	ctx, sequence := within(t), uint64(0)
	next := func() *rootv1.CommandIdentity {
		sequence++
		return &rootv1.CommandIdentity{Origin: 5, Sequence: sequence, KnownIndex: 1}
	}
	register := func(nonce, follows uint64, id *rootv1.CommandIdentity) *rootv1.Member {
		t.Helper()
		resp, err := w.client.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{
			Member: &rootv1.Member{Id: "m1", Address: "m1:1", Kind: "store", StartNonce: nonce}, Identity: id, Follows: follows,
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetMember()
	}
	old := next()
	first := register(1, 0, old)
	second := register(2, first.GetIncarnation(), next())
	if second.GetIncarnation() <= first.GetIncarnation() {
		t.Errorf("incarnation %d follows %d", second.GetIncarnation(), first.GetIncarnation())
	}
	register(1, 0, old) // late, and recognised: the newer process stays
	drained := next()
	drain, err := w.client.DrainMember(ctx, &coordinatorv1.DrainMemberRequest{MemberId: "m1", Reason: "disk", Identity: drained})
	if err != nil || drain.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING || drain.GetMember().GetIncarnation() != second.GetIncarnation() {
		t.Fatalf("%v, %v", drain, err)
	}
	undo, err := w.client.DrainMember(ctx, &coordinatorv1.DrainMemberRequest{MemberId: "m1", Undo: true, Identity: next()})
	if err != nil || undo.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
		t.Fatalf("%v, %v", undo, err)
	}
	again, err := w.client.DrainMember(ctx, &coordinatorv1.DrainMemberRequest{MemberId: "m1", Reason: "disk", Identity: drained})
	if err != nil || again.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
		t.Errorf("a repeated drain undid the undoing: %v, %v", again, err)
	}
	_, err = w.client.FailMember(ctx, &coordinatorv1.FailMemberRequest{MemberId: "m1"})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, err = w.client.FailMember(ctx, &coordinatorv1.FailMemberRequest{MemberId: "m1", Incarnation: first.GetIncarnation(), Reason: "silent"})
	refused(t, err, rootv1.Reason_REASON_MEMBER_RETIRED)
	failed, err := w.client.FailMember(ctx, &coordinatorv1.FailMemberRequest{MemberId: "m1", Incarnation: second.GetIncarnation(), Reason: "silent", Signals: []string{"probe"}})
	if err != nil || failed.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_FAILED {
		t.Errorf("%v, %v", failed, err)
	}
	gone, err := w.client.RemoveMember(ctx, &coordinatorv1.RemoveMemberRequest{MemberId: "m1"})
	if m := gone.GetMember(); err != nil || m.GetState() != rootv1.MemberState_MEMBER_STATE_REMOVED || m.GetIncarnation() != second.GetIncarnation() || m.GetAddress() != second.GetAddress() {
		t.Errorf("%v, %v", gone, err)
	}
	_, err = w.client.RemoveMember(ctx, &coordinatorv1.RemoveMemberRequest{MemberId: "m2"})
	refused(t, err, rootv1.Reason_REASON_MEMBER_NOT_FOUND)
	key, err := w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{})
	if err != nil || key.GetId() != 1 {
		t.Errorf("%v, %v", key, err)
	}
	_, err = w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{ExpectedId: 7})
	refused(t, err, rootv1.Reason_REASON_VERSION_STALE)
}

// A registration that was under way while another process registered comes too late:
// the one that lives stays. The same process may ask again without saying whom it
// follows.
func TestA21ADelayedRegistrationIsOvertaken(t *testing.T) {
	w := start(t)
	ctx := within(t)
	register := func(nonce, follows uint64) (*rootv1.Member, error) {
		resp, err := w.client.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{
			Member: &rootv1.Member{Id: "m1", Address: "m1:1", StartNonce: nonce}, Follows: follows,
		})
		return resp.GetMember(), err
	}
	first, err := register(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	living, err := register(2, first.GetIncarnation())
	if err != nil {
		t.Fatal(err)
	}
	for _, follows := range []uint64{0, first.GetIncarnation()} {
		_, err = register(3, follows)
		refused(t, err, rootv1.Reason_REASON_MEMBER_RETIRED)
	}
	if again, err := register(2, 0); err != nil || again.GetIncarnation() != living.GetIncarnation() {
		t.Errorf("%v, %v", again, err)
	}
	strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
	for id, want := range map[string]int{"m1": 1, "m2": 0} {
		list, err := w.client.ListMembers(ctx, &coordinatorv1.ListMembersRequest{MemberId: id, Read: strong})
		if err != nil || len(list.GetMembers()) != want || want == 1 && list.GetMembers()[0].GetMember().GetIncarnation() != living.GetIncarnation() {
			t.Errorf("%s: %v, %v", id, list, err)
		}
	}
}

// Where nobody can dial, no member can be reached.
func TestAMembersAddressHasHostAndPort(t *testing.T) {
	w := start(t)
	ctx := within(t)
	for i, address := range []string{"m1", "m1:", ":7000", "m1:http", "m1:0", "m1:70000", "fd00::7", "fd00::7:7000", "[]:1", "http://m1:1", "m 1:1"} {
		member := &rootv1.Member{Id: "m1", Address: address, StartNonce: uint64(i) + 1}
		_, err := w.client.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{Member: member})
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		_, err = w.client.PublishRootEvent(ctx, &coordinatorv1.PublishRootEventRequest{
			Event: &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: member}}},
		})
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	}
	for i, address := range []string{"m1:1", "10.0.0.7:7000", "[fd00::7]:65535", ""} {
		member := &rootv1.Member{Id: fmt.Sprint("m", i), Address: address, StartNonce: uint64(i) + 100}
		if _, err := w.client.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{Member: member}); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A keyspace that was deleted and made again is not deleted by a repetition.
func TestARepeatedDeletionOfAKeyspace(t *testing.T) {
	w := start(t)
	ctx := within(t)
	id := &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: 1}
	remove := func() error {
		_, err := w.client.DeleteKeyspace(ctx, &coordinatorv1.DeleteKeyspaceRequest{Name: "k", Identity: id})
		return err
	}
	w.must(t, created("k"))
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil { // it is gone, and the answer is the same
		t.Errorf("repeated: %v", err)
	}
	w.must(t, created("k"))
	if err := remove(); err != nil {
		t.Errorf("repeated when it was there again: %v", err)
	}
	if _, err := w.client.GetKeyspace(ctx, &coordinatorv1.GetKeyspaceRequest{Name: "k"}); err != nil {
		t.Errorf("the new keyspace: %v", err)
	}
}

// Lists come in pages, each record once.
func TestListsHavePages(t *testing.T) {
	w := start(t)
	const members = 10
	for i := range members {
		w.must(t, join(fmt.Sprintf("m%02d", i)))
	}
	after, seen := "", 0
	for {
		page, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{After: after, Limit: 3})
		if err != nil || len(page.GetMembers()) > 3 {
			t.Fatalf("%v, %v", page, err)
		}
		for _, m := range page.GetMembers() {
			if want := fmt.Sprintf("m%02d", seen); m.GetMember().GetId() != want {
				t.Errorf("%s comes as number %d", m.GetMember().GetId(), seen)
			}
			after, seen = m.GetMember().GetId(), seen+1
		}
		if !page.GetMore() {
			break
		}
	}
	if seen != members {
		t.Errorf("%d of %d members", seen, members)
	}
	_, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{Limit: 1025})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

// A coordinator that answers at its address stays on the list; one that does not is
// taken off, once, also when its address is somebody else's by now.
func TestRemoveCoordinator(t *testing.T) {
	there := map[string]state.CoordinatorID{"c2:1": "c2", "c3:1": "c9"}
	w := start(t, func(cfg *server.Config) {
		cfg.Answers = func(_ context.Context, address string) (state.CoordinatorID, error) {
			if id, ok := there[address]; ok {
				return id, nil
			}
			return "", errDown
		}
	})
	joined := func(id string) {
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: id, Address: id + ":1", Incarnation: 7}}})
	}
	remove := func(id string, sequence uint64) (*coordinatorv1.RemoveCoordinatorResponse, error) {
		return w.client.RemoveCoordinator(within(t), &coordinatorv1.RemoveCoordinatorRequest{
			CoordinatorId: id, Incarnation: 7, Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: sequence, KnownIndex: 1},
		})
	}
	for _, id := range []string{"c2", "c3", "c4"} {
		joined(id)
	}
	_, err := remove("c2", 1)
	refused(t, err, rootv1.Reason_REASON_STILL_RUNNING)
	for i, id := range []string{"c3", "c4", "c4"} {
		got, err := remove(id, uint64(10+min(i, 1)))
		if err != nil || !got.GetRemoved() {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	}
	if got, err := remove("c4", 20); err != nil || got.GetRemoved() {
		t.Errorf("it is not there: %v, %v", got, err)
	}
	_, err = w.client.RemoveCoordinator(within(t), &coordinatorv1.RemoveCoordinatorRequest{CoordinatorId: "c2"})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	if c := w.root.state.Coordinator("c2"); c == nil || w.root.state.Coordinator("c4") != nil {
		t.Errorf("c2 is %v", c)
	}
}
