package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
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
// that both meta pages lead to it; there is no free list on the disk; and a file
// with anything in it that bbolt would follow and that is not as it should be is
// copied into a new one before it is written.
//
// A full disk must not end a peer whose log has room. Therefore a file that is
// as it should be is opened as it is, and a new one has all of its blocks.
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
	r := &boltRegisters{putting: newToken()}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.values = map[string][]byte{}
	case err != nil:
		return nil, err
	default:
		if r.values, err = readBolt(path, b); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(path + ".tmp"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if (boltFile{path: path, b: b}).sound() {
		return r, r.open(path)
	}
	return r, r.create(path)
}

func (r *boltRegisters) open(path string) (err error) {
	r.db, err = bbolt.Open(path, filePerm, &bbolt.Options{Timeout: boltLockTimeout, PageSize: boltPageSize, NoFreelistSync: true})
	if errors.Is(err, berrors.ErrTimeout) {
		return &LockedError{Dir: filepath.Dir(path), Err: err}
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return nil
}

// create puts a new file with the values in the place of what is at path.
func (r *boltRegisters) create(path string) error {
	tmp := path + ".tmp"
	if err := r.open(tmp); err != nil {
		return err
	}
	err := r.Put(nil)
	if err == nil {
		err = allocate(tmp)
	}
	// A crash before the rename is durable finds the old file; both hold the same.
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = disk.OS().SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return errors.Join(err, r.db.Close())
	}
	return nil
}

// allocate gives a bbolt file the blocks that it has only the size for, behind the
// pages in use.
func allocate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	meta, ok := (boltFile{path: path, b: b}).newestMeta()
	if !ok {
		return fmt.Errorf("%s: neither meta page is valid", path)
	}
	if err := fillZeros(f, int64(meta.pages*boltPageSize), int64(len(b))); err != nil {
		return err
	}
	return f.Sync()
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

// The part of bbolt's file format 2 that holds one record. It is read here and
// not by bbolt, which follows spoilt pages out of the file, cannot say where
// the damage is, and locks what it reads.
//
//	page     0 u64 id, 8 u16 flags, 10 u16 count, 12 u32 overflow pages, 16 elements
//	meta     16 u32 magic, u32 version, u32 page size, u32 flags, u64 root page,
//	         u64 sequence, u64 free list, u64 high water, u64 transaction, u64 FNV-1a
//	element  0 u32 flags, u32 position from here, u32 key size, u32 value size
//	bucket   0 u64 root page (0: the page follows), u64 sequence
const (
	boltMagic        = 0xED0CDAED
	boltVersion      = 2
	boltPageHeader   = 16
	boltMetaBytes    = 64
	boltLeaf         = 2
	boltElementBytes = 16
	boltBucketBytes  = 16
	boltIsBucket     = 1
	boltNoFreelist   = 1<<64 - 1
)

// ReadBolt reads all registers of a bbolt file, changes nothing and takes no
// lock. *DamageError; a missing file is fs.ErrNotExist.
func ReadBolt(path string) (map[string][]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return readBolt(path, b)
}

func readBolt(path string, b []byte) (map[string][]byte, error) {
	f := boltFile{path: path, b: b}
	record, at, err := f.record()
	if err != nil {
		return nil, err
	}
	values, err := decodeRecord(record)
	if err != nil {
		return nil, f.damage(at, err.Error())
	}
	return values, nil
}

type boltFile struct {
	path string
	b    []byte
}

func (f boltFile) damage(at int64, what string) error {
	return &DamageError{File: f.path, Offset: at, What: what, Do: doReplace}
}

// record returns the record's bytes and where they are.
func (f boltFile) record() ([]byte, int64, error) {
	meta, ok := f.newestMeta()
	if !ok {
		return nil, 0, f.damage(0, "neither meta page is valid")
	}
	page, at, err := f.page(meta.root)
	if err != nil {
		return nil, 0, err
	}
	bucket, at, err := f.find(page, at, boltBucket, boltIsBucket)
	if err != nil {
		return nil, 0, err
	}
	if len(bucket) < boltBucketBytes {
		return nil, 0, f.damage(at, "the bucket of registers is cut short")
	}
	page, at = bucket[boltBucketBytes:], at+boltBucketBytes
	if id := binary.LittleEndian.Uint64(bucket); id != 0 {
		if page, at, err = f.page(id); err != nil {
			return nil, 0, err
		}
	}
	return f.find(page, at, boltKey, 0)
}

// sound says that all that bbolt follows is as this package writes it: no free list, a
// root page of one bucket, and in it, or on a page of its own, one record.
func (f boltFile) sound() bool {
	meta, ok := f.newestMeta()
	if !ok || meta.freelist != boltNoFreelist || meta.pages > uint64(len(f.b)/boltPageSize) {
		return false
	}
	page, at, err := f.page(meta.root)
	if err != nil || !soundLeaf(page, meta.root, boltBucket, boltIsBucket) {
		return false
	}
	bucket, _, err := f.find(page, at, boltBucket, boltIsBucket)
	if err != nil || len(bucket) < boltBucketBytes {
		return false
	}
	id := binary.LittleEndian.Uint64(bucket)
	page = bucket[boltBucketBytes:]
	if id != 0 {
		if page, _, err = f.page(id); err != nil || id == meta.root {
			return false
		}
	}
	return soundLeaf(page, id, boltKey, 0)
}

// soundLeaf says that a page is a leaf of one element, which begins where bbolt puts it,
// and takes no more pages than it needs.
func soundLeaf(page []byte, id uint64, key string, flags uint32) bool {
	const head = boltPageHeader + boltElementBytes
	if len(page) < head {
		return false
	}
	u32 := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(page[at:])) }
	end := head + u32(boltPageHeader+8) + u32(boltPageHeader+12)
	return binary.LittleEndian.Uint64(page) == id && binary.LittleEndian.Uint16(page[8:]) == boltLeaf && binary.LittleEndian.Uint16(page[10:]) == 1 &&
		u32(boltPageHeader) == uint64(flags) && u32(boltPageHeader+4) == boltElementBytes && u32(boltPageHeader+8) == uint64(len(key)) &&
		end <= uint64(len(page)) && u32(12) == end/boltPageSize && string(page[head:][:len(key)]) == key
}

// boltMeta is what a valid meta page says.
type boltMeta struct {
	root, freelist, pages, transaction uint64
}

// meta returns what a meta page says, nil when it is not valid.
func (f boltFile) meta(number int) *boltMeta {
	at := number * boltPageSize
	if at+boltPageHeader+boltMetaBytes > len(f.b) {
		return nil
	}
	m := f.b[at+boltPageHeader:][:boltMetaBytes]
	sum := fnv.New64a()
	sum.Write(m[:56])
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(m[at:]) }
	if binary.LittleEndian.Uint32(m) != boltMagic || binary.LittleEndian.Uint32(m[4:]) != boltVersion ||
		binary.LittleEndian.Uint32(m[8:]) != boltPageSize || u64(56) != sum.Sum64() {
		return nil
	}
	return &boltMeta{root: u64(16), freelist: u64(32), pages: u64(40), transaction: u64(48)}
}

// newestMeta takes the newer valid meta page; each Put leaves both leading to
// the same record.
func (f boltFile) newestMeta() (newest boltMeta, ok bool) {
	for number := range 2 {
		if m := f.meta(number); m != nil && (!ok || m.transaction > newest.transaction) {
			newest, ok = *m, true
		}
	}
	return newest, ok
}

func (f boltFile) page(id uint64) ([]byte, int64, error) {
	pages := uint64(len(f.b) / boltPageSize)
	if id < 2 || id >= pages {
		return nil, 0, f.damage(0, fmt.Sprintf("page %d of %d is referred to", id, pages))
	}
	at := int64(id * boltPageSize)
	overflow := uint64(binary.LittleEndian.Uint32(f.b[at+12:]))
	if overflow >= pages-id {
		return nil, 0, f.damage(at, fmt.Sprintf("page %d runs over %d more", id, overflow))
	}
	return f.b[at:][:(overflow+1)*boltPageSize], at, nil
}

// find returns the value of a key in a leaf page that begins at at.
func (f boltFile) find(page []byte, at int64, key string, flags uint32) ([]byte, int64, error) {
	if len(page) < boltPageHeader || binary.LittleEndian.Uint16(page[8:]) != boltLeaf {
		return nil, 0, f.damage(at, "the page is not a leaf")
	}
	for i := range int(binary.LittleEndian.Uint16(page[10:])) {
		begin := boltPageHeader + i*boltElementBytes
		if begin+boltElementBytes > len(page) {
			break
		}
		e := page[begin:]
		position := uint64(binary.LittleEndian.Uint32(e[4:]))
		keyEnd := position + uint64(binary.LittleEndian.Uint32(e[8:]))
		valueEnd := keyEnd + uint64(binary.LittleEndian.Uint32(e[12:]))
		if valueEnd > uint64(len(e)) {
			return nil, 0, f.damage(at+int64(begin), "an element runs out of its page")
		}
		if string(e[position:keyEnd]) == key && binary.LittleEndian.Uint32(e) == flags {
			return e[keyEnd:valueEnd], at + int64(begin) + int64(keyEnd), nil
		}
	}
	return nil, 0, f.damage(at, fmt.Sprintf("the page has no %s", key))
}
