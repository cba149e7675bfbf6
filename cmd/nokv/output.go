package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/nokv/nokv/internal/keytext"
	"github.com/nokv/nokv/internal/oneline"
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
		fmt.Fprint(w, oneline.Of(fmt.Sprint(c)))
	}
	fmt.Fprintln(w)
}

// showKey prints a key for people and scripts, as package keytext does.
func showKey(k []byte) string { return keytext.Show(k) }

// parseKey reads a key as showKey prints it.
func parseKey(s string) ([]byte, error) {
	key, err := keytext.Parse(s)
	if err != nil {
		return nil, usagef("%s", err)
	}
	return key, nil
}
