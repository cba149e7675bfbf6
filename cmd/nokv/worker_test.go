package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// hosting is a cluster with workers that host the points of a keyspace of the games
// preset.
type hosting struct {
	*cluster
	t       *testing.T
	client  *client.Client
	workers []*hostingWorker
}

// hostingWorker is the process of a worker, and what has been read of its log.
type hostingWorker struct {
	*proctest.Process
	log string

	mu sync.Mutex
	// Guarded by mu: how many bytes were read, the events in them, in order, and the regions
	// that were acquired and not let go, by what it says.
	read   int64
	events []workerEvent
	held   map[uint64]workerEvent
}

// follow reads what is new in the log. What it returns is not written to any more.
func (w *hostingWorker) follow(t testing.TB) (events []workerEvent, held map[uint64]workerEvent) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := os.Open(w.log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.NewSectionReader(f, w.read, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1] // the last line may be half of one
	w.read += int64(len(raw))
	for line := range bytes.Lines(raw) {
		var e workerEvent
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		w.events = append(w.events, e)
		switch e.Event {
		case "acquired":
			w.held[e.Region] = e
		case "released", "lost":
			delete(w.held, e.Region)
		}
	}
	return w.events[:len(w.events):len(w.events)], maps.Clone(w.held)
}

const (
	hostedWorkers = 4
	hostedPoints  = 400
	// hostedWithin bounds every step; what it takes is in the report.
	hostedWithin = proctest.Patience
)

// startWorkers starts a cluster with so many workers, with flags of its coordinators.
func startWorkers(t *testing.T, n int, coordinators ...string) *hosting {
	t.Helper()
	h := startForWorkers(t, coordinators...)
	for i := range n {
		h.start(i)
	}
	h.eventually(func(ctx context.Context) error { return h.connected(ctx, n) })
	return h
}

// startForWorkers starts a cluster without workers, with flags of its coordinators.
func startForWorkers(t *testing.T, coordinators ...string) *hosting {
	t.Helper()
	h := &hosting{cluster: newCluster(t, 2), t: t}
	h.CoordinatorFlags = coordinators
	h.StartAll()
	h.WaitHealthy(hostedWithin)
	var err error
	if h.client, err = client.New(client.Config{Endpoints: h.CoordinatorAddrs}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.client.Close() })
	return h
}

// start starts a worker, the next one or one that has ended.
func (h *hosting) start(i int, flags ...string) {
	h.t.Helper()
	id := worker0(i)
	o := h.Options(id, append([]string{"worker", "--id", id, "--coordinator-addr", h.Coordinators(), "-o", "json"}, flags...)...)
	o.Log = filepath.Join(h.t.TempDir(), id+".log")
	w := &hostingWorker{Process: proctest.Start(h.t, o), log: o.Log, held: map[uint64]workerEvent{}}
	if i == len(h.workers) {
		h.workers = append(h.workers, w)
	} else {
		h.workers[i] = w
	}
}

// come starts one more worker, and waits until it is a member.
func (h *hosting) come(flags ...string) {
	h.t.Helper()
	h.start(len(h.workers), flags...)
	h.eventually(func(ctx context.Context) error { return h.connected(ctx, len(h.workers)) })
}

func startHosting(t *testing.T) *hosting {
	t.Helper()
	h := startWorkers(t, hostedWorkers)
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	ks, err := h.client.CreateKeyspace(ctx, "games", "games", nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &rootv1.Command{}
	for i := range hostedPoints {
		cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: ks.GetKeyspace().GetId(), StartKey: fmt.Appendf(nil, "g%04d", i), Owners: []*rootv1.Owner{{MemberId: worker0(i % hostedWorkers)}},
		}}}})
	}
	if _, err := h.client.Publish(ctx, cmd); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(context.Context) error { return h.hosts(hostedPoints, 0, 1, 2, 3) })
	return h
}

func worker0(i int) string { return fmt.Sprintf("w%d", i+1) }

func (h *hosting) eventually(ask func(context.Context) error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*hostedWithin)
	defer cancel()
	proctest.Eventually(h.t, hostedWithin, func() error { return ask(ctx) })
}

func (h *hosting) connected(ctx context.Context, want int) error {
	n := 0
	for m, err := range h.client.ListMembers(ctx) {
		if err != nil {
			return err
		}
		if m.GetConnected() && m.GetMember().GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d members are active and connected, want %d", n, want)
	}
	return nil
}

// said are the events that a worker wrote, in order.
func (h *hosting) said(i int) []workerEvent {
	h.t.Helper()
	events, _ := h.workers[i].follow(h.t)
	return events
}

// held is what a worker has acquired and not let go, by what it says.
func (h *hosting) held(i int) map[uint64]workerEvent {
	h.t.Helper()
	_, held := h.workers[i].follow(h.t)
	return held
}

// lastAcquired is when the last region was acquired behind a moment by one of the
// workers, and how many were.
func (h *hosting) lastAcquired(since time.Time, workers ...int) (last time.Time, n int) {
	for _, i := range workers {
		for _, e := range h.said(i) {
			if e.Event == "acquired" && e.Time.After(since) {
				n++
				if e.Time.After(last) {
					last = e.Time
				}
			}
		}
	}
	return last, n
}

// firstAcquired is when the first was.
func (h *hosting) firstAcquired(since time.Time, workers ...int) (first time.Time) {
	for _, i := range workers {
		for _, e := range h.said(i) {
			if e.Event == "acquired" && e.Time.After(since) && (first.IsZero() || e.Time.Before(first)) {
				first = e.Time
			}
		}
	}
	return first
}

// oneOwnerAnEpoch checks that no region was acquired twice at one epoch.
func (h *hosting) oneOwnerAnEpoch() {
	h.t.Helper()
	type grant struct {
		region uint64
		epoch  string
	}
	by := map[grant]string{}
	for i := range h.workers {
		for _, e := range h.said(i) {
			if e.Event != "acquired" {
				continue
			}
			g := grant{e.Region, e.Epoch}
			if other, taken := by[g]; taken {
				h.t.Errorf("region %d was acquired at epoch %s by %s and by %s", e.Region, e.Epoch, other, e.Member)
			}
			by[g] = e.Member
		}
	}
}

func (h *hosting) state(id string) (s rootv1.MemberState, signals []string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), hostedWithin)
	defer cancel()
	for m, err := range h.client.ListMembers(ctx) {
		if err != nil {
			h.t.Fatal(err)
		}
		if m.GetMember().GetId() == id {
			return m.GetMember().GetState(), m.GetMember().GetSignals()
		}
	}
	return 0, nil
}

// A worker that is killed loses its regions to others at once, one that hangs after
// dead_after, and one that is asked to end gives them away before it ends.
func TestC06WorkersEnd(t *testing.T) {
	t.Parallel()
	h := startHosting(t)

	begin := time.Now()
	h.workers[0].Kill()
	h.eventually(func(context.Context) error { return h.hosts(hostedPoints, 1, 2, 3) })
	last, n := h.lastAcquired(begin, 1, 2, 3)
	killed := last.Sub(begin)
	if killed > time.Second { // a proof was not to be had at once: what was there to see?
		for i := h.Roots(); i < h.Size(); i++ {
			t.Logf("%s, the kill was at %s:\n%s", h.Name(i), begin.UTC().Format(time.StampMilli), h.Process(i).Tail())
		}
	}
	if is, signals := h.state("w1"); is != rootv1.MemberState_MEMBER_STATE_FAILED || !strings.Contains(strings.Join(signals, ","), "probe_refused") {
		t.Errorf("the killed worker is %s by %v, want it failed by a refused probe", is, signals)
	}
	if n != hostedPoints/hostedWorkers {
		t.Errorf("%d regions were acquired after a kill, want those %d of the killed worker", n, hostedPoints/hostedWorkers)
	}

	begin = time.Now()
	h.workers[1].Signal(syscall.SIGSTOP)
	h.eventually(func(context.Context) error { return h.hosts(hostedPoints, 2, 3) })
	last, _ = h.lastAcquired(begin, 2, 3)
	hung := last.Sub(begin)
	if first := h.firstAcquired(begin, 2, 3).Sub(begin); first < 2*time.Second { // a slow machine makes it longer; its last frame was a while before
		t.Errorf("the regions of a worker that hangs were given away after %s: dead_after is 5s", first)
	}
	if is, signals := h.state("w2"); is != rootv1.MemberState_MEMBER_STATE_FAILED || !slices.Contains(signals, "silent") || slices.Contains(signals, "probe_refused") {
		t.Errorf("the worker that hangs is %s by %v, want it failed by its silence", is, signals)
	}
	h.workers[1].Signal(syscall.SIGCONT)
	h.eventually(func(ctx context.Context) error { return h.connected(ctx, 3) }) // under a new incarnation
	h.eventually(func(context.Context) error {
		if held := h.held(1); len(held) > 0 {
			return fmt.Errorf("the worker that hung still has %d regions", len(held))
		}
		return nil
	})

	begin = time.Now()
	h.workers[2].Signal(syscall.SIGTERM)
	if code := h.workers[2].Wait(hostedWithin); code != exitOK {
		t.Errorf("exit status %d of a worker that was asked to end", code)
	}
	ended := time.Since(begin)
	if held := h.held(2); len(held) > 0 {
		t.Errorf("%d regions were not released before the worker ended", len(held))
	}
	if !strings.Contains(h.workers[2].Log(), `"event":"drained"`) {
		t.Error("the worker ended before it was drained")
		args := []string{"events", "--all", "--last", "300"}
		for i, addr := range h.RootAddrs {
			args = append(args, "--root-peer", fmt.Sprintf("%d=%s", i+1, addr))
		}
		t.Log(h.Run(args...).Stdout)
	}
	h.eventually(func(context.Context) error { return h.hosts(hostedPoints, 1, 3) })
	h.oneOwnerAnEpoch()
	testreport.Linef(t, "workers: %d regions served elsewhere %s after kill -9, %d after SIGSTOP in %s (dead_after 5s), drained and ended in %s after SIGTERM",
		n, killed.Round(time.Millisecond), hostedPoints/3, hung.Round(time.Millisecond), ended.Round(time.Millisecond))
}

func TestDevRunsMembers(t *testing.T) {
	t.Parallel()
	env, workdir := nokvEnv(t), t.TempDir()
	p := startDev(t, env, workdir, "--members", "2")
	file := readDevFile(filepath.Join(workdir, "dev.json"))
	if file == nil || len(file.Workers) != 2 {
		t.Fatalf("dev.json: %+v", file)
	}
	r := here(t, env, "region", "list", "--keyspace", "games", "-o", "json")
	if n := strings.Count(r.Stdout, `"start_key"`); n != devRegions {
		t.Errorf("%d regions, want %d: %s", n, devRegions, r.Stderr)
	}
	stopDev(t, p)
	for _, w := range file.Workers {
		if err := syscall.Kill(w.PID, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the process of member %s is still there: %v", w.Member, err)
		}
	}
}

// With certificates each member has its own. What becomes of one that is killed, and of one
// that is drained, is in nokv events, with who did it.
func TestDevRunsMembersWithCertificates(t *testing.T) {
	t.Parallel()
	env, workdir := nokvEnv(t), t.TempDir()
	p := startDev(t, env, workdir, "--tls", "--members", "3")
	file := readDevFile(filepath.Join(workdir, "dev.json"))
	if file == nil || len(file.Workers) != 3 {
		t.Fatalf("dev.json: %+v", file)
	}
	cli := func(args ...string) proctest.Result {
		t.Helper()
		r := here(t, env, args...)
		if r.Code != exitOK {
			t.Fatalf("nokv %s: exit status %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
		}
		return r
	}
	// told waits until a sentence is there, by whom.
	told := func(actor, sentence string, args ...string) {
		t.Helper()
		proctest.Eventually(t, hostedWithin, func() error {
			out := cli(append([]string{"events", "--actor", actor, "-o", "json"}, args...)...).Stdout
			for line := range strings.Lines(out) {
				var s storyOutput
				if err := json.Unmarshal([]byte(line), &s); err != nil {
					return err
				}
				if strings.Contains(s.Text, sentence) && s.Time != "" && s.Outcome == "applied" {
					return nil
				}
			}
			return fmt.Errorf("not told that %q:\n%s", sentence, out)
		})
	}
	killed := file.Workers[0]
	told("member/"+killed.Member, killed.Member+" registers")
	if err := syscall.Kill(killed.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	told("coordinator/*", "has failed: its own address refuses connections", "--member", killed.Member)
	told("coordinator/*", "regions of games go from "+killed.Member+" to ", "--keyspace", "games")
	drained := file.Workers[1].Member
	if r := cli("member", "drain", drained, "--wait", hostedWithin.String(), "--why", "a test"); !strings.Contains(r.Stdout, "nothing is left") {
		t.Errorf("the drain says\n%s", r.Stdout)
	}
	told("operator/dev", drained+" drains; ", "--member", drained)
	told("coordinator/*", "have moved from "+drained+" to "+file.Workers[2].Member, "--member", drained)
	if r := cli("member", "get", drained, "-o", "json"); strings.Count(r.Stdout, `"health": "live"`) != 2 {
		t.Errorf("two coordinators should hear %s:\n%s", drained, r.Stdout)
	}
	stopDev(t, p)
}
