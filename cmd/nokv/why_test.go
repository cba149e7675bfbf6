package main

import (
	"slices"
	"strings"
	"testing"
)

// The words of --why are text that the log takes: whatever is not is a usage error.
func TestWhyIsText(t *testing.T) {
	for text, want := range map[string]string{
		"upgrade to 2.1, für alle": "", strings.Repeat("ä", 128): "", strings.Repeat("ä", 129): "want one line", "x\xff": "want one line",
		"a\nb": "-why \"a\\nb\": want one line of UTF-8 text, at most 256 bytes, without control characters", "a\x7fb": "want one line",
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

// unrooted are the commands that change nothing rooted, or offline: no log has what
// they do. Whoever adds a command that changes something gives it --why.
var unrooted = []string{
	"access check", "access list", "bench", "bench claim", "bench echo", "bench failover", "bench heartbeat", "bench id", "bench idle", "bench move", "bench placement", "bench publish", "bench route", "bench tso", "bench watches", "cert init", "cert issue", "cert renew", "cert show", "config get",
	"coordinator", "coordinator list", "dev", "events", "id", "keyspace get", "keyspace list", "keyspace settings", "member get", "member list", "meta-root", "pin open", "proxy", "region get", "region list",
	"root backup", "root events", "root restore", "root settings", "root status", "root transfer", "root verify", "serve", "sidecar", "status", "transition list", "tso",
	"version", "watch", "witness", "worker",
}

func TestEveryChangeTakesWhy(t *testing.T) {
	eachCommand(commands(), nil, func(c *command, path []string) {
		if c.setup == nil {
			return
		}
		name := strings.Join(path, " ")
		f := newFlags("nokv "+name, c)
		c.setup(f)
		if takes := f.Lookup("why") != nil; takes == slices.Contains(unrooted, name) {
			t.Errorf("nokv %s takes --why: %t", name, takes)
		}
	})
}
