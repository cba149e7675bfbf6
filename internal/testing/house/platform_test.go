package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// platformWords are in what a program reads that asks where it runs.
var platformWords = []string{"KUBERNETES_", "kubernetes.io", "kubernetes.default", "serviceaccount", "ECS_CONTAINER_METADATA", "169.254.", "metadata.google"}

// platformWord is the first of these in a text.
func platformWord(text string) string {
	for _, word := range platformWords {
		if strings.Contains(strings.ToLower(text), strings.ToLower(word)) {
			return word
		}
	}
	return ""
}

// A process is told its name and its addresses by flags, and finds others in the registry: no package
// knows a platform, and no module that does is linked.
func TestP65NothingAsksThePlatform(t *testing.T) {
	if platformWord(`"/var/run/secrets/kubernetes.io/serviceaccount/token"`) == "" || platformWord("-metrics-addr") != "" {
		t.Fatal("the words do not tell them apart")
	}
	out, err := exec.Command("go", "list", "-C", root, "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte("google.golang.org/grpc\n")) {
		t.Fatal("go list does not say what is linked")
	}
	for path := range strings.Lines(string(out)) {
		for _, never := range []string{"k8s.io/", "sigs.k8s.io/", "github.com/aws/", "cloud.google.com/", "github.com/hashicorp/nomad", "github.com/docker/"} {
			if strings.HasPrefix(path, never) {
				t.Errorf("%s is linked: who runs where is told by flags", strings.TrimSpace(path))
			}
		}
	}
	for _, p := range listPackages(t) {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					if word := platformWord(text); err != nil || word != "" {
						t.Errorf("%s: it speaks of %s: %v", fset.Position(lit.Pos()), word, err)
					}
				}
				return true
			})
		}
	}
}
