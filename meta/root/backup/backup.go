// Package backup keeps copies of rooted truth outside a cluster, and makes new
// clusters of them.
//
// A backup is the state at one position, in the format of a workdir's
// checkpoint. It owns the file it writes and the folders of a restore until
// they are started. It promises:
//
//  1. A file has its name only when it is whole, durable, read back, and gives
//     the state hash that the root told for its position.
//  2. It has everything that was acknowledged before it was begun, unless it was
//     taken with TakeIsolated.
//  3. It has the secrets of the pin keys: what was sealed before can be opened
//     in the new cluster.
//  4. Nothing that exists is written over.
//
// It leaves bytes on disk to storage and the meaning of records to state.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/restore"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Source streams the state of a root peer. *client.Client of meta/root/client is
// one, with a ReaderID: after a failure the next call asks another peer.
type Source interface {
	Snapshot(ctx context.Context, fn func(*rootv1.SnapshotChunk) error) error
	// ReadIndex returns a position behind everything that was acknowledged. It
	// needs a majority of the root peers.
	ReadIndex(ctx context.Context) (state.Token, error)
}

// Copy is a backup in memory: verified.
type Copy struct {
	State *state.State
	Meta  storage.CheckpointMeta
}

// attempts is how often Take asks for a snapshot when streams break: each peer
// of the largest root once, and one more.
const attempts = 6

// readTimeout bounds the question for the newest position: a root that has a
// majority answers at once, or after an election.
const readTimeout = 10 * time.Second

// ErrNoQuorum says that nobody can tell how much was acknowledged.
var ErrNoQuorum = errors.New("no majority of the root peers answers, so nobody knows whether a peer has everything")

// Take writes the state of a running cluster to a file: everything that was
// acknowledged before the call. It asks again, of another peer, when a stream
// breaks before the file is begun, or when a peer is behind. fs.ErrExist: there is
// a file of that name; ErrNoQuorum.
func Take(ctx context.Context, from Source, fsys disk.FS, file string) (*Copy, error) {
	within, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	least, err := from.ReadIndex(within)
	if err != nil {
		if final(err) || ctx.Err() != nil {
			return nil, err
		}
		if reason.Of(err) == rootv1.Reason_REASON_PERMISSION_DENIED {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
	return take(ctx, from, fsys, file, least)
}

// TakeIsolated writes what the peer that answers has, however old that is. It is
// for a cluster that has lost its majority for good.
func TakeIsolated(ctx context.Context, from Source, fsys disk.FS, file string) (*Copy, error) {
	return take(ctx, from, fsys, file, state.Token{})
}

func take(ctx context.Context, from Source, fsys disk.FS, file string, least state.Token) (*Copy, error) {
	if _, err := fsys.Stat(file); err == nil {
		return nil, fmt.Errorf("%s: %w", file, fs.ErrExist)
	}
	var st *state.State
	var err error
	for range attempts {
		if st, err = fetch(ctx, from, least); err == nil || ctx.Err() != nil || final(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	meta, err := storage.CreateCheckpointFile(fsys, file, metaOf(st), st.EncodedRecords)
	if err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	return &Copy{State: st, Meta: meta}, nil
}

// final says that every peer would answer the same.
func final(err error) bool {
	switch reason.Of(err) {
	case rootv1.Reason_REASON_CLUSTER_MISMATCH, rootv1.Reason_REASON_INVALID_REQUEST, rootv1.Reason_REASON_PERMISSION_DENIED:
		return true
	}
	return errors.Is(err, errNoCluster) || errors.Is(err, errNoSecrets)
}

var (
	errNoCluster = errors.New("the root has no cluster yet: there is nothing to back up")
	errNoSecrets = errors.New("the root gave keys without their secrets: ask as a reader with an id")
)

// fetch builds the state of one snapshot and checks what the last chunk says.
func fetch(ctx context.Context, from Source, least state.Token) (*state.State, error) {
	loading := state.NewRestoring()
	var last *rootv1.SnapshotChunk
	if err := from.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		if at := state.TokenFromProto(chunk.GetToken()); at.Compare(least) < 0 {
			return fmt.Errorf("a root peer is at %s, and %s is committed: it lags, or is cut off", at, least)
		}
		last = chunk
		part, err := state.PartOf(chunk.GetRecords())
		if err != nil {
			return err
		}
		return loading.Add(part)
	}); err != nil {
		return nil, err
	}
	if !last.GetLast() {
		return nil, errors.New("the snapshot ended before its last chunk")
	}
	if n := loading.Records(); n != last.GetRecordCount() {
		return nil, fmt.Errorf("the snapshot has %d records, the root says %d", n, last.GetRecordCount())
	}
	st, err := loading.Finish(state.TokenFromProto(last.GetToken()), last.GetStateHash())
	if err != nil {
		return nil, fmt.Errorf("the snapshot is not what the root says: %w", err)
	}
	if st.Cluster() == nil {
		return nil, errNoCluster
	}
	if slices.ContainsFunc(slices.Concat(st.PinKeys(), st.TokenKeys()), func(k *rootv1.PinKey) bool { return len(k.GetSecret()) == 0 }) {
		return nil, errNoSecrets
	}
	return st, nil
}

func metaOf(st *state.State) storage.CheckpointMeta {
	at := st.Token()
	return storage.CheckpointMeta{
		ClusterID: st.Cluster().GetClusterId(), ClusterIncarnation: at.Incarnation,
		Index: at.Index, Term: at.Term, StateHash: st.Hash(),
	}
}

// Open reads a backup, checks every bit of it, and builds its state.
func Open(fsys disk.FS, file string) (*Copy, error) {
	meta, err := storage.PeekCheckpointFile(fsys, file)
	if err != nil {
		return nil, useless(err)
	}
	st, err := restore.State(meta, func(fn func([]byte) error) (storage.CheckpointMeta, error) {
		return storage.ReadCheckpointFile(fsys, file, fn)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, useless(err))
	}
	if st.Cluster().GetClusterId() != meta.ClusterID {
		return nil, fmt.Errorf("%s: its records are of cluster %016x, its header says %016x", file, st.Cluster().GetClusterId(), meta.ClusterID)
	}
	return &Copy{State: st, Meta: meta}, nil
}

// useless says what to do about damage of a copy.
func useless(err error) error {
	if damage := new(storage.DamageError); errors.As(err, &damage) {
		damage.Do = "this copy cannot be used: take another one"
	}
	return err
}
