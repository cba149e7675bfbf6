package keytext_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nokv/nokv/internal/keytext"
)

// Text is shown as it is, and what is none by its bytes; both are read back.
func TestKeysAreReadBackAsTheyAreShown(t *testing.T) {
	for _, row := range []struct{ key, shown string }{
		{"", ""},
		{"cart/17", "cart/17"},
		{"a b", "a b"},
		{"Käse", "Käse"},
		{`a\b`, `a\\b`},
		{`\x41`, `\\x41`},
		{"a\x00", `a\x00`},
		{"line\nend", `line\x0aend`},
		{"\x7f", `\x7f`},
		{"ä\xff", `\xc3\xa4\xff`},
		{"\uFFFD", `\xef\xbf\xbd`}, // it is what others show for bytes that are no text
	} {
		if got := keytext.Show([]byte(row.key)); got != row.shown {
			t.Errorf("%q is shown as %s, want %s", row.key, got, row.shown)
		}
		if got, err := keytext.Parse(row.shown); err != nil || string(got) != row.key {
			t.Errorf("%s is read as %q, %v, want %q", row.shown, got, err, row.key)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		key := make([]byte, r.IntN(12))
		for i := range key {
			key[i] = []byte{0, '\n', ' ', 'x', '4', '\\', 0x7f, 0xc3, 0xa4, 0xff, byte(r.Uint32())}[r.IntN(11)]
		}
		shown := keytext.Show(key)
		if got, err := keytext.Parse(shown); err != nil || !bytes.Equal(got, key) {
			t.Fatalf("%q is shown as %s and read as %q, %v", key, shown, got, err)
		}
		if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			t.Fatalf("%q is shown as %q, which is not for people", key, shown)
		}
	}
}

func TestKeysThatAreWrittenWrongSayHow(t *testing.T) {
	for text, says := range map[string]string{
		`\`: `\xNN`, `a\`: `\xNN`, `\n`: `\xNN`, `\x`: `\xNN`, `\x4`: `\xNN`, `\X41`: `\xNN`, `\xg1`: "two hex digits", `\x 1`: "two hex digits", `ok\\\`: `\xNN`,
	} {
		if got, err := keytext.Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is read as %q, %v, want an error with %s", text, got, err, says)
		}
	}
	if got, err := keytext.Parse(`\xAf\xfF`); err != nil || string(got) != "\xaf\xff" {
		t.Errorf("in capitals: %q %v", got, err)
	}
}
