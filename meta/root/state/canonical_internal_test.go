package state

import (
	"bytes"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"
)

// drawMessage sets fields at any depth, or leaves them; messages may be there and empty.
func drawMessage(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !rapid.Bool().Draw(t, "has "+string(fd.FullName())) {
			continue
		}
		switch {
		case fd.IsList():
			for range rapid.IntRange(0, 3).Draw(t, "length") {
				drawMessage(t, m.Mutable(fd).List().AppendMutable().Message())
			}
		case fd.Kind() == protoreflect.MessageKind:
			drawMessage(t, m.Mutable(fd).Message())
		default:
			m.Set(fd, drawValue(t, fd))
		}
	}
}

func drawValue(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, "text"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32().Draw(t, "enum")))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "number"))
	default:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "number"))
	}
}

// TestTransitionHash: the fast paths of transitions, for the hash and for copies, equal
// the definitions.
func TestTransitionHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &rootv1.Transition{}
		drawMessage(t, p.ProtoReflect())
		if fast, slow := hashTransition(p), hashRecord(tagTransition, p); fast != slow {
			t.Fatalf("fast %x, by definition %x: %v", fast, slow, p)
		}
		if !proto.Equal(copyTransition(p), p) {
			t.Fatalf("the copy of %v is %v", p, copyTransition(p))
		}
	})
}

// hotEvents are the kinds of events with ways of their own.
func hotEvents() []*rootv1.Event {
	return []*rootv1.Event{
		{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{}}},
		{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{}}},
		{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{}}},
		{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{}}},
		{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{}}},
		{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{}}},
	}
}

func inner(e *rootv1.Event) protoreflect.Message {
	m := e.ProtoReflect()
	return m.Mutable(m.WhichOneof(m.Descriptor().Oneofs().Get(0))).Message()
}

// TestEventEncoding: what is encoded without descriptors equals the definition.
func TestEventEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, e := range hotEvents() {
			drawMessage(t, inner(e))
			if fast, slow := appendEvent([]byte("x"), e), appendMessage([]byte("x"), e.ProtoReflect()); !bytes.Equal(fast, slow) {
				t.Fatalf("fast %x, by definition %x: %v", fast, slow, e)
			}
		}
	})
}

// TestKnownEvents: what is looked at without descriptors is refused for the same: a field
// or an enum's number at any depth that this version does not know.
func TestKnownEvents(t *testing.T) {
	strange := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	for i := range hotEvents() {
		e, looked := hotEvents()[i], 0
		kind := inner(e)
		spoilt := func(m protoreflect.Message, what protoreflect.FullName) {
			looked++
			m.SetUnknown(strange)
			if knownEvent(e) == nil {
				t.Errorf("%T with an unknown field in %s is taken", e.GetKind(), what)
			}
			m.SetUnknown(nil)
		}
		spoilt(kind, kind.Descriptor().FullName())
		eachField(kind, 0, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			if err := knownEvent(e); err != nil {
				t.Errorf("%T: %v", e.GetKind(), err)
			}
			spoilt(m, fd.FullName())
			if fd.Kind() != protoreflect.EnumKind {
				return
			}
			was := m.Get(fd)
			if m.Set(fd, protoreflect.ValueOfEnum(99)); knownEvent(e) == nil {
				t.Errorf("%T with number 99 of %s is taken", e.GetKind(), fd.FullName())
			}
			m.Set(fd, was)
		})
		if looked < 3 {
			t.Errorf("%T: %d fields were looked at", e.GetKind(), looked)
		}
	}
}
