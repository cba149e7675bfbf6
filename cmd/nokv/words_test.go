package main

import (
	"slices"
	"strings"
	"testing"
)

// Words of members' commands that nobody can mean are wrong usage, before anybody is asked.
func TestMembersWords(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"events --region 0", "want an id of 1 or more"},
		{"worker --id w --host=", "without a port"},
		{"worker --id w --host 127.0.0.1:80", "without a port"},
		{"worker --id w --keyspaces=", "one is empty"},
		{"worker --id w --keyspaces ,,", "one is empty"},
		{"worker --id w --keyspaces a,b,a", "a stands twice"},
		{"worker --id w --keyspace a --keyspaces b,a", "a stands twice"},
		{"member register m1 127.0.0.1:1 --keyspace a,", "one is empty"},
		{"member register m1 127.0.0.1:1 --keyspaces a,a", "a stands twice"},
		{"sidecar --id g1 --address 127.0.0.1:1 --keyspace=", "one is empty"},
		{"sidecar --id g1 --address 127.0.0.1:1 --keyspaces a,b --keyspace a", "a stands twice"},
	} {
		wantRefused(t, c.line, exitUsage, c.want)
	}
}

// Who hosts regions is told of which keyspaces in one way, by any of two names.
func TestKeyspacesOfAMember(t *testing.T) {
	for _, line := range []string{"--keyspace a,b", "--keyspace a --keyspace b", "--keyspaces a,b", "--keyspaces a --keyspace b"} {
		for _, c := range []*command{workerCommand(), sidecarCommand(), memberRegister()} {
			f := newFlags(c.name, c)
			c.setup(f)
			if _, err := f.parse(strings.Fields(line)); err != nil {
				t.Errorf("nokv %s %s: %v", c.name, line, err)
			}
		}
		var got []string
		f := newFlags("any", &command{})
		f.keyspaces(&got)
		if _, err := f.parse(strings.Fields(line)); err != nil || !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
}

// A word that is nearly one of this program's is answered with that one, and no others.
func TestNearWords(t *testing.T) {
	for line, want := range map[string]string{
		"statu":                   `"statu". Did you mean status? (`,
		"stauts":                  `"stauts". Did you mean status? (`,
		"coord":                   `Did you mean coordinator? (`,
		"regin":                   `Did you mean region? (`,
		"explain":                 `"explain" (`,
		"keyspace lits":           `Did you mean list? (`,
		"x":                       `"x" (`,
		"-o json":                 "a command comes first",
		"tenure -o json":          "a command comes first",
		"worker --id w --keyspac": "there is no flag -keyspac. Did you mean keyspace or keyspaces? (",
		"dev --memb 3":            "Did you mean members? (",
		"dev --membrs=3":          "Did you mean members? (",
		"dev --nonsense":          "there is no flag -nonsense (",
	} {
		wantRefused(t, line, exitUsage, want)
	}
}
