package house

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var (
	pascal    = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	snake     = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	versioned = regexp.MustCompile(`^nokv\.[a-z]+\.v[1-9][0-9]*$`)
	words     = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// Names on the wire follow the conventions of protobuf, because they can never
// be changed: what other languages generate from them depends on it.
func TestWireNames(t *testing.T) {
	for _, f := range []protoreflect.FileDescriptor{
		rootv1.File_nokv_root_v1_types_proto, rootv1.File_nokv_root_v1_events_proto,
		rootv1.File_nokv_root_v1_root_proto, coordinatorv1.File_nokv_coordinator_v1_coordinator_proto,
	} {
		for _, wrong := range lint(f) {
			t.Error(wrong)
		}
	}
}

// lint says which names of a file are not as they should be.
func lint(f protoreflect.FileDescriptor) (wrong []string) {
	report := func(d protoreflect.Descriptor, rule string) {
		wrong = append(wrong, fmt.Sprintf("%s: %s: %s", f.Path(), d.FullName(), rule))
	}
	if !versioned.MatchString(string(f.Package())) || path.Dir(f.Path()) != strings.ReplaceAll(string(f.Package()), ".", "/") {
		report(f, "a package is nokv.NAME.vN, in the folder of that name")
	}
	enums := func(all protoreflect.EnumDescriptors) {
		for i := range all.Len() {
			lintEnum(all.Get(i), report)
		}
	}
	var messages func(protoreflect.MessageDescriptors)
	messages = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			if !m.IsMapEntry() {
				lintMessage(m, report)
			}
			enums(m.Enums())
			messages(m.Messages())
		}
	}
	enums(f.Enums())
	messages(f.Messages())
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		if !pascal.MatchString(string(s.Name())) {
			report(s, "a service is PascalCase")
		}
		for j := range s.Methods().Len() {
			if m := s.Methods().Get(j); !pascal.MatchString(string(m.Name())) {
				report(m, "a method is PascalCase")
			}
		}
	}
	return wrong
}

func lintMessage(m protoreflect.MessageDescriptor, report func(protoreflect.Descriptor, string)) {
	if !pascal.MatchString(string(m.Name())) {
		report(m, "a message is PascalCase")
	}
	for i := range m.Fields().Len() {
		if d := m.Fields().Get(i); !snake.MatchString(string(d.Name())) {
			report(d, "a field is lower_snake_case")
		}
	}
	for i := range m.Oneofs().Len() {
		if d := m.Oneofs().Get(i); !d.IsSynthetic() && !snake.MatchString(string(d.Name())) {
			report(d, "a oneof is lower_snake_case")
		}
	}
}

// lintEnum: values share one scope with those of other enums, hence the prefix.
func lintEnum(e protoreflect.EnumDescriptor, report func(protoreflect.Descriptor, string)) {
	prefix := strings.ToUpper(words.ReplaceAllString(string(e.Name()), "${1}_${2}")) + "_"
	if !pascal.MatchString(string(e.Name())) {
		report(e, "an enum is PascalCase")
	}
	seen := make(map[protoreflect.EnumNumber]bool)
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		rest, ok := strings.CutPrefix(string(v.Name()), prefix)
		switch {
		case !ok || !snake.MatchString(strings.ToLower(rest)) || rest != strings.ToUpper(rest):
			report(v, "a value is "+prefix+"UPPER_SNAKE_CASE")
		case (v.Number() == 0) != (rest == "UNSPECIFIED"):
			report(v, "0 and only 0 is "+prefix+"UNSPECIFIED")
		case seen[v.Number()]:
			report(v, "two names of one value")
		}
		seen[v.Number()] = true
	}
}

// The rules find what they are for.
func TestWireNamesAreJudged(t *testing.T) {
	label, kind := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, descriptorpb.FieldDescriptorProto_TYPE_UINT64
	f, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("nokv/other/v1/x.proto"), Package: proto.String("nokv.x.v1"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  proto.String("bad_message"),
			Field: []*descriptorpb.FieldDescriptorProto{{Name: proto.String("badField"), Number: proto.Int32(1), Label: &label, Type: &kind}},
			EnumType: []*descriptorpb.EnumDescriptorProto{{
				Name: proto.String("CatchUp"),
				Value: []*descriptorpb.EnumValueDescriptorProto{
					{Name: proto.String("CATCH_UP_NONE"), Number: proto.Int32(0)}, {Name: proto.String("OTHER_ONE"), Number: proto.Int32(1)},
				},
			}},
		}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("bad")}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lint(f), "\n")
	for _, want := range []string{"in the folder", "bad_message: a message", "badField: a field", "CATCH_UP_NONE: 0 and", "OTHER_ONE: a value", "bad: a service"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
