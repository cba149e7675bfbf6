package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sdk are the packages that callers and hosts in other modules write against.
var sdk = []string{
	"config", "coordinator/client", "grpcroute", "member", "member/fence", "mtls", "mtls/ca", "mtls/principal", "nokvtest", "pin", "proxy", "rooted", "router",
}

// Who writes a caller or a member in another module can name every type that it needs.
func TestPublicAPIsHavePublicTypes(t *testing.T) {
	found := 0
	for _, p := range listPackages(t) {
		if !slices.Contains(sdk, strings.TrimPrefix(p.ImportPath, module)) {
			continue
		}
		found++
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range exposed(file) {
				t.Errorf("%s: an exported name has a type of an internal package, which nobody outside this module can name", set.Position(at))
			}
		}
	}
	if found != len(sdk) {
		t.Fatalf("found %d of %d packages", found, len(sdk))
	}
}

// exposed are the places in a file where something exported has a type of an internal package.
func exposed(file *ast.File) (places []token.Pos) {
	internal := map[string]bool{}
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		internal[name] = strings.Contains(path, "/internal/")
	}
	var look func(ast.Node) bool
	look = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if from, ok := n.X.(*ast.Ident); ok && internal[from.Name] {
				places = append(places, n.Pos())
			}
		case *ast.StructType:
			for _, f := range n.Fields.List {
				if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
					ast.Inspect(f.Type, look)
				}
			}
			return false
		case *ast.InterfaceType:
			for _, f := range n.Methods.List {
				if len(f.Names) == 0 || f.Names[0].IsExported() {
					ast.Inspect(f.Type, look)
				}
			}
			return false
		}
		return true
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ofExported(d.Recv.List[0].Type)) {
				ast.Inspect(d.Type, look)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						ast.Inspect(s.Type, look)
					}
				case *ast.ValueSpec:
					if !slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						continue
					}
					if s.Type != nil {
						ast.Inspect(s.Type, look)
					}
					for _, v := range s.Values { // its type is that of what is made
						switch v := v.(type) {
						case *ast.CallExpr:
							ast.Inspect(v.Fun, look)
						case *ast.CompositeLit:
							ast.Inspect(v.Type, look)
						}
					}
				}
			}
		}
	}
	return places
}

// ofExported says whether a receiver's type is exported.
func ofExported(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.StarExpr:
		return ofExported(e.X)
	case *ast.IndexExpr:
		return ofExported(e.X)
	case *ast.Ident:
		return e.IsExported()
	}
	return false
}

// A test that is of this: what it must find is found.
func TestExposedFindsInternalTypes(t *testing.T) {
	const text = `package p
import ("m/internal/a"; b "m/internal/c"; "m/pub")
func F(x a.T) {}
func g(x a.T) {}
func (s *S) M() []b.T { return nil }
func (s *s) M() a.T { panic(1) }
type S struct { a.T; X pub.T; y a.T; Z func(a.T) }
type A = a.T
type s struct { X a.T }
type I interface { M(a.T); m(a.T) }
var V = a.New()
var W pub.T
const C = a.Limit
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var lines []int
	for _, at := range exposed(file) {
		lines = append(lines, set.Position(at).Line)
	}
	slices.Sort(lines)
	if want := []int{3, 5, 7, 7, 8, 10, 11}; !slices.Equal(lines, want) {
		t.Errorf("found in lines %v, want %v", lines, want)
	}
}

// Nothing skips the verification of a certificate: a test that does shows nothing of what others' programs find. The
// one place that judges certificates by another rule than host names, in package mtls, is excepted.
func TestNothingSkipsVerification(t *testing.T) {
	words := []string{"Insecure" + "SkipVerify", "reject" + "Unauthorized", "CERT_" + "NONE", "_create_unverified" + "_context", "curl -" + "k", "curl --" + "insecure"}
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".ci":
			return fs.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".md", ".sh", ".py", ".mjs", ".js", ".yaml", ".json", ".service", ".txt"}, filepath.Ext(path)):
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		text := string(raw)
		if filepath.ToSlash(path) == root+"/mtls/credentials.go" {
			text = strings.Replace(text, "\tcfg."+words[0]+" = true\n", "", 1)
		}
		for _, word := range words {
			if at := strings.Index(text, word); at >= 0 {
				t.Errorf("%s:%d: %s: name the certificates to believe instead", path, 1+strings.Count(text[:at], "\n"), word)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 1000 {
		t.Fatalf("looked at %d files only", seen)
	}
}
