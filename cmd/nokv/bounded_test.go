package main

import (
	"strings"
	"testing"
)

// An error repeats what the command line says, and no more of it than fits into a line,
// whoever made the sentence.
func TestErrorsRepeatLittle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 500)
	spaced := strings.Repeat("a b  c\n", 700)
	parts := strings.Repeat("x,", 2000)
	nobody := []string{"--endpoints", nobody(t), "--timeout", "100ms"}
	for _, args := range [][]string{
		{long},
		{"status", long},
		{"status", spaced},
		{"status", "--" + long},
		{"events", "--region", long},
		{"events", "--region=" + long},
		{"events", "--actor", long},
		{"worker", "--id", "w", "--members", long},
		{"worker", "--id", spaced},
		{"worker", "--id", "w", "--keyspace", parts},
		{"worker", "--id", "w", "--step", long},
		{"region", "get", "--region-id", long},
		{"region", "assign", long, "m1"},
		{"member", "register", "m1", long},
		{"member", "register", "m1", "h:" + long},
		append([]string{"member", "get", long}, nobody...),
		{"member", "list", "--endpoints", long},
		{"member", "list", "--endpoints", "a:1," + long + ":2"},
		{"member", "list", "--certs", "/" + long},
		{"keyspace", "create", "k", "--preset", long},
		{"keyspace", "create", "k", "--settings", long},
		{"keyspace", "create", "k", "--settings", `{"preset":"` + long + `","x":1}`},
		{"keyspace", "create", "k", "--liveness-dead-after", long},
		{"keyspace", "create", "k", "--label", long},
		{"region", "publish", `\x` + long, "b"},
		{"cert", "show", long},
		{"cert", "show", "/tmp/" + long},
		{"root", "verify", "--workdir", long},
		{"meta-root", "--peer", long},
		{"help", long},
	} {
		r := here(t, nil, args...)
		name := strings.Join(args, " ")
		name = name[:min(len(name), 50)]
		if r.Code == exitOK || r.Stderr == "" || len(r.Stderr) > 1000 {
			t.Errorf("nokv %s: exit status %d, an error of %d bytes: %.300s", name, r.Code, len(r.Stderr), r.Stderr)
		}
	}
}

func TestBounded(t *testing.T) {
	long := strings.Repeat("é", 60)
	for _, c := range []struct{ sentence, said, want string }{
		{"there is no member \"m1\"", "m1", "there is no member \"m1\""},
		{"no " + long + " is", long, "no " + strings.Repeat("é", 25) + "... (120 bytes) is"},
		{"no " + long + " is", "--to=" + long, "no " + strings.Repeat("é", 25) + "... (120 bytes) is"},
		{"no " + long + " is", "x", "no " + long + " is"},
	} {
		if got := bounded(c.sentence, []string{"a", c.said}); got != c.want {
			t.Errorf("%q of %q is %q, want %q", c.sentence, c.said, got, c.want)
		}
	}
}
