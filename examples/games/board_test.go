package main

import (
	"strings"
	"testing"
)

// after is a board behind moves, each of which has to be allowed.
func after(t *testing.T, columns string) (s State) {
	t.Helper()
	for _, c := range columns {
		next, err := s.play(Move{Turn: s.Turn + 1, Seat: s.Seat(), Column: int(c - '0')})
		if err != nil {
			t.Fatalf("column %c behind %+v: %v", c, s, err)
		}
		s = next
	}
	return s
}

func TestFourInALineWin(t *testing.T) {
	draw := "545062455041104565311226266362030334314210"
	for _, c := range []struct{ moves, over string }{
		{"0011223", "1"},     // a row
		{"6655443", "1"},     // a row, from the right
		{"0101010", "1"},     // a column
		{"2010101", ""},      // three
		{"20303030", "2"},    // the second seat
		{"01122323363", "1"}, // up to the right
		{"65544343303", "1"}, // up to the left
		{"0022331", "1"},     // the gap is filled
		{draw, "draw"},
	} {
		if s := after(t, c.moves); s.Over != c.over || s.Turn != len(c.moves) || s.Game != 1 {
			t.Errorf("behind %s: %+v, want over %q", c.moves, s, c.over)
		}
	}
}

func TestMovesAreJudged(t *testing.T) {
	won := after(t, "0101010")
	for _, c := range []struct {
		name  string
		board State
		move  Move
		want  string // of the moves behind it
		no    string // or of the refusal
	}{
		{"the next turn", after(t, "33"), Move{3, 1, 4}, "334", ""},
		{"said again", after(t, "33"), Move{2, 2, 3}, "33", ""},
		{"said again late", after(t, "334"), Move{1, 1, 3}, "334", ""},
		{"a turn that was made in another column", after(t, "33"), Move{2, 2, 4}, "33", "turn 2 was made already, in column 3"},
		{"a turn that the other one made", after(t, "33"), Move{2, 1, 3}, "33", "turn 2 was made already"},
		{"a turn too far", after(t, "33"), Move{4, 2, 3}, "33", "the next turn is 3, not 4"},
		{"no turn", after(t, "33"), Move{0, 1, 3}, "33", "the next turn is 3, not 0"},
		{"the other seat's turn", after(t, "33"), Move{3, 2, 3}, "33", "it is the turn of seat 1"},
		{"no column", after(t, "33"), Move{3, 1, 7}, "33", "column 7 is full, or there is none"},
		{"less than a column", after(t, "33"), Move{3, 1, -1}, "33", "column -1 is full, or there is none"},
		{"a full column", after(t, "333333"), Move{7, 1, 3}, "333333", "column 3 is full"},
		{"the next game", won, Move{8, 1, 5}, "5", ""},
		{"the last of a game said again", won, Move{7, 1, 0}, won.Moves, ""},
		{"one of the game before", after(t, "01010105"), Move{7, 1, 0}, "5", "the next turn is 9, not 7"},
	} {
		got, err := c.board.play(c.move)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if got.Moves != c.want || !strings.Contains(said, c.no) || (c.no == "") != (err == nil) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}
