package main

import (
	"fmt"
	"strings"
)

// The board of connect four: who has four discs in a line wins.
const (
	columns, rows = 7, 6
	inLine        = 4
)

// State is a board behind a move.
type State struct {
	// Turn is how many moves were ever made on the board, in all its games.
	Turn int `json:"turn"`
	// Game counts the games of the board from 1. The move behind the end of one begins the next.
	Game int `json:"game"`
	// Moves of this game are the columns of its discs, "0" to "6", of seat 1 and 2 in turn.
	Moves string `json:"moves"`
	// Over says how the game ended: "1" or "2" is who won, "draw", or "" while it goes on.
	Over string `json:"over,omitempty"`
}

// Move is what a player says. Turn is the number that the move is to have: one that is said
// again, because its answer was lost, is recognised by it.
type Move struct {
	Turn   int `json:"turn"`
	Seat   int `json:"seat"`
	Column int `json:"column"`
}

// Seat is who moves next.
func (s State) Seat() int {
	if s.Over != "" {
		return 1
	}
	return len(s.Moves)%2 + 1
}

// play is the board behind a move. The same board and no error: the move was made before. An
// error says why it may not be made.
func (s State) play(m Move) (State, error) {
	if back := s.Turn - m.Turn; m.Turn > 0 && back >= 0 && back < len(s.Moves) {
		i := len(s.Moves) - 1 - back
		if was := int(s.Moves[i] - '0'); was != m.Column || i%2+1 != m.Seat {
			return s, fmt.Errorf("turn %d was made already, in column %d", m.Turn, was)
		}
		return s, nil
	}
	switch {
	case m.Turn != s.Turn+1:
		return s, fmt.Errorf("the next turn is %d, not %d", s.Turn+1, m.Turn)
	case m.Seat != s.Seat():
		return s, fmt.Errorf("it is the turn of seat %d, not of %d", s.Seat(), m.Seat)
	}
	next := State{Turn: m.Turn, Game: max(s.Game, 1), Moves: s.Moves}
	if s.Over != "" {
		next.Game, next.Moves = s.Game+1, ""
	}
	if !open(next.Moves, m.Column) {
		return s, fmt.Errorf("column %d is full, or there is none: use 0 to %d", m.Column, columns-1)
	}
	next.Moves += string(rune('0' + m.Column))
	next.Over = over(next.Moves)
	return next, nil
}

// sound says whether it is a board behind its moves.
func (s State) sound() bool {
	b := State{Turn: s.Turn - len(s.Moves), Game: s.Game}
	if s.Moves == "" || b.Turn < 0 || (b.Turn == 0) != (s.Game == 1) {
		return s == State{}
	}
	for i, c := range s.Moves {
		var err error
		if b, err = b.play(Move{Turn: b.Turn + 1, Seat: i%2 + 1, Column: int(c - '0')}); err != nil {
			return false
		}
	}
	return b == s
}

// open says whether a disc may go into a column.
func open(moves string, column int) bool {
	return column >= 0 && column < columns && strings.Count(moves, string(rune('0'+column))) < rows
}

// over judges the last of the moves of a game.
func over(moves string) string {
	var grid [columns][rows]int
	var high [columns]int
	var at, up int
	for i, c := range moves {
		at = int(c - '0')
		up = high[at]
		grid[at][up] = i%2 + 1
		high[at]++
	}
	who := grid[at][up]
	same := func(dx, dy int) (n int) {
		for x, y := at+dx, up+dy; x >= 0 && x < columns && y >= 0 && y < rows && grid[x][y] == who; x, y = x+dx, y+dy {
			n++
		}
		return n
	}
	for _, d := range [][2]int{{1, 0}, {0, 1}, {1, 1}, {1, -1}} {
		if same(d[0], d[1])+same(-d[0], -d[1])+1 >= inLine {
			return fmt.Sprint(who)
		}
	}
	if len(moves) == columns*rows {
		return "draw"
	}
	return ""
}
