package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// print writes v as indented JSON, or calls table.
func (e *env) print(v any, table func(w *tabwriter.Writer)) error {
	if e.output == "json" {
		enc := json.NewEncoder(e.stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(e.stdout, 0, 4, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// printLine writes v as one line of JSON, for streams.
func (e *env) printLine(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func row(w *tabwriter.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, c)
	}
	fmt.Fprintln(w)
}

// showKey prints a key for people and scripts: text as it is, other bytes as
// \xNN. parseKey reads it back.
func showKey(k []byte) string {
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

// parseKey reads a key as showKey prints it: text, \xNN and \\.
func parseKey(s string) ([]byte, error) {
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
				return nil, usagef("key %q: \\x wants two hex digits", s)
			}
			out, i = append(out, raw[0]), i+3
		default:
			return nil, usagef(`key %q: write \\ for a backslash and \xNN for a byte`, s)
		}
	}
	return out, nil
}
