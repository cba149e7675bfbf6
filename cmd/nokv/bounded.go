package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxRepeated is the most bytes of a word of the command line that an error repeats.
const maxRepeated = 100

// bounded is a sentence in which what the command line says is short, whoever made the
// sentence: this process, its flags or a server.
func bounded(sentence string, said []string) string {
	var long []string
	for _, word := range said {
		_, value, _ := strings.Cut(word, "=") // of a flag
		for _, w := range append(strings.FieldsFunc(word, separates), word, value, strings.TrimLeft(word, "-")) {
			if len(w) > maxRepeated {
				quoted := strconv.Quote(w)
				long = append(long, w, quoted[1:len(quoted)-1], strings.Join(strings.Fields(w), " "))
			}
		}
	}
	slices.SortFunc(long, func(a, b string) int { return len(b) - len(a) })
	for _, w := range slices.Compact(long) {
		if len(w) > maxRepeated { // without its spaces it may not be
			sentence = strings.ReplaceAll(sentence, w, begins(w))
		}
	}
	return sentence
}

// separates says what a flag's value may be cut at before it is judged.
func separates(r rune) bool { return r == ',' || r == '=' || r == '/' || r == ':' }

// begins is how a long word begins, and how long it is.
func begins(w string) string {
	cut := maxRepeated / 2
	for cut > 0 && !utf8.RuneStart(w[cut]) {
		cut--
	}
	return fmt.Sprintf("%s... (%d bytes)", w[:cut], len(w))
}
