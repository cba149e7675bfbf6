package backup

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// How far a restore jumps over what the old cluster may have given out behind
// the backup.
const (
	// DefaultIDGap is the ids of 200 days at a million a second. Half a million
	// restores fit the space of ids.
	DefaultIDGap = 1 << 44
	// MinIDGap is more than the largest window that a coordinator roots at a time.
	MinIDGap = 1 << 23
	// DefaultTSOGap is how far ahead of its root leader's clock a cluster may
	// serve timestamps at all (replica.Config.MaxTSOAhead): beyond the present by
	// so much lies nothing that was ever served, if the clocks of the old root
	// leaders were not ahead of the one of who restores.
	DefaultTSOGap = 10 * time.Minute
)

// Plan says what to make of a backup.
type Plan struct {
	// Dir gets one workdir for each peer, named by its node id. It must not exist.
	Dir string
	// Peers are the raft transport addresses, host:port, by node id: 1, 3 or 5.
	Peers map[uint64]string
	// IDGap is added to the backup's fence of ids. Timestamps go on behind the
	// later of the backup's fence and Now, plus TSOGap.
	IDGap  uint64
	TSOGap time.Duration
	Now    time.Time
}

// Restored is what a restore made.
type Restored struct {
	// Cluster is the new identity, State what every peer starts with.
	Cluster *rootv1.Cluster
	State   *state.State
	// Workdirs by node id.
	Workdirs map[uint64]string
}

// Validate says what is wrong with the plan.
func (p *Plan) Validate() error {
	switch n := len(p.Peers); {
	case p.Dir == "":
		return errors.New("no folder to restore to")
	case n != 1 && n != 3 && n != 5:
		return fmt.Errorf("%d peers; want 3 (1 for a trial, 5 to survive two failures)", n)
	case p.IDGap < MinIDGap:
		return fmt.Errorf("an id gap of %d is too small: a window of ids alone can be larger; want %d or more", p.IDGap, uint64(MinIDGap))
	case p.TSOGap < 0 || p.TSOGap > 366*24*time.Hour:
		return fmt.Errorf("a timestamp gap of %s: want 0 to a year", p.TSOGap)
	}
	return nil
}

// Restore makes the workdirs of a new cluster. It writes to Dir.tmp, checks what
// it wrote, and gives it its name last, so that a crash leaves no folder that
// could be started. The peers have the same state and agree on who they are.
func Restore(c *Copy, p Plan) (*Restored, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	tmp := filepath.Clean(p.Dir) + ".tmp"
	for _, dir := range []string{p.Dir, tmp} {
		if _, err := os.Lstat(dir); err == nil {
			return nil, fmt.Errorf("%s: %w", dir, fs.ErrExist)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	ids, identities, err := identify(p.Peers)
	if err != nil {
		return nil, err
	}
	st, err := c.State.Renew(renewal(c, p, identities[ids[0]]))
	if err != nil {
		return nil, err
	}
	for i := range identities {
		id := identities[i]
		id.Former = st.Cluster().GetRestored().GetFormerClusterIds()
		identities[i] = id
	}
	if err := writeAll(tmp, ids, identities, st); err != nil {
		return nil, fmt.Errorf("restore to %s (remove it before the next try): %w", tmp, err)
	}
	if err := os.Rename(tmp, p.Dir); err != nil {
		return nil, err
	}
	out := &Restored{Cluster: st.Cluster(), State: st, Workdirs: map[uint64]string{}}
	for _, id := range ids {
		out.Workdirs[id] = filepath.Join(p.Dir, fmt.Sprint(id))
	}
	return out, disk.OS().SyncDir(filepath.Dir(filepath.Clean(p.Dir)))
}

// identify draws a cluster id and an incarnation for each workdir.
func identify(peers map[uint64]string) (ids []uint64, identities map[uint64]storage.Identity, err error) {
	ids = slices.Sorted(maps.Keys(peers))
	cluster, err := draw()
	if err != nil {
		return nil, nil, err
	}
	var all []storage.Peer
	for _, id := range ids {
		incarnation, err := draw()
		if err != nil {
			return nil, nil, err
		}
		all = append(all, storage.Peer{NodeID: id, Incarnation: incarnation, Address: peers[id]})
	}
	identities = map[uint64]storage.Identity{}
	for _, p := range all {
		identities[p.NodeID] = storage.Identity{ClusterID: cluster, NodeID: p.NodeID, Incarnation: p.Incarnation, Peers: all, Member: true}
	}
	return ids, identities, nil
}

func draw() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw an identity: %w", err)
		}
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

func renewal(c *Copy, p Plan, one storage.Identity) state.Renewal {
	now := uint64(max(p.Now.UnixMilli(), 0))
	r := state.Renewal{ClusterID: one.ClusterID, UnixMillis: now, IDGap: p.IDGap}
	for _, peer := range one.Peers {
		r.Peers = append(r.Peers, &rootv1.RootPeer{NodeId: peer.NodeID, Incarnation: peer.Incarnation, TransportAddress: peer.Address})
	}
	millis := max(now, c.State.Allocators().GetTsoFence()>>state.TSOLogicalBits+1)
	r.TSOFence = (millis + uint64(p.TSOGap.Milliseconds())) << state.TSOLogicalBits
	return r
}

// writeAll makes every workdir, and checks each as a start would.
func writeAll(dir string, ids []uint64, identities map[uint64]storage.Identity, st *state.State) error {
	fsys := disk.OS()
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, "checkpoint")
	meta, err := storage.CreateCheckpointFile(fsys, file, metaOf(st), st.EncodedRecords)
	if err != nil {
		return err
	}
	for _, id := range ids {
		workdir := filepath.Join(dir, fmt.Sprint(id))
		if err := writeWorkdir(workdir, identities[id], file, meta); err != nil {
			return err
		}
		if err := checkWorkdir(workdir, meta); err != nil {
			return err
		}
	}
	if err := fsys.Remove(file); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// writeWorkdir makes a workdir whose log is empty behind the checkpoint.
func writeWorkdir(dir string, id storage.Identity, file string, meta storage.CheckpointMeta) (err error) {
	s, err := storage.Open(dir, storage.Options{CheckRecords: state.CheckPart})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.SaveIdentity(id); err != nil {
		return err
	}
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	received, err := s.ReceiveCheckpoint(in)
	if err := errors.Join(err, in.Close()); err != nil {
		return err
	}
	if received != meta {
		return fmt.Errorf("%s received %+v, sent was %+v", dir, received, meta)
	}
	if err := s.InstallCheckpoint(meta); err != nil {
		return err
	}
	// Raft goes on in the term of the checkpoint: terms never go back in the log.
	hard := &raftpb.HardState{Term: new(meta.Term), Vote: new(uint64), Commit: new(meta.Index)}
	return s.Append(hard, nil, true)
}

func checkWorkdir(dir string, want storage.CheckpointMeta) error {
	report, err := storage.Verify(dir, storage.Options{CheckRecords: state.CheckPart})
	if err != nil {
		return err
	}
	if len(report.Damage) > 0 {
		return fmt.Errorf("%s at offset %d: %s", report.Damage[0].File, report.Damage[0].Offset, report.Damage[0].What)
	}
	if report.Checkpoint != want || !report.Identity.Member {
		return fmt.Errorf("%s reads as %+v, written was %+v", dir, report.Checkpoint, want)
	}
	return nil
}
