// Package keytext writes keys as people and scripts read them: text as it is, other
// bytes as \xNN. It promises that Parse reads back what Show wrote.
package keytext

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Show is a key as it is printed.
func Show(k []byte) string {
	if utf8.Valid(k) && !strings.ContainsFunc(string(k), func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' || r == '\uFFFD' }) {
		return string(k)
	}
	var b strings.Builder
	for _, c := range k {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c >= 0x20 && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

// Parse reads a key as Show prints it: text, \xNN and \\.
func Parse(s string) ([]byte, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		rest := s[i+1:]
		switch {
		case strings.HasPrefix(rest, `\`):
			out, i = append(out, '\\'), i+1
		case strings.HasPrefix(rest, "x") && len(rest) >= 3:
			raw, err := hex.DecodeString(rest[1:3])
			if err != nil {
				return nil, fmt.Errorf("key %q: \\x wants two hex digits", s)
			}
			out, i = append(out, raw[0]), i+3
		default:
			return nil, fmt.Errorf(`key %q: write \\ for a backslash and \xNN for a byte`, s)
		}
	}
	return out, nil
}
