package house

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// seesTheMachine is what code does whose tests would depend on the machine: it reads the environment
// or starts processes, which have it from this one.
var seesTheMachine = regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ|UserHomeDir|UserConfigDir|UserCacheDir)\(|\bexec\.Command|\bprocs\.Start\(`)

// isolates are the packages by whose import the tests of a package get an environment of their own.
var isolates = []string{module + "test/hermetic", module + "test/size", module + "internal/testing/proctest", module + "internal/testing/testreport"}

// Tests of what depends on the environment have the one that package hermetic makes.
func TestNoTestSeesTheMachine(t *testing.T) {
	found := 0
	for _, p := range listPackages(t) {
		tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if len(tests) == 0 || p.ImportPath == module+"test/hermetic" || !slices.ContainsFunc(slices.Concat(p.GoFiles, tests), func(name string) bool {
			raw, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			return seesTheMachine.Match(raw)
		}) {
			continue
		}
		found++
		if !slices.ContainsFunc(tests, func(name string) bool { return importsOneOf(t, filepath.Join(p.Dir, name), isolates) }) {
			t.Errorf("%s reads the environment or starts processes: its tests must import %s", p.ImportPath, isolates[0])
		}
	}
	if found < 10 {
		t.Errorf("only %d packages see the machine: the search is wrong", found)
	}
}

func importsOneOf(t *testing.T, file string, paths []string) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range parsed.Imports {
		if path, err := strconv.Unquote(imp.Path.Value); err == nil && slices.Contains(paths, path) {
			return true
		}
	}
	return false
}
