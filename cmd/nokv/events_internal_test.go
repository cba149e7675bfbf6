package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/chronicle"
)

// What was read when the time ran out are not the last lines: they are not told as such.
func TestEventsThatCameNoFurther(t *testing.T) {
	var out bytes.Buffer
	s := &story{env: &env{stdout: &out}, last: 2}
	for _, text := range []string{"one", "two", "three"} {
		if err := s.line(chronicle.Line{Text: text}, false); err != nil {
			t.Fatal(err)
		}
	}
	err := s.stopped(context.DeadlineExceeded, 3, 900)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3 of 900") || !strings.Contains(err.Error(), "--timeout") {
		t.Errorf("%v", err)
	}
	if err := s.flush(); err != nil || out.Len() > 0 {
		t.Errorf("told %q, %v", out.String(), err)
	}
}
