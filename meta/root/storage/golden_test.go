package storage_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/nokv/nokv/meta/root/storage"
)

var update = flag.Bool("update", false, "write testdata/golden anew; only for a new format version")

const golden = "testdata/golden/v1"

// TestGoldenWorkdir: a workdir that format 1 wrote still opens, with all of it.
func TestGoldenWorkdir(t *testing.T) {
	o := storage.Options{SegmentBytes: storage.MinSegmentBytes}
	if *update {
		must(t, os.RemoveAll(golden))
		must(t, os.MkdirAll(golden, 0o700))
		smallWorkdir(t, golden, o)
	}
	want := smallWorkdir(t, t.TempDir(), o)
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(golden)))
	report, err := storage.Verify(dir, o)
	must(t, err)
	if len(report.Damage) > 0 || report.LastIndex != 10 || report.Checkpoint.Index != 5 || report.Identity.NodeID != 2 {
		t.Fatalf("verify: %+v", report)
	}
	must(t, openAndCheck(dir, o, want))
	must(t, openAndCheck(dir, o, want))
}

// TestGoldenCheckpoint: the same state gives the same bytes as ever.
func TestGoldenCheckpoint(t *testing.T) {
	want, err := os.ReadFile(filepath.Join(golden, "root.checkpoint.binpb"))
	must(t, err)
	dir := t.TempDir()
	smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	got, err := os.ReadFile(filepath.Join(dir, "root.checkpoint.binpb"))
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("checkpoint of %d bytes differs from the golden one of %d", len(got), len(want))
	}
}
