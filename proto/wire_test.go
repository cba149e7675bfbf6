package proto_test

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

var rewrite = flag.Bool("rewrite-golden", false, "write testdata/wire.golden anew; only for messages that were never released")

const golden = "testdata/wire.golden"

// What older software wrote must read the same for ever: each message of the
// golden file still decodes, every byte of it into a field that is known, with
// the value it was written with. New fields and messages are free to come.
func TestWireGolden(t *testing.T) {
	messages := allMessages()
	if *rewrite {
		writeGolden(t, messages)
	}
	f, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	checked := 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), " ")
		raw, err := hex.DecodeString(text)
		if !ok || err != nil {
			t.Fatalf("golden line %q: %v", lines.Text(), err)
		}
		d := messages[name]
		if d == nil {
			t.Errorf("message %s is gone", name)
			continue
		}
		m := dynamicpb.NewMessage(d)
		if err := proto.Unmarshal(raw, m); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkKnown(t, name, m)
		checked++
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("only %d messages were checked", checked)
	}
	for name := range messages {
		if !inGolden(t, name) {
			t.Errorf("%s is not in the golden file: run `go test ./proto -rewrite-golden` and look at the diff", name)
		}
	}
}

func inGolden(t *testing.T, name string) bool {
	t.Helper()
	raw, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(string(raw), name+" ") || strings.Contains(string(raw), "\n"+name+" ")
}

func allMessages() map[string]protoreflect.MessageDescriptor {
	out := make(map[string]protoreflect.MessageDescriptor)
	var add func(protoreflect.MessageDescriptors)
	add = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			if d := list.Get(i); !d.IsMapEntry() {
				out[string(d.FullName())] = d
				add(d.Messages())
			}
		}
	}
	for _, f := range []protoreflect.FileDescriptor{
		rootv1.File_nokv_root_v1_types_proto, rootv1.File_nokv_root_v1_events_proto,
		rootv1.File_nokv_root_v1_root_proto, coordinatorv1.File_nokv_coordinator_v1_coordinator_proto, storev1.File_nokv_store_v1_store_proto,
	} {
		add(f.Messages())
	}
	return out
}

func writeGolden(t *testing.T, messages map[string]protoreflect.MessageDescriptor) {
	t.Helper()
	var out strings.Builder
	names := make([]string, 0, len(messages))
	for name := range messages {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		m := dynamicpb.NewMessage(messages[name])
		fill(m, 2)
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %x\n", name, raw)
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fill sets every field to a value made of its number. Of a oneof, and of
// recursion, only so much is set as depth allows.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && m.WhichOneof(o) != nil {
			continue
		}
		if f.Message() != nil && depth == 0 {
			continue
		}
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString(string(f.Name())))
		case f.IsList():
			if f.Message() != nil {
				fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
			} else {
				m.Mutable(f).List().Append(scalar(f))
			}
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := uint64(f.Number()) + 1000
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(min(1, values.Len()-1)).Number())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n)
	}
	panic(fmt.Sprintf("%s: no golden value for kind %s", f.FullName(), f.Kind()))
}

// checkKnown asks that every byte went into a known field, with its value.
func checkKnown(t *testing.T, where string, m protoreflect.Message) {
	t.Helper()
	if len(m.GetUnknown()) > 0 {
		t.Errorf("%s: bytes of a field that is no longer known", where)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := where + "." + string(f.Name())
		switch {
		case f.IsMap():
			if got := v.Map().Get(protoreflect.ValueOfString("key").MapKey()).String(); got != string(f.Name()) {
				t.Errorf("%s reads as %q: renamed or renumbered", at, got)
			}
		case f.IsList() && f.Message() != nil:
			checkKnown(t, at, v.List().Get(0).Message())
		case f.Message() != nil:
			checkKnown(t, at, v.Message())
		default:
			got := v
			if f.IsList() {
				got = v.List().Get(0)
			}
			if !got.Equal(scalar(f)) {
				t.Errorf("%s reads as %v: renamed, renumbered or of another type", at, got)
			}
		}
		return true
	})
}
