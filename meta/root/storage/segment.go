package storage

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/nokv/nokv/internal/disk"
)

// A segment is a file of fixed size. Its first sector is the header, written
// and synced before the file gets its name, so that a named segment without a
// valid header is damage and never an accident of timing.
//
//	  0 "NOKVWAL\n"
//	  8 u32 format version
//	 12 u32 zero
//	 16 log id of the workdir
//	 32 u64 sequence, as in the name
//	 40 u64 salt, random for each use of the file
//	 48 u64 size of the file in bytes
//	 56 u64 cluster id, u64 node id, u64 incarnation: 0 before they are known
//	508 u32 CRC32C of the bytes before
const (
	segmentMagic   = "NOKVWAL\n"
	segmentVersion = 1
	segmentSuffix  = ".wal"
	spareSuffix    = ".spare"
	filePerm       = 0o600
	dirPerm        = 0o700
)

// logID is the random name of one workdir's log.
type logID [16]byte

func (id logID) String() string { return fmt.Sprintf("%x", id[:]) }

// segmentHeader is the first sector of a segment.
type segmentHeader struct {
	log      logID
	sequence uint64
	salt     uint64
	bytes    int64
	owner    Identity
}

func (h segmentHeader) encode() []byte {
	b := make([]byte, sectorBytes)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	copy(b[16:], h.log[:])
	binary.LittleEndian.PutUint64(b[32:], h.sequence)
	binary.LittleEndian.PutUint64(b[40:], h.salt)
	binary.LittleEndian.PutUint64(b[48:], uint64(h.bytes))
	binary.LittleEndian.PutUint64(b[56:], h.owner.ClusterID)
	binary.LittleEndian.PutUint64(b[64:], h.owner.NodeID)
	binary.LittleEndian.PutUint64(b[72:], h.owner.Incarnation)
	binary.LittleEndian.PutUint32(b[508:], checksum(b[:508]))
	return b
}

// decodeSegmentHeader reads a header; version is what the file claims when
// it is a newer one.
func decodeSegmentHeader(b []byte) (h segmentHeader, version uint32, ok bool) {
	if len(b) < sectorBytes || string(b[:8]) != segmentMagic || checksum(b[:508]) != binary.LittleEndian.Uint32(b[508:]) {
		return h, 0, false
	}
	copy(h.log[:], b[16:])
	h.sequence = binary.LittleEndian.Uint64(b[32:])
	h.salt = binary.LittleEndian.Uint64(b[40:])
	h.bytes = int64(binary.LittleEndian.Uint64(b[48:]))
	h.owner.ClusterID = binary.LittleEndian.Uint64(b[56:])
	h.owner.NodeID = binary.LittleEndian.Uint64(b[64:])
	h.owner.Incarnation = binary.LittleEndian.Uint64(b[72:])
	return h, binary.LittleEndian.Uint32(b[8:]), true
}

// segment is a segment file in use.
type segment struct {
	segmentHeader
	file disk.File
}

func segmentName(sequence uint64) string { return fmt.Sprintf("%016d%s", sequence, segmentSuffix) }

// parseSegmentName returns the sequence in a name; false for other files.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	sequence, err := strconv.ParseUint(digits, 10, 64)
	return sequence, err == nil
}

// segmentFiles makes and retires the files of a log directory: one at a time is
// made, and one at a time retired, meanwhile too.
type segmentFiles struct {
	fs      disk.FS
	dir     string
	log     logID
	bytes   int64
	recycle int

	// mu guards what follows; never held across I/O.
	mu sync.Mutex
	// pool are the names of spent files, all of the regular size.
	pool []string
	// spares numbers the files made or recycled.
	spares int
}

func (d *segmentFiles) path(sequence uint64) string { return path.Join(d.dir, segmentName(sequence)) }

// create makes a segment, whole and durable under its name on return,
// replacing what has that name. A crash before the rename leaves a spare file
// that the next Open removes.
func (d *segmentFiles) create(sequence uint64, bytes int64, owner Identity) (*segment, error) {
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return nil, err
	}
	s := &segment{segmentHeader: segmentHeader{
		log: d.log, sequence: sequence, salt: binary.LittleEndian.Uint64(salt[:]), bytes: bytes, owner: owner,
	}}
	spare, err := d.spare(s, bytes)
	if err != nil {
		return nil, d.abandon(s, spare, err)
	}
	if _, err = s.file.WriteAt(s.encode(), 0); err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		err = d.fs.Rename(spare, d.path(sequence))
	}
	// A crash from here on finds the segment without frames, or not at all.
	if err == nil {
		err = d.fs.SyncDir(d.dir)
	}
	if err != nil {
		return nil, d.abandon(s, spare, err)
	}
	return s, nil
}

// abandon closes what could not be made a segment. The room that it takes is given
// back when that is what lacks.
func (d *segmentFiles) abandon(s *segment, spare string, err error) error {
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	if disk.NoRoom(err) {
		if removeErr := d.fs.Remove(spare); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}

// spare opens a file of the right size under a spare name: a recycled one
// with the old bytes in it, or a new one filled with zeros.
func (d *segmentFiles) spare(s *segment, bytes int64) (name string, err error) {
	if name = d.recycled(bytes); name != "" {
		s.file, err = d.fs.OpenFile(name, os.O_RDWR, filePerm)
		return name, err
	}
	name = d.spareName()
	if s.file, err = d.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm); err != nil {
		return name, err
	}
	return name, fillZeros(s.file, 0, bytes)
}

// recycled takes a file of a size out of the pool; empty: there is none.
func (d *segmentFiles) recycled(bytes int64) (name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.pool); bytes == d.bytes && n > 0 {
		name, d.pool = d.pool[n-1], d.pool[:n-1]
	}
	return name
}

func (d *segmentFiles) spareName() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spares++
	return path.Join(d.dir, fmt.Sprintf("%d%s", d.spares, spareSuffix))
}

// retire takes spent segments out of the log, durably: into the pool or away.
func (d *segmentFiles) retire(spent []retained) error {
	d.mu.Lock()
	room := d.recycle - len(d.pool)
	d.mu.Unlock()
	var pool []string
	for _, old := range spent {
		if old.bytes != d.bytes || len(pool) >= room {
			if err := d.fs.Remove(d.path(old.sequence)); err != nil {
				return err
			}
			continue
		}
		spare := d.spareName()
		if err := d.fs.Rename(d.path(old.sequence), spare); err != nil {
			return err
		}
		pool = append(pool, spare)
	}
	if err := d.fs.SyncDir(d.dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pool = append(d.pool, pool...)
	return nil
}

func fillZeros(f io.WriterAt, from, to int64) error {
	for from < to {
		n, err := f.WriteAt(zeros[:min(to-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}
