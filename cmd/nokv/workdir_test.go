package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// refused starts a member that must not start, and returns what it said.
func refused(t *testing.T, c *cluster, member int) string {
	t.Helper()
	o := c.Options("refused", c.Args(member)...)
	p := proctest.Start(t, o)
	if code := p.Wait(recoverWithin); code != exitRefused {
		t.Errorf("%s: exit status %d, want %d", c.Name(member), code, exitRefused)
	}
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return lines[len(lines)-1]
}

func wantWords(t *testing.T, what, said string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%s: the message does not say %q:\n%s", what, w, said)
		}
	}
}

// settle publishes regions, waits until every peer has them, and stops peer 0.
func settle(t *testing.T, c *cluster) {
	t.Helper()
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	for i := range 20 {
		key := fmt.Sprintf("key-%03d", i)
		if r := c.Run("region", "publish", key, key+"~", "--coordinator-addr", c.Coordinators()); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
	}
	sameState(t, c)
	c.stop(0)
}

func TestWorkdirsOfSomebodyElse(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	settle(t, c)

	t.Run("in use", func(t *testing.T) {
		// Peer 2 runs; a second process on its folder, with ports of its own.
		args := c.Args(1)
		addrs := proctest.Addrs(t, 3)
		for i, a := range args {
			switch a {
			case "-addr":
				args[i+1] = addrs[0]
			case "-metrics-addr":
				args[i+1] = addrs[1]
			case "-transport-addr":
				args[i+1] = addrs[2]
			}
		}
		r := proctest.Run(t, c.Options("second", args...))
		if r.Code != exitRefused {
			t.Errorf("exit status %d, want %d", r.Code, exitRefused)
		}
		wantWords(t, "two processes on one workdir", r.Stderr, "in use", c.Workdir(1))
	})
	t.Run("port in use", func(t *testing.T) {
		args := c.Args(1)
		for i, a := range args {
			if a == "-workdir" {
				args[i+1] = t.TempDir()
			}
		}
		r := proctest.Run(t, c.Options("second", args...))
		if r.Code != exitRefused {
			t.Errorf("exit status %d, want %d", r.Code, exitRefused)
		}
		wantWords(t, "port in use", r.Stderr, c.RootAddrs[1], "another process")
	})
	aside := filepath.Join(c.Dir, "aside")
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("wiped", func(t *testing.T) {
		rename(c.Workdir(0), aside)
		defer func() {
			if err := os.RemoveAll(c.Workdir(0)); err != nil {
				t.Fatal(err)
			}
			rename(aside, c.Workdir(0))
		}()
		wantWords(t, "a wiped peer", refused(t, c, 0), "root peer 1", "wiped", "Restore the old workdir, or replace the peer")
	})
	t.Run("of another node", func(t *testing.T) {
		c.Kill(1)
		rename(c.Workdir(0), aside)
		rename(c.Workdir(1), c.Workdir(0))
		defer func() {
			rename(c.Workdir(0), c.Workdir(1))
			rename(aside, c.Workdir(0))
			c.Start(1)
		}()
		wantWords(t, "another node's workdir", refused(t, c, 0), "root peer 2", "root peer 1", "its own workdir")
	})
	t.Run("of another cluster", func(t *testing.T) {
		other := newCluster(t, 1)
		settle(t, other)
		rename(c.Workdir(0), aside)
		rename(other.Workdir(0), c.Workdir(0))
		defer func() {
			rename(c.Workdir(0), other.Workdir(0))
			rename(aside, c.Workdir(0))
		}()
		// Neither side can know which of them is wrong: both say so and have
		// nothing to do with each other.
		p := c.Start(0)
		p.WaitLog("belong to different clusters", recoverWithin)
		if err := c.Healthy(0); err == nil {
			t.Errorf("a peer with another cluster's workdir says it is healthy")
		}
		p.Kill()
		sameStateOf(t, c, 1, 2)
	})
	// After all that the rightful peer comes back and the cluster is whole.
	c.Start(0)
	c.WaitHealthy(recoverWithin)
	sameState(t, c)
}

func TestDamagedWorkdirs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	settle(t, c)
	if r := c.Run("root", "verify", c.Workdir(0)); r.Code != 0 {
		t.Fatalf("verify of a healthy workdir: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	seed := rand.Uint64()
	t.Logf("bits are flipped by seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	segments, err := filepath.Glob(filepath.Join(c.Workdir(0), "root.events.wal", "*"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	var status verifyOutput
	r := c.Run("root", "verify", c.Workdir(0), "-o", "json")
	if err := json.Unmarshal([]byte(r.Stdout), &status); err != nil || !status.OK || status.LastIndex == 0 {
		t.Fatalf("verify -o json: %v\n%s", err, r.Stdout)
	}
	for _, damage := range []struct {
		what, file string
		do         func(raw []byte) []byte
	}{
		{"a flipped bit in the log", segments[0], func(raw []byte) []byte {
			return flip(raw, bytes.Index(raw, []byte("key-010"))+rng.IntN(7), rng)
		}},
		{"a flipped bit in the segment's header", segments[0], func(raw []byte) []byte { return flip(raw, rng.IntN(16), rng) }},
		{"a log cut short", segments[0], func(raw []byte) []byte { return raw[:200] }},
		{"an empty log file", segments[0], func([]byte) []byte { return nil }},
		{"a flipped bit in identity and marks", filepath.Join(c.Workdir(0), "root.raft.bin"), func(raw []byte) []byte { return flipMany(raw) }},
		{"identity and marks cut short", filepath.Join(c.Workdir(0), "root.raft.bin"), func(raw []byte) []byte { return raw[:100] }},
	} {
		t.Run(damage.what, func(t *testing.T) {
			whole, err := os.ReadFile(damage.file)
			if err != nil {
				t.Fatal(err)
			}
			write := func(raw []byte) {
				t.Helper()
				if err := os.WriteFile(damage.file, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(damage.do(append([]byte(nil), whole...)))
			defer write(whole)
			v := c.Run("root", "verify", c.Workdir(0), "-o", "json")
			var out verifyOutput
			if err := json.Unmarshal([]byte(v.Stdout), &out); err != nil {
				t.Fatalf("verify -o json: %v\n%s%s", err, v.Stdout, v.Stderr)
			}
			if v.Code != exitRefused || out.OK || len(out.Damage) == 0 {
				t.Errorf("verify: exit status %d\n%s%s", v.Code, v.Stdout, v.Stderr)
			}
			said := refused(t, c, 0)
			wantWords(t, damage.what, said, filepath.Base(damage.file), "offset")
		})
	}
	t.Run("a lost log", func(t *testing.T) {
		aside := filepath.Join(c.Dir, "segment")
		if err := os.Rename(segments[0], aside); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.Rename(aside, segments[0]); err != nil {
				t.Fatal(err)
			}
		}()
		if r := c.Run("root", "verify", c.Workdir(0)); r.Code != exitRefused {
			t.Errorf("verify without the segment: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		wantWords(t, "a lost log", refused(t, c, 0), "root.events.wal")
	})
	c.Start(0)
	c.WaitHealthy(recoverWithin)
	sameState(t, c)
}

// flip turns one bit over.
func flip(raw []byte, at int, rng *rand.Rand) []byte {
	raw[at] ^= 1 << rng.IntN(8)
	return raw
}

// flipMany turns one bit over in every 512 bytes: a page that is in use is hit.
func flipMany(raw []byte) []byte {
	for i := 100; i < len(raw); i += 512 {
		raw[i] ^= 1
	}
	return raw
}
