package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/test/size"
)

var (
	replaces    = size.Int("replaces", 2, 20, "replace so many root peers in TestReplaceALostRootPeer, each in a cluster of its own: lost followers, lost leaders and living followers in turn, which first the seed says")
	replaceSeed = flag.Uint64("replace-seed", 0, "seed of TestReplaceALostRootPeer; 0: a new one")
)

// TestReplaceALostRootPeer is number 24 of the bad things: a root peer is killed,
// its disk is gone, and another one takes its place, while nobody's request fails.
// Then another old peer is killed: what serves on has the new one's vote.
func TestReplaceALostRootPeer(t *testing.T) {
	t.Parallel()
	seed := *replaceSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for n := range *replaces {
		role := []string{"a follower", "the leader", "a living one"}[(seed%3+uint64(n))%3]
		t.Run(role, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			t.Logf("again with -replace-seed %d -replaces %d", seed, n+1)
			replaceOne(t, rand.New(rand.NewPCG(seed, uint64(n))), role)
		})
	}
}

// replaceOne replaces one root peer and checks everything.
func replaceOne(t *testing.T, rng *rand.Rand, role string) {
	r := &replacing{t: t, c: newCluster(t, 2)}
	r.c.StartAll()
	r.c.WaitHealthy(recoverWithin)
	l := startPacedLoad(t, r.c.CoordinatorAddrs, tryFor, 2*time.Millisecond)
	l.waitProgress(lowLoad, recoverWithin, "before the loss")

	lost, refusal := leaderOf(t, r.c), itLeads
	if role != "the leader" {
		lost, refusal = (lost+1+rng.IntN(2))%3, "is alive: stop it first"
	}
	r.lost, r.node = lost, 4
	r.refuse("has not knocked")
	r.join()
	r.refuse(refusal, func() error { return r.lead(role == "the leader") })
	killed := time.Now()
	if role != "a living one" {
		r.lose()
		l.waitProgress(lowLoad, recoverWithin, "after the loss")
	}
	if role == "a follower" {
		r.giveUp()
		r.node = 5
		r.join()
	}
	began := time.Now()
	r.replace(role == "a living one")
	done := time.Now()
	r.waitHealthy()
	l.waitProgress(lowLoad, recoverWithin, "with the new root peer")
	if role == "a living one" {
		r.c.Kill(lost)
	}
	r.nothingAway()

	// Two of three are left, and one of the two is new.
	second := (lost + 1 + rng.IntN(2)) % 3
	died := time.Now()
	r.c.Kill(second)
	l.waitProgress(lowLoad, recoverWithin, "with the new root peer and one old one")
	end := time.Now()
	if role == "a living one" {
		r.comeBack()
	} else {
		wantWords(t, "the lost peer with an empty workdir", refused(t, r.c, lost), fmt.Sprintf("root peer %d that was replaced", lost+1), "never used")
	}
	r.c.Start(second)
	l.finish()
	ctx, cancel := context.WithTimeout(t.Context(), recoverWithin)
	defer cancel()
	cl, err := client.New(client.Config{Endpoints: r.c.CoordinatorAddrs})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	l.judge(ctx, cl)
	r.sameState()
	r.restart()
	for kind := range loadKinds {
		if n := l.failed[kind].Load(); n > 0 {
			t.Errorf("%d %s failed with a deadline of %s; the last error of the load: %s", n, kind, tryFor, *l.lastErr.Load())
		}
	}
	testreport.Linef(t, "root peer replaced, real processes: %s, replaced in %s; longest time without a timestamp: %s at the kill, %s while it was replaced, %s at the kill of another one; %d answers, none failed",
		role, done.Sub(began).Round(time.Millisecond), l.tsoGap(killed, began).Round(time.Millisecond),
		l.tsoGap(began, done).Round(time.Millisecond), l.tsoGap(died, end).Round(time.Millisecond),
		len(l.ids)+len(l.timestamps)+l.acknowledged())
}

// replacing is a cluster of which one root peer is replaced.
type replacing struct {
	t *testing.T
	c *cluster
	// lost counts from 0; node is the new peer's id.
	lost, node int
	options    proctest.Options
	metrics    string
	joiner     *proctest.Process
}

// lose kills a root peer and deletes its workdir.
func (r *replacing) lose() {
	r.t.Helper()
	r.c.Kill(r.lost)
	if err := os.RemoveAll(r.c.Workdir(r.lost)); err != nil {
		r.t.Fatal(err)
	}
}

// join starts a new peer as the documentation says: it knows those that are left.
func (r *replacing) join() {
	r.t.Helper()
	addrs := proctest.Addrs(r.t, 3)
	r.metrics = addrs[2]
	name := fmt.Sprintf("meta-root-%d", r.node)
	args := []string{
		"meta-root", "-join", "-node-id", fmt.Sprint(r.node), "-workdir", filepath.Join(r.c.Dir, name),
		"-addr", addrs[0], "-transport-addr", addrs[1], "-metrics-addr", addrs[2],
	}
	for i, a := range r.c.TransportAddrs {
		if i != r.lost {
			args = append(args, "-peer", fmt.Sprintf("%d=%s", i+1, a))
		}
	}
	if r.c.Certs != nil {
		args = append(args, "-certs", r.c.Certs.Of(principal.Root, fmt.Sprint(r.node)))
	}
	r.options = r.c.Options(name, args...)
	r.options.Log = filepath.Join(r.c.Dir, name+".log")
	r.joiner = proctest.Start(r.t, r.options)
}

func (r *replacing) command(flags ...string) []string {
	return append(append([]string{"root", "replace", "--with", fmt.Sprint(r.node)}, flags...), r.c.RootFlags()...)
}

func (r *replacing) lostFlag() string { return fmt.Sprintf("--lost=%d", r.lost+1) }

// itLeads is in the refusal to replace the peer that leads.
const itLeads = "leads: hand leadership over"

// lead hands leadership to the peer that is to be replaced, or away from it: on a
// busy machine it goes where it likes. No error: it was there already.
func (r *replacing) lead(leads bool) error {
	r.t.Helper()
	if (leaderOf(r.t, r.c) == r.lost) == leads {
		return nil
	}
	to := 0 // anybody
	if leads {
		to = r.lost + 1
	}
	run := r.c.Run(append([]string{"root", "transfer", "--to", fmt.Sprint(to)}, r.c.RootFlags()...)...)
	return fmt.Errorf("root peer %d leads: %t, want %t; root transfer: %s%s", r.lost+1, !leads, leads, run.Stdout, run.Stderr)
}

// refuse runs the command until it is refused with words, each time when all
// conditions hold.
func (r *replacing) refuse(words string, when ...func() error) {
	r.t.Helper()
	proctest.Eventually(r.t, recoverWithin, func() error {
		for _, holds := range when {
			if err := holds(); err != nil {
				return err
			}
		}
		run := r.c.Run(r.command(r.lostFlag(), "--timeout", "1s")...)
		if run.Code == exitOK || !strings.Contains(run.Stderr, words) {
			return fmt.Errorf("exit status %d, %s%s, want %q", run.Code, run.Stdout, run.Stderr, words)
		}
		return nil
	})
}

// giveUp begins with a new peer that stops before it has anything, and gives it up.
func (r *replacing) giveUp() {
	r.t.Helper()
	r.joiner.Signal(syscall.SIGSTOP)
	r.refuse(fmt.Sprintf("not finished: root peer %d catches up", r.node))
	var peers []rootPeerOutput
	rootCommandJSON(r.t, r.c, &peers, append([]string{"root", "status"}, r.c.RootFlags()...)...)
	if p := peers[len(peers)-1]; p.NodeID != uint64(r.node) || p.PeerRole != "learner" || p.Replaces != uint64(r.lost+1) {
		r.t.Errorf("the peer that does not come is %+v", p)
	}
	for range 2 {
		var out replaceOutput
		rootCommandJSON(r.t, r.c, &out, r.command("--cancel")...)
		if out.Stage != "cancelled" || out.Lost != uint64(r.lost+1) || out.With != uint64(r.node) {
			r.t.Errorf("cancel says %+v", out)
		}
	}
	r.joiner.Signal(syscall.SIGCONT)
	if code := r.joiner.Wait(recoverWithin); code != exitRefused {
		r.t.Errorf("the peer that was given up: exit status %d, want %d", code, exitRefused)
	}
	wantWords(r.t, "the peer that was given up", r.joiner.Log(), "given up", "never used")
}

// replace runs the command, and once more: it is done already, and says so to people.
func (r *replacing) replace(force bool) {
	r.t.Helper()
	var out replaceOutput
	proctest.Eventually(r.t, recoverWithin, func() error {
		if force { // it lives, and may lead
			if err := r.lead(false); err != nil {
				return err
			}
		}
		run := r.c.Run(r.command(r.lostFlag(), "--timeout", recoverWithin.String(), "-o", "json", fmt.Sprintf("--force=%t", force), "--why", "its disk is lost")...)
		if strings.Contains(run.Stderr, itLeads) {
			return errors.New(run.Stderr) // by now
		}
		if err := json.Unmarshal([]byte(run.Stdout), &out); run.Code != exitOK || err != nil {
			r.t.Fatalf("root replace: exit status %d, %v\n%s%s", run.Code, err, run.Stdout, run.Stderr)
		}
		return nil
	})
	events := r.c.Run(append([]string{"root", "events", "--last", "100000"}, r.c.RootFlags()...)...).Stdout
	by := `why "its disk is lost"`
	if r.c.Certs != nil {
		by = "by operator/test  " + by
	}
	for _, kind := range []string{"root_peer_added", "root_peer_promoted"} {
		if !slices.ContainsFunc(strings.Split(events, "\n"), func(line string) bool { return strings.Contains(line, " "+kind+" ") && strings.Contains(line, by) }) {
			r.t.Errorf("root events has no %s %s", kind, by)
		}
	}
	if out.Stage != "done" || out.Lost != uint64(r.lost+1) || out.With != uint64(r.node) || out.TransportAddress == "" || out.Address == "" {
		r.t.Errorf("replace says %+v", out)
	}
	again := r.c.Run(r.command(r.lostFlag())...)
	wantWords(r.t, "replace when it is done", again.Stdout,
		fmt.Sprintf("Root peer %d votes in the place of root peer %d", r.node, r.lost+1),
		fmt.Sprintf("%d=%s for %d", r.node, out.TransportAddress, r.lost+1), fmt.Sprintf("%d=%s", r.node, out.Address),
		fmt.Sprintf("Do not start root peer %d again", r.lost+1))
	if again.Code != exitOK || again.Stderr != "" {
		r.t.Errorf("replace when it is done: exit status %d\n%s", again.Code, again.Stderr)
	}
}

// comeBack starts the replaced peer with its old workdir: it is told what it is, and
// ends.
func (r *replacing) comeBack() {
	r.t.Helper()
	again := r.c.Start(r.lost)
	if code := again.Wait(recoverWithin); code != exitRefused {
		r.t.Errorf("the replaced peer with its old workdir: exit status %d, want %d", code, exitRefused)
	}
	wantWords(r.t, "the replaced peer", again.Log(), fmt.Sprintf("root peer %d was replaced by root peer %d", r.lost+1, r.node), "keep its workdir from being started")
}

func (r *replacing) waitHealthy() {
	r.t.Helper()
	proctest.Eventually(r.t, recoverWithin, func() error {
		if !r.joiner.Running() {
			r.t.Fatalf("root peer %d ended early", r.node)
		}
		resp, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + r.metrics + "/healthz")
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("root peer %d: /healthz answers %s, %w", r.node, resp.Status, err)
		}
		return nil
	})
}

// nothingAway waits until nokv status misses nobody: the coordinators still have the lost peer in
// their flags.
func (r *replacing) nothingAway() {
	r.t.Helper()
	proctest.Eventually(r.t, recoverWithin, func() error {
		run := r.c.Run("status", "-o", "json", "--coordinator-addr", r.c.Coordinators())
		var s statusOutput
		if err := json.Unmarshal([]byte(run.Stdout), &s); err != nil {
			return fmt.Errorf("status: %w: %s", err, run.Stderr)
		}
		voters := 0
		for _, p := range s.RootPeers {
			if p.Replaced == p.Reachable || p.NodeID == uint64(r.lost+1) && !p.Replaced {
				return fmt.Errorf("root peer %+v", p)
			}
			if !p.Replaced {
				voters++
			}
		}
		if s.State != stateNoMembers || s.StateWhy != "no member is active" || voters != 3 {
			return fmt.Errorf("%s: %s; root peers %+v", s.State, s.StateWhy, s.RootPeers)
		}
		return nil
	})
}

// sameState waits until the peers that are left have applied the same, and
// compares what they say: with the old list of root peers, which finds the new one.
func (r *replacing) sameState() {
	r.t.Helper()
	proctest.Eventually(r.t, recoverWithin, func() error {
		run := r.c.Run(append([]string{"root", "status", "-o", "json"}, r.c.RootFlags()...)...)
		var peers []rootPeerOutput
		if err := json.Unmarshal([]byte(run.Stdout), &peers); err != nil || len(peers) != 4 {
			return fmt.Errorf("root status: %w\n%s%s", err, run.Stdout, run.Stderr)
		}
		var first *rootPeerOutput
		for i := range peers {
			p := &peers[i]
			if p.NodeID == uint64(r.lost+1) {
				if p.PeerRole != "replaced" {
					r.t.Errorf("the lost peer is %+v", p)
				}
				continue
			}
			if first == nil {
				first = p
			}
			if p.PeerRole != "voter" || p.AppliedIndex == 0 || p.AppliedIndex != first.AppliedIndex {
				return fmt.Errorf("nodes %d and %d have applied %d and %d; %d is a %s", first.NodeID, p.NodeID, first.AppliedIndex, p.AppliedIndex, p.NodeID, p.PeerRole)
			}
			if p.StateHash != first.StateHash {
				r.t.Fatalf("at index %d node %d has state hash %s, node %d has %s", p.AppliedIndex, p.NodeID, p.StateHash, first.NodeID, first.StateHash)
			}
		}
		return nil
	})
}

// restart stops everything and starts it with the command lines it had: the old
// peers with the list that has the lost one, the new one with -join.
func (r *replacing) restart() {
	r.t.Helper()
	stop := func(p *proctest.Process, what string) {
		r.t.Helper()
		p.Signal(syscall.SIGTERM)
		if code := p.Wait(recoverWithin); code != 0 {
			r.t.Errorf("%s: exit status %d after SIGTERM, want 0", what, code)
		}
	}
	for i := r.c.Size() - 1; i >= 0; i-- {
		if i != r.lost {
			stop(r.c.Process(i), r.c.Name(i))
		}
	}
	stop(r.joiner, "the new peer")
	for i := range r.c.Size() {
		if i != r.lost {
			r.c.Start(i)
		}
	}
	r.joiner = proctest.Start(r.t, r.options)
	r.waitHealthy()
	run := r.c.Run("id", "--timeout", recoverWithin.String(), "--coordinator-addr", r.c.Coordinators())
	if run.Code != 0 {
		r.t.Errorf("an id after the restart: %s", strings.TrimSpace(run.Stderr))
	}
	r.sameState()
}
