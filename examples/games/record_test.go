package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

func epoch(n uint64) rooted.Epoch { return rooted.Epoch{Version: 1, ConfVersion: n} }

func begin(t *testing.T, dir string, id rooted.RegionID, n uint64) (*record, State) {
	t.Helper()
	r, s, err := openRecord(dir, id, epoch(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.close() })
	return r, s
}

func write(t *testing.T, r *record, s State) {
	t.Helper()
	if err := r.add(s); err != nil {
		t.Fatal(err)
	}
}

// Every key that there may be is the name of a board, with a folder of its own.
func TestEveryNameHasAFolder(t *testing.T) {
	long := strings.Repeat("b", longestName+1)
	sum := sha256.Sum256([]byte(long))
	seen := map[string]string{}
	for _, name := range []string{
		"a", "A", "\xff/..", string(sum[:]), "sha256-" + hex.EncodeToString(sum[:]), strings.Repeat("b", longestName), long, long + "b",
		strings.Repeat("\xff", rooted.MaxKeyBytes),
	} {
		c := &core{dir: t.TempDir(), boards: map[rooted.RegionID]*board{}}
		if err := c.Acquire(t.Context(), member.Region{ID: 7, Epoch: epoch(1), Start: name}); err != nil {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
		c.drop(7)
		if other, ok := seen[folderOf(name)]; ok {
			t.Errorf("%.50q and %.50q have one folder", name, other)
		}
		seen[folderOf(name)] = name
	}
}

// An owner that hung and was replaced has nothing acknowledged any more, and what it writes is read by nobody.
func TestReplacedOwnersMovesCountForNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	first, s := begin(t, dir, 7, 1)
	one := after(t, "3")
	if s != (State{}) {
		t.Fatalf("a new board is %+v", s)
	}
	write(t, first, one)
	second, s := begin(t, dir, 7, 3)
	if s != one {
		t.Fatalf("the second owner begins with %+v, want %+v", s, one)
	}
	if err := first.add(after(t, "34")); !errors.Is(err, errReplaced) {
		t.Errorf("the first owner is told %v", err)
	}
	write(t, second, after(t, "35"))
	if err := first.add(after(t, "346")); !errors.Is(err, errReplaced) {
		t.Errorf("the first owner is told %v", err)
	}
	if _, s := begin(t, dir, 7, 4); s != after(t, "35") {
		t.Errorf("the third owner begins with %+v", s)
	}
	if _, _, err := openRecord(dir, 7, epoch(2)); !errors.Is(err, errReplaced) {
		t.Errorf("an owner of an old epoch begins: %v", err)
	}
	if _, s := begin(t, dir, 9, 1); s != after(t, "35") { // let go of, and claimed again: another region, from its first epoch on
		t.Errorf("the owner of the next region begins with %+v", s)
	}
}

// An owner that let go of a board for a move that was given up acquires it again at the same epoch: it goes on where it
// was, and what it has open from before counts for nothing any more.
func TestAnOwnerAcquiresAgainAtTheSameEpoch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	moves := ""
	var before *record
	for _, column := range "343434" {
		r, s := begin(t, dir, 7, 1)
		if want := after(t, moves); s != want {
			t.Fatalf("acquired again it begins with %+v, want %+v", s, want)
		}
		if before != nil {
			if err := before.add(after(t, moves+"6")); !errors.Is(err, errReplaced) {
				t.Errorf("what it had before is told %v", err)
			}
		}
		moves += string(column)
		write(t, r, after(t, moves))
		before = r
	}
	if _, s := begin(t, dir, 7, 2); s != after(t, moves) {
		t.Errorf("the next owner begins with %+v", s)
	}
}

// What a later owner has removed, one before it that hung behind its last look finds removed: it goes on, and
// finds that it was replaced.
func TestAFileThatALaterOwnerRemovedIsNoFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	first, _ := begin(t, dir, 7, 1)
	write(t, first, after(t, "3"))
	second, _ := begin(t, dir, 7, 2)
	if err := os.Remove(filepath.Join(dir, first.name)); err != nil {
		t.Fatal(err)
	}
	write(t, second, after(t, "34"))
}

// A file that ends in the middle of a line, or in what no move is, ends before that.
func TestTornLinesAreNotRead(t *testing.T) {
	whole := `{"turn":1,"game":1,"moves":"3"}` + "\n"
	for _, torn := range []string{"", `{"turn":2,"ga`, `{"turn":2,"game":1,"moves":"34"}`, "\x00\x00\x00\n"} {
		dir := filepath.Join(t.TempDir(), "board")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%016x-%016x-%016x-%016x", 7, 1, 1, 0)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(whole+torn), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, s := begin(t, dir, 7, 2); s != after(t, "3") {
			t.Errorf("behind %q a board is %+v", torn, s)
		}
	}
}

// What no crash leaves is told, and not taken for a board: else moves that were acknowledged would be gone without a word.
func TestADamagedRecordIsNoBoard(t *testing.T) {
	one, two := `{"turn":1,"game":1,"moves":"3"}`+"\n", `{"turn":2,"game":1,"moves":"34"}`+"\n"
	for _, row := range []string{
		"null\n", "{}\n", "3\n", "garbage\n" + two, one + "\n" + two, one + "\x00\x00\n" + two, one + "null\n", one + "{}\n",
		`{"turn":1,"game":1,"moves":"9"}` + "\n", `{"turn":1,"game":1,"moves":"e4"}` + "\n", `{"turn":7,"game":1,"moves":"3333333"}` + "\n",
		`{"turn":1,"game":1,"moves":"34"}` + "\n", `{"turn":9,"game":1,"moves":"34"}` + "\n", `{"turn":2,"game":2,"moves":"34"}` + "\n",
		`{"turn":7,"game":1,"moves":"0101010"}` + "\n", `{"turn":8,"game":1,"moves":"01010103"}` + "\n", `{"turn":2,"game":1,"moves":"34","over":"1"}` + "\n",
		`{"turn":2,"game":1,"moves":"34","clock":60}` + "\n", `{"fen":"8/8","turn":2,"game":1,"moves":"34"}` + "\n", `{"turn":-2,"game":1,"moves":"34"}` + "\n",
		`{"turn":3,"game":2,"moves":""}` + "\n",
	} {
		dir := filepath.Join(t.TempDir(), "board")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, fmt.Sprintf("%016x-%016x-%016x-%016x", 7, 1, 1, 0))
		if err := os.WriteFile(path, []byte(row), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it is not made better by having been looked at
			if _, s, err := openRecord(dir, 7, epoch(2)); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
				t.Errorf("%q is %+v, %v", row, s, err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		begin(t, dir, 7, 2)
	}
}

// What else is in a board's folder is nobody's, whatever it is called.
func TestOtherFilesAreNoRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	first, _ := begin(t, dir, 7, 1)
	write(t, first, after(t, "3"))
	for _, name := range []string{".DS_Store", "notes", "zzz", first.name + "~", first.name + ".orig"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("null\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	second, s := begin(t, dir, 7, 2)
	if s != after(t, "3") {
		t.Errorf("the board is %+v", s)
	}
	write(t, second, after(t, "34"))
}

// A record, a folder of a board, or of all boards, that is removed while a core plays there is not made again as if
// nothing had been there: nothing is acknowledged in it any more.
func TestWhatWasRemovedIsNotAcknowledged(t *testing.T) {
	for name, row := range map[string]struct {
		gone func(root, board string, r *record) string
	}{
		"the file":       {func(_, board string, r *record) string { return filepath.Join(board, r.name) }},
		"its folder":     {func(_, board string, _ *record) string { return board }},
		"all the boards": {func(root, _ string, _ *record) string { return root }},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "boards")
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			board := filepath.Join(root, "board")
			r, _ := begin(t, board, 7, 1)
			write(t, r, after(t, "3"))
			gone := row.gone(root, board, r)
			if err := os.RemoveAll(gone); err != nil {
				t.Fatal(err)
			}
			if err := r.add(after(t, "34")); err == nil || !strings.Contains(err.Error(), board) {
				t.Errorf("a move is written: %v", err)
			}
			if _, _, err := openRecord(board, 7, epoch(2)); (err == nil) == (gone == root) {
				t.Errorf("the next owner: %v", err)
			}
		})
	}
}

// Owners come, pause and go on in any order, each one writing what it believes to be next: what was
// acknowledged is in every board that is read behind it, and there is one history.
func TestNoAcknowledgedMoveIsLostWhateverPauses(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "board-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		type owner struct {
			record *record
			state  State
		}
		var owners []*owner
		defer func() {
			for _, o := range owners {
				_ = o.record.close()
			}
		}()
		var acknowledged State
		for n := range rapid.IntRange(2, 30).Draw(t, "steps") {
			if len(owners) == 0 || rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				// One that is told late of an old epoch finds a later file.
				e := uint64(rapid.IntRange(max(1, n-4), n+1).Draw(t, "epoch"))
				r, s, err := openRecord(dir, 7, epoch(e))
				if errors.Is(err, errReplaced) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				if s != acknowledged && s.Turn <= acknowledged.Turn {
					t.Fatalf("an owner begins with %+v, and %+v was acknowledged", s, acknowledged)
				}
				owners = append(owners, &owner{r, s})
				continue
			}
			o := owners[rapid.IntRange(0, len(owners)-1).Draw(t, "who")]
			column := rapid.IntRange(0, columns-1).Draw(t, "column")
			next, err := o.state.play(Move{Turn: o.state.Turn + 1, Seat: o.state.Seat(), Column: column})
			if err != nil {
				continue
			}
			if err := o.record.add(next); errors.Is(err, errReplaced) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			if o.state != acknowledged && acknowledged.Turn >= o.state.Turn {
				t.Fatalf("%+v is acknowledged behind %+v, and does not follow it", next, acknowledged)
			}
			o.state, acknowledged = next, next
		}
	})
}

// A disk that takes nothing ends the process, because what it has is not known any more: nothing is acknowledged.
func TestAFailedWriteIsNoAcknowledgement(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	r, _ := begin(t, dir, 7, 1)
	if err := r.file.Close(); err != nil {
		t.Fatal(err)
	}
	var why error
	c := &core{broken: func(err error) { why = err }}
	b := &board{record: r, changed: make(chan struct{})}
	if no, err := c.move(b, Move{Turn: 1, Seat: 1, Column: 3}); no != nil || err == nil || !errors.Is(why, os.ErrClosed) {
		t.Errorf("%v, %v; the process ends with %v", no, err, why)
	}
	if s, _ := b.now(); s != (State{}) {
		t.Errorf("players are shown %+v", s)
	}
}
