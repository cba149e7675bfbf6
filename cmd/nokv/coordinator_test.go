package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Whoever reads the log of a coordinator whose root came back as another cluster
// reads that, and not only that nobody answered at first.
func TestWhyTheRootIsOutOfReach(t *testing.T) {
	silent := reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no root leader answered")
	another := reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "it was restored")
	synctest.Test(t, func(t *testing.T) {
		var out written.Text
		answers := []error{nil, silent, silent, another, silent, another, nil, nil, another, errors.New("something else"), nil}
		ctx, end := context.WithCancel(t.Context())
		reportRoot(ctx, func(context.Context) error {
			if len(answers) == 1 {
				end()
			}
			err := answers[0]
			answers = answers[1:]
			return err
		}, hclog.New(&hclog.LoggerOptions{Output: &out, TimeFn: time.Now}))
		var words []string
		for line := range strings.Lines(out.String()) {
			for _, word := range []string{"no root leader answered", "it was restored", "something else", "root is back"} {
				if strings.Contains(line, word) {
					words = append(words, word)
				}
			}
		}
		const want = "no root leader answered, it was restored, root is back, it was restored, something else"
		if got := strings.Join(words, ", "); got != want {
			t.Errorf("the log says %q, want %q:\n%s", got, want, &out)
		}
	})
}

// A coordinator has no files: it runs in a folder where it may write, leaves nothing there,
// and another one that knows nothing of it goes on from what is rooted.
func TestC15CoordinatorKeepsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	at := c.Size() - 1
	for i := range at {
		c.Start(i)
	}
	var ids []string
	for range 2 {
		dir := t.TempDir()
		o := c.Options(c.Name(at), c.Args(at)...)
		o.Dir, o.Env = dir, append(o.Env[:len(o.Env):len(o.Env)], "HOME="+dir, "TMPDIR="+dir, "XDG_CACHE_HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_STATE_HOME="+dir)
		p := proctest.Start(t, o)
		if len(ids) == 0 {
			proctest.Eventually(t, recoverWithin, func() error { return c.Healthy(at) })
			if r := c.Run("keyspace", "create", "kept", "--preset", "games", "--coordinator-addr", c.Coordinators()); r.Code != exitOK {
				t.Fatalf("exit status %d: %s", r.Code, r.Stderr)
			}
		}
		r := c.Run("id", "--coordinator-addr", c.Coordinators(), "--timeout", recoverWithin.String())
		if r.Code != exitOK {
			t.Fatalf("exit status %d: %s", r.Code, r.Stderr)
		}
		ids = append(ids, strings.TrimSpace(r.Stdout))
		if r := c.Run("keyspace", "get", "kept", "--strong", "--coordinator-addr", c.Coordinators()); r.Code != exitOK {
			t.Errorf("exit status %d: %s", r.Code, r.Stderr)
		}
		p.Kill()
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	}
	if ids[0] == "" || ids[0] == ids[1] {
		t.Errorf("the ids are %q", ids)
	}
}

// Of two coordinators with one id the registered one goes on undisturbed, and the later one
// ends however often it is started; when the first is dead the later one takes its place.
func TestTwoCoordinatorsWithOneID(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	at := c.Size() - 1
	addrs := proctest.Addrs(t, 2)
	later := c.Args(at)
	for i, a := range later {
		switch a {
		case "-addr":
			later[i+1] = addrs[0]
		case "-metrics-addr":
			later[i+1] = addrs[1]
		}
	}
	first := c.Process(at)
	for range 3 {
		p := proctest.Start(t, c.Options("later", later...))
		if code := p.Wait(recoverWithin); code == exitOK || !strings.Contains(p.Log(), "another coordinator process runs under this id") {
			t.Errorf("exit status %d of the later one:\n%s", code, p.Log())
		}
	}
	if !first.Running() || strings.Contains(first.Log(), "superseded") {
		t.Errorf("the first one is disturbed:\n%s", first.Log())
	}
	if r := c.Run("id", "--coordinator-addr", c.Coordinators(), "--timeout", recoverWithin.String()); r.Code != exitOK {
		t.Errorf("exit status %d of a call of the first one: %s", r.Code, r.Stderr)
	}
	first.Kill()
	heir := proctest.Start(t, c.Options("heir", later...))
	proctest.Eventually(t, recoverWithin, func() error {
		if !heir.Running() {
			t.Fatalf("the later one ended though the first is dead:\n%s", heir.Log())
		}
		r := c.Run("status", "-o", "json", "--coordinator-addr", addrs[0])
		if r.Code != exitOK || strings.Contains(r.Stdout, c.CoordinatorAddrs[0]) {
			return errors.New("the first one is registered still: " + r.Stderr)
		}
		return nil
	})
}
