package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Hosting says what cluster of members there is.
type Hosting struct {
	// NoKV is the binary that the cluster is made of, Dir the folder for its data.
	NoKV, Dir string
	// Members are processes of one member each, Regions how many one of them has when
	// it is taken away; the others have none then. Readers are callers with a cache.
	Members, Regions, Readers, Coordinators int
	// Preset of the keyspace. FenceTTL above 0 is a fence of its own; without Probe
	// nothing is proven by the member's address.
	Preset   string
	FenceTTL time.Duration
	Probe    bool
	// TTL of the Tenure.
	TTL time.Duration
	// Progress is told of what takes long; of every round with Verbose.
	Progress io.Writer
	Verbose  bool

	inFlight int // moves, 0: as the preset says
}

// Validate says what is wrong with h.
func (h *Hosting) Validate() error {
	preset, known := state.Preset(h.Preset)
	switch {
	case !known:
		return fmt.Errorf("preset %q: there is none", h.Preset)
	case preset.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || preset.GetOwnership().GetMaxOwners() != 1:
		return fmt.Errorf("preset %q: want one whose regions are assigned, each to one member", h.Preset)
	case preset.GetLayout().GetSlots() != nil:
		return fmt.Errorf("preset %q: want one with points or ranges: --regions says how many there are", h.Preset)
	case h.Members < 2 || h.Members > 64:
		return fmt.Errorf("members %d: want 2 to 64, because others must take over", h.Members)
	case h.Regions < 1 || h.Regions > 100_000:
		return fmt.Errorf("regions %d: want 1 to 100,000", h.Regions)
	case h.Readers < 1 || h.Readers > 64:
		return fmt.Errorf("callers %d: want 1 to 64", h.Readers)
	case h.Coordinators < 1 || h.Coordinators > 16:
		return fmt.Errorf("coordinators %d: want 1 to 16", h.Coordinators)
	case h.FenceTTL < 0 || h.FenceTTL%time.Millisecond != 0:
		return fmt.Errorf("fence-ttl %s: want whole milliseconds, or 0 for the preset's fence", h.FenceTTL)
	case h.TTL%time.Millisecond != 0 || h.TTL < 0 || h.TTL > tenure.MaxTTL:
		return fmt.Errorf("tenure-ttl %s: want whole milliseconds, an hour at most", h.TTL)
	}
	return nil
}

// settings are those of the keyspace. Its members are not damped: the same ones fail
// again and again here.
func (h *Hosting) settings() *rootv1.KeyspaceSettings {
	s, _ := state.Preset(h.Preset)
	s.Guards = &rootv1.Guards{FlapWindowMillis: 100, NoMoveBackMillis: 1}
	s.Policy.Rebalance = nil // who begins anew has nothing until the next round
	s.Liveness.Probe = s.Liveness.Probe && h.Probe
	if h.inFlight > 0 {
		if s.Moves == nil {
			s.Moves = &rootv1.Moves{}
		}
		s.Moves.InFlight = uint64(h.inFlight)
	}
	if h.FenceTTL > 0 {
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, uint64(h.FenceTTL.Milliseconds())
	}
	return s
}

const hostedKeyspace = "bench-hosting"

// site is a cluster with members, and those who watch it.
type site struct {
	*cluster
	h       Hosting
	zero    time.Time        // of all times
	each    []*client.Client // of one coordinator each
	workers []*worker
	readers []*reader
	entries *rootLog
	owners  owners
	stop    context.CancelFunc
	running sync.WaitGroup
}

// openSite starts every process. The owner ends them with close.
func openSite(h Hosting) (*site, error) {
	s := &site{h: h, zero: time.Now(), owners: owners{by: map[string]string{}}, stop: func() {}}
	var err error
	if s.cluster, err = newCluster(h.Dir, h.NoKV, h.Coordinators, h.TTL, false); err != nil {
		return nil, err
	}
	s.entries = newRootLog(s.root, s.zero)
	for _, addr := range s.CoordinatorAddrs {
		cl, err := client.New(client.Config{Endpoints: []string{addr}})
		if err != nil {
			s.close()
			return nil, err
		}
		s.each = append(s.each, cl)
	}
	for i := range h.Readers {
		at := i % len(s.CoordinatorAddrs)
		r, err := newReader(slices.Concat(s.CoordinatorAddrs[at:], s.CoordinatorAddrs[:at]), hostedKeyspace, s.zero)
		if err != nil {
			s.close()
			return nil, err
		}
		s.readers = append(s.readers, r)
	}
	for i := range h.Members {
		w := newWorker(h.Dir, h.NoKV, rooted.MemberID(fmt.Sprintf("w%d", i+1)), strings.Join(s.CoordinatorAddrs, ","))
		if err := w.startProcess(); err != nil {
			s.close()
			return nil, err
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// close ends everything, at once.
func (s *site) close() {
	s.stop()
	for _, r := range s.readers {
		_ = r.client.Close()
	}
	for _, cl := range s.each {
		_ = cl.Close()
	}
	s.running.Wait()
	for _, w := range s.workers {
		w.process.Kill()
	}
	s.cluster.close()
}

func (s *site) now() time.Duration { return time.Since(s.zero) }

// populate waits for the cluster, and makes regions that the first member has.
func (s *site) populate(ctx context.Context) error {
	if _, err := s.waitHealthy(ctx); err != nil {
		return fmt.Errorf("the cluster did not become healthy: %w", err)
	}
	made, err := s.admin.CreateKeyspaceOf(ctx, hostedKeyspace, s.h.settings())
	if err != nil {
		return err
	}
	id := rooted.KeyspaceID(made.GetKeyspace().GetId())
	s.entries.watch(id)
	running, stop := context.WithCancel(ctx)
	s.stop = stop
	s.running.Go(func() { s.entries.run(running) })
	for _, r := range s.readers {
		s.running.Go(func() { r.run(running) })
	}
	if err := until(ctx, func() error { return s.connected(ctx) }); err != nil {
		return err
	}
	points := made.GetKeyspace().GetSettings().GetLayout().GetPoints() != nil
	if err := s.publish(ctx, uint32(id), points, s.h.Regions, func(int) rooted.MemberID { return s.workers[0].id }); err != nil {
		return err
	}
	return until(ctx, func() error { return s.settled(s.workers[0]) })
}

// publish makes regions with owners.
func (c *cluster) publish(ctx context.Context, keyspace uint32, points bool, n int, owner func(int) rooted.MemberID) error {
	const step = 1000
	for at := 0; at < n; at += step {
		cmd := &rootv1.Command{}
		for i := at; i < min(at+step, n); i++ {
			region := &rootv1.Region{KeyspaceId: keyspace, StartKey: hostedKey(i), Owners: []*rootv1.Owner{{MemberId: string(owner(i))}}}
			if !points {
				region.EndKey = hostedKey(i + 1)
			}
			cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}})
		}
		if _, err := c.admin.Publish(ctx, cmd); err != nil {
			return fmt.Errorf("make regions from %d: %w", at, err)
		}
	}
	return nil
}

func hostedKey(i int) []byte { return fmt.Appendf(nil, "g%08d", i) }

// connected says whether every member is active, and heard by every coordinator.
func (s *site) connected(ctx context.Context) error {
	for _, w := range s.workers {
		if !w.process.Running() {
			raw, _ := os.ReadFile(w.log)
			return fatalError{fmt.Errorf("member %s ended by itself: exit status %d\n%s", w.id, w.process.ExitCode(), raw[max(0, len(raw)-tailBytes):])}
		}
	}
	for i, cl := range s.each {
		n := 0
		for m, err := range cl.ListMembers(ctx) {
			if err != nil {
				return err
			}
			if m.GetMember().GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && m.GetConnected() && m.GetHealth() == coordinatorv1.MemberHealth_MEMBER_HEALTH_LIVE {
				n++
			}
		}
		if n != len(s.workers) {
			return fmt.Errorf("coordinator c%d hears %d members, want %d", i+1, n, len(s.workers))
		}
	}
	return nil
}

// listen takes in what members said.
func (s *site) listen() error {
	for _, w := range s.workers {
		if err := w.hear(s.zero, &s.owners); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// settled says whether a member has every region, by the root, by what it and the others
// say, and by what callers know.
func (s *site) settled(has *worker) error {
	if err := s.listen(); err != nil {
		return fatalError{err}
	}
	if all, owned := s.entries.count(has.id); all != s.h.Regions || owned != all {
		return fmt.Errorf("%d of %d regions are %s's by the root", owned, s.h.Regions, has.id)
	}
	for _, w := range s.workers {
		want := 0
		if w == has {
			want = s.h.Regions
		}
		if len(w.held) != want {
			return fmt.Errorf("member %s says that it has %d regions, want %d", w.id, len(w.held), want)
		}
	}
	return s.known(func(r *reader) bool {
		all, owned := r.count(has.id)
		return all == s.h.Regions && owned == all
	})
}

func (s *site) known(is func(*reader) bool) error {
	for i, r := range s.readers {
		if !is(r) {
			return fmt.Errorf("caller %d does not know all owners yet", i+1)
		}
	}
	return nil
}

// gone says whether a member has nothing any more, and the others serve all of it.
func (s *site) gone(victim *worker) error {
	if err := s.listen(); err != nil {
		return fatalError{err}
	}
	if _, owned := s.entries.count(victim.id); owned > 0 {
		return fmt.Errorf("%d regions are %s's by the root", owned, victim.id)
	}
	serving := 0
	for _, w := range s.workers {
		if w != victim {
			serving += len(w.held)
		}
	}
	if serving != s.h.Regions {
		return fmt.Errorf("%d of %d regions are served by others than %s", serving, s.h.Regions, victim.id)
	}
	return s.known(func(r *reader) bool {
		all, owned := r.count(victim.id)
		return all == s.h.Regions && owned == 0
	})
}

// give gives every region to one member, as an operator would.
func (s *site) give(ctx context.Context, to *worker) error {
	const step = 2000
	var batch []*rootv1.Assignment
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := s.admin.AssignRegions(ctx, 0, batch...)
		batch = nil
		return err
	}
	for id, r := range s.entries.regions() {
		if r.owner == to.id {
			continue
		}
		batch = append(batch, &rootv1.Assignment{RegionId: uint64(id), ExpectedEpoch: r.epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: string(to.id)}}})
		if len(batch) == step {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := send(); err != nil {
		return err
	}
	return until(ctx, func() error { return s.settled(to) })
}

// usage is what processes have used.
type usage struct {
	processor time.Duration
	resident  int64 // bytes now
}

// usageOf is what a process uses; zero where the system does not say.
func usageOf(p *procs.Process) (u usage) {
	const ticks = 100 // a second, on every Linux that Go runs on
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return u
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 22 {
		return u
	}
	n := func(i int) int64 { v, _ := strconv.ParseInt(fields[i], 10, 64); return v }
	return usage{time.Duration(n(11)+n(12)) * time.Second / ticks, n(21) * int64(os.Getpagesize())}
}

// processor is what members of a cluster have used together.
func (c *cluster) processor(from, to int) (sum time.Duration) {
	for _, p := range c.processes[from:to] {
		sum += usageOf(p).processor
	}
	return sum
}
