package main

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"
)

// What an application says of its region is one cell of one line, and says nothing to a terminal.
func TestATableKeepsItsLines(t *testing.T) {
	var out bytes.Buffer
	note := &noteOutput{Failing: "m1: Traceback:\n  File \"a\"\tline 1\r\x1b[2J\u009b2J no disk"}
	err := (&env{stdout: &out, output: "table"}).print(nil, func(w *tabwriter.Writer) {
		row(w, regionColumns...)
		row(w, regionCells(regionOutput{ID: 1, Note: note})...)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `# its application fails: m1: Traceback:   File "a" line 1 [2J 2J no disk`
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.HasSuffix(got, "  "+want+"\n") {
		t.Errorf("the table is %q, want %q at the end", got, want)
	}
}
