package state

import (
	"bytes"
	"math/rand/v2"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func scramble(r *rand.Rand, m protoreflect.Message, depth int) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		if r.IntN(3) == 0 || fd.IsMap() || fd.IsList() {
			continue
		}
		switch fd.Kind() {
		case protoreflect.MessageKind:
			if depth < 4 && fd.ContainingOneof() == nil {
				scramble(r, m.Mutable(fd).Message(), depth+1)
			}
		case protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString([]string{"", "a", "\xff\xfe", string(make([]byte, 300))}[r.IntN(4)]))
		case protoreflect.BytesKind:
			m.Set(fd, protoreflect.ValueOfBytes([][]byte{nil, {}, {0}, make([]byte, 200)}[r.IntN(4)]))
		case protoreflect.BoolKind:
			m.Set(fd, protoreflect.ValueOfBool(r.IntN(2) == 0))
		case protoreflect.EnumKind:
			m.Set(fd, protoreflect.ValueOfEnum([]protoreflect.EnumNumber{0, 1, 200, -1, -1 << 31}[r.IntN(5)]))
		case protoreflect.Uint32Kind:
			m.Set(fd, protoreflect.ValueOfUint32(r.Uint32()>>r.IntN(32)))
		case protoreflect.Uint64Kind:
			m.Set(fd, protoreflect.ValueOfUint64(r.Uint64()>>r.IntN(64)))
		}
	}
	if r.IntN(4) == 0 {
		m.SetUnknown([]byte{0xf8, 0x07, 1})
	}
}

var encoded = size.Int("encoded", 5_000, 200_000, "so many messages are encoded")

// The encodings by hand equal the reflective one, whatever is in a message.
func TestCanonicalEncodingsOfAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range *encoded {
		p := &rootv1.Transition{}
		scramble(r, p.ProtoReflect(), 0)
		if !bytes.Equal(appendTransition(nil, p), appendMessage(nil, p.ProtoReflect())) {
			t.Fatalf("%v", p)
		}
		q := copyTransition(p)
		pp := proto.CloneOf(p)
		pp.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(q, pp) {
			t.Fatalf("copy %v %v", q, pp)
		}
		for _, e := range []*rootv1.Event{{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{}}}, {Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{}}}, {Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{}}}} {
			e.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				scramble(r, v.Message(), 0)
				return true
			})
			if r.IntN(10) == 0 {
				e.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
			}
			if !bytes.Equal(appendEvent(nil, e), appendMessage(nil, e.ProtoReflect())) {
				t.Fatalf("%v", e)
			}
		}
	}
	for _, e := range []*rootv1.Event{{}, {Kind: &rootv1.Event_MovePlanned{}}, {Kind: &rootv1.Event_MoveReady{}}, {Kind: &rootv1.Event_TransitionCompleted{}}} {
		if !bytes.Equal(appendEvent(nil, e), appendMessage(nil, e.ProtoReflect())) {
			t.Errorf("%v", e)
		}
		_ = knownEvent(e)
	}
}
