package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
)

// Bounds of what is stored, in bytes.
const (
	MaxKeyBytes   = 4096
	MaxValueBytes = 1 << 20
)

// Entry is a key as it is. Its slices are the caller's.
type Entry struct {
	Key, Value []byte
	Version    uint64
}

// Bytes is about what it takes.
func (e *Entry) Bytes() int { return len(e.Key) + len(e.Value) + versionBytes + sumBytes }

const (
	versionBytes = 8
	sumBytes     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts the checksum before bytes.
func seal(raw []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, sumBytes+len(raw)), crc32.Checksum(raw, castagnoli)), raw...)
}

func unseal(sealed []byte) ([]byte, bool) {
	if len(sealed) < sumBytes {
		return nil, false
	}
	raw := sealed[sumBytes:]
	return raw, crc32.Checksum(raw, castagnoli) == binary.BigEndian.Uint32(sealed)
}

// putEntry writes a version and a value, sealed with the key: a value that came under
// another key is damage too.
func putEntry(b *bbolt.Bucket, e *Entry) error {
	raw := make([]byte, 0, sumBytes+versionBytes+len(e.Value))
	raw = append(raw, 0, 0, 0, 0)
	raw = append(binary.BigEndian.AppendUint64(raw, e.Version), e.Value...)
	binary.BigEndian.PutUint32(raw, entrySum(e.Key, raw[sumBytes:]))
	return b.Put(e.Key, raw)
}

func entrySum(key, raw []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, raw)
}

// readEntry reads what putEntry wrote; nil is not found.
func readEntry(key, sealed []byte) (Entry, error) {
	if sealed == nil {
		return Entry{}, nil
	}
	if len(sealed) < sumBytes+versionBytes || entrySum(key, sealed[sumBytes:]) != binary.BigEndian.Uint32(sealed) {
		return Entry{}, fmt.Errorf("value of key %.64q: %w", key, ErrDamaged)
	}
	raw := sealed[sumBytes:]
	return Entry{Key: bytes.Clone(key), Version: binary.BigEndian.Uint64(raw), Value: bytes.Clone(raw[versionBytes:])}, nil
}

// Get reads a key; version 0: it is not there.
func (d *Disk) Get(key []byte) (e Entry, err error) {
	err = d.view(func(tx *bbolt.Tx) error {
		b, err := bucket(tx, dataBucket)
		if err != nil {
			return err
		}
		e, err = readEntry(key, b.Get(key))
		return err
	})
	return e, err
}

// Scan passes the entries of [start, end) in order, as they are at one moment; an empty
// end is that of all keys. It ends with the first error, which it returns.
func (d *Disk) Scan(start, end []byte, each func(*Entry) error) error {
	return d.view(func(tx *bbolt.Tx) error {
		b, err := bucket(tx, dataBucket)
		if err != nil {
			return err
		}
		c := b.Cursor()
		for k, v := c.Seek(start); k != nil && (len(end) == 0 || bytes.Compare(k, end) < 0); k, v = c.Next() {
			e, err := readEntry(k, v)
			if err == nil {
				err = each(&e)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// pageKeys and pageBytes bound what Walk reads at once.
const (
	pageKeys  = 1024
	pageBytes = 1 << 20
)

var errPage = errors.New("the page is full")

// Walk is Scan page by page, each as it is at a moment of its own: between them nothing is
// held. Who reads while a file has to grow keeps all writers waiting, and they all
// readers, however long that takes.
func (d *Disk) Walk(start, end []byte, each func(*Entry) error) error {
	for {
		var page []Entry
		size := 0
		err := d.Scan(start, end, func(e *Entry) error {
			if len(page) == pageKeys || size > pageBytes {
				start = e.Key
				return errPage
			}
			page, size = append(page, *e), size+e.Bytes()
			return nil
		})
		more := errors.Is(err, errPage)
		for i := range page {
			if err := each(&page[i]); err != nil {
				return err
			}
		}
		if !more {
			return err
		}
	}
}

// wipeAtOnce is how many keys of a range one commit removes.
const wipeAtOnce = 4096

// Wipe removes all keys of [start, end). A crash leaves some of them.
func (d *Disk) Wipe(start, end []byte) error {
	for more := true; more; {
		err := d.update(func(tx *bbolt.Tx) error {
			c := tx.Bucket(dataBucket).Cursor()
			n := 0
			for k, _ := c.Seek(start); k != nil && (len(end) == 0 || bytes.Compare(k, end) < 0); k, _ = c.Seek(start) {
				if n++; n > wipeAtOnce {
					return nil
				}
				if err := c.Delete(); err != nil {
					return err
				}
			}
			more = false
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Version is what the newest versions given here are not above.
func (d *Disk) Version() (v uint64, err error) {
	err = d.view(func(tx *bbolt.Tx) error {
		b, err := bucket(tx, dataBucket)
		if err == nil {
			v = b.Sequence()
		}
		return err
	})
	return v, err
}

// Import writes entries as they were elsewhere, where versions up to one were given.
func (d *Disk) Import(entries []Entry, version uint64) error {
	return d.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(dataBucket)
		for i := range entries {
			version = max(version, entries[i].Version)
			if err := putEntry(b, &entries[i]); err != nil {
				return err
			}
		}
		return b.SetSequence(max(b.Sequence(), version))
	})
}
