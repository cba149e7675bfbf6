package settings_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// what counts where a setting is not set stands once, in package state: nobody else reads a
// setting and puts a number in its place.
func TestDefaultsOfSettingsStandOnce(t *testing.T) {
	getters := map[string]bool{}
	gettersOf(getters, (&rootv1.KeyspaceSettings{}).ProtoReflect().Descriptor())
	fset, read, found := token.NewFileSet(), 0, 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		read++
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isOr(call) || !mentions(call.Args[0], getters) || !hasNumber(call.Args[1:]) {
				return true
			}
			if found++; !strings.HasPrefix(path, "../../meta/root/state/") {
				t.Errorf("%s: a default of a setting: it has its place in package state", fset.Position(n.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 100 || found < 10 {
		t.Errorf("%d files, %d defaults", read, found)
	}
}

func gettersOf(names map[string]bool, d protoreflect.MessageDescriptor) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch {
		case f.IsList() || f.IsMap() || f.Name() == "layout":
		case f.Message() != nil:
			gettersOf(names, f.Message())
		default:
			name := "Get"
			for word := range strings.SplitSeq(string(f.Name()), "_") {
				name += strings.ToUpper(word[:1]) + word[1:]
			}
			names[name] = true
		}
	}
}

func isOr(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == "cmp" && s.Sel.Name == "Or"
}

func mentions(in ast.Expr, getters map[string]bool) (yes bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && getters[s.Sel.Name] {
			yes = true
		}
		return !yes
	})
	return yes
}

// hasNumber reports whether there is a number other than 0 and 1, which say none and one.
func hasNumber(in []ast.Expr) (yes bool) {
	for _, e := range in {
		ast.Inspect(e, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.INT && l.Value != "0" && l.Value != "1" {
				yes = true
			}
			return !yes
		})
	}
	return yes
}

// What the guide says in words of defaults is what state says in numbers.
func TestDefaultsInWordsAreThose(t *testing.T) {
	of := map[string]settings.Setting{}
	for _, s := range settings.All() {
		of[s.Name] = s
	}
	for _, name := range []string{"actors", "partitions"} {
		preset, _ := state.Preset(name)
		s := of["start-hold"]
		if text := s.Counts(preset); !strings.Contains(s.Guide().Unset, text+" of ") || !strings.Contains(s.Guide().Unset, name) {
			t.Errorf("start-hold of %s is %s, the guide says %q", name, text, s.Guide().Unset)
		}
	}
	idle := state.DefaultSettings()
	idle.Cadence = &rootv1.Cadence{IdleEvictMillis: 40_000}
	if s := of["cadence-idle-scan"]; s.Counts(idle) != "10s" || s.Guide().Unset != "a quarter of idle-evict" {
		t.Errorf("looks for idle points are %s apart, the guide says %q", s.Counts(idle), s.Guide().Unset)
	}
	l := state.LivenessOf(nil)
	if l.GetSuspectAfterMillis() != 3*l.GetIntervalMillis() || l.GetDeadAfterMillis() != 10*l.GetIntervalMillis() {
		t.Errorf("what counts is %v", l)
	}
}
