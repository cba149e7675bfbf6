package attack

import (
	"context"
	"fmt"
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
			return fmt.Errorf("%d %s, want %d", all[what], what, least)
		}
		return nil
	}
}

// TestAttacks has one cluster attacked in every way, with the same others served.
func TestAttacks(t *testing.T) {
	s := newScene(t, 0)
	s.publishLongRegions()
	address, _ := s.holder()
	leader := s.RootAddrs[s.leader()]
	at := s.position()
	for _, p := range []plan{
		{order{Attack: "nobody", Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "unfinished-messages", Target: address, Size: size(200, 512)}, lasts(), did("connections", 1)},
		{order{Attack: "unfinished-proposals", Target: leader, Size: size(200, 1024)}, lasts(), did("connections", 1)},
		{order{Attack: "far-tokens", Target: address, Size: size(14_000, 20_000), Incarnation: at.Incarnation, Term: at.Term, Index: at.Index}, lasts(), did("questions", 1000)},
		{order{Attack: "idle-connections", Target: address, Size: size(1000, 10_200)}, lasts(), did("connections", 500)},
		{order{Attack: "slow-headers", Target: address, Size: size(50, 500)}, lasts(), did("slow-headers", 50)},
		{order{Attack: "empty-data", Target: address, Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "pings", Target: address, Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "settings", Target: address, Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "rapid-reset", Target: address, Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "header-repetition", Target: address, Size: 4}, lasts(), did("frames", 100)},
		{order{Attack: "garbage", Target: address, Size: 1}, lasts(), did("pieces-of-garbage", 20)},
		{order{Attack: "oversized", Target: address}, lasts(), did("announced-4-GiB", 100)},
		{order{Attack: "replies-not-read", Target: address, Size: size(200, 2000)}, lasts(), did("questions", 100)},
		{order{Attack: "watches", Target: address, Size: size(500, 10_000)}, lasts(), did("watches", 400)},
		{order{Attack: "reconnects", Target: address, Size: size(400, 10_000)}, lasts(), did("answered-OK", 100)},
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

// A root peer that has few files goes on writing its log, however many connections
// its ports get.
func TestFilesOfTheLogAreReserved(t *testing.T) {
	s := newScene(t, 256, "-checkpoint-entries", "100")
	m := s.leader()
	s.run(plan{order{Attack: "http-connections", Target: s.MetricsAddrs[m], Size: 400}, lasts(), did("connections", 100)})
	s.run(plan{order{Attack: "idle-connections", Target: s.RootAddrs[m], Size: 400}, lasts(), did("connections", 100)})
	s.run(plan{order{Attack: "idle-connections", Target: s.TransportAddrs[m], Size: 400}, lasts(), did("connections", 100)})
	proctest.Eventually(t, patience, func() error { return s.Healthy(m) })
}
