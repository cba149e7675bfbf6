package main

import (
	"slices"
	"strings"
)

// suggest asks whether one of the names was meant: those that a word begins, or those with
// the fewest letters to change, two at most and half of them.
func suggest(word string, names []string) string {
	best, meant := min(2, len(word)/2), []string(nil)
	for _, name := range names {
		d := distance(word, name)
		switch {
		case len(word) > 1 && strings.HasPrefix(name, word):
			d = min(d, 1)
		case d > best:
			continue
		}
		if d < best {
			best, meant = d, nil
		}
		meant = append(meant, name)
	}
	if len(meant) == 0 {
		return ""
	}
	slices.Sort(meant)
	return ". Did you mean " + strings.Join(meant, " or ") + "?"
}

// distance is how many letters are to be put in, left out or replaced to make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
