package house

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tool runs a tool of tools/go.mod in a folder of the repository.
func tool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	modfile, err := filepath.Abs("../../../tools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"tool", "-modfile=" + modfile}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Generated code is committed; it must be what the generators make of the
// .proto files today.
func TestGeneratedCodeIsFresh(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"buf.yaml"} {
		copyFile(t, filepath.Join("../../../proto", f), filepath.Join(dir, f))
	}
	gen, err := os.ReadFile("../../../proto/buf.gen.yaml")
	if err != nil {
		t.Fatal(err)
	}
	modfile, err := filepath.Abs("../../../tools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	gen = bytes.ReplaceAll(gen, []byte("-modfile=../tools/go.mod"), []byte("-modfile="+modfile))
	if err := os.WriteFile(filepath.Join(dir, "buf.gen.yaml"), gen, 0o644); err != nil {
		t.Fatal(err)
	}
	protos, err := filepath.Glob("../../../proto/nokv/*/v1/*.proto")
	if err != nil || len(protos) == 0 {
		t.Fatalf("no .proto files: %v", err)
	}
	for _, p := range protos {
		rel, err := filepath.Rel("../../../proto", p)
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, p, filepath.Join(dir, rel))
	}
	out := t.TempDir()
	root, err := filepath.Abs("../../../proto")
	if err != nil {
		t.Fatal(err)
	}
	tool(t, root, "buf", "lint")
	// The plugins are found through the repository's module, so buf runs there.
	tool(t, root, "buf", "generate", dir, "--template", filepath.Join(dir, "buf.gen.yaml"), "-o", out)
	compared := 0
	for _, p := range protos {
		rel, _ := filepath.Rel("../../../proto", p)
		for _, suffix := range []string{".pb.go", "_grpc.pb.go"} {
			name := strings.TrimSuffix(rel, ".proto") + suffix
			want, err := os.ReadFile(filepath.Join(out, name))
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("../../../proto", name))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("proto/%s is stale: run `go generate ./proto/...`", name)
			}
			compared++
		}
	}
	if compared < len(protos) {
		t.Fatalf("only %d generated files were compared", compared)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFormatted(t *testing.T) {
	if out := tool(t, "../../..", "gofumpt", "-l", "cmd", "config", "coordinator", "internal", "meta", "rooted"); strings.TrimSpace(out) != "" {
		t.Errorf("gofumpt would change:\n%s", out)
	}
}

func TestStaticcheck(t *testing.T) {
	tool(t, "../../..", "staticcheck", "./...")
}
