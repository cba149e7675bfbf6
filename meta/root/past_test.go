package root_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A peer whose folder is put back from a copy of an earlier start is refused by name, ends
// with an error that says what to do, and says the same at its next start, whoever is
// there; the others go on.
func TestFolderPutBackIsRefused(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.mustWrite(5, 0)
	back := (p.leader() + 1) % 3
	p.Kill(back)
	dir, older := p.Workdir(back), filepath.Join(p.Dir, "older")
	if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	p.Start(back)
	p.mustWrite(5, 0)
	p.same()
	p.Kill(back)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if code := p.Start(back).Wait(patience); code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		if log := p.Process(back).Tail(); !strings.Contains(log, "is an older copy, or a second one") || !strings.Contains(log, "nokv root replace --lost") {
			t.Errorf("it does not say why:\n%s", log)
		}
	}
	p.mustWrite(5, 0)
}
