package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/test/size"
)

var (
	long  = size.Bool("games.long", "play 1,000 boards on 4 cores, of which one is killed each 5 s")
	lasts = flag.Duration("games.lasts", 2*time.Minute, "how long -games.long goes on")
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "core" { // this program, as a process of the test
		main()
	}
	os.Exit(proctest.Main(m))
}

// The page is where the README says, which is not where a proxy is asked by default.
func TestThePageIsWhereTheReadmeSays(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "<http://"+pageAddress+">") {
		t.Errorf("README.md does not say that the page is at http://%s", pageAddress)
	}
}

// system is a hall beside a cluster of processes.
type system struct {
	*testing.T
	*hall
	ctx    context.Context
	client *client.Client
	url    string // of the page
}

// built has the example run the nokv that tests run. It is said once for all of them: they run beside each other.
var built = sync.OnceValue(func() error {
	path, err := proctest.NoKV()
	if err != nil {
		return err
	}
	return os.Setenv("NOKV", path)
})

// start runs a cluster, a proxy and cores, for as long as the test.
func start(t *testing.T, cores int, pace time.Duration, more ...string) *system {
	t.Helper()
	if err := built(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	d, err := demo.Start(ctx, testWriter{t})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	c, err := client.New(client.Config{Endpoints: strings.Split(d.Coordinators, ",")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h, err := newHall(ctx, d, c, proctest.Addrs(t, 1)[0], pace, append(settings(""), more...))
	if err != nil {
		t.Fatal(err)
	}
	watched := make(chan error, 1)
	go func() { watched <- h.mirror.Run(ctx) }()
	page := httptest.NewServer(h.routes(ctx))
	t.Cleanup(func() {
		h.players.play(ctx, 0)
		stop()
		page.CloseClientConnections()
		page.Close()
		if err := <-watched; err != nil {
			t.Errorf("the watch of the cluster: %v", err)
		}
	})
	s := &system{T: t, hall: h, ctx: ctx, client: c, url: page.URL}
	for range cores {
		s.must(h.add(ctx, ""))
	}
	s.await("the cores are there", func() error {
		if n := len(h.mirror.Members()); n != cores {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	return s
}

func (s *system) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// await says how long it took until something held.
func (s *system) await(what string, ask func() error) time.Duration {
	s.Helper()
	begun := time.Now()
	proctest.Eventually(s.T, proctest.Patience, func() error {
		if err := ask(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return time.Since(begun).Round(time.Millisecond)
}

// has holds when just these cores have boards, and each one so many, give or take two
// percent: for less than rebalance.min_gap nothing is moved.
func (s *system) has(each int, ids ...string) func() error {
	return func() error {
		_, n := s.owned()
		for _, id := range ids {
			if off := n[id] - each; max(off, -off) > each/50 {
				return fmt.Errorf("boards are at %v, want %d each, or %d more or less", n, each, each/50)
			}
		}
		if len(n) != len(ids) {
			return fmt.Errorf("boards are at %v, want none elsewhere than at %v", n, ids)
		}
		return nil
	}
}

// goesOn waits until each board has been moved on twice.
func (s *system) goesOn() time.Duration {
	s.Helper()
	was := map[string]int{}
	for _, b := range s.players.playing() {
		was[b.name] = b.turn()
	}
	return s.await("every board goes on", func() error {
		late := 0
		for _, b := range s.players.playing() {
			if b.turn() < was[b.name]+2 {
				late++
			}
		}
		if late > 0 {
			return fmt.Errorf("%d of %d boards do not", late, len(was))
		}
		return nil
	})
}

func (b *played) turn() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.Turn
}

// check insists that nothing acknowledged was lost: neither to a player, nor on the disk.
func (s *system) check() {
	s.Helper()
	if lost, wrong := s.players.lost.Load(), s.players.wrong.Load(); lost > 0 || wrong > 0 {
		s.Errorf("%d acknowledged moves lost, %d boards told wrongly", lost, wrong)
	}
	for _, b := range s.players.playing() {
		b.mu.Lock()
		told := b.last.State
		b.mu.Unlock()
		dir := filepath.Join(s.demo.Dir, "boards", hex.EncodeToString([]byte(b.name)))
		if on, err := onDisk(dir); err != nil || on.Turn < told.Turn || on.Turn == told.Turn && on != told {
			s.Errorf("%s is %+v on disk, and its players were told %+v: %v", b.name, on, told, err)
		}
	}
}

// onDisk is the board that the next owner would begin with.
func onDisk(dir string) (s State, err error) {
	all, err := names(dir)
	for _, name := range slices.Backward(all) {
		if s, err = last(filepath.Join(dir, name)); err != nil || s.Turn > 0 {
			return s, err
		}
	}
	return s, err
}

// post asks for what a button of the page asks for.
func (s *system) post(path string) {
	s.Helper()
	resp, err := http.Post(s.url+path, "", nil)
	s.must(err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		s.Fatalf("POST %s: %s", path, resp.Status)
	}
}

// most is a core that has most boards that are played.
func (s *system) most() (id string) {
	n := map[string]int{}
	for _, b := range s.players.playing() {
		b.mu.Lock()
		n[b.last.Core]++
		b.mu.Unlock()
	}
	for c := range n {
		if id == "" || n[c] > n[id] || n[c] == n[id] && c < id {
			id = c
		}
	}
	return id
}

// What the document asks for: 600 boards on five cores, 30 of which are played by 60 players through the proxy. A sixth
// core joins and has its hundred. One is killed: its players go on elsewhere, and no move that was acknowledged is lost.
// Boards that nobody plays are let go of. One core is drained by hand, and one for the hook, which then ends it.
func TestC25C64C65C67P81GamesGoOn(t *testing.T) {
	t.Parallel()
	s := start(t, 5, 200*time.Millisecond, "--cadence-idle-evict", "1h", "--cadence-idle-scan", "200ms")
	var claims sync.WaitGroup
	for caller := range 20 {
		claims.Go(func() {
			for i := range 30 {
				if _, err := s.client.Claim(s.ctx, keyspace, fmt.Appendf(nil, "board-%d", caller*30+i)); err != nil {
					s.Error(err)
				}
			}
		})
	}
	claims.Wait()
	s.await("each of five cores has 120 boards", s.has(120, "core-1", "core-2", "core-3", "core-4", "core-5"))
	s.players.play(s.ctx, 30)
	s.goesOn()
	s.must(s.add(s.ctx, ""))
	joined := s.await("a sixth core has its part", s.has(100, "core-1", "core-2", "core-3", "core-4", "core-5", "core-6"))
	s.goesOn()
	testreport.Linef(t, "games: 600 boards on five cores, a sixth joins: all six have their part after %v", joined)

	victim := s.most()
	n, err := s.kill(victim)
	s.must(err)
	if n == 0 {
		t.Fatalf("no board that is played was on %s", victim)
	}
	var gaps []time.Duration
	s.await("each board of the core that was killed is moved on elsewhere", func() error {
		if gaps = append(gaps, s.players.gapsAgain()...); len(gaps) < n {
			return fmt.Errorf("%d of %d are", len(gaps), n)
		}
		return nil
	})
	slices.Sort(gaps)
	s.goesOn()
	s.check()
	testreport.Linef(t, "games: kill -9 of a core of six, with 100 boards, %d of them played: from kill to the next acknowledged move %v in the middle, %v the longest (in the document 300 ms); %d moves, none lost",
		n, percentile(gaps, 50), percentile(gaps, 100), s.players.moves.Load())

	left := slices.DeleteFunc([]string{"core-1", "core-2", "core-3", "core-4", "core-5", "core-6"}, func(id string) bool { return id == victim })
	_, err = s.demo.NoKV(s.ctx, "keyspace", "update", keyspace, "--cadence-idle-evict", "1s")
	s.must(err)
	evicted := s.await("boards that nobody plays are let go of", func() error {
		if boards, _ := s.owned(); len(boards) != 30 {
			return fmt.Errorf("there are %d boards", len(boards))
		}
		return nil
	})
	testreport.Linef(t, "games: 570 boards that nobody plays are let go of after %v, of which 1 s is how long they have to be idle", evicted)

	s.post("/cores/" + left[0] + "/drain")
	drained := s.await("a core that drains has no board", func() error {
		if _, n := s.owned(); n[left[0]] > 0 {
			return fmt.Errorf("boards are at %v", n)
		}
		return nil
	})
	s.goesOn()
	s.check()

	_, err = s.demo.NoKV(s.ctx, "keyspace", "update", keyspace, "--scaling-enabled", "true", "--scaling-hook-url", s.url+"/scale",
		"--scaling-spacing", "200ms", "--scaling-min-members", "3", "--limits-max-regions-per-member", "40")
	s.must(err)
	scaled := s.await("one core is ended by the hook, and three are left", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.cores); n != 4 { // with the one that was drained by hand, and runs
			return fmt.Errorf("%d cores run", n)
		}
		return nil
	})
	s.goesOn()
	s.check()
	testreport.Linef(t, "games: drained by hand in %v; the hook is asked for one core fewer, has it ended when it has drained, in %v; in all %s", drained, scaled, s.players.line(0, 0))
}

// Boards on a machine that has much to do: 1,000 on four cores, of which one is killed each 5 s and started again.
func TestLongGames(t *testing.T) {
	if !*long {
		t.Skip("of the long form: ./scripts/test.sh --long, or -games.long")
	}
	s := start(t, 4, 2*time.Second, "--cadence-idle-evict", "1h")
	s.players.play(s.ctx, 1000)
	four := []string{"core-1", "core-2", "core-3", "core-4"}
	s.await("each of four cores has 250 boards", s.has(250, four...))
	s.goesOn()
	var gaps []time.Duration
	killed, kills := 0, 0
	moves, begun := s.players.moves.Load(), time.Now()
	for i := 0; time.Since(begun) < *lasts; i++ {
		id := four[i%4]
		at := time.Now()
		n, err := s.kill(id)
		s.must(err)
		killed, kills = killed+n, kills+1
		s.must(s.add(s.ctx, id))
		pause(s.ctx, time.Until(at.Add(5*time.Second)))
		these := s.players.gapsAgain()
		gaps = append(gaps, these...)
		t.Logf("%s: %d boards, gaps %v, %v, %v; %s", id, n, percentile(these, 50), percentile(these, 99), percentile(these, 100), s.players.line(moves, time.Since(begun)))
	}
	s.await("each board of a core that was killed is moved on", func() error {
		if gaps = append(gaps, s.players.gapsAgain()...); len(gaps) < killed {
			return fmt.Errorf("%d of %d are", len(gaps), killed)
		}
		return nil
	})
	took := time.Since(begun)
	s.goesOn()
	s.check()
	slices.Sort(gaps)
	testreport.Linef(t, "games: 1,000 boards on four cores, one killed each 5 s, %d times: from kill to the next acknowledged move of %d boards: %v in the middle, 99 of 100 in %v, the longest %v; %.0f moves a second; %s",
		kills, len(gaps), percentile(gaps, 50), percentile(gaps, 99), percentile(gaps, 100), float64(s.players.moves.Load()-moves)/took.Seconds(), s.players.line(moves, took))
}

// The page is told what there is, and a site elsewhere may ask for nothing.
func TestPageShowsCoresAndBoards(t *testing.T) {
	t.Parallel()
	s := start(t, 2, 200*time.Millisecond)
	s.players.play(s.ctx, 4)
	s.goesOn()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url+"/events", nil)
	s.must(err)
	resp, err := http.DefaultClient.Do(req)
	s.must(err)
	defer resp.Body.Close()
	line := make([]byte, 64<<10)
	n, err := resp.Body.Read(line)
	s.must(err)
	var p picture
	s.must(json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(string(line[:n])), "data: ")), &p))
	if len(p.Cores) != 2 || len(p.Boards) != 4 || p.Cores[0].Boards+p.Cores[1].Boards != 4 || p.Cores[0].PID == 0 {
		t.Errorf("the page is told %+v", p)
	}
	elsewhere, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url+"/cores/core-1/kill", nil)
	s.must(err)
	elsewhere.Header.Set("Origin", "http://elsewhere.example")
	refused, err := http.DefaultClient.Do(elsewhere)
	s.must(err)
	defer refused.Body.Close()
	if refused.StatusCode != http.StatusForbidden {
		t.Errorf("another site's page kills a core: %s", refused.Status)
	}
}

// The page shows boards of any number and any name, in their order, and goes on when the example comes back.
func TestThePageOfManyBoards(t *testing.T) {
	if err := exec.Command("node", "--version").Run(); err != nil {
		t.Skipf("SKIPPED: the script of the page needs node, which is not installed: %v", err)
	}
	c := exec.Command("node", "testdata/page.mjs")
	c.Stdin = bytes.NewReader(page)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// testWriter puts what the processes print into the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
