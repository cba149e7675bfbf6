package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Every kind of event has somebody who may ask for it: a new kind is nobody's
// until this says whose.
func TestEveryEventHasAPublisher(t *testing.T) {
	want := map[string]state.Publisher{
		"cluster_bootstrapped": state.ByRoot, "root_peer_added": state.ByRoot, "root_peer_promoted": state.ByRoot,
		"root_peers_settled": state.ByRoot, "root_peer_dropped": state.ByRoot, "feature_level_raised": state.ByRoot,
		"fence_extended": state.ByCoordinators, "tenure_claimed": state.ByCoordinators, "tenure_retired": state.ByCoordinators,
		"handover_advanced": state.ByCoordinators, "coordinator_joined": state.ByCoordinators, "coordinator_left": state.ByCoordinators,
		"pin_key_rotated": state.ByCoordinators, "member_joined": state.ByCoordinators, "tenure_ended": state.ByCoordinators,
		"cluster_settings_changed": state.ByCoordinators, "access_granted": state.ByCoordinators, "access_revoked": state.ByCoordinators,
		"token_key_rotated": state.ByCoordinators, "token_revoked": state.ByCoordinators,
		"member_state_changed": state.ByCallers, "keyspace_created": state.ByCallers,
		"keyspace_updated": state.ByCallers, "keyspace_deleted": state.ByCallers, "region_bootstrapped": state.ByCallers,
		"region_published": state.ByCallers, "region_tombstoned": state.ByCallers, "regions_assigned": state.ByCallers,
		"peer_change_planned": state.ByCallers, "split_planned": state.ByCallers, "merge_planned": state.ByCallers,
		"move_planned": state.ByCallers, "move_ready": state.ByCallers, "transition_completed": state.ByCallers,
		"transition_cancelled": state.ByCallers,
	}
	fields := (&rootv1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		e := &rootv1.Event{}
		e.ProtoReflect().Set(fd, e.ProtoReflect().NewField(fd))
		who, named := want[string(fd.Name())]
		if got := state.PublisherOf(e); !named || got != who {
			t.Errorf("%s is published by %d, want %d", fd.Name(), got, who)
		}
		if refused := state.Publishable(e) != nil; refused != (who != state.ByCallers) {
			t.Errorf("%s: refused to callers: %v", fd.Name(), refused)
		}
	}
	if state.Publishable(&rootv1.Event{}) == nil {
		t.Error("an event without a kind was let through")
	}
}
