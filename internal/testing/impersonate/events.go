package impersonate

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Things are what events are about.
type Things struct {
	// ID is a coordinator's or member's.
	ID string
	// Region is what the member of that id owns, and reports, in keyspace "t"; Change a
	// planned change of it.
	Region   uint64
	Change   string
	Keyspace uint32
}

// Rooted roots members m1, m2 and m3, which report a region each, in keyspace "t", and what
// is planned of them. apply judges one event, which has to apply. It returns what is
// m1's, and what is others'.
func Rooted(t testing.TB, apply func(*rootv1.Event) *rootv1.EventResult) (own, foreign Things) {
	t.Helper()
	members := []string{"m1", "m2", "m3"}
	for _, id := range members {
		apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: id, Address: id + ":1", Kind: "store", StartNonce: 5},
		}}})
	}
	settings := state.DefaultSettings()
	settings.Placement = rootv1.Placement_PLACEMENT_REPORTED
	keyspace := apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: "t", Settings: settings,
	}}}).GetKeyspace().GetId()
	bounds := []string{"", "h", "p", ""}
	var changes []string
	for i, id := range members {
		region := uint64(i + 1)
		at := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
		owner := &rootv1.Owner{MemberId: id, PeerId: region, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}
		apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: region, KeyspaceId: keyspace, StartKey: []byte(bounds[i]), EndKey: []byte(bounds[i+1]), Epoch: at, Owners: []*rootv1.Owner{owner},
		}}}})
		changes = append(changes, apply(&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: region, ExpectedEpoch: at, SplitKey: []byte(bounds[i] + "c"), RightRegionId: region + 10,
		}}}).GetTransition().GetId())
	}
	return Things{"m1", 1, changes[0], keyspace}, Things{"m2", 2, changes[1], keyspace}
}

// Kinds are all kinds of events.
func Kinds() protoreflect.FieldDescriptors {
	return (*rootv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
}

// Event is an event of a kind about things, as far as whose they are: it need not be
// one that applies.
func Event(kind protoreflect.FieldDescriptor, about Things) *rootv1.Event {
	e := new(rootv1.Event)
	m := e.ProtoReflect().Mutable(kind).Message()
	set := func(name protoreflect.Name, v any) {
		if f := m.Descriptor().Fields().ByName(name); f != nil && f.Message() == nil {
			m.Set(f, protoreflect.ValueOf(v))
		}
	}
	for _, id := range []protoreflect.Name{"holder_id", "member_id"} {
		set(id, about.ID)
	}
	if f := m.Descriptor().Fields().ByName("id"); f != nil {
		set("id", about.ID)
	}
	set("era", uint64(1))
	set("region_id", about.Region)
	set("left_region_id", about.Region)
	if kind.Name() == "merge_planned" {
		set("right_region_id", about.Region)
	}
	for _, epoch := range []protoreflect.Name{"expected_epoch", "left_expected_epoch", "right_expected_epoch"} {
		if f := m.Descriptor().Fields().ByName(epoch); f != nil {
			m.Set(f, protoreflect.ValueOf((&rootv1.RegionEpoch{Version: 1, ConfVersion: 1}).ProtoReflect()))
		}
	}
	if f := m.Descriptor().Fields().ByName("incarnation"); f != nil && f.Kind() == protoreflect.Uint64Kind {
		set("incarnation", uint64(1))
	}
	set("transition_id", about.Change)
	set("name", "t")
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MemberJoined:
		k.MemberJoined.Member = &rootv1.Member{Id: about.ID, Address: "a:1", Kind: "store", StartNonce: 6}
	case *rootv1.Event_MemberStateChanged:
		k.MemberStateChanged.State = rootv1.MemberState_MEMBER_STATE_DRAINING
	case *rootv1.Event_KeyspaceCreated:
		k.KeyspaceCreated.Settings = state.DefaultSettings()
	case *rootv1.Event_KeyspaceUpdated:
		k.KeyspaceUpdated.ExpectedVersion, k.KeyspaceUpdated.Settings = 1, state.DefaultSettings()
	case *rootv1.Event_KeyspaceDeleted:
		k.KeyspaceDeleted.ExpectedVersion = 1
	case *rootv1.Event_RegionBootstrapped:
		k.RegionBootstrapped.Region = about.region()
	case *rootv1.Event_RegionPublished:
		k.RegionPublished.Region = about.region()
	case *rootv1.Event_RegionsAssigned:
		k.RegionsAssigned.Assignments = []*rootv1.Assignment{{RegionId: about.Region}}
	case *rootv1.Event_PeerChangePlanned:
		k.PeerChangePlanned.Kind = rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER
		k.PeerChangePlanned.Owner = &rootv1.Owner{MemberId: "m3", PeerId: 9}
	case *rootv1.Event_SplitPlanned:
		k.SplitPlanned.SplitKey = []byte("b")
	case *rootv1.Event_MovePlanned:
		k.MovePlanned.From, k.MovePlanned.To = &rootv1.Owner{MemberId: about.ID, PeerId: 1}, &rootv1.Owner{MemberId: "m3", PeerId: 9}
	}
	return e
}

func (a Things) region() *rootv1.Region {
	return &rootv1.Region{Id: a.Region, KeyspaceId: a.Keyspace, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Owners: []*rootv1.Owner{
		{MemberId: "m1", PeerId: 1, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER},
	}}
}
