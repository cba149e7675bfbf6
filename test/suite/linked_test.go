package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestOneBinaryIsLinkedOnce: what was linked is taken for the same build ID alone, a link that failed is
// not kept, and what no run uses any more is removed.
func TestOneBinaryIsLinkedOnce(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "linked")
	link, out := filepath.Join(dir, "link"), filepath.Join(dir, "x.test")
	script := "#!/bin/sh\necho \"$1\" > \"$3\"\necho run >> " + filepath.Join(dir, "runs") + "\n[ \"$1\" != -buildid=bad ]\n"
	if err := os.WriteFile(link, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var runs int
	for _, c := range []struct {
		id          string
		fails, runs bool
	}{{id: "a", runs: true}, {id: "a"}, {id: "b", runs: true}, {id: "b"}, {id: "a"}, {id: "bad", fails: true, runs: true}, {id: "bad", fails: true, runs: true}} {
		_ = os.Remove(out)
		err := runTool(t.Context(), kept, []string{link, "-buildid=" + c.id, "-o", out})
		if (err != nil) != c.fails {
			t.Fatalf("%s: %v", c.id, err)
		}
		if c.runs {
			runs++
		}
		if raw, err := os.ReadFile(out); err != nil || string(raw) != "-buildid="+c.id+"\n" {
			t.Errorf("%s: the binary holds %q, %v", c.id, raw, err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "runs"))
		if err != nil || len(raw) != runs*len("run\n") {
			t.Errorf("behind %s the linker has run %d times, want %d, %v", c.id, len(raw)/len("run\n"), runs, err)
		}
	}
	count := func() int {
		files, err := filepath.Glob(filepath.Join(kept, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if count() != 2 {
		t.Errorf("%d binaries are kept, want 2", count())
	}
	if err := forgetLinked(kept, time.Now().Add(-time.Hour)); err != nil || count() != 2 {
		t.Errorf("of what was used just now, %d are kept, want 2, %v", count(), err)
	}
	if err := forgetLinked(kept, time.Now().Add(time.Hour)); err != nil || count() != 0 {
		t.Errorf("of what no run used, %d are kept, want none, %v", count(), err)
	}
}
