package storage

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/nokv/nokv/meta/root/freshness"
)

// Registers are a few small named values, changed together. There is one
// writer process; methods may be called by many goroutines.
type Registers interface {
	// Get returns a copy of a value, nil when it was never put.
	Get(key string) ([]byte, error)
	// Put changes values, all or none, and returns when that is durable.
	// After an error it is unknown whether they changed.
	Put(values map[string][]byte) error
	// Close ends the use of the file.
	Close() error
}

// The registers. Values are JSON, so that a person can read them.
const (
	registerFormat     = "format"
	registerIdentity   = "identity"
	registerMark       = "mark"
	registerCheckpoint = "checkpoint"
	registerStarts     = "starts"
	registerKnown      = "known"

	registersVersion = 1
)

// format is written first and never changes.
type format struct {
	Version uint32 `json:"version"`
	Log     string `json:"log"`
}

// mark is what is known to be durable.
type mark struct {
	// First is the lowest segment that must exist.
	First uint64
	// At is behind the last frame known to be durable.
	At position
	// LastIndex is the last entry before At.
	LastIndex uint64
	// Clean: the log ends at At and nothing was ever written behind it.
	Clean bool
}

// registered is the checkpoint that must exist, or a newer one.
type registered struct {
	Meta CheckpointMeta
	// Digest is the chain in the file's footer.
	Digest uint32
}

// rooted is everything in the registers.
type rooted struct {
	format     *format
	log        logID
	identity   *Identity
	mark       *mark
	checkpoint *registered
	starts     *starts
	// known is what the peer remembers of the others; nil: nothing yet.
	known map[uint64]freshness.Known
}

func newLogID() (id logID, err error) {
	_, err = rand.Read(id[:])
	return id, err
}

// loadRooted decodes the registers of the file at path.
func loadRooted(path string, get func(string) ([]byte, error)) (rooted, error) {
	var r rooted
	for _, v := range []struct {
		key  string
		into any
	}{{registerFormat, &r.format}, {registerIdentity, &r.identity}, {registerMark, &r.mark}, {registerCheckpoint, &r.checkpoint}, {registerStarts, &r.starts}, {registerKnown, &r.known}} {
		b, err := get(v.key)
		if err != nil {
			return r, fmt.Errorf("read register %s of %s: %w", v.key, path, err)
		}
		if b == nil {
			continue
		}
		if err := json.Unmarshal(b, v.into); err != nil {
			return r, &DamageError{File: path, What: fmt.Sprintf("register %s: %v", v.key, err), Do: doReplace}
		}
		if v.key == registerFormat && r.format.Version > registersVersion {
			return r, &VersionError{File: path, Found: r.format.Version, Known: registersVersion}
		}
	}
	return r, r.check(path)
}

func (r *rooted) check(path string) error {
	if r.format == nil {
		if r.identity == nil && r.mark == nil && r.checkpoint == nil {
			return nil
		}
		return &DamageError{File: path, What: "the format register is missing", Do: doReplace}
	}
	n, err := hex.Decode(r.log[:], []byte(r.format.Log))
	if err != nil || n != len(r.log) {
		return &DamageError{File: path, What: fmt.Sprintf("log id %q is not 16 bytes in hex", r.format.Log), Do: doReplace}
	}
	if r.mark == nil && (r.identity != nil || r.checkpoint != nil) {
		return &DamageError{File: path, What: "the mark register is missing", Do: doReplace}
	}
	// Without it a folder could not be told from an older copy of itself.
	if r.identity != nil && r.starts == nil {
		return &DamageError{File: path, What: "the starts register is missing", Do: doReplace}
	}
	if r.starts != nil && !r.starts.valid() {
		return &DamageError{File: path, What: "the starts register is malformed", Do: doReplace}
	}
	return nil
}

// putRegisters changes registers, all or none.
func putRegisters(r Registers, values map[string]any) error {
	encoded := make(map[string][]byte, len(values))
	for key, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode register %s: %w", key, err)
		}
		encoded[key] = b
	}
	return r.Put(encoded)
}

// Identity is who a workdir belongs to.
type Identity struct {
	// ClusterID is the cluster's random identity; 0 before bootstrap.
	ClusterID uint64
	// NodeID is the peer's id, 1 or greater.
	NodeID uint64
	// Incarnation is the random identity of this workdir.
	Incarnation uint64
	// Peers are the root peers that founded the cluster, this one included; who they
	// are by now the log says. With Joined they are those of the time it joined.
	Peers []Peer
	// Member says that the workdir belongs to a cluster; false: still pending.
	Member bool
	// Joined says that the peer was not there when the cluster began, and learns
	// from the log who votes.
	Joined bool `json:",omitempty"`
	// Former are the clusters that this one was restored from, the newest last.
	Former []uint64 `json:",omitempty"`
}

// Peer is a root peer as this workdir knows it.
type Peer struct {
	NodeID uint64
	// Incarnation is the random identity of the peer's workdir; 0: not known yet.
	Incarnation uint64
	// Address of the peer's raft transport, host:port.
	Address string
}

// CheckpointMeta describes a checkpoint.
type CheckpointMeta struct {
	ClusterID, ClusterIncarnation uint64
	// Index and Term are those of the last entry in the checkpoint.
	Index, Term uint64
	// StateHash is the hash of the state at Index.
	StateHash uint64
	// Records is the number of records; filled in by the writer.
	Records uint64
	// Bytes is the size of the file; filled in by the writer.
	Bytes uint64
}
