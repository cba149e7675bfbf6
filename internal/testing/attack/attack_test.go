package attack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/rooted"
)

// did says that an attacker did something so often.
func did(what string, least int) func(map[string]int) error {
	return func(all map[string]int) error {
		if all[what] < least {
			return fmt.Errorf("%d %s, want %d: %v", all[what], what, least, all)
		}
		return nil
	}
}

// cut says that an attacker did something so often, and that its connections were cut.
func cut(what string, least int) func(map[string]int) error {
	return func(all map[string]int) error {
		return errors.Join(did(what, least)(all), did("cut-connections", 1)(all))
	}
}

// alongside has a test run beside others, unless it is measured, on Linux, which says how
// much a process has in memory.
func alongside(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux shows what a process has in memory under /proc")
	}
	if !*long {
		t.Parallel()
	}
}

// TestAttacks has one cluster attacked in every way, with the same others served.
func TestAttacks(t *testing.T) {
	alongside(t)
	s := newScene(t, 0)
	s.publishLongRegions()
	address, _ := s.holder()
	leader := s.RootAddrs[s.leader()]
	at := s.position()
	for _, p := range []plan{
		{order{Attack: "nobody", Size: 4}, did("frames", 100)},
		{order{Attack: "unfinished-messages", Target: address, Size: sized(200, 512)}, cut("connections", 2)},
		{order{Attack: "unfinished-proposals", Target: leader, Size: sized(200, 1024)}, cut("connections", 2)},
		{order{Attack: "far-tokens", Target: address, Size: sized(14_000, 20_000), Incarnation: at.Incarnation, Term: at.Term, Index: at.Index}, did("answered-ResourceExhausted", 1)},
		{order{Attack: "idle-connections", Target: address, Size: sized(1000, 10_200)}, did("connections", 1000)},
		{order{Attack: "slow-headers", Target: address, Size: sized(50, 500)}, did("slow-headers", 50)},
		{order{Attack: "empty-data", Target: address, Size: 4}, cut("frames", 100)},
		{order{Attack: "pings", Target: address, Size: 4}, cut("frames", 100)},
		{order{Attack: "settings", Target: address, Size: 4}, cut("frames", 100)},
		{order{Attack: "rapid-reset", Target: address, Size: 4}, cut("frames", 100)},
		{order{Attack: "header-repetition", Target: address, Size: 4}, cut("frames", 100)},
		{order{Attack: "garbage", Target: address, Size: 1}, cut("pieces-of-garbage", 20)},
		{order{Attack: "oversized", Target: address}, cut("announced-4-GiB", 100)},
		{order{Attack: "replies-not-read", Target: address, Size: sized(200, 2000)}, did("questions", 200)},
		{order{Attack: "watches", Target: address, Size: sized(500, 10_000)}, did("watches", 400)},
		{order{Attack: "reconnects", Target: address, Size: sized(400, 10_000)}, did("answered-OK", 100)},
	} {
		t.Run(p.Attack, func(t *testing.T) {
			outer := s.t
			s.t = t
			defer func() { s.t = outer }()
			s.run(p)
		})
	}
}

// longRegions are regions with long keys: a scan of them is a long answer.
const longRegions = 600

// publishLongRegions makes regions in the default keyspace, behind the others.
func (s *scene) publishLongRegions() {
	s.t.Helper()
	pad := strings.Repeat("k", 1000)
	const publishers = 32 // who share what a write costs
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for i := p; i < longRegions; i += publishers {
				ctx, cancel := context.WithTimeout(s.t.Context(), patience)
				start := fmt.Sprintf("w%06d%s", i, pad)
				_, err := s.client.PublishRegion(ctx, &rooted.Region{Keyspace: 1, ID: rooted.RegionID(10_000 + i), Start: start, End: start + "~", Epoch: rooted.Epoch{Version: 1, ConfVersion: 1}})
				cancel()
				if err != nil {
					s.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func (s *scene) position() rooted.Token {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := s.client.GetRegion(ctx, 1, client.Strong())
	if err != nil {
		s.t.Fatal(err)
	}
	return r.At
}

// A root peer that has few files goes on writing its log, and replacing its checkpoint,
// however many connections its ports get.
func TestFilesOfTheLogAreReserved(t *testing.T) {
	alongside(t)
	s := newScene(t, 256, "-checkpoint-entries", "100")
	m := s.leader()
	const connections = 400
	for _, p := range []plan{
		{order: order{Attack: "http-connections", Target: s.MetricsAddrs[m], Size: connections}},
		{order: order{Attack: "idle-connections", Target: s.RootAddrs[m], Size: connections}},
		{order: order{Attack: "idle-connections", Target: s.TransportAddrs[m], Size: connections}},
	} {
		begun := did("connections", connections)
		var replaced func() error
		p.happened = func(all map[string]int) error {
			if err := begun(all); err != nil {
				return err
			}
			if replaced == nil {
				replaced = s.checkpoints(m, 2)
			}
			return replaced()
		}
		s.run(p)
	}
	proctest.Eventually(t, patience, func() error { return s.Healthy(m) })
}

// checkpoints says whether a root peer has written so many from now on.
func (s *scene) checkpoints(m, least int) func() error {
	name := filepath.Join(s.Workdir(m), "root.checkpoint.binpb")
	seen := -1
	var last os.FileInfo
	return func() error {
		now, err := os.Stat(name)
		if err != nil {
			return err
		}
		if last == nil || !os.SameFile(last, now) || !last.ModTime().Equal(now.ModTime()) {
			seen++
		}
		last = now
		if seen < least {
			return fmt.Errorf("%s has written %d checkpoints, want %d", s.Name(m), seen, least)
		}
		return nil
	}
}
