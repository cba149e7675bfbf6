package identity_test

import (
	"testing"

	"github.com/nokv/nokv/internal/identity"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestOfLeavesNothingBehind: whatever a command says beside its identity, its copy says, also in
// fields to come.
func TestOfLeavesNothingBehind(t *testing.T) {
	cmd := &rootv1.Command{}
	m := cmd.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Name() == "identity":
		case f.IsList():
			m.Mutable(f).List().AppendMutable()
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(string(f.Name())))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(7))
		default:
			t.Fatalf("field %s: the test does not know how to set a %s", f.Name(), f.Kind())
		}
	}
	got := identity.NewSource().Of(cmd, 9)
	if got.GetIdentity().GetOrigin() == 0 || cmd.GetIdentity() != nil {
		t.Fatalf("identities: %v, and %v of the command itself", got.GetIdentity(), cmd.GetIdentity())
	}
	bare := proto.CloneOf(got)
	if bare.Identity = nil; !proto.Equal(bare, cmd) {
		t.Errorf("the copy says %v, the command %v", bare, cmd)
	}
}
