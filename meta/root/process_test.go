package root_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

const patience = proctest.Patience

// goneWithin is how long a peer with a failed disk may live on: a second, and what a
// busy machine takes to end it.
const goneWithin = patience / 4

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// peers are three real root peers and a client of them.
type peers struct {
	*proctest.Cluster
	t      *testing.T
	client *client.Client
	// acked are the coordinators whose joining was acknowledged.
	acked []string
}

func newPeers(t *testing.T) *peers {
	t.Helper()
	return newPeersBy(t, "")
}

// newPeersBy is newPeers under a shell that has run a command before; empty: none.
func newPeersBy(t *testing.T, shell string) *peers {
	t.Helper()
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	p := &peers{t: t, Cluster: proctest.NewCluster(t, path, nil, 0)}
	if shell != "" {
		p.Cluster = proctest.NewCluster(t, "/bin/sh", nil, 0)
		p.CommandLine = func(member int) []string {
			return append([]string{"-c", shell + `; exec "$0" "$@"`, path}, p.Args(member)...)
		}
	}
	addrs := map[uint64]string{}
	for i, a := range p.RootAddrs {
		addrs[uint64(i+1)] = a
	}
	if p.client, err = client.New(client.Config{Peers: addrs}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.client.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		p.client.Close()
	})
	return p
}

// A new cluster begins at the highest level: nothing that its build can do is refused
// until it is raised.
func TestNewClusterIsAtTheHighestLevel(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.atTheHighestLevel()
}

// So does one whose peers were each started again while they waited for the others.
func TestClusterOfPeersThatWaitedIsAtTheHighestLevel(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	for i := range 3 {
		p.Start(i)
		p.Process(i).WaitLog("waiting for all root peers", patience)
		p.Kill(i)
	}
	p.StartAll()
	p.atTheHighestLevel()
}

// atTheHighestLevel has a new cluster do what takes it.
func (p *peers) atTheHighestLevel() {
	t := p.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := p.client.Propose(ctx, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
		Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "default", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH}},
	}}}}})
	if err != nil || results[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("a grant in a new cluster: %v, %v", results, err)
	}
	for _, s := range p.status() {
		if s.GetAppliedIndex() >= results[0].GetToken().GetIndex() && s.GetFeatureLevel() != state.FeatureLevel {
			t.Errorf("root peer %d is at feature level %d", s.GetNodeId(), s.GetFeatureLevel())
		}
	}
}

// write has a command of about so many bytes applied; what is acknowledged is noted.
func (p *peers) write(bytes int) error {
	id := fmt.Sprintf("c%06d", len(p.acked))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events := []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: id[:1] + "-" + fmt.Sprint(len(p.acked)%500), Address: id, FeatureLevel: state.FeatureLevel}}}}
	for n := 0; n < bytes; n += 4096 {
		key := fmt.Appendf(nil, "%06d", n/4096)
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: uint64(1_000_000 + n/4096), KeyspaceId: 1, StartKey: key, EndKey: append(key, 'x'),
			Epoch:    &rootv1.RegionEpoch{Version: uint64(len(p.acked) + 1), ConfVersion: 1},
			Frontier: []byte(strings.Repeat("f", 4000)),
		}}}})
	}
	results, err := p.client.Propose(ctx, &rootv1.Command{Events: events})
	if err != nil {
		return err
	}
	if results[0].GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		return fmt.Errorf("rejected: %v", results[0].GetError())
	}
	p.acked = append(p.acked, id)
	return nil
}

// mustWrite is write n times.
func (p *peers) mustWrite(n, bytes int) {
	p.t.Helper()
	for range n {
		if err := p.write(bytes); err != nil {
			p.t.Fatalf("write %d: %v", len(p.acked), err)
		}
	}
}

// leader is the member that leads.
func (p *peers) leader() int {
	p.t.Helper()
	leader := -1
	proctest.Eventually(p.t, patience, func() error {
		for _, s := range p.status() {
			if s.GetRole() == rootv1.RaftRole_RAFT_ROLE_LEADER {
				leader = int(s.GetNodeId()) - 1
				return nil
			}
		}
		return fmt.Errorf("nobody leads")
	})
	return leader
}

func (p *peers) status() (out []*rootv1.StatusResponse) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, s := range p.client.Status(ctx) {
		if s.Err == nil {
			out = append(out, s.Status)
		}
	}
	return out
}

// same waits until all three peers have applied the same, and wants it to be the
// same state, with everything in it that was acknowledged.
func (p *peers) same() {
	p.t.Helper()
	proctest.Eventually(p.t, patience, func() error {
		all := p.status()
		if len(all) != 3 {
			return fmt.Errorf("%d peers answer", len(all))
		}
		for _, s := range all {
			if s.GetAppliedIndex() != all[0].GetAppliedIndex() {
				return fmt.Errorf("applied %d and %d", s.GetAppliedIndex(), all[0].GetAppliedIndex())
			}
			if s.GetStateHash() != all[0].GetStateHash() {
				p.t.Fatalf("state hashes differ at %d: %x on %d, %x on %d", s.GetAppliedIndex(), s.GetStateHash(), s.GetNodeId(), all[0].GetStateHash(), all[0].GetNodeId())
			}
		}
		return nil
	})
	newest := map[string]string{}
	for _, address := range p.acked {
		newest[address[:1]+"-"+fmt.Sprint(number(address)%500)] = address
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := p.client.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		for _, r := range chunk.GetRecords() {
			if c := r.GetCoordinator(); c != nil && newest[c.GetId()] != "" {
				// A write whose outcome is unknown may be there as well.
				if c.GetAddress() < newest[c.GetId()] {
					p.t.Errorf("%s is at %s, %s was acknowledged", c.GetId(), c.GetAddress(), newest[c.GetId()])
				}
				delete(newest, c.GetId())
			}
		}
		return nil
	})
	if err != nil || len(newest) > 0 {
		p.t.Errorf("snapshot: %v; acknowledged and not there: %v", err, newest)
	}
}

func number(address string) (n int) {
	_, _ = fmt.Sscanf(address, "c%d", &n)
	return n
}

// silent connects to a member's gRPC port and never says a word.
func (p *peers) silent(member int) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.RootAddrs[member])
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
}

// inject has the kernel fail the fdatasync calls of a member from the nth on.
// It returns when strace is attached.
func (p *peers) inject(member, nth int) {
	p.t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil || os.Getuid() != 0 {
		p.t.Skip("SKIPPED, AND NOT SHOWN: a failing disk needs strace and root")
	}
	log := filepath.Join(p.t.TempDir(), "strace")
	cmd := exec.Command(strace, "-f", "-p", fmt.Sprint(p.Process(member).PID()), "-o", log,
		"-e", "trace=fdatasync", "-e", fmt.Sprintf("inject=fdatasync:error=EIO:when=%d+", nth))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	said := make([]byte, 256)
	if n, _ := pipe.Read(said); !strings.Contains(string(said[:n]), "attached") {
		p.t.Skipf("SKIPPED, AND NOT SHOWN: strace cannot attach: %s", said[:n])
	}
}

// A leader whose fdatasync fails ends, with an error that names it, also when somebody
// holds a connection open; the others go on, and nothing that was acknowledged is
// missing when it comes back.
func TestFailedSyncEndsTheProcess(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.mustWrite(20, 0)
	victim := p.leader()
	p.silent(victim)
	p.inject(victim, 30)
	ended := make(chan time.Time, 1)
	go func() {
		<-p.Process(victim).Ended()
		ended <- time.Now()
	}()
	for !strings.Contains(p.Process(victim).Log(), "storage failed for good") {
		p.mustWrite(1, 0)
	}
	failedAt := time.Now()
	if code := p.Process(victim).Wait(patience); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if took := (<-ended).Sub(failedAt); took > goneWithin {
		t.Errorf("it was there for %v", took)
	}
	if log := p.Process(victim).Log(); !strings.Contains(log, "input/output error") {
		t.Errorf("it does not say why:\n%s", log)
	}
	p.mustWrite(20, 0)
	p.Start(victim)
	p.same()
}

// A peer whose disk is full stops when its log has used up its room, with an error that
// says so; with space again it starts and catches up.
func TestFullDiskEndsTheProcess(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.onSmallDisk(0)
	p.StartAll()
	p.Process(0).WaitLog("the disk is nearly full", patience) // from the beginning: it is so small
	p.mustWrite(1, 0)
	filler := filepath.Join(p.Workdir(0), "filler")
	fill(t, filler)
	full := p.Process(0)
	for n := 0; full.Running() && n < 200; n++ { // more than fits; the others need not wait for it
		p.mustWrite(1, 900<<10)
	}
	if code := full.Wait(patience); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if log := full.Log(); !strings.Contains(log, "no space left on device") {
		t.Errorf("it does not say why:\n%s", log)
	}
	p.mustWrite(5, 0)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.Start(0)
	p.same()
}

// The disks of all peers are full at once: none of them ends by a checkpoint, which can
// wait; they start again on the full disks; with space again the checkpoint is written.
func TestFullDisksEndNoPeerByACheckpoint(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.RootPeerFlags = []string{"-checkpoint-entries", "100"}
	for i := range 3 {
		p.onSmallDisk(i)
	}
	p.StartAll()
	p.mustWrite(20, 0)
	fillers := func(do func(path string)) {
		for i := range 3 {
			do(filepath.Join(p.Workdir(i), "filler"))
		}
	}
	fillers(func(path string) { fill(t, path) })
	p.mustWrite(200, 0)
	for i := range 3 {
		p.Process(i).WaitLog("the disk has no room", patience)
	}
	for _, s := range p.status() {
		if !strings.Contains(s.GetNoRoom(), "no space left on device") || s.GetCheckpointIndex() != 0 {
			t.Errorf("root peer %d: no room %q, checkpoint at %d", s.GetNodeId(), s.GetNoRoom(), s.GetCheckpointIndex())
		}
	}
	for i := range 3 {
		p.Kill(i)
	}
	p.StartAll()
	p.mustWrite(20, 0)
	p.same()
	fillers(func(path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
	for i := range 3 {
		p.Kill(i)
		p.Start(i)
		p.Process(i).WaitLog("checkpoint written", patience)
	}
	p.mustWrite(5, 0)
	p.same()
	for _, s := range p.status() {
		if s.GetNoRoom() != "" || s.GetCheckpointIndex() == 0 {
			t.Errorf("root peer %d: no room %q, checkpoint at %d", s.GetNodeId(), s.GetNoRoom(), s.GetCheckpointIndex())
		}
	}
}

// onSmallDisk gives a peer a disk of its own.
func (p *peers) onSmallDisk(peer int) {
	p.t.Helper()
	dir := p.Workdir(peer)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=80m"); err != nil {
		p.t.Skipf("SKIPPED, AND NOT SHOWN: a full disk needs the right to mount: %v", err)
	}
	p.t.Cleanup(func() {
		p.Kill(peer)
		if err := syscall.Unmount(dir, 0); err != nil {
			p.t.Errorf("unmount: %v", err)
		}
	})
}

// fill takes all space of a file system.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(chunk)
	}
}

// A peer that was away for longer than the log is kept gets a checkpoint.
func TestPeerThatWasAwayGetsACheckpoint(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	if !size.Long() {
		p.RootPeerFlags = []string{"-checkpoint-entries", "100"}
	}
	p.StartAll()
	p.mustWrite(5, 0)
	away := (p.leader() + 1) % 3
	p.Kill(away)
	writes, bytes := 250, 0 // With checkpoints every 100 entries.
	if size.Long() {
		writes, bytes = 90, 1000<<10 // Checkpoints come every 64 MiB, and 32 MiB of log stay behind them.
	}
	p.mustWrite(writes, bytes)
	p.Start(away)
	p.same()
	if log := p.Process(away).Log(); !strings.Contains(log, "checkpoint installed") {
		t.Errorf("no checkpoint was sent:\n%s", p.Process(away).Tail())
	}
	p.mustWrite(5, 0)
	p.Kill(away)
	p.Start(away)
	p.same()
}

// A peer does not start on a workdir that was damaged while it was down, names
// the file, and starts again on the right one.
func TestDamagedWorkdirIsRefused(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.mustWrite(30, 0)
	p.Kill(0)
	dir := p.Workdir(0)
	saved := filepath.Join(p.Dir, "saved")
	if err := os.CopyFS(saved, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	wal := filepath.Join("root.events.wal", "0000000000000001.wal")
	for _, damage := range []struct {
		file string
		do   func(path string) error
	}{
		{wal, func(path string) error { return os.Truncate(path, 4096) }},
		{wal, func(path string) error { return os.Truncate(path, 0) }},
		{wal, os.Remove},
		{wal, func(path string) error { return overwrite(path, 0, 512) }},
		{wal, func(path string) error { return overwrite(path, 2*512+40, 1) }},
		{"root.events.wal", os.RemoveAll},
		{"root.raft.bin", os.Remove},
		{"root.raft.bin", func(path string) error { return os.Truncate(path, 4096) }},
		{"root.raft.bin", func(path string) error { return overwrite(path, 0, 8192) }},
	} {
		if err := damage.do(filepath.Join(dir, damage.file)); err != nil {
			t.Fatal(err)
		}
		if code := p.Start(0).Wait(patience); code != 1 {
			t.Errorf("%s: exit status %d, want 1", damage.file, code)
		}
		if log := p.Process(0).Tail(); !strings.Contains(log, "damage in "+filepath.Join(dir, damage.file)+" at offset ") {
			t.Errorf("%s is not named:\n%s", damage.file, log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(saved)); err != nil {
			t.Fatal(err)
		}
	}
	p.mustWrite(5, 0)
	p.Start(0)
	p.same()
}

// overwrite inverts n bytes of a file.
func overwrite(path string, offset int64, n int) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, offset); err != nil {
		return err
	}
	for i := range b {
		b[i] = ^b[i]
	}
	_, err = f.WriteAt(b, offset)
	return err
}

// More connections than a peer may have open, on each of its ports, do not end it and
// do not keep its peers, its log or its callers from it for long.
func TestConnectionsBeyondTheLimitOfOpenFiles(t *testing.T) {
	t.Parallel()
	p := newPeersBy(t, "ulimit -n 100")
	p.StartAll()
	p.mustWrite(5, 0)
	for member := range 3 {
		for _, address := range []string{p.RootAddrs[member], p.TransportAddrs[member], p.MetricsAddrs[member]} {
			for range 150 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					break // Its queue is full as well.
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
		}
	}
	// The client's connections are there already: what is in the way is on the peers' side.
	p.mustWrite(20, 900<<10) // A segment is 16 MiB: new ones need descriptors.
	away := (p.leader() + 1) % 3
	p.Kill(away)
	p.mustWrite(5, 0)
	p.Start(away)
	p.mustWrite(5, 0)
	p.same()
	for member := range 3 {
		if !p.Process(member).Running() {
			t.Errorf("root peer %d has ended:\n%s", member+1, p.Process(member).Tail())
		}
	}
}
