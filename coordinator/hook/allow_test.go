package hook_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/hook"
)

// allowing is a Client for what these rules allow.
func allowing(t *testing.T, rules ...string) *hook.Client {
	t.Helper()
	allow, err := hook.ParseAllow(rules...)
	if err != nil {
		t.Fatal(err)
	}
	c := hook.NewClient(allow)
	t.Cleanup(c.Close)
	return c
}

// A hook is asked where the operators allow it, by name or address and by port, and nowhere else: nobody has
// coordinators send anything to themselves, to their machine's metadata, or to what a name leads to.
func TestHooksGoWhereOperatorsAllow(t *testing.T) {
	reached := 0
	at := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		reached++
		_, _ = w.Write([]byte(`{"owners":{}}`))
	})
	port := at[strings.LastIndex(at, ":")+1:]
	loopback := "http://127.0.0.1:" + port
	byName := "http://localhost:" + port
	for _, c := range []struct {
		rules   []string
		url     string
		allowed bool
	}{
		{nil, loopback, false},
		{[]string{"127.0.0.1"}, loopback, true},
		{[]string{"127.0.0.1:" + port}, loopback + "/place?a", true},
		{[]string{"127.0.0.1:1"}, loopback, false},
		{[]string{"127.0.0.0/8"}, loopback, true},
		{[]string{"127.0.0.0/8:" + port}, loopback, true},
		{[]string{"0.0.0.0/0", "::/0", "126.0.0.0/7"}, loopback, false},
		{[]string{"127.0.0.1"}, "http://[::ffff:127.0.0.1]:" + port, true},
		{[]string{"0.0.0.0/0", "::/0"}, "http://[::ffff:127.0.0.1]:" + port, false},
		{[]string{"0.0.0.0/0"}, "http://0.0.0.0:" + port, false},
		{[]string{"0.0.0.0/0"}, "http://169.254.169.254/latest/meta-data", false},
		{[]string{"::/0"}, "http://[fe80::1%25lo]:" + port, false},
		{[]string{"localhost"}, byName, false}, // it leads to loopback, which nobody named
		{[]string{"localhost", "127.0.0.0/8", "::1"}, byName, true},
		{[]string{"LocalHost.:" + port, "127.0.0.0/8", "::1"}, byName, true},
		{[]string{"localhost:1", "127.0.0.0/8", "::1"}, byName, false},
		{[]string{"127.0.0.0/8", "::1"}, byName, false}, // a name that nobody named
		{[]string{"*.example.com"}, "http://example.com", false},
		{[]string{"example.com:443"}, "http://example.com", false},
	} {
		before := reached
		_, err := allowing(t, c.rules...).Place(t.Context(), c.url, asked())
		if refused := hook.WhyOf(err) == hook.NotAllowed; err != nil && !refused || refused == c.allowed || (reached > before) != c.allowed {
			t.Errorf("%q, %s: %v, and it was reached: %t", c.rules, c.url, err, reached > before)
		}
		if err != nil && !strings.Contains(err.Error(), "--hook-allow") {
			t.Errorf("%q, %s: no way out in %v", c.rules, c.url, err)
		}
	}
	_, err := allowing(t).Place(t.Context(), strings.Replace(loopback, "http://", "http://user:secret@", 1)+"?secret", asked())
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a refusal tells secrets: %v", err)
	}
	for _, text := range []string{"", "*", "a b", "a/b", "a:0", "a:x", "http://a", "10.0.0.0/33", "*.", "a*"} {
		if _, err := hook.ParseAllow(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What is shown of the address of a hook has no user, password and query.
func TestAddressesHaveNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"https://place.example/a":         "https://place.example/a",
		"https://u:p@place.example/a?k#f": "https://place.example/a",
		"http://10.0.0.1:8080/a%2Fb":      "http://10.0.0.1:8080/a%2Fb",
		"::":                              "",
	} {
		if got := hook.Address(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
