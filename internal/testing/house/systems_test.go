package house

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// The packages that speak to the operating system are right for each one that
// is supported: for this one they are built with everything else, for the others
// their types are checked, which takes a second where a build takes many.
func TestTypesFitEverySystem(t *testing.T) {
	packages := slices.DeleteFunc(listPackages(t), func(p pkg) bool {
		return !slices.Contains([]string{module + "internal/clock", module + "internal/disk", module + "internal/listen", module + "internal/procs", module + "internal/budget"}, p.ImportPath)
	})
	if len(packages) != 5 {
		t.Fatalf("found %d of 5 packages that speak to the operating system", len(packages))
	}
	here := build.Default
	defer func() { build.Default = here }()
	for _, system := range []string{"linux", "darwin"} {
		if system == runtime.GOOS {
			continue
		}
		build.Default.GOOS, build.Default.CgoEnabled = system, false
		fset := token.NewFileSet()
		config := types.Config{Importer: importer.ForCompiler(fset, "source", nil), Error: func(err error) { t.Errorf("%s: %v", system, err) }}
		for _, p := range packages {
			checkTypes(t, fset, &config, p)
		}
	}
}

// checkTypes checks a package as the system of build.Default has it.
func checkTypes(t *testing.T, fset *token.FileSet, config *types.Config, p pkg) {
	t.Helper()
	there, err := build.Default.ImportDir(p.Dir, 0)
	if err != nil {
		t.Fatalf("%s: %v", p.ImportPath, err)
	}
	var files []*ast.File
	for _, name := range there.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	_, _ = config.Check(p.ImportPath, fset, files, nil) // tells config.Error
}
