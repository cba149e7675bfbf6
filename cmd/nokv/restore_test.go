package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// numbersAsker asks for ids and timestamps, from clients of its own, and keeps what
// it was given.
type numbersAsker struct {
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	grants []*history.Grant
	last   error
}

// startRecorder records until finish; began is the zero of all its times.
func startRecorder(t *testing.T, endpoints []string, began time.Time) *numbersAsker {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &numbersAsker{began: began, stop: stop}
	for i := range 4 {
		cl, err := client.New(client.Config{Endpoints: endpoints})
		if err != nil {
			t.Fatal(err)
		}
		r.wg.Go(func() {
			defer cl.Close()
			for n := uint64(1); ctx.Err() == nil; n++ {
				r.call(ctx, cl, i%2 == 0, 1+n%2000)
			}
		})
	}
	t.Cleanup(r.finish)
	return r
}

func (r *numbersAsker) finish() {
	r.stop()
	r.wg.Wait()
}

func (r *numbersAsker) call(ctx context.Context, cl *client.Client, ids bool, count uint64) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	g := &history.Grant{Mandate: rootv1.Mandate_MANDATE_TSO, Count: count, Called: time.Since(r.began)}
	var err error
	if ids {
		g.Mandate = rootv1.Mandate_MANDATE_ALLOC_ID
		var got client.IDs
		got, err = cl.AllocID(ctx, count)
		g.First, g.Era = got.First, uint64(got.Era)
	} else {
		var got client.Timestamps
		got, err = cl.Tso(ctx, count)
		g.First, g.Era = uint64(got.First), uint64(got.Era)
	}
	g.Returned = time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.last = err
		return
	}
	r.grants = append(r.grants, g)
}

// waitMore waits for n grants of each kind more, and returns how long that took.
func (r *numbersAsker) waitMore(t *testing.T, n int) time.Duration {
	t.Helper()
	count := func() (ids, tso int, last error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, g := range r.grants {
			if g.Mandate == rootv1.Mandate_MANDATE_TSO {
				tso++
			} else {
				ids++
			}
		}
		return ids, tso, r.last
	}
	begin := time.Now()
	ids, tso, _ := count()
	proctest.Eventually(t, recoverWithin, func() error {
		i, s, last := count()
		if i < ids+n || s < tso+n {
			return fmt.Errorf("%d id runs and %d timestamp runs more, want %d; last error: %w", i-ids, s-tso, n, last)
		}
		return nil
	})
	return time.Since(begin)
}

// rootCommandJSON runs a command and decodes what it prints.
func rootCommandJSON(t *testing.T, c *cluster, out any, args ...string) {
	t.Helper()
	r := c.Run(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(r.Stdout), out); r.Code != 0 || err != nil {
		t.Fatalf("nokv %s: exit status %d, %v\n%s%s", strings.Join(args, " "), r.Code, err, r.Stdout, r.Stderr)
	}
}

// TestRestore is number 27 of the bad things: every root peer is lost, and what
// a backup holds goes on as a new cluster. Ids and timestamps that the old one
// gave out behind the backup are given out by nobody again, and what still runs
// of it is refused by name.
func TestRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	began := time.Now()
	old := startRecorder(t, c.CoordinatorAddrs, began)
	for _, key := range []string{"a", "b", "c"} {
		if r := c.Run("region", "publish", key, key+"~", "--coordinator-addr", c.Coordinators()); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
	}
	pinned, err := client.New(client.Config{Endpoints: c.CoordinatorAddrs[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	if _, err := pinned.AllocID(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	old.waitMore(t, 20)
	file := filepath.Join(t.TempDir(), "backup")
	var taken, verified backupOutput
	rootCommandJSON(t, c, &taken, append([]string{"root", "backup", "--out", file}, c.RootFlags()...)...)
	rootCommandJSON(t, c, &verified, "root", "verify", file)
	if taken != verified || taken.Regions != 3 {
		t.Errorf("root verify says %+v, root backup said %+v with 3 regions", verified, taken)
	}
	if r := c.Run("witness", "--backup", file); r.Code != exitOK && (r.Code != exitUnavailable || strings.Contains(r.Stdout, "BROKEN")) { // or a handover was half way
		t.Errorf("the Witness of the backup: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := c.Run(append([]string{"root", "backup", "--out", file}, c.RootFlags()...)...); r.Code != exitRefused || !strings.Contains(r.Stderr, "nothing is written over") {
		t.Errorf("a second backup to the same file: exit status %d, %s", r.Code, r.Stderr)
	}
	// The old cluster goes on: windows are rooted that the backup does not know.
	proctest.Eventually(t, recoverWithin, func() error {
		if now := rootStatusOf(t, c)[0]; now.IDFence <= taken.IDFence || now.TSOFence <= taken.TSOFence {
			return errors.New("no window was rooted behind the backup")
		}
		return nil
	})
	old.waitMore(t, 20)
	old.finish()

	// Every root peer is lost. One coordinator stays, and one peer comes back.
	for i := range c.Roots() {
		c.Kill(i)
	}
	c.Kill(c.Roots())
	dir := filepath.Join(c.Dir, "restored")
	args := []string{"root", "restore", "--backup", file, "--out", dir}
	for i, a := range c.TransportAddrs {
		args = append(args, "-peer", fmt.Sprintf("%d=%s", i+1, a))
	}
	var made restoreOutput
	rootCommandJSON(t, c, &made, args...)
	if r := c.Run(args...); r.Code != exitRefused || !strings.Contains(r.Stderr, "nothing is written over") {
		t.Errorf("a second restore to the same folder: exit status %d, %s", r.Code, r.Stderr)
	}
	if made.Era <= 1 || !strings.HasPrefix(made.Token, "2.") || made.ClusterID == made.FormerClusterID {
		t.Errorf("restored to %+v: want a later era, incarnation 2 and another cluster", made)
	}
	comeback := restartRestored(t, c, made)

	young := startRecorder(t, c.CoordinatorAddrs[:1], began)
	c.Start(c.Roots())
	away := young.waitMore(t, 20)
	young.finish()
	for i := range c.Roots() + 1 {
		proctest.Eventually(t, recoverWithin, func() error { return c.Healthy(i) })
	}
	sameState(t, c)
	judgeAcross(t, old, young, made)
	witnessHolds(t, c, c.RootFlags()...)

	comeback.WaitLog("the reason is in its log", recoverWithin)
	c.Process(0).WaitLog("was restored from a backup; root peer 3", recoverWithin)
	c.Process(c.Roots()+1).WaitLog("was restored from a backup and is cluster "+made.ClusterID, recoverWithin)
	c.Kill(c.Roots() + 1) // It gives no answer to those who wait for a new id.
	proctest.Eventually(t, recoverWithin, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		id, err := pinned.AllocID(ctx, 1)
		if err == nil {
			t.Fatalf("a client of the old cluster got %+v", id)
		}
		if !strings.Contains(err.Error(), "cluster "+made.ClusterID) {
			return fmt.Errorf("a client of the old cluster is not told which cluster answers: %w", err)
		}
		return nil
	})
	r := c.Run("region", "list", "--coordinator-addr", c.CoordinatorAddrs[0], "-o", "json")
	if n := strings.Count(r.Stdout, `"start_key"`); r.Code != 0 || n != 3 {
		t.Errorf("%d regions after the restore, want 3\n%s%s", n, r.Stdout, r.Stderr)
	}
	// Its log does not go back to a first entry: what was before it is in no entry.
	r = c.Run(append([]string{"events", "--last", "0"}, c.RootFlags()...)...)
	if r.Code != 0 || !strings.Contains(r.Stdout, "holds the Tenure, in era ") || strings.Contains(r.Stdout, " begins, with root peers") {
		t.Errorf("of the restored cluster is told, exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	testreport.Linef(t, "restore from a backup, real processes: %d runs of ids and timestamps before and %d after, none twice; serving again %s after the first process of the new cluster",
		len(old.grants), len(young.grants), away.Round(10*time.Millisecond))
}

// restartRestored starts the new cluster's root peers where the old ones were,
// and one of the old peers, with its old folder, somewhere else.
func restartRestored(t *testing.T, c *cluster, made restoreOutput) *proctest.Process {
	t.Helper()
	lost := filepath.Join(c.Dir, "lost")
	if err := os.Rename(c.Workdir(2), lost); err != nil {
		t.Fatal(err)
	}
	for i, dir := range made.Workdirs {
		if err := errors.Join(os.RemoveAll(c.Workdir(i)), os.Rename(dir, c.Workdir(i))); err != nil {
			t.Fatal(err)
		}
		c.Start(i)
	}
	args, addrs := c.Args(2), proctest.Addrs(t, 3)
	for i, a := range args {
		switch a {
		case "-workdir":
			args[i+1] = lost
		case "-addr":
			args[i+1] = addrs[0]
		case "-metrics-addr":
			args[i+1] = addrs[1]
		case "-transport-addr":
			args[i+1] = addrs[2]
		}
	}
	p := proctest.Start(t, c.Options("old-peer", args...))
	t.Cleanup(func() { p.Signal(syscall.SIGKILL) })
	return p
}

// judgeAcross checks what both clusters gave out as one history.
func judgeAcross(t *testing.T, old, young *numbersAsker, made restoreOutput) {
	t.Helper()
	h := &history.History{Grants: append(append([]*history.Grant{}, old.grants...), young.grants...)}
	for _, v := range h.Check() {
		// Who held which era is judged within a cluster: eras skip at a restore.
		if v.Promise != "Primacy" {
			t.Error(v)
		}
	}
	for _, g := range young.grants {
		if g.Era <= made.Era {
			t.Fatalf("era %d serves the restored cluster; the void one is %d", g.Era, made.Era)
		}
	}
}
