package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// A slot whose checkpoint is gone or damaged is not taken; the error names the file and the ways
// out, which are ways out.
func TestASlotWithoutItsCheckpoint(t *testing.T) {
	n := newNode("a", t.TempDir())
	r := member.Region{ID: 7, Epoch: rooted.Epoch{Version: 1, ConfVersion: 3}, Frontier: "1.2-5"}
	path := n.path(r.Slot(), r.Frontier)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"", "half of {"} {
		if has != "" {
			if err := os.WriteFile(path, []byte(has), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := n.Acquire(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "restore "+path+", or write {} there") || len(n.slots) != 0 {
			t.Errorf("the file has %q: %v, and %d slots", has, err, len(n.slots))
		}
	}
	for has, value := range map[string]int64{`{"changes": 5, "actors": {"actor-7": {"value": 3, "changed": 5}}}`: 8, `{"changes": 3, "actors": {"actor-7": {"value": 3, "changed": 3}}}`: 8, "{}": 5} {
		if err := os.WriteFile(path, []byte(has), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := n.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		for range 5 { // as many as the name says that there were
			n.slots[r.ID].add("actor-7", 1)
		}
		next := r
		saved, err := n.Checkpoint(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		next.Frontier = string(saved)
		if err := n.Acquire(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if got := n.slots[r.ID].add("actor-7", 0); got != value {
			t.Errorf("the file had %s, and five were added: the actor has %d in the next checkpoint, want %d", has, got, value)
		}
	}
}
