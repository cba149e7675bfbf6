package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/router"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "node" { // this program, as a process of the test
		main()
	}
	os.Exit(proctest.Main(m))
}

// system is a cluster of processes, nodes and callers.
type system struct {
	*testing.T
	cluster *proctest.Cluster
	ends    string // of the coordinators that are asked
	client  *client.Client
	dir     string
	nodes   map[string]*proctest.Process
	callers *callers
}

func start(t *testing.T) *system {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	s := &system{T: t, cluster: proctest.NewCluster(t, path, nil, 2), dir: t.TempDir(), nodes: map[string]*proctest.Process{}}
	s.ends = s.cluster.Coordinators()
	if s.client, err = client.New(client.Config{Endpoints: strings.Split(s.ends, ",")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	s.cluster.StartAll()
	s.cluster.WaitHealthy(proctest.Patience)
	for _, id := range []string{"a", "b", "c", "d"} {
		s.node(id)
	}
	s.await("four nodes are there", func() error {
		if n := strings.Count(s.nokv("member", "list", "-o", "json"), `"id"`); n != 4 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	// Nodes vanish here one soon after the other, which a guard may take for a fault of the network;
	// and slots need not rest as long. A node that lives is not given up on a busy machine: its calls would fail.
	// A holder that takes over in the midst of evening out goes on only for who has more than this of its part.
	s.nokv(append(settings(), "--guards-mass-window", "1s", "--cadence-checkpoint-interval", "1s", "--policy-rebalance-mean-permille", "1005",
		"--policy-rebalance-spacing", "100ms", "--policy-rebalance-in-flight", "128", "--ownership-ttl", "3s", "--liveness-dead-after", "30s")...)
	return s
}

// node starts a node.
func (s *system) node(id string) {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	s.nodes[id] = proctest.Start(s.T, proctest.Options{
		Name: "node-" + id, Path: self, Args: []string{"node", "--id", id, "--dir", s.dir, "--coordinator-addr", s.cluster.Coordinators()},
	})
}

// call has actors called until the test ends, or stop is called.
func (s *system) call() (stop func()) {
	s.Helper()
	r, err := router.New(router.Config{Client: s.client, Keyspaces: []string{keyspace}})
	if err != nil {
		s.Fatal(err)
	}
	s.callers = newCallers(r, 128)
	ctx, cancel := context.WithCancel(s.Context())
	routed, called := make(chan error, 1), make(chan struct{})
	go func() { routed <- r.Run(ctx) }()
	go func() {
		defer close(called)
		s.callers.run(ctx, 800, func(line string) { s.Log(line) })
	}()
	stop = func() {
		cancel()
		<-called
		if err := <-routed; err != nil {
			s.Error(err)
		}
	}
	return stop
}

func (s *system) nokv(args ...string) string {
	s.Helper()
	out := s.cluster.Run(append(args, "--coordinator-addr", s.ends)...)
	if out.Code != 0 {
		s.Fatalf("nokv %s: exit status %d: %s", strings.Join(args, " "), out.Code, out.Stderr)
	}
	return out.Stdout
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
	took := time.Since(begun).Round(time.Millisecond)
	s.Logf("%s: after %v", what, took)
	return took
}

// slotOwner is who has a slot, and since when by the order of epochs.
type slotOwner struct{ Node, Epoch string }

// owners are those of the slots that have one, by region.
func (s *system) owners() map[uint64]slotOwner {
	s.Helper()
	var regions []struct {
		ID          uint64
		Version     uint64
		ConfVersion uint64 `json:"conf_version"`
		Owners      []struct {
			Member string `json:"member_id"`
		}
	}
	if err := json.Unmarshal([]byte(s.nokv("region", "list", "--keyspace", keyspace, "-o", "json")), &regions); err != nil {
		s.Fatal(err)
	}
	all := map[uint64]slotOwner{}
	for _, r := range regions {
		for _, o := range r.Owners {
			all[r.ID] = slotOwner{Node: o.Member, Epoch: fmt.Sprintf("%d.%d", r.Version, r.ConfVersion)}
		}
	}
	return all
}

// has holds when just these nodes have all slots, as evenly as can be.
func (s *system) has(ids ...string) func() error {
	return func() error {
		n := map[string]int{}
		for _, o := range s.owners() {
			n[o.Node]++
		}
		for _, id := range ids {
			if less := 1024 / len(ids); n[id] < less || n[id] > less+1 {
				return fmt.Errorf("slots are at %v", n)
			}
		}
		if len(n) != len(ids) {
			return fmt.Errorf("slots are at %v", n)
		}
		return nil
	}
}

// holder is who holds the Tenure, and which era it is, by a coordinator that answers: nokv status
// asks all, and waits for one that hangs.
func (s *system) holder() (id string, era uint64) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), proctest.Patience)
	defer cancel()
	end, _, _ := strings.Cut(s.ends, ",")
	var status *coordinatorv1.StatusResponse
	proctest.Eventually(s.T, proctest.Patience, func() (err error) { // one that is back is asked again only a moment later
		status, err = s.client.Status(ctx, end)
		return err
	})
	if status.GetTenure().GetRetired() {
		return "", status.GetTenure().GetEra()
	}
	return status.GetTenure().GetHolderId(), status.GetTenure().GetEra()
}

// coordinator is the process of a holder.
func (s *system) coordinator(id string) int {
	for i := s.cluster.Roots(); i < s.cluster.Size(); i++ {
		if s.cluster.Name(i) == "coordinator-"+id {
			return i
		}
	}
	s.Fatalf("there is no coordinator %q", id)
	return 0
}

// askOther has the other coordinator asked from now on: this one does not answer.
func (s *system) askOther(id string) {
	s.Helper()
	s.ends = s.cluster.CoordinatorAddrs[s.cluster.Size()-1-s.coordinator(id)]
}

// another holds when somebody else than a coordinator that has the Tenure holds it.
func (s *system) another(id string, era uint64) func() error {
	return func() error {
		if now, at := s.holder(); now == "" || now == id || at <= era {
			return fmt.Errorf("%q holds era %d", now, at)
		}
		return nil
	}
}

// said is the callers' tally; nobody was told what cannot be.
func (s *system) said() (failed, lost int64) {
	s.Helper()
	n, all := &s.callers.now, &s.callers.all
	if wrong := n.wrong.Load() + all.wrong.Load(); wrong > 0 {
		s.Fatalf("%d answers are explained by no order of the calls", wrong)
	}
	return n.failed.Load() + all.failed.Load(), n.lost.Load() + all.lost.Load()
}

// goesOn waits until each actor could have been called once more.
func (s *system) goesOn() {
	s.Helper()
	done := func() int64 { return s.callers.now.done.Load() + s.callers.all.done.Load() } // less, for a moment, when a second ends
	want := done() + 2*int64(len(s.callers.actors))
	s.await("actors answer", func() error {
		if n := done(); n < want {
			return fmt.Errorf("%d calls of %d", n, want)
		}
		return nil
	})
}

// The scenarios of a cluster of actors: a node joins and leaves, and no call fails; A: a node dies, and
// the others have 341, 341 and 342 of its 1,024; B: the coordinator in charge and a node die at once;
// C: the coordinator in charge and a node are cut off, and when they are back, neither does what is
// another's by then.
func TestA13A21A22A40A41A42A44A45A46ActorsMoveAndBeginAgain(t *testing.T) {
	s := start(t)
	s.await("each of four nodes has 256 slots", s.has("a", "b", "c", "d"))
	stop := s.call()
	ended := false
	defer func() {
		if !ended {
			stop()
		}
	}()
	s.await("every slot has a checkpoint", func() error {
		found, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", "*", "*.json"))
		if len(found) < 1024 {
			return fmt.Errorf("%d files: %w", len(found), err)
		}
		return nil
	})

	s.node("e")
	joined := s.await("a fifth node has its part", s.has("a", "b", "c", "d", "e"))
	s.nodes["e"].Signal(syscall.SIGTERM)
	left := s.await("the others have it again", s.has("a", "b", "c", "d"))
	s.goesOn()
	failed, lost := s.said()
	testreport.Linef(t, "actors: a fifth node joins: it has its 204 slots after %v (in the document a plan at 0.5 s, actors move from 1.5 s on); asked to end, it has given them back after %v; %d calls, longest %v, %d without an answer, %d changes lost",
		joined, left, s.callers.all.done.Load(), time.Duration(s.callers.all.longest.Load()).Round(time.Millisecond), failed, lost)
	if failed != 0 || lost != 0 {
		t.Errorf("planned moves: %d calls without an answer and %d changes lost, want none", failed, lost)
	}

	before := s.owners()
	s.nodes["b"].Kill()
	dead := s.await("three nodes have 341, 341 and 342", s.has("a", "c", "d"))
	for id, now := range s.owners() {
		if was := before[id]; was.Node != "b" && was != now {
			t.Errorf("region %d was of %+v, who lives, and is of %+v", id, was, now)
		}
	}
	s.await("an actor says that it began again from a checkpoint", s.beganAgain)
	s.goesOn()
	failedA, lostA := s.said()
	testreport.Linef(t, "actors, A: a node of four killed: the others have 341, 341, 342 after %v (in the document 92 s), nothing else moved; %d calls without an answer, %d changes behind checkpoints lost", dead, failedA-failed, lostA-lost)
	s.node("b")
	back := s.await("a node that comes back is given its part", s.has("a", "b", "c", "d"))
	testreport.Linef(t, "actors, A: started again, it has 256 after %v", back)
	if code := s.nodes["e"].Wait(proctest.Patience); code != 0 {
		t.Errorf("node e: exit status %d after SIGTERM, want 0", code)
	}

	// A hang is nothing but silence: how long it takes is what the keyspace says.
	s.nokv("keyspace", "update", keyspace, "--liveness-interval", "200ms", "--liveness-suspect-after", "1s", "--liveness-dead-after", "3s")
	first, era := s.holder()
	s.askOther(first)
	begun := time.Now()
	s.cluster.Kill(s.coordinator(first))
	s.nodes["a"].Kill()
	took := s.await("another coordinator is in charge", s.another(first, era))
	s.await("the dead node's slots are the others'", s.has("b", "c", "d"))
	testreport.Linef(t, "actors, B: the coordinator in charge and a node killed: another one is in charge after %v (in the document within 10 s), slots are even after %v (within 100 s)",
		took, time.Since(begun).Round(time.Millisecond))
	s.cluster.Start(s.coordinator(first))
	s.await("the coordinator is back", func() error { return s.cluster.Healthy(s.coordinator(first)) })

	second, era := s.holder()
	route, key := s.actorOf("b")
	begun = time.Now()
	cut := s.cluster.Process(s.coordinator(second))
	s.askOther(second)
	cut.Signal(syscall.SIGSTOP)
	s.nodes["b"].Signal(syscall.SIGSTOP)
	took = s.await("another coordinator is in charge", s.another(second, era))
	s.await("the other nodes have the slots of the one that hangs", s.has("c", "d"))
	even := time.Since(begun).Round(time.Millisecond)
	third, era := s.holder()
	s.nodes["b"].Signal(syscall.SIGCONT)
	s.refused(route, key)
	cut.Signal(syscall.SIGCONT)
	s.await("the coordinator that was cut off serves again", func() error { return s.cluster.Healthy(s.coordinator(second)) })
	if id, at := s.holder(); id != third || at != era {
		t.Errorf("%s holds era %d, want %s and %d: there is one, and it stays", id, at, third, era)
	}
	s.nokv("witness") // one holder an era, every region with the owner that the log gave it
	s.goesOn()
	stop()
	ended = true
	failed, lost = s.said()
	testreport.Linef(t, "actors, C: the coordinator in charge and a node cut off: another one is in charge after %v (in the document 10 s), slots are even after %v; back, the node refuses what is not its own, the coordinator has not the Tenure; in all %d calls, %d without an answer, %d changes lost",
		took, even, s.callers.all.done.Load(), failed, lost)
}

// ask is a call of one actor, at who owns it.
func (s *system) ask(key string) (said reply, err error) {
	err = s.callers.router.Do(s.Context(), []byte(key), router.Options{ReassignOrphans: true, Idempotent: true}, func(ctx context.Context, t router.Target) error {
		resp, err := s.callers.http.Get("http://" + t.Address + "/actors/" + key)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if no := router.FromHTTP(resp); no != nil {
			return no
		}
		return json.NewDecoder(resp.Body).Decode(&said)
	})
	return said, err
}

func (s *system) beganAgain() error {
	for i := range 100 {
		if said, err := s.ask(s.callers.actors[i].name); err != nil {
			return err
		} else if strings.HasPrefix(said.Began, "from checkpoint ") {
			s.Logf("%+v", said)
			return nil
		}
	}
	return errors.New("of 100 none does")
}

// actorOf is an actor of a node, and the route to it.
func (s *system) actorOf(id string) (router.Target, string) {
	s.Helper()
	for i := range s.callers.actors {
		name := s.callers.actors[i].name
		t, err := s.callers.router.Resolve(s.Context(), []byte(name), router.Options{Strong: true})
		if err == nil && string(t.Member) == id {
			return t, name
		}
	}
	s.Fatalf("node %s has no actor", id)
	return router.Target{}, ""
}

// refused calls an actor at an old route, of a node that was replaced while it hung. It is refused with 421 by a node
// that has heard that the slot is another's, and with 503 by one that has not, and knows that its own time is over: in
// both the call was not run.
func (s *system) refused(t router.Target, key string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "http://"+t.Address+"/actors/"+key+"/add", nil)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set(router.HeaderEpoch, t.Epoch.String())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	no := router.FromHTTP(resp)
	if no == nil || no.Ran || resp.StatusCode != http.StatusMisdirectedRequest && resp.StatusCode != http.StatusServiceUnavailable {
		s.Errorf("a node that was replaced while it hung answers %s, %+v: want 421 or 503 of a call that was not run", resp.Status, no)
	}
}
