package state

import (
	"cmp"
	"fmt"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// known refuses a command with anything in it that this version does not
// know: an event kind, a field at any depth, an enum number. A newer version
// would give it a meaning.
func known(c *rootv1.Command) error {
	if err := knownFields(c); err != nil {
		return err
	}
	if id := c.GetIdentity(); id != nil {
		if err := knownFields(id); err != nil {
			return err
		}
	}
	for _, x := range c.GetRequireKeyspaces() {
		if err := knownFields(x); err != nil {
			return err
		}
	}
	for i, e := range c.GetEvents() {
		if err := knownEvent(e); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}

func knownEvent(e *rootv1.Event) error {
	if err := knownFields(e); err != nil {
		return err
	}
	// Behind a raise, events may come that this process does not know: it stops here.
	if level := max(eventLevel(e), e.GetFeatureLevelRaised().GetTo(), e.GetClusterBootstrapped().GetCluster().GetFeatureLevel()); level > SupportedLevel() {
		return fmt.Errorf("%T is of feature level %d, this process understands feature level %d: take a newer version", e.GetKind(), level, SupportedLevel())
	}
	switch k := e.GetKind().(type) {
	case nil:
		return fmt.Errorf("unknown kind")
	case *rootv1.Event_RegionPublished:
		return knownPublished(k.RegionPublished)
	case *rootv1.Event_RegionsAssigned:
		return knownAssignments(k.RegionsAssigned)
	case *rootv1.Event_MovePlanned:
		return knownMove(k.MovePlanned)
	case *rootv1.Event_MoveReady:
		return knownFields(k.MoveReady)
	case *rootv1.Event_TransitionCompleted:
		return knownFields(k.TransitionCompleted)
	default:
		return knownMessage(e.ProtoReflect())
	}
}

// knownPublished is knownMessage for the event of the hot path.
func knownPublished(p *rootv1.RegionPublished) error {
	if err := knownFields(p); err != nil {
		return err
	}
	if err := knownFields(p.ExpectedEpoch); err != nil {
		return err
	}
	return knownRegion(p.Region)
}

// knownRegion is knownMessage for a region.
func knownRegion(r *rootv1.Region) error {
	if err := knownFields(r); err != nil {
		return err
	}
	return cmp.Or(knownFields(r.GetEpoch()), knownFields(r.GetFormer()), knownOwners(r.GetOwners()))
}

func knownOwners(all []*rootv1.Owner) error {
	for _, o := range all {
		if err := knownOwner(o); err != nil {
			return err
		}
	}
	return nil
}

func knownOwner(o *rootv1.Owner) error {
	if _, ok := rootv1.OwnerRole_name[int32(o.GetRole())]; !ok {
		return fmt.Errorf("unknown number %d of OwnerRole", o.GetRole())
	}
	return knownFields(o)
}

// knownAssignments is knownMessage for grants, of which an entry has many.
func knownAssignments(e *rootv1.RegionsAssigned) error {
	for _, a := range e.GetAssignments() {
		if err := cmp.Or(knownFields(a), knownFields(a.GetExpectedEpoch()), knownOwners(a.GetOwners()), knownReason(a.GetReason())); err != nil {
			return err
		}
	}
	return knownFields(e)
}

// knownMove is knownMessage for the plan of a move.
func knownMove(e *rootv1.MovePlanned) error {
	return cmp.Or(knownFields(e), knownFields(e.GetExpectedEpoch()), knownOwner(e.GetFrom()), knownOwner(e.GetTo()), knownReason(e.GetReason()))
}

func knownReason(r rootv1.OperationReason) error {
	if _, ok := rootv1.OperationReason_name[int32(r)]; !ok {
		return fmt.Errorf("unknown number %d of OperationReason", r)
	}
	return nil
}

func knownFields(m proto.Message) error {
	if r := m.ProtoReflect(); len(r.GetUnknown()) > 0 {
		return fmt.Errorf("%d bytes of unknown fields in %s", len(r.GetUnknown()), r.Descriptor().Name())
	}
	return nil
}

// knownMessage looks at a message and everything below it.
func knownMessage(m protoreflect.Message) error {
	if n := len(m.GetUnknown()); n > 0 {
		return fmt.Errorf("%d bytes of unknown fields in %s", n, m.Descriptor().Name())
	}
	for _, fd := range fieldsSet(m) {
		if err := knownField(fd, m.Get(fd)); err != nil {
			return err
		}
	}
	return nil
}

func knownField(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch {
	case fd.IsMap():
		return nil // our maps are from strings to strings
	case fd.IsList():
		for i := range v.List().Len() {
			if err := knownValue(fd, v.List().Get(i)); err != nil {
				return err
			}
		}
		return nil
	default:
		return knownValue(fd, v)
	}
}

func knownValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return knownMessage(v.Message())
	case protoreflect.EnumKind:
		if fd.Enum().Values().ByNumber(v.Enum()) == nil {
			return fmt.Errorf("unknown number %d of %s", v.Enum(), fd.Enum().Name())
		}
	}
	return nil
}
