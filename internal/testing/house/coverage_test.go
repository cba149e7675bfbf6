package house

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// After tests with rows in their names came or went: go test ./internal/testing/house -run TestCoverage -rewrite, and read the diff.
var rewrite = flag.Bool("rewrite", false, "list in docs/coverage.md the tests whose names carry a row")

var (
	coverageRow  = regexp.MustCompile(`^\| ([PCANR])-(\d+) \| (.+) \| ([^|]*) \|$`)
	rowsOfName   = regexp.MustCompile(`^Test((?:[PCANR]\d\d)+)(?:\D|$)`)
	wordsOfCell  = regexp.MustCompile(`^(left out|decided otherwise|open): \S`)
	rowsOfSystem = map[string]int{"P": 86, "C": 70, "A": 55, "N": 100, "R": 30}
)

// docs/coverage.md has each row of the five systems once, with tests, scripts
// and documents that exist or with words that say why there are none, and each
// test at the rows that its name carries.
func TestCoverage(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	path := filepath.Join(root, "docs", "coverage.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOf(t, root)
	named := map[string][]string{}
	for _, test := range slices.Sorted(maps.Keys(tests)) {
		_, name, _ := strings.Cut(test, ".")
		if m := rowsOfName.FindStringSubmatch(name); m != nil {
			for rest := m[1]; rest != ""; rest = rest[3:] {
				row := rest[:1] + "-" + rest[1:3]
				named[row] = append(named[row], test)
			}
		}
	}
	lines := strings.Split(string(raw), "\n")
	seen, count, open := map[string]bool{}, map[string]int{}, 0
	for i, line := range lines {
		m := coverageRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		row, cell := m[1]+"-"+m[2], m[4]
		if seen[row] {
			t.Errorf("docs/coverage.md has %s twice", row)
		}
		seen[row] = true
		count[m[1]]++
		for _, test := range named[row] {
			if strings.Contains(cell, "`"+test+"`") {
				continue
			}
			if !*rewrite {
				t.Errorf("%s: %s is not listed; go test ./internal/testing/house -run TestCoverage -rewrite adds it", row, test)
				continue
			}
			switch listed := "`" + test + "`"; {
			case cell == "" || strings.HasPrefix(cell, "open: "):
				cell = listed // what was open is shown now
			case wordsOfCell.MatchString(cell):
				cell = listed + "; " + cell
			default:
				cell = listed + ", " + cell
			}
		}
		lines[i] = "| " + row + " | " + m[3] + " | " + cell + " |"
		for part := range strings.SplitSeq(cell, "; ") {
			if wordsOfCell.MatchString(part) {
				if strings.HasPrefix(part, "open: ") {
					open++
				}
				continue
			}
			for item := range strings.SplitSeq(part, ", ") {
				item, begun := strings.CutPrefix(item, "`")
				item, ended := strings.CutSuffix(item, "`")
				if !begun || !ended {
					t.Errorf("%s: %q is neither `a test`, `a file` nor words that begin with left out:, decided otherwise: or open:", row, item)
					continue
				}
				if _, err := os.Stat(filepath.Join(root, item)); err != nil && !tests[item] {
					t.Errorf("%s: there is no %s", row, item)
				}
			}
		}
	}
	for _, row := range slices.Sorted(maps.Keys(named)) {
		if !seen[row] {
			t.Errorf("docs/coverage.md has no row %s, which %v carries in its name", row, named[row])
		}
	}
	if !maps.Equal(count, rowsOfSystem) {
		t.Errorf("docs/coverage.md has rows %v, want %v", count, rowsOfSystem)
	}
	t.Logf("%d rows, %d of them with something open", len(seen), open)
	if out := strings.Join(lines, "\n"); *rewrite && out != string(raw) {
		if err := os.WriteFile(path, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// testsOf has every test of the repository, as folder.TestName.
func testsOf(t *testing.T, root string) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[filepath.ToSlash(folder)+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}
