package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
)

const (
	roots        = 3
	coordinators = 2
	// budget is what each process is told that it may take.
	budget = 256 << 20
	// patience bounds every wait for a process.
	patience = proctest.Patience
)

// scene is a cluster with those who are served by it.
type scene struct {
	*proctest.Cluster
	t       *testing.T
	client  *client.Client
	victims *victims
	// What members have in memory at most, what others see, and what members take, at
	// rest: looked at before the first attack; with -attack.long before each.
	before  [roots + coordinators]int64
	calm    figures
	restful [roots + coordinators]int
}

// newScene starts a cluster. limitFiles is a limit of open files for each process;
// 0: the machine's. rootFlags are for root peers.
func newScene(t *testing.T, limitFiles int, rootFlags ...string) *scene {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	if limitFiles > 0 {
		script := filepath.Join(t.TempDir(), "nokv")
		text := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", limitFiles, path)
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		path = script
	}
	s := &scene{t: t, Cluster: proctest.NewCluster(t, path, nil, coordinators)}
	flags := []string{"-memory-budget", mib(budget)}
	s.RootPeerFlags = append(append(s.RootPeerFlags, flags...), rootFlags...)
	s.CoordinatorFlags = append(append(s.CoordinatorFlags, flags...), "-tenure-ttl", ttl().String())
	s.StartAll()
	s.WaitHealthy(patience)
	s.client, err = client.New(client.Config{Endpoints: s.CoordinatorAddrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	s.victims = startVictims(t, s.client)
	return s
}

// holder is the member that holds the Tenure, as callers reach it.
func (s *scene) holder() (address string, member int) {
	s.t.Helper()
	proctest.Eventually(s.t, patience, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		status, err := s.client.Status(ctx, "")
		if err != nil {
			return err
		}
		address = status.GetTenure().GetHolderAddress()
		for i, a := range s.CoordinatorAddrs {
			if a == address {
				member = roots + i
				return nil
			}
		}
		return fmt.Errorf("the holder is at %q", address)
	})
	return address, member
}

// leader is the member that leads the root.
func (s *scene) leader() int {
	s.t.Helper()
	var found int
	proctest.Eventually(s.t, patience, func() error {
		for i := range roots {
			var vars struct {
				Role string `json:"role"`
			}
			if err := s.vars(i, &vars); err == nil && vars.Role == "leader" {
				found = i
				return nil
			}
		}
		return fmt.Errorf("no root peer says that it leads")
	})
	return found
}

// vars reads what a member shows of itself.
func (s *scene) vars(m int, into any) error {
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get("http://" + s.MetricsAddrs[m] + "/debug/vars")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(&struct {
		NoKV any `json:"nokv"`
	}{into})
}

// plan is one attack on a scene. It goes on until it has happened, and then until others
// were served meanwhile; with -attack.long for -attack.lasts at least.
type plan struct {
	order
	// happened says, by what the attacker did and what is seen, whether the attack
	// took place.
	happened func(did map[string]int) error
}

// outcome is what an attack did.
type outcome struct {
	did          map[string]int
	calm, during figures
	peak, after  [roots + coordinators]int64
	// With -attack.long, when the memory of all members was at most a tenth and collected
	// above what it was before; 0: it was not within givenBack.
	back time.Duration
	// Of one processor, in hundredths: what members took at rest and under attack, and
	// what the attacker took, who is on the same machine.
	restful, busy [roots + coordinators]int
	attacker      int
}

// run plays an attack and checks what must hold.
func (s *scene) run(p plan) outcome {
	t := s.t
	t.Helper()
	s.victims.settle(t)
	era := s.client.Era()
	if s.calm.lasted == 0 || *long {
		used := s.processor()
		s.before = [len(s.before)]int64{}
		s.calm = s.victims.during(func() { s.most(&s.before, calm(), s.victims.served) })
		s.restful = s.shares(used, s.calm.lasted)
	}
	out := outcome{calm: s.calm, restful: s.restful}
	a := s.attacker(p.order)
	used := s.processor()
	out.during = s.victims.during(func() {
		s.most(&out.peak, lasts(), func() error {
			if err := p.happened(a.did()); err != nil {
				return fmt.Errorf("%s did not happen: %w", p.Attack, err)
			}
			return s.victims.served()
		})
	})
	out.busy = s.shares(used, out.during.lasted)
	out.attacker = share(processorTime(t, a.cmd.Process.Pid), out.during.lasted)
	out.did = a.end()
	s.victims.settle(t)
	if *long {
		out.back = s.giveBack()
	}
	for m := range out.after {
		if !s.Process(m).Running() {
			t.Fatalf("%s ended under %s:\n%s", s.Name(m), p.Attack, s.Process(m).Tail())
		}
		out.after[m] = resident(t, s.Process(m).PID())
		if most := int64(budget * above()); out.peak[m] > most {
			t.Errorf("%s took %s under %s, its budget is %s", s.Name(m), mib(out.peak[m]), p.Attack, mib(budget))
		}
	}
	if now := s.client.Era(); now != era {
		t.Errorf("%s cost era %d: it is %d now", p.Attack, era, now)
	}
	for _, f := range []figures{out.calm, out.during} {
		for _, err := range f.failed {
			t.Errorf("%s: a call of others failed: %v", p.Attack, err)
		}
	}
	testreport.Linef(t, "attack %s", p.Attack+": "+out.String(s))
	return out
}

// most notes the most memory that each member has in some time, and until enough was done.
func (s *scene) most(peak *[roots + coordinators]int64, lasts time.Duration, enough func() error) {
	s.t.Helper()
	for begun := time.Now(); ; {
		for m := range peak {
			peak[m] = max(peak[m], resident(s.t, s.Process(m).PID()))
		}
		if took := time.Since(begun); took >= lasts {
			err := enough()
			if err == nil {
				return
			}
			if took > lasts+patience {
				s.t.Fatalf("within %s: %v", took, err)
			}
		}
		time.Sleep(20 * time.Millisecond) // memory is looked at so often
	}
}

const (
	// givenBack is how long memory has to come back.
	givenBack = time.Minute
	// collected is about what a heap as small as these grows by between two collections.
	collected = 16 << 20
)

// giveBack waits for members to give memory back by themselves.
func (s *scene) giveBack() time.Duration {
	for begun := time.Now(); time.Since(begun) < givenBack; {
		back := true
		for m, before := range s.before {
			back = back && resident(s.t, s.Process(m).PID()) <= before+before/10+collected
		}
		if back {
			return max(time.Since(begun), time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // memory is looked at so often
	}
	return 0
}

func (o outcome) String(s *scene) string {
	var b strings.Builder
	for k := range kinds {
		fmt.Fprintf(&b, "%s p99 %s -> %s, longest %s -> %s (%d -> %d/s); ", kindNames[k], short(o.calm.p99(k)), short(o.during.p99(k)), short(o.calm.longest(k)), short(o.during.longest(k)), o.calm.rate(k), o.during.rate(k))
	}
	for m := range o.busy {
		if o.busy[m] > 2*o.restful[m]+10 {
			fmt.Fprintf(&b, "%s %d%% -> %d%% of a processor; ", s.Name(m), o.restful[m], o.busy[m])
		}
	}
	fmt.Fprintf(&b, "attacker (nice %d) %d%%; ", politely, o.attacker)
	for m := range o.peak {
		if o.peak[m]-s.before[m] > 8<<20 {
			fmt.Fprintf(&b, "%s %s -> %s -> %s; ", s.Name(m), mib(s.before[m]), mib(o.peak[m]), mib(o.after[m]))
		}
	}
	switch {
	case o.back > 0:
		fmt.Fprintf(&b, "memory back in %s; ", o.back.Round(100*time.Millisecond))
	case *long:
		fmt.Fprintf(&b, "memory not back in %s; ", givenBack)
	}
	fmt.Fprintf(&b, "%v", o.did)
	return b.String()
}

// ttl is that of eras: the default. Among other tests it outlasts what the machine itself
// stands still.
func ttl() time.Duration {
	if *long {
		return 200 * time.Millisecond
	}
	return 30 * time.Second
}

// above is how far above its budget a process may come. Among other tests garbage is
// collected late.
func above() float64 {
	if *long {
		return 1.2
	}
	return 1.5
}

func calm() time.Duration {
	if *long {
		return *full / 3
	}
	return 500 * time.Millisecond
}

func lasts() time.Duration {
	if *long {
		return *full
	}
	return 300 * time.Millisecond
}

// sized is that of a bounded attack, or the one that was seen to hurt.
func sized(bounded, full int) int {
	if *long {
		return full
	}
	return bounded
}

// attacking is the process that attacks.
type attacking struct {
	t    *testing.T
	cmd  *exec.Cmd
	stop func() error
	// said is closed when it says no more.
	said chan struct{}

	mu   sync.Mutex
	last string // guarded by mu: what it said last of what it did
}

func (s *scene) attacker(o order) *attacking {
	t := s.t
	t.Helper()
	o.Cluster = s.client.ClusterID()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), orderEnv+"="+string(raw), "GOMEMLIMIT=2GiB")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = procs.Attributes()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &attacking{t: t, cmd: cmd, stop: in.Close, said: make(chan struct{})}
	go func() {
		defer close(a.said)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			a.mu.Lock()
			a.last = lines.Text()
			a.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-a.said
	})
	return a
}

// did is what it has done so far.
func (a *attacking) did() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	did := map[string]int{}
	for word := range strings.FieldsSeq(a.last) {
		what, n, _ := strings.Cut(word, "=")
		did[what], _ = strconv.Atoi(n)
	}
	return did
}

// end ends the attack and returns what was done.
func (a *attacking) end() map[string]int {
	a.t.Helper()
	_ = a.stop()
	kill := time.AfterFunc(patience, func() { _ = a.cmd.Process.Kill() })
	defer kill.Stop()
	<-a.said
	if err := a.cmd.Wait(); err != nil {
		a.t.Fatalf("the attacker: %v", err)
	}
	return a.did()
}

// resident is what a process has in memory, in bytes.
func resident(t *testing.T, pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatalf("process %d has ended: %v", pid, err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		t.Fatalf("/proc/%d/statm: %q", pid, raw)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// processorTime is what a process has taken so far.
func processorTime(t *testing.T, pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("process %d has ended: %v", pid, err)
	}
	// Behind the name, which may have spaces: the 14th and 15th field, in hundredths of
	// a second.
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatalf("/proc/%d/stat: %q", pid, raw)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// processor is what each member has taken so far.
func (s *scene) processor() (used [roots + coordinators]time.Duration) {
	for m := range used {
		used[m] = processorTime(s.t, s.Process(m).PID())
	}
	return used
}

// shares is what each member took since.
func (s *scene) shares(since [roots + coordinators]time.Duration, lasted time.Duration) (shares [roots + coordinators]int) {
	for m, now := range s.processor() {
		shares[m] = share(now-since[m], lasted)
	}
	return shares
}

// share is a part of one processor, in hundredths.
func share(used, lasted time.Duration) int { return int(100 * used / lasted) }

func mib(n int64) string { return fmt.Sprintf("%dMiB", n>>20) }

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
