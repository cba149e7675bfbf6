package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// nextLevel is what nextNoKV understands.
const nextLevel = state.FeatureLevel + 1

// nextNoKV builds a nokv that understands one feature level more, in which moves are new,
// once. go build links each time; go run keeps what it linked.
var nextNoKV = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nokv-next-")
	if err != nil {
		return "", err
	}
	foldersOfAll = append(foldersOfAll, dir)
	path := filepath.Join(dir, "nokv")
	out, err := exec.Command("go", "run", "-ldflags", "-X github.com/nokv/nokv/meta/root/state.trial=move_planned", "-exec", "cp", ".", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// nextBuild is the path of what nextNoKV built.
func nextBuild(t *testing.T) string {
	t.Helper()
	path, err := nextNoKV()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// upgrading is a cluster whose members run one of two builds: this one, or the next.
type upgrading struct {
	*cluster
	t    *testing.T
	next string
}

func newUpgrading(t *testing.T, next string) *upgrading {
	t.Helper()
	u := &upgrading{cluster: newCluster(t, 2), t: t, next: next}
	u.Builds = map[int]string{}
	u.StartAll()
	u.WaitHealthy(recoverWithin)
	return u
}

// restart restarts a member in order, with the old build or the new one.
func (u *upgrading) restart(member int, old bool) {
	u.t.Helper()
	u.begin(member, old)
	proctest.Eventually(u.t, recoverWithin, func() error { return u.Healthy(member) })
}

// begin is restart that does not wait until the member serves.
func (u *upgrading) begin(member int, old bool) *proctest.Process {
	u.t.Helper()
	u.stop(member)
	delete(u.Builds, member)
	if !old {
		u.Builds[member] = u.next
	}
	return u.Start(member)
}

// levels is what `nokv root upgrade` says.
func (u *upgrading) levels(args ...string) (upgradeOutput, proctest.Result) {
	u.t.Helper()
	var r proctest.Result
	var out upgradeOutput
	proctest.Eventually(u.t, recoverWithin, func() error { // there may be no leader
		r = u.Run(append(append([]string{"root", "upgrade", "-o", "json"}, args...), u.RootFlags()...)...)
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
			return fmt.Errorf("root upgrade: %w\n%s\n%s", err, r.Stdout, r.Stderr)
		}
		return nil
	})
	return out, r
}

// planMove tries what the next feature level is for, of a region that there is not.
func (u *upgrading) planMove() error {
	u.t.Helper()
	cl, err := client.New(client.Config{Endpoints: u.CoordinatorAddrs})
	if err != nil {
		u.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(u.t.Context(), recoverWithin)
	defer cancel()
	_, err = cl.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: 1 << 40, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, From: &rootv1.Owner{MemberId: "a"}, To: &rootv1.Owner{MemberId: "b"},
	}}})
	return err
}

// TestRollingUpgrade takes a cluster from one build to the next under load, with
// one step back on the way. Nothing above the feature level is taken before it is
// raised, and nobody below it is let in afterwards.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	next := nextBuild(t)
	t.Run("raised by the operator", func(t *testing.T) {
		t.Parallel()
		u := newUpgrading(t, next)
		l := startPacedLoad(t, u.CoordinatorAddrs, tryFor, 20*time.Millisecond)
		l.waitProgress(lowLoad, recoverWithin, "all old")
		last := u.Size() - 1
		for member := range last {
			u.restart(member, false)
			l.waitProgress(lowLoad, recoverWithin, u.Name(member)+" is new")
		}
		proctest.Eventually(t, recoverWithin, func() error { // A coordinator registers after it serves.
			said, _ := u.levels("--dry-run", "--to", "2")
			if said.FeatureLevel != 1 || said.CommonLevel != 1 || len(said.Below) == 0 {
				return fmt.Errorf("one is old: %+v", said)
			}
			for _, p := range said.Below {
				if p.ID != "c2" || p.FeatureLevel != 1 {
					return fmt.Errorf("below is %+v", p)
				}
			}
			return nil
		})
		if _, r := u.levels("--to", "2"); r.Code != 1 || !strings.Contains(r.Stderr, "the feature level stays 1") {
			t.Errorf("raised with one old: exit status %d, %s", r.Code, r.Stderr)
		}
		if err := u.planMove(); !errors.Is(err, client.ErrFeatureLevel) {
			t.Errorf("above the feature level: %v", err)
		}
		u.restart(1, true)
		l.waitProgress(lowLoad, recoverWithin, "one went back down")
		u.restart(last, false)
		if said, _ := u.levels("--dry-run"); said.FeatureLevel != 1 || said.CommonLevel != 1 {
			t.Errorf("root peer 2 went back down: %+v", said)
		}
		u.restart(1, false)
		begin := time.Now()
		proctest.Eventually(t, recoverWithin, func() error {
			if said, r := u.levels("--to", fmt.Sprint(nextLevel)); r.Code != 0 || said.FeatureLevel != nextLevel {
				return fmt.Errorf("not raised: %+v, %s", said, r.Stderr)
			}
			return nil
		})
		raised := time.Since(begin)
		if err := u.planMove(); err == nil || errors.Is(err, client.ErrFeatureLevel) {
			t.Errorf("a move of no region, at its level: %v", err)
		}
		l.waitProgress(lowLoad, recoverWithin, "raised")
		for _, member := range []int{2, last} {
			p := u.begin(member, true)
			if code := p.Wait(recoverWithin); code != 1 {
				t.Errorf("%s: exit status %d, want 1", u.Name(member), code)
			}
			if !strings.Contains(p.Tail(), "understands feature level 1") {
				t.Errorf("%s does not say why it ends:\n%s", u.Name(member), p.Tail())
			}
			u.Builds[member] = u.next
			u.Start(member)
			proctest.Eventually(t, recoverWithin, func() error { return u.Healthy(member) })
		}
		l.waitProgress(lowLoad, recoverWithin, "after the old ones were refused")
		l.finish()
		ctx, cancel := context.WithTimeout(t.Context(), recoverWithin)
		defer cancel()
		judge(ctx, t, u.cluster, l)
		testreport.Linef(t, "real processes: two builds, a rolling upgrade of %d under load with a step back: raised after %s, %d calls failed, the old build refused",
			u.Size(), raised.Round(time.Millisecond), l.failed[loadID].Load()+l.failed[loadTso].Load()+l.failed[loadPublish].Load())
	})
	t.Run("raised by itself", func(t *testing.T) {
		t.Parallel()
		u := newUpgrading(t, next)
		for member := range u.Size() {
			u.begin(member, false)
		}
		u.WaitHealthy(recoverWithin)
		begin := time.Now()
		proctest.Eventually(t, recoverWithin, func() error {
			if said, _ := u.levels("--dry-run"); said.FeatureLevel != nextLevel {
				return fmt.Errorf("not raised: %+v", said)
			}
			return nil
		})
		sameState(t, u.cluster)
		testreport.Linef(t, "real processes: two builds, the feature level raised by itself %s after the last one was new", time.Since(begin).Round(100*time.Millisecond))
	})
}
