package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	// otherWords are what others call a Tenure and its end. A key that seals is no end of anything.
	otherWords = regexp.MustCompile(`(^|[^A-Za-z])[Ll]eas(e|es|ed|ing)($|[^a-z])|[a-z_]Lease|(^|_)LEASE(_|$)|(Era|Tenure|Legacy)Seal|Seal(Era|Tenure|Legacy)|(ERA|TENURE|LEGACY)_SEAL|SEAL_(ERA|TENURE|LEGACY)`)
	protoName  = regexp.MustCompile(`"(?:name|jsonName)":\s*"([^"]+)"`)
)

// Authority has one name, Tenure, and what is left of it another, Legacy: nothing that callers see is
// called by the words of other systems, in Go or on the wire.
func TestN34AuthorityHasNoOtherName(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  bool
	}{
		{"Lease", true},
		{"NewLease", true},
		{"LeaseTTL", true},
		{"lease_start", true},
		{"ROOT_LEASE", true},
		{"SealEra", true},
		{"ReleaseRegion", false},
		{"Released", false},
		{"released", false},
		{"region_released", false},
		{"Seal", false},
		{"sealed", false},
		{"ReleaseLease", true},
	} {
		if otherWords.MatchString(c.name) != c.bad {
			t.Errorf("%s is judged as %v", c.name, !c.bad)
		}
	}
	for _, f := range []protoreflect.FileDescriptor{
		rootv1.File_nokv_root_v1_types_proto, rootv1.File_nokv_root_v1_events_proto,
		rootv1.File_nokv_root_v1_root_proto, coordinatorv1.File_nokv_coordinator_v1_coordinator_proto,
	} {
		text := protojson.Format(protodesc.ToFileDescriptorProto(f))
		names := protoName.FindAllStringSubmatch(text, -1)
		if len(names) < 10 {
			t.Errorf("%s: %d names were found", f.Path(), len(names))
		}
		for _, name := range names {
			if otherWords.MatchString(name[1]) {
				t.Errorf("%s: %s is another system's word for a Tenure or its end", f.Path(), name[1])
			}
		}
	}
	judged := 0
	for _, p := range listPackages(t) {
		if strings.Contains(p.ImportPath, "/internal/") || strings.Contains(p.ImportPath, "/cmd/") {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok || !id.IsExported() {
					return true
				}
				if judged++; otherWords.MatchString(id.Name) {
					t.Errorf("%s: %s is another system's word for a Tenure or its end", fset.Position(id.Pos()), id.Name)
				}
				return true
			})
		}
	}
	if judged < 1000 {
		t.Errorf("%d names were judged", judged)
	}
}
