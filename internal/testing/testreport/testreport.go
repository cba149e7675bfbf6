// Package testreport carries what a long test did (seeds run, states explored,
// faults injected) past go test, which hides the output of what passes.
package testreport

import (
	"fmt"
	"os"
	"testing"

	"github.com/nokv/nokv/test/hermetic"
)

// Linef logs a line, and adds it to the report when there is one.
func Linef(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	path := os.Getenv(hermetic.Report)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatalf("test report: %v", err)
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		t.Fatalf("test report: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatalf("test report: %v", err)
	}
}
