// Package oneline makes texts for people fit for a log line and a terminal. What is written in one never
// keeps the thing that it is about from being done.
package oneline

import (
	"strings"
	"unicode"
)

// Of is a text in one line: control characters and what is written invisibly, such as marks of direction,
// are a space for each run of them, and none at the ends. Bytes that are not UTF-8 stay as they are.
func Of(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	return strings.Join(strings.FieldsFunc(text, hidden), " ")
}

// Within is a text in one line, in UTF-8, and of so many bytes at most: it is cut at the end of a letter.
func Within(most int, text string) string {
	text = Of(strings.ToValidUTF8(text, "?"))
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// hidden reports whether a character controls a terminal or cannot be seen. The joiners of some scripts
// can: they change the letters beside them.
func hidden(r rune) bool {
	switch r {
	case '\u200c', '\u200d':
		return false
	case '\u2028', '\u2029':
		return true
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}
