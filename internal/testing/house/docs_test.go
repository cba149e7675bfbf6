package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

// Every package has a package comment, every exported name a sentence, and no
// comment says that something is unfinished.
func TestExportedNamesAreDocumented(t *testing.T) {
	for _, p := range listPackages(t) {
		if strings.Contains(p.ImportPath, "/proto/") {
			continue
		}
		documented := false
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || file.Doc != nil
			for _, c := range file.Comments {
				if unfinished.MatchString(c.Text()) {
					t.Errorf("%s: open work belongs in an issue", fset.Position(c.Pos()))
				}
			}
			for _, d := range file.Decls {
				checkDecl(t, fset, d)
			}
		}
		if !documented {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

func checkDecl(t *testing.T, fset *token.FileSet, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
			t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			checkSpec(t, fset, d, spec)
		}
	}
}

func checkSpec(t *testing.T, fset *token.FileSet, d *ast.GenDecl, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
			t.Errorf("%s: type %s has no comment", fset.Position(s.Pos()), s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				t.Errorf("%s: %s has no comment", fset.Position(s.Pos()), n.Name)
			}
		}
	}
}

// exportedReceiver says whether a method's receiver can be reached by name.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}
