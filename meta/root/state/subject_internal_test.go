package state

import (
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// filledIn are the fields that others than the sender of a command fill in.
var filledIn = map[protoreflect.FullName]bool{
	"nokv.root.v1.KeyspaceCreated.settings":          true,
	"nokv.root.v1.KeyspaceSettings.layout":           true,
	"nokv.root.v1.PinKeyRotated.secret":              true,
	"nokv.root.v1.PinKeyRotated.digest":              true,
	"nokv.root.v1.PinKeyRotated.sealed":              true,
	"nokv.root.v1.TokenKeyRotated.expected_id":       true,
	"nokv.root.v1.TokenKeyRotated.secret":            true,
	"nokv.root.v1.TokenKeyRotated.digest":            true,
	"nokv.root.v1.TokenKeyRotated.sealed":            true,
	"nokv.root.v1.TenureClaimed.predecessor_expired": true,
}

// Commands that differ in any field of any event are told apart, also those of two
// kinds whose fields are all empty. What others fill in does not count.
func TestSubjects(t *testing.T) {
	seen := map[uint32]string{subject(&rootv1.Command{}): "none", subject(&rootv1.Command{Events: []*rootv1.Event{{}}}): "an empty one"}
	look := func(e *rootv1.Event, what string) {
		h := subject(&rootv1.Command{Events: []*rootv1.Event{e}})
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have one digest", what, other)
		}
		seen[h] = what
	}
	kinds := (&rootv1.Event{}).ProtoReflect().Descriptor().Fields()
	for i := range kinds.Len() {
		e := &rootv1.Event{}
		kind := e.ProtoReflect().Mutable(kinds.Get(i)).Message()
		look(e, string(kinds.Get(i).Name()))
		eachField(kind, 0, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			if !filledIn[fd.FullName()] {
				look(proto.CloneOf(e), string(kinds.Get(i).Name())+": "+string(fd.FullName()))
				return
			}
			with := subject(&rootv1.Command{Events: []*rootv1.Event{e}})
			if m.Clear(fd); subject(&rootv1.Command{Events: []*rootv1.Event{e}}) != with {
				t.Errorf("%s of %s counts", fd.FullName(), kinds.Get(i).Name())
			}
		})
	}
	at := func(version uint64) *rootv1.Command {
		return &rootv1.Command{RequireKeyspaces: []*rootv1.KeyspaceVersion{{KeyspaceId: 2, Version: version}}}
	}
	if subject(at(1)) == subject(at(2)) || subject(at(1)) == subject(&rootv1.Command{}) {
		t.Error("versions of keyspaces are not in it")
	}
	if subject(&rootv1.Command{RequireEra: 1}) == subject(&rootv1.Command{RequireEra: 2}) {
		t.Error("the era that a command requires does not count")
	}
}

// eachField calls fn with one field set after the other, at any depth, beside those
// before it, and the message that it is in. What is filled in is looked at whole.
func eachField(m protoreflect.Message, depth int, fn func(protoreflect.Message, protoreflect.FieldDescriptor)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		inner := protoreflect.Message(nil)
		switch {
		case fd.IsMap():
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
		case fd.IsList() && fd.Kind() == protoreflect.MessageKind:
			inner = m.Mutable(fd).List().AppendMutable().Message()
		case fd.IsList():
			m.Mutable(fd).List().Append(someValue(fd, depth))
		case fd.Kind() == protoreflect.MessageKind:
			inner = m.Mutable(fd).Message()
		default:
			m.Set(fd, someValue(fd, depth))
		}
		if inner != nil && !filledIn[fd.FullName()] && inner.Descriptor().Fields().Len() > 0 {
			eachField(inner, depth+1, fn)
			continue
		}
		fn(m, fd)
	}
}

func someValue(fd protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a longer text")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(depth + 1))
	default:
		return protoreflect.ValueOfUint64(uint64(depth + 1))
	}
}

// Keys, members and events do not run into each other, and the hot path allocates
// nothing.
func TestSubjectsOfRegions(t *testing.T) {
	region := func(start, end string, owners ...string) *rootv1.Event {
		r := &rootv1.Region{KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end)}
		for _, o := range owners {
			r.Owners = append(r.Owners, &rootv1.Owner{MemberId: o})
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
	}
	assign := func(members ...string) *rootv1.Event {
		e := &rootv1.RegionsAssigned{}
		for i, m := range members {
			e.Assignments = append(e.Assignments, &rootv1.Assignment{RegionId: uint64(i), Owners: []*rootv1.Owner{{MemberId: m}}})
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}}
	}
	of := func(events ...*rootv1.Event) uint32 { return subject(&rootv1.Command{Events: events}) }
	seen := map[uint32]int{}
	for i, h := range []uint32{
		of(region("ab", "c")), of(region("a", "bc")), of(region("a", "c")), of(region("a\x00", "c")),
		of(region("a_long_key_1", "c")), of(region("a_long_key_2", "c")),
		of(region("a", "c", "m")), of(region("a", "c", "n")), of(region("a", "c", "m", "n")), of(region("a", "c", "mn")),
		of(region("a", "c"), region("ab", "c")), of(region("ab", "c"), region("a", "c")),
		of(assign("a", "b")), of(assign("b", "a")), of(assign("a"), assign("b")),
	} {
		if other, ok := seen[h]; ok {
			t.Errorf("commands %d and %d are told apart by nothing", other, i)
		}
		seen[h] = i
	}
	c := &rootv1.Command{Events: []*rootv1.Event{region("a_long_key_1", "c", "m"), assign("a", "b")}}
	if n := testing.AllocsPerRun(100, func() { subject(c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
