package storage

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// The registers. Values are JSON, so that a person can read them.
const (
	registerFormat     = "format"
	registerIdentity   = "identity"
	registerMark       = "mark"
	registerCheckpoint = "checkpoint"

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
	}{{registerFormat, &r.format}, {registerIdentity, &r.identity}, {registerMark, &r.mark}, {registerCheckpoint, &r.checkpoint}} {
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
	return nil
}

// encode turns values into what Registers.Put takes.
func encodeRegisters(values map[string]any) (map[string][]byte, error) {
	out := make(map[string][]byte, len(values))
	for key, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode register %s: %w", key, err)
		}
		out[key] = b
	}
	return out, nil
}
