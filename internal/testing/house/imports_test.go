package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	_ "github.com/nokv/nokv/test/hermetic"
)

const (
	module = "github.com/nokv/nokv/"
	// root of the repository.
	root = "../../.."
)

type pkg struct {
	ImportPath                string
	Imports                   []string
	GoFiles                   []string
	TestGoFiles, XTestGoFiles []string
	Dir                       string
}

var allPackages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles,TestGoFiles,XTestGoFiles,Dir", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 10 {
		return nil, fmt.Errorf("go list found only %d packages", len(pkgs))
	}
	return pkgs, nil
})

// listPackages asks the go command, once, for every package of the module.
func listPackages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := allPackages()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

// rule forbids imports by packages under a prefix.
type rule struct {
	from   string   // import path prefix below the module
	never  []string // import paths, or prefixes when they end in /
	reason string
}

// notPure is what a core imports that does something by itself.
var notPure = []string{
	"context", "os", "net", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand",
	"google.golang.org/grpc", "google.golang.org/grpc/", module + "meta/root/client", module + "coordinator/rootview", module + "coordinator/server",
}

var rules = []rule{
	{"meta/", []string{module + "coordinator/"}, "the root knows nothing of coordinators"},
	{"", []string{module + "cmd/"}, "cmd is imported by nobody"},
	{"meta/root/state", []string{
		"time", "context", "os", "net", "sync", "math/rand", "math/rand/v2", "crypto/rand",
		"google.golang.org/grpc", "google.golang.org/grpc/",
	}, "the state machine is a function of the log alone"},
	{"meta/root/storage", []string{module + "meta/root/state"}, "storage keeps records, it does not judge them"},
	{"coordinator/client", []string{module + "meta/"}, "callers need no package of the root"},
	{"rooted", []string{module + "meta/", module + "coordinator/", module + "internal/", "google.golang.org/grpc"}, "values are a leaf"},
	{"coordinator/catalog", []string{"google.golang.org/grpc", module + "meta/root/client"}, "the catalog is pure"},
	{"coordinator/idalloc", []string{"google.golang.org/grpc", "context", "sync"}, "windows are pure"},
	{"coordinator/liveness", notPure, "the detector is pure"},
	{"coordinator/placement", notPure, "the planner is pure"},
	{"internal/held", []string{"google.golang.org/grpc", "context", "os", "net", module + "coordinator/", module + "meta/"}, "what a member holds is pure"},
	{"member", []string{module + "meta/"}, "members need no package of the root"},
	{"store", []string{module + "meta/", module + "coordinator/server", module + "coordinator/catalog"}, "a store needs no package of the root"},
	{"store/local", []string{module + "coordinator/", module + "store/host", "google.golang.org/grpc", "context"}, "the disk keeps records, it does not judge them"},
	{"coordinator/tso", []string{"google.golang.org/grpc", "context", "sync"}, "windows are pure"},
}

func TestImportsFollowTheMap(t *testing.T) {
	for _, p := range listPackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, r := range rules {
			if !strings.HasPrefix(path, r.from) {
				continue
			}
			for _, imp := range p.Imports {
				if forbidden(imp, r.never) {
					t.Errorf("%s imports %s: %s", path, imp, r.reason)
				}
			}
		}
	}
}

// The pure cores of coordinators are told the time, and start nothing.
func TestCoresReadNoClockAndStartNothing(t *testing.T) {
	cores, reads := 0, []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep", "NewSystem", "NewMonotonic"}
	for _, p := range listPackages(t) {
		if path := strings.TrimPrefix(p.ImportPath, module); path != "coordinator/liveness" && path != "coordinator/placement" && !strings.HasPrefix(path, "coordinator/placement/") {
			continue
		}
		cores++
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a core starts a goroutine", fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					from, _ := n.X.(*ast.Ident)
					if from != nil && (from.Name == "time" || from.Name == "clock") && slices.Contains(reads, n.Sel.Name) {
						t.Errorf("%s: a core reads a clock", fset.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
	if cores != 6 {
		t.Fatalf("found %d of 6 cores", cores)
	}
}

func forbidden(imp string, never []string) bool {
	return slices.ContainsFunc(never, func(n string) bool {
		if strings.HasSuffix(n, "/") {
			return strings.HasPrefix(imp, n)
		}
		return imp == n
	})
}

// The state machine uses its own packages, the wire types and the standard library, nothing else.
func TestStateMachineDependsOnNothing(t *testing.T) {
	for _, p := range listPackages(t) {
		if p.ImportPath != module+"meta/root/state" {
			continue
		}
		for _, imp := range p.Imports {
			outside := strings.Contains(strings.SplitN(imp, "/", 2)[0], ".")
			if outside && !strings.HasPrefix(imp, module) && !strings.HasPrefix(imp, "google.golang.org/protobuf") {
				t.Errorf("state imports %s", imp)
			}
		}
		return
	}
	t.Fatal("package state was not found")
}

func TestNoPackageIsNamedForAShape(t *testing.T) {
	for _, p := range listPackages(t) {
		name := p.ImportPath[strings.LastIndex(p.ImportPath, "/")+1:]
		if slices.Contains([]string{"types", "common", "util", "utils", "model", "models", "helper", "helpers", "base", "misc"}, name) {
			t.Errorf("%s: a package is named for what it does", p.ImportPath)
		}
	}
}
