package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nokv/nokv/rooted"
)

// counted is partition 1 as an owner has it that has counted so far.
func counted(t *testing.T, dir string, epoch rooted.Epoch, offset int64) *partition {
	t.Helper()
	path := inputPath(dir, 1)
	if err := os.WriteFile(path, make([]byte, 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	input, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = input.Close() })
	return &partition{number: 1, epoch: epoch, input: input, state: state{Offset: offset, Counts: map[string]uint64{}}}
}

func at(conf uint64) rooted.Epoch { return rooted.Epoch{Version: 1, ConfVersion: conf} }

// A checkpoint that is durable has those of epochs before removed, but for the last one: what a crash has left of them
// too, and nothing that is newer or of another partition.
func TestOlderCheckpointsAreRemoved(t *testing.T) {
	for _, c := range []struct {
		name         string
		before, left []string
	}{
		{"those before", []string{"p001.1.2.json", "p001.1.3.json", "p001.1.4.json"}, []string{"p001.1.4.json", "p001.1.5.json"}},
		{"half of one", []string{"p001.1.4.json.77.new"}, []string{"p001.1.5.json"}},
		{"the own one is replaced", []string{"p001.1.5.json"}, []string{"p001.1.5.json"}},
		{"an owner that was replaced removes nothing of the next", []string{"p001.1.4.json", "p001.1.6.json", "p001.2.1.json.7.new"}, []string{"p001.1.4.json", "p001.1.5.json", "p001.1.6.json", "p001.2.1.json.7.new"}},
		{"others", []string{"p010.1.1.json", "p100.1.1.json", "notes"}, []string{"notes", "p001.1.5.json", "p010.1.1.json", "p100.1.1.json"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			folder := filepath.Join(dir, "checkpoints")
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range c.before {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(`{"offset": 1}`), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if said, err := counted(t, dir, at(5), 9).save(dir); err != nil || string(said) != "9" {
				t.Fatalf("%q, %v", said, err)
			}
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, e := range entries {
				left = append(left, e.Name())
			}
			if !slices.Equal(left, c.left) {
				t.Errorf("left are %q, want %q", left, c.left)
			}
		})
	}
}

// Whoever reads while owners come and go finds a checkpoint, and none that is older than one that
// was there before.
func TestThereIsAlwaysANewestCheckpoint(t *testing.T) {
	dir, done, written := t.TempDir(), make(chan struct{}), make(chan error, 1)
	p := counted(t, dir, at(1), 1)
	if _, err := p.save(dir); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		for n := range uint64(300) {
			p.epoch, p.state.Offset = at(n+2), int64(n)+2
			if _, err := p.save(dir); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	last := int64(1)
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		s, epoch, err := newest(dir, 1)
		if err != nil || s.Offset < last || epoch != at(uint64(s.Offset)) {
			t.Fatalf("offset %d at %v behind %d, %v", s.Offset, epoch, last, err)
		}
		last = s.Offset
	}
	if err := <-written; err != nil || last != 301 {
		t.Errorf("the last is %d, %v", last, err)
	}
}
