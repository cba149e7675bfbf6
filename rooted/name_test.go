package rooted_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/rooted"
)

func TestIDsCanBeToldApart(t *testing.T) {
	for id, want := range map[string]string{
		"": "", "m1": "", "store-7": "", "eu/rack-2/m1": "", "größe": "", "会員": "", "a..b": "", "...": "", "a/.../b": "", "m1/": "",
		"m1\n": "not seen", "m1\x7f": "not seen", "m\u00851": "not seen", "m1\u202e": `"m1\u202e" has a character that is not seen or that turns the line`,
		"m\u200b1": "not seen", "m1\ufeff": "not seen", "m\u20281": "not seen", "m\u00a01": "not seen", "m\u3000": "not seen", "\u3164": "not seen",
		"m1\ufe0f": "not seen", "m\U000e0031": "not seen", "m\u034f1": "not seen", "m\u00ad1": "not seen", "\u061cm1": "not seen",
		"m 1": "has a space", "..": `has the part ".."`, ".": `has the part "."`, "../m1": `has the part ".."`, "m1/..": `has the part ".."`, `a\..\b`: `has the part ".."`,
	} {
		err := rooted.CheckID("member id", id)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+q: %v, want %q", id, err, want)
		}
	}
	if err := rooted.CheckShown("label", "two words, a/.."); err != nil {
		t.Error(err)
	}
}
