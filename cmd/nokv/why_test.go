package main

import (
	"strings"
	"testing"
)

// The words of --why are text that the log takes: whatever is not is a usage error.
func TestWhyIsText(t *testing.T) {
	for text, want := range map[string]string{
		"upgrade to 2.1, für alle": "", "x\xff": "not UTF-8", strings.Repeat("ä", 129): "258 bytes, want at most 256",
	} {
		f := newFlags("nokv test", &command{})
		got := f.why()
		_, err := f.parse([]string{"--why", text})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--why %q: %v, want %q", text, err, want)
		}
		if err == nil && *got != text {
			t.Errorf("--why %q is %q", text, *got)
		}
	}
}
