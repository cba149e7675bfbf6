package evenness_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/evenness"
)

// Pictures are XML, have colours for dark ground, say what was asked, and draw no number that
// is none.
func TestPictures(t *testing.T) {
	var many []evenness.Bar
	for i := range 100 {
		many = append(many, evenness.Bar{Name: fmt.Sprintf("member-with-a-very-long-name-%d", i), Before: float64(i), After: 50, Capacity: 1})
	}
	for what, x := range map[string]struct {
		svg   []byte
		wants []string
	}{
		"bars": {evenness.Bars("plan <of> games", "a & b", "regions", []evenness.Bar{
			{Name: "m1", Before: 10, After: 8, Capacity: 1}, {Name: "m2", After: 8, Capacity: 1, Note: "imagined"},
		}), []string{"plan &lt;of&gt; games", "a &amp; b", "m2", "10 → 8", "imagined", "fair part"}},
		"many bars": {evenness.Bars("t", "s", "load", many), []string{"40 more members", "…"}},
		"no bars":   {evenness.Bars("t", "s", "load", nil), []string{"t"}},
		"nothing":   {evenness.Bars("t", "s", "load", []evenness.Bar{{Name: "m1"}}), []string{"m1"}},
	} {
		d := xml.NewDecoder(bytes.NewReader(x.svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", what, err, x.svg)
			}
		}
		text := string(x.svg)
		for _, want := range append(x.wants, "prefers-color-scheme:dark") {
			if !strings.Contains(text, want) {
				t.Errorf("%s: there is no %q in\n%s", what, want, text)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: %s", what, text)
		}
	}
	for v, want := range map[float64]string{0: "0", 1.5: "1.50", 12.34: "12.3", 123.4: "123", 99_999: "99999", 123_456: "123k", 12_345_678: "12.3M"} {
		if got := evenness.Number(v); got != want || math.IsNaN(v) {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}
