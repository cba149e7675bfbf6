package oneline_test

import (
	"testing"

	"github.com/nokv/nokv/internal/oneline"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"two machines are replaced": "two machines are replaced",
		"a\nb":                      "a b",
		"\r\n a\t\x00\x7fb \n":      " a b ",
		"pay \u202eevil\u202c me":   "pay  evil  me",
		"a\u200bb\ufeff":            "a b",
		"\u0645\u06cc\u200c\u062e":  "\u0645\u06cc\u200c\u062e",
		"l1\u2028l2\u0085l3":        "l1 l2 l3",
		"x\xff\ny":                  "x\xff y",
		"\n\n":                      "",
	} {
		if got := oneline.Of(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		most       int
		text, want string
	}{{4, "abcd", "abcd"}, {3, "abcd", "abc"}, {3, "ab\u00e9", "ab"}, {4, "ab\u00e9", "ab\u00e9"}, {9, "x\xff\ny", "x? y"}, {0, "a", ""}} {
		if got := oneline.Within(c.most, c.text); got != c.want {
			t.Errorf("%q within %d is %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
