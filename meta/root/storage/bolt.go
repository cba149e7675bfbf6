package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/nokv/nokv/internal/disk"
)

const (
	boltBucket      = "registers"
	boltKey         = "all"
	boltLockTimeout = time.Second
	boltPageSize    = 4096
)

// boltRegisters keep all values in one checksummed record of a bbolt file.
//
// bbolt's data pages carry no checksum, and it takes an older meta page
// silently when the newer one is spoilt. Therefore: one record holds
// everything, so that a key cannot vanish alone; each Put commits twice, so
// that both meta pages lead to it; and each open copies the record into a new
// file, so that a spoilt free list is never written with.
type boltRegisters struct {
	db *bbolt.DB

	// mu guards values.
	mu     sync.Mutex
	values map[string][]byte
	// putting makes one Put at a time.
	putting token
}

// OpenBolt opens the registers in a bbolt file and makes it when missing; the
// file is durable on return. *LockedError, *DamageError.
func OpenBolt(path string) (Registers, error) {
	values, err := ReadBolt(path)
	if errors.Is(err, fs.ErrNotExist) {
		values, err = map[string][]byte{}, nil
	}
	if err != nil {
		return nil, err
	}
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r := &boltRegisters{values: values, putting: newToken()}
	if r.db, err = bbolt.Open(tmp, filePerm, &bbolt.Options{Timeout: boltLockTimeout, PageSize: boltPageSize}); err != nil {
		if errors.Is(err, berrors.ErrTimeout) {
			return nil, &LockedError{Dir: filepath.Dir(path), Err: err}
		}
		return nil, fmt.Errorf("open %s: %w", tmp, err)
	}
	err = r.Put(nil)
	// A crash before the rename is durable finds the old file; both hold the same.
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = disk.OS().SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(err, r.db.Close())
	}
	return r, nil
}

func (r *boltRegisters) Get(key string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.values[key]), nil
}

func (r *boltRegisters) Put(values map[string][]byte) error {
	r.putting.take()
	defer r.putting.give()
	r.mu.Lock()
	next := maps.Clone(r.values)
	r.mu.Unlock()
	maps.Copy(next, values)
	record := encodeRecord(next)
	for range 2 {
		err := r.db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(boltBucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(boltKey), record)
		})
		if err != nil {
			return fmt.Errorf("commit registers: %w", err)
		}
	}
	r.mu.Lock()
	r.values = next
	r.mu.Unlock()
	return nil
}

func (r *boltRegisters) Close() error { return r.db.Close() }

// encodeRecord: per value u32 length, key, u32 length, value, in order of the
// keys; then a CRC32C.
func encodeRecord(values map[string][]byte) []byte {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(values)) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(key)))
		b = append(b, key...)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(values[key])))
		b = append(b, values[key]...)
	}
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

func decodeRecord(b []byte) (map[string][]byte, error) {
	if len(b) < 4 || checksum(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return nil, errors.New("the record of registers is missing or fails its checksum")
	}
	values := map[string][]byte{}
	d := decoder{b: b[:len(b)-4]}
	for len(d.b) > 0 && !d.bad {
		key := d.bytes(uint64(d.uint32()))
		values[string(key)] = slices.Clone(d.bytes(uint64(d.uint32())))
	}
	if d.bad {
		return nil, errors.New("the record of registers is malformed")
	}
	return values, nil
}

// token is held across I/O where a mutex must not be.
type token chan struct{}

func newToken() token { return make(token, 1) }

func (t token) take() { t <- struct{}{} }

func (t token) give() { <-t }

// try takes the token if it is free.
func (t token) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}
