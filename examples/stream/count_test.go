package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// part is a partition, as a worker is given it.
func part(number uint64, version uint64, frontier string) member.Region {
	return member.Region{
		ID: rooted.RegionID(number + 1), Start: string(binary.BigEndian.AppendUint64(nil, number)),
		Epoch: rooted.Epoch{Version: version, ConfVersion: 1}, Frontier: frontier,
	}
}

// write adds text to the input of partition 3.
func write(t *testing.T, dir, text string) {
	t.Helper()
	f, err := os.OpenFile(inputPath(dir, 3), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// counting waits until a worker has counted all of partition 3.
func counting(t *testing.T, c *counter, r member.Region, all string) {
	t.Helper()
	proctest.Eventually(t, proctest.Patience, func() error {
		p := c.part(r)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.state.Offset != int64(len(all)) {
			return fmt.Errorf("counted up to %d, not %d", p.state.Offset, len(all))
		}
		return nil
	})
}

// exactly is what was counted, which has to be exact and all.
func exactly(t *testing.T, dir string) totals {
	t.Helper()
	got, err := total(dir)
	if err != nil || len(got.Wrong) > 0 || got.Read != got.Written {
		t.Fatalf("%v: %v", got, err)
	}
	return got
}

// says fails the test unless an error has all of some words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v: it does not say %q", err, word)
		}
	}
}

func TestAPartitionThatCannotBeSavedIsCountedOn(t *testing.T) {
	dir := t.TempDir()
	c, r := newCounter("w1", dir), part(3, 1, "")
	write(t, dir, "one two\n")
	if err := c.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	in := filepath.Join(dir, "checkpoints")
	if err := os.WriteFile(in, nil, 0o644); err != nil { // no folder, so that nothing is saved
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Release(t.Context(), r); err == nil {
			t.Fatal("it was saved")
		}
	}
	write(t, dir, "two\n")
	counting(t, c, r, "one two\ntwo\n")
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	if at, err := c.Release(t.Context(), r); err != nil || string(at) != "12" {
		t.Fatalf("released at %q: %v", at, err)
	}
	if got := exactly(t, dir); got.Words != 3 {
		t.Error(got)
	}
}

func TestAFolderThatIsGoneIsNotMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "words")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, r := newCounter("w1", dir), part(3, 1, "")
	if err := c.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Evict(context.Background(), r) })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err := c.Checkpoint(t.Context(), r)
	says(t, err, inputPath(dir, 3), "no such file", "put it back")
	_, err = total(dir)
	says(t, err, dir, "no such file")
	if _, err := os.Stat(dir); err == nil {
		t.Error("it has been made")
	}
}

// Bytes that are no UTF-8, a line longer than what is read at once, and one that has not ended.
func TestWhateverBytesThereAreCountsAreExact(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, text := range map[string]string{
		"two words of bytes that are no text": "\xff a\xfe \xfe\xff\xff b\n\xff\n",
		"zeros and other spaces":              "a\x00b\u00a0c\u2028d \x00\n",
		"one huge word":                       long + "\n" + long + "\n",
		"one huge line":                       strings.Repeat("word ", 1<<18) + "\n",
		"empty lines":                         "\n\n \n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := newCounter("w1", dir)
			for version := uint64(1); version <= 2; version++ { // the second one reads what the first one saved
				r := part(3, version, "")
				write(t, dir, text+"half")
				write(t, dir, " of a line\n")
				if err := c.Acquire(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				counting(t, c, r, strings.Repeat(text+"half of a line\n", int(version)))
				if _, err := c.Release(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				exactly(t, dir)
			}
		})
	}
}

func TestAnInputThatIsNotWhatWasCountedIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(path string) error
		says   string
		whole  bool // counts can tell
	}{
		"cut":     {func(path string) error { return os.Truncate(path, 5) }, "has 5 bytes, and 8 of it have been counted", true},
		"removed": {os.Remove, "no such file", true},
		"replaced": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("one two\nthree\n"), 0o644))
		}, "was replaced while it was read", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c, r := newCounter("w1", dir), part(3, 1, "")
			write(t, dir, "one two\n")
			if err := c.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Evict(context.Background(), r) })
			counting(t, c, r, "one two\n")
			if _, err := c.Checkpoint(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := row.change(inputPath(dir, 3)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Checkpoint(t.Context(), r)
			says(t, err, inputPath(dir, 3), row.says)
			_, err = total(dir)
			if row.whole {
				says(t, err, inputPath(dir, 3), "8 of it have been counted")
				says(t, newCounter("w2", dir).Acquire(t.Context(), part(3, 2, "8")), inputPath(dir, 3), "8 of it have been counted")
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// The control plane knows how far a partition was counted: in another folder it is not counted from the start.
func TestAnotherFolderIsRefused(t *testing.T) {
	says(t, newCounter("w1", t.TempDir()).Acquire(t.Context(), part(3, 2, "12")), "has 0 bytes, and 12 of it have been counted", "name the folder")
}

// The checkpoints of another cluster may be of later epochs: then nobody would ever read what is counted here.
func TestACheckpointOfALaterEpochIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "one\n")
	c, r := newCounter("w1", dir), part(3, 9, "")
	if err := c.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	counting(t, c, r, "one\n")
	if _, err := c.Release(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	another := newCounter("w1", dir)
	says(t, another.Acquire(t.Context(), part(3, 2, "")), checkpointPath(dir, 3, r.Epoch), "the folder of another cluster")
	if err := os.RemoveAll(filepath.Join(dir, "checkpoints")); err != nil {
		t.Fatal(err)
	}
	if err := another.Acquire(t.Context(), part(3, 2, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := another.Release(t.Context(), part(3, 2, "")); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedCheckpointIsNamedAndTheOneBeforeIsEnough(t *testing.T) {
	for _, damage := range []string{"", "null", `{"offset":4`, "\xff\x00", `{"counts":null,"offset":4}`, `{"offset":-1,"counts":{}}`, `{"offset":4,"counts":{"one":1}}x`, `{"offset":4,"counts":{"one":1},"bytes":3}`, `{"turn":1,"game":1,"moves":"3"}`} {
		t.Run(damage, func(t *testing.T) {
			dir := t.TempDir()
			c, r := newCounter("w1", dir), part(3, 1, "")
			write(t, dir, "one\n")
			if err := c.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			counting(t, c, r, "one\n")
			if _, err := c.Release(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			r = part(3, 2, "4")
			path := checkpointPath(dir, 3, r.Epoch)
			if err := os.WriteFile(path, []byte(damage), 0o644); err != nil {
				t.Fatal(err)
			}
			says(t, c.Acquire(t.Context(), r), path, "is damaged", "remove it")
			_, err := total(dir)
			says(t, err, path, "is damaged", "remove it")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := c.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Release(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			exactly(t, dir)
		})
	}
}

func TestCommandsSayWhatIsWrong(t *testing.T) {
	t.Setenv("NOKV_COORDINATOR_ADDR", "")
	dir := t.TempDir()
	for args, want := range map[string]string{
		"count":                                                     `there is no "count"`,
		"counts":                                                    "name the one that the workers share",
		"counts --dir " + dir + "/none":                             "name the one that the workers share",
		"counts --dir " + dir + " more":                             `"more" is one word too many`,
		"counts --nope":                                             "stream counts --help",
		"worker w1 --dir " + dir:                                    `"w1" is one word too many`,
		"worker --dir " + dir + " --id w1":                          "say who the worker is and where coordinators are",
		"worker --dir " + dir + "/none --id w1":                     "name the one that the workers share",
		"produce --dir " + dir + " --rate 0":                        "a rate is above 0",
		"produce --dir " + dir + " --rate NaN":                      "a rate is above 0",
		"produce --dir " + dir + " --rate -1":                       "a rate is above 0",
		"produce --dir " + dir + " --rate 1e-300":                   "a rate is above 0",
		"worker --dir /proc --id w1 --coordinator-addr 127.0.0.1:1": "where no checkpoint can be written",
		"produce --dir " + dir + " --rate Inf":                      "a rate is above 0",
		"produce --dir " + dir + " --lines -1":                      "lines are 0 or more",
		"produce --dir " + dir + " --lines many":                    "stream produce --help",
		"produce --dir " + inputPath(dir, 0) + "/one":               "name the one that the workers share",
	} {
		t.Run(args, func(t *testing.T) { says(t, run(t.Context(), strings.Fields(args)), want) })
	}
	if err := run(t.Context(), []string{"worker", "--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}
