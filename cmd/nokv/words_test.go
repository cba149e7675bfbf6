package main

import (
	"bytes"
	"context"
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
		{"member register m1 127.0.0.1:1 --keyspaces a,", "one is empty"},
		{"member register m1 127.0.0.1:1 --keyspaces a,a", "a stands twice"},
	} {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // what is not refused must not go on
		code := run(ctx, strings.Fields(c.line), &env{stdout: &stdout, stderr: &stderr})
		if code != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("nokv %s: exit status %d, %s", c.line, code, stderr.String())
		}
	}
}
