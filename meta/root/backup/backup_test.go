package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/backup"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// truth is a cluster with regions, at entry regions+1 of term 3.
func truth(t testing.TB, regions int) *state.State {
	t.Helper()
	st := state.New()
	apply(t, st, &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 7, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11}, {NodeId: 2, Incarnation: 12}, {NodeId: 3, Incarnation: 13}}},
	}}})
	for i := range regions {
		key := fmt.Sprintf("key-%06d", i)
		apply(t, st, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
			Region: &rootv1.Region{KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~")},
		}}})
	}
	return st
}

// apply commits an event in an entry of its own.
func apply(t testing.TB, st *state.State, e *rootv1.Event) {
	t.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
	var out state.Applied
	if err == nil {
		err = st.ApplyEntry(3, st.Token().Index+1, data, &out)
	}
	if err != nil || out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Fatalf("%v: %v, %v", e, out.Results, err)
	}
}

// peer is a Source that streams a state, a few records a chunk.
type peer struct {
	st *state.State
	// change may spoil a chunk; an error ends the stream before it.
	change func(call, chunk int, c *rootv1.SnapshotChunk) error
	calls  int
	// committed is what ReadIndex says; the zero Token: what st has.
	committed state.Token
	readErr   error
}

func (p *peer) ReadIndex(context.Context) (state.Token, error) {
	if p.committed != (state.Token{}) || p.readErr != nil {
		return p.committed, p.readErr
	}
	return p.st.Token(), nil
}

func (p *peer) Snapshot(_ context.Context, fn func(*rootv1.SnapshotChunk) error) error {
	p.calls++
	var chunks []*rootv1.SnapshotChunk
	n := uint64(0)
	_ = p.st.Records(func(r *rootv1.Record) error {
		if n++; n%7 == 1 {
			chunks = append(chunks, &rootv1.SnapshotChunk{Token: p.st.Token().Proto()})
		}
		c := chunks[len(chunks)-1]
		c.Records = append(c.Records, r)
		return nil
	})
	last := chunks[len(chunks)-1]
	last.Last, last.RecordCount, last.StateHash = true, n, p.st.Hash()
	for i, c := range chunks {
		if p.change != nil {
			if err := p.change(p.calls, i, c); err != nil {
				return err
			}
		}
		if err := fn(c); err != nil {
			return err
		}
	}
	return nil
}

// A peer that is cut off, or lags, does not give a backup: it lacks what was
// acknowledged. What it has is copied only when that is asked for.
func TestBackupOfAStalePeer(t *testing.T) {
	st, dir := truth(t, 30), t.TempDir()
	file := filepath.Join(dir, "backup")
	ahead := st.Token()
	ahead.Index++
	lags := &peer{st: st, committed: ahead}
	if _, err := backup.Take(t.Context(), lags, disk.OS(), file); err == nil || !strings.Contains(err.Error(), "lags") {
		t.Errorf("a backup of a peer that lags: %v", err)
	}
	if lags.calls < 3 {
		t.Errorf("%d peers were asked", lags.calls)
	}
	alone := &peer{st: st, readErr: reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no quorum")}
	if _, err := backup.Take(t.Context(), alone, disk.OS(), file); !errors.Is(err, backup.ErrNoQuorum) || alone.calls > 0 {
		t.Errorf("a backup of an isolated peer: %v", err)
	}
	if c, err := backup.TakeIsolated(t.Context(), alone, disk.OS(), file); err != nil || c.State.Hash() != st.Hash() {
		t.Errorf("asked for what it has: %v", err)
	}
}

func TestBackupAndRestore(t *testing.T) {
	st, dir := truth(t, 300), t.TempDir()
	file := filepath.Join(dir, "backup")
	taken, err := backup.Take(t.Context(), &peer{st: st}, disk.OS(), file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Take(t.Context(), &peer{st: st}, disk.OS(), file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second backup to the same file: %v", err)
	}
	c, err := backup.Open(disk.OS(), file)
	if err != nil || c.Meta != taken.Meta || c.State.Hash() != st.Hash() || c.State.Token() != st.Token() {
		t.Fatalf("opened %+v, taken %+v: %v", c, taken.Meta, err)
	}
	now := time.UnixMilli(1_000_000)
	plan := backup.Plan{
		Dir: filepath.Join(dir, "one"), Peers: map[uint64]string{1: "a:1", 2: "b:1", 5: "c:1"},
		IDGap: backup.DefaultIDGap, TSOGap: time.Minute, Now: now,
	}
	one, err := backup.Restore(c, plan)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(c, plan); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second restore to the same folder: %v", err)
	}
	plan.Dir = filepath.Join(dir, "two")
	two, err := backup.Restore(c, plan)
	if err != nil {
		t.Fatal(err)
	}
	if one.Cluster.GetClusterId() == two.Cluster.GetClusterId() || one.Cluster.GetClusterId() == 7 {
		t.Errorf("cluster ids %016x and %016x, made of 7", one.Cluster.GetClusterId(), two.Cluster.GetClusterId())
	}
	if got, want := one.State.Allocators().GetTsoFence(), uint64(1_060_000)<<state.TSOLogicalBits; got != want {
		t.Errorf("timestamp fence %d, want %d", got, want)
	}
	if got, want := one.State.Allocators().GetIdFence(), st.Allocators().GetIdFence()+backup.DefaultIDGap; got != want {
		t.Errorf("id fence %d, want %d", got, want)
	}
	judgeWorkdirs(t, one, st)
}

// TestBackupHasSecrets: a backup opens what was sealed before, so one that was
// given no secrets is refused, and no file is left.
func TestBackupHasSecrets(t *testing.T) {
	st, file := truth(t, 3), filepath.Join(t.TempDir(), "backup")
	secret := bytes.Repeat([]byte{0xa7}, state.KeySecretBytes)
	sealed, _ := seal.New(secret).Seal(seal.Tokens, 1, bytes.Repeat([]byte{0xb8}, state.KeySecretBytes))
	apply(t, st, &rootv1.Event{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{Secret: secret}}})
	apply(t, st, &rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: &rootv1.TokenKeyRotated{Secret: sealed, Sealed: true}}})
	for name, key := range map[string]func(*rootv1.Record) *rootv1.PinKey{"pins": (*rootv1.Record).GetPinKey, "tokens": (*rootv1.Record).GetTokenKey} {
		stripped := &peer{st: st, change: func(_, _ int, c *rootv1.SnapshotChunk) error {
			for i, r := range c.Records {
				if key(r) != nil {
					r = proto.CloneOf(r)
					key(r).Secret = nil
					c.Records[i] = r
				}
			}
			return nil
		}}
		if _, err := backup.Take(t.Context(), stripped, disk.OS(), file); err == nil || !strings.Contains(err.Error(), "secrets") || stripped.calls != 1 {
			t.Errorf("without the secrets of %s, after %d calls: %v", name, stripped.calls, err)
		}
	}
	if _, err := backup.Take(t.Context(), &peer{st: st}, disk.OS(), file); err != nil {
		t.Fatal(err)
	}
	c, err := backup.Open(disk.OS(), file)
	if err != nil || len(c.State.PinKeys()) != 1 || !bytes.Equal(c.State.PinKeys()[0].GetSecret(), secret) {
		t.Errorf("opened: %v", err)
	}
	if keys := c.State.TokenKeys(); len(keys) != 1 || !keys[0].GetSealed() || !bytes.Equal(keys[0].GetSecret(), sealed) {
		t.Error("what was sealed is not in the backup as it was")
	}
}

// judgeWorkdirs opens each as a peer would.
func judgeWorkdirs(t *testing.T, r *backup.Restored, old *state.State) {
	t.Helper()
	incarnations := map[uint64]bool{}
	for node, dir := range r.Workdirs {
		s, err := storage.Open(dir, storage.Options{})
		if err != nil {
			t.Fatal(err)
		}
		id, _ := s.Identity()
		if !id.Member || id.Joined || id.NodeID != node || id.ClusterID != r.Cluster.GetClusterId() || len(id.Peers) != 3 || len(id.Former) != 1 || id.Former[0] != 7 {
			t.Errorf("%s: identity %+v", dir, id)
		}
		incarnations[id.Incarnation] = true
		st, err := replica.LoadState(s)
		if err != nil {
			t.Fatal(err)
		}
		if st.Hash() != r.State.Hash() || st.Token() != r.State.Token() || st.Token().Compare(old.Token()) <= 0 || st.RegionCount() != old.RegionCount() {
			t.Errorf("%s: state %s with hash %016x and %d regions", dir, st.Token(), st.Hash(), st.RegionCount())
		}
		hard, _, err := s.InitialState()
		if err != nil || hard.GetTerm() != old.Token().Term || hard.GetCommit() != old.Token().Index || hard.GetVote() != 0 {
			t.Errorf("%s: hard state %v, %v", dir, hard, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(incarnations) != 3 {
		t.Errorf("%d incarnations for 3 workdirs", len(incarnations))
	}
}

// Wherever a replacement of a root peer was when the backup was taken: the new
// cluster has its own peers, all of them voters, and none that was replaced.
func TestRestoreForgetsReplacements(t *testing.T) {
	add := func(node, replaces uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
			Peer: &rootv1.RootPeer{NodeId: node, Incarnation: 10 + node, TransportAddress: fmt.Sprintf("p%d:1", node)}, Replaces: replaces,
		}}}
	}
	steps := []*rootv1.Event{
		add(4, 2),
		{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: 4}}},
		{Kind: &rootv1.Event_RootPeersSettled{RootPeersSettled: &rootv1.RootPeersSettled{NodeId: 4}}},
		add(5, 1),
	}
	st, dir := truth(t, 3), t.TempDir()
	for n, step := range steps {
		apply(t, st, step)
		if n%2 == 0 {
			continue // What is left: in the joint change, and a learner behind one that is done.
		}
		file := filepath.Join(dir, fmt.Sprintf("backup-%d", n))
		if _, err := backup.Take(t.Context(), &peer{st: st}, disk.OS(), file); err != nil {
			t.Fatal(err)
		}
		c, err := backup.Open(disk.OS(), file)
		if err != nil || c.State.Cluster().GetPeersRevision() != st.Token().Index {
			t.Fatalf("opened %v: %v", c, err)
		}
		made, err := backup.Restore(c, backup.Plan{
			Dir: filepath.Join(dir, fmt.Sprint(n)), Peers: map[uint64]string{1: "a:1", 2: "b:1", 4: "c:1"},
			IDGap: backup.DefaultIDGap, Now: time.UnixMilli(1_000_000),
		})
		if err != nil {
			t.Fatal(err)
		}
		judgeWorkdirs(t, made, st)
		if c := made.Cluster; len(c.GetReplaced()) != 0 || c.GetPeersRevision() != 0 {
			t.Errorf("step %d: restored %v", n, c)
		}
		if got := fmt.Sprint(made.State.RootMembers()); got != "{[1 2 4] [] []}" {
			t.Errorf("step %d: root members %s", n, got)
		}
		for _, p := range made.Cluster.GetPeers() {
			if p.GetReplaces() != 0 || p.GetIncarnation() < 20 {
				t.Errorf("step %d: root peer %v", n, p)
			}
		}
	}
}

// A stream that breaks is asked for again; what can never be right is not
// written, and leaves nothing behind.
func TestTakeJudges(t *testing.T) {
	st := truth(t, 40)
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		st     *state.State
		change func(call, chunk int, c *rootv1.SnapshotChunk) error
		calls  int
		want   string // in the error; empty: none
	}{
		{"two broken streams", st, func(call, chunk int, _ *rootv1.SnapshotChunk) error {
			if call < 3 && chunk == call {
				return broken
			}
			return nil
		}, 3, ""},
		{"always broken", st, func(_, chunk int, _ *rootv1.SnapshotChunk) error { return broken }, 6, "broken"},
		{"another cluster", st, func(_, _ int, _ *rootv1.SnapshotChunk) error {
			return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "x")
		}, 1, "cluster_mismatch"},
		{"a lost record", st, func(_, chunk int, c *rootv1.SnapshotChunk) error {
			if chunk == 2 {
				c.Records = c.Records[1:]
			}
			return nil
		}, 6, "the root says"},
		{"another hash", st, func(_, _ int, c *rootv1.SnapshotChunk) error {
			c.StateHash++
			return nil
		}, 6, "the root says"},
		{"no cluster", state.New(), nil, 1, "no cluster yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p := &peer{st: c.st, change: c.change}
			_, err := backup.Take(t.Context(), p, disk.OS(), filepath.Join(dir, "b"))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if p.calls != c.calls {
				t.Errorf("%d streams, want %d", p.calls, c.calls)
			}
			if left, _ := os.ReadDir(dir); err != nil && len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Each operation on the disk fails once, or is the last before a power cut: the
// name is there only with a whole file behind it.
func TestTakeOnABadDisk(t *testing.T) {
	st := truth(t, 40)
	count := disk.NewFake(1)
	if _, err := backup.Take(t.Context(), &peer{st: st}, count, "b"); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for at := 1; at <= count.Ops(); at++ {
		for _, effect := range []bool{false, true} {
			for _, crash := range []bool{false, true} {
				f, n := disk.NewFake(uint64(at)), 0
				f.SetFault(func(disk.Op) disk.Fault {
					if n++; n == at {
						return disk.Fault{Err: syscall.EIO, Effect: effect, Crash: crash}
					}
					return disk.Fault{}
				})
				_, err := backup.Take(t.Context(), &peer{st: st}, f, "b")
				f.SetFault(nil)
				f.Reboot()
				got, openErr := backup.Open(f, "b")
				switch {
				case err == nil && openErr != nil:
					t.Errorf("operation %d: acknowledged, then %v", at, openErr)
				case openErr == nil && got.State.Hash() != st.Hash():
					t.Errorf("operation %d: another state", at)
				case openErr != nil && !errors.Is(openErr, fs.ErrNotExist):
					t.Errorf("operation %d: the file is there and is not whole: %v", at, openErr)
				}
				if err != nil {
					failed++
				}
			}
		}
	}
	if failed < count.Ops() {
		t.Errorf("%d failures of %d operations: the faults did not fire", failed, count.Ops())
	}
}

func TestOpenRefusesDamage(t *testing.T) {
	st := truth(t, 40)
	f := disk.NewFake(1)
	c, err := backup.Take(t.Context(), &peer{st: st}, f, "b")
	if err != nil {
		t.Fatal(err)
	}
	for bit := int64(0); bit < int64(c.Meta.Bytes)*8; bit += 43 {
		if err := f.FlipBit("b", bit); err != nil {
			t.Fatal(err)
		}
		var damage *storage.DamageError
		var version *storage.VersionError
		if _, err := backup.Open(f, "b"); !errors.As(err, &damage) && !errors.As(err, &version) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
		if err := f.FlipBit("b", bit); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := backup.Open(f, "b"); err != nil {
		t.Errorf("after the last bit was put back: %v", err)
	}
}

func TestPlanIsJudged(t *testing.T) {
	good := backup.Plan{Dir: "x", Peers: map[uint64]string{1: "a:1"}, IDGap: backup.MinIDGap}
	for name, change := range map[string]func(*backup.Plan){
		"no folder":   func(p *backup.Plan) { p.Dir = "" },
		"two peers":   func(p *backup.Plan) { p.Peers = map[uint64]string{1: "a:1", 2: "b:1"} },
		"small gap":   func(p *backup.Plan) { p.IDGap-- },
		"back in tso": func(p *backup.Plan) { p.TSOGap = -1 },
	} {
		p := good
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
