package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// A checkpoint file is a header, chunks of records and a footer.
//
//	header  0 "NOKVCKP\n", 8 u32 version, 12 u32 zero, then u64: cluster id,
//	        cluster incarnation, index, term, state hash; 56 zeros, 60 u32 CRC32C
//	chunk   0 u32 length, 4 u32 records, 8 u32 chain, payload: records, each
//	        with its length in front
//	footer  0 u32 zero, 4 u32 zero, 8 u32 chain, 12 "end\n", then u64: records,
//	        size of the file; 32 u32 CRC32C of the footer
//
// A chain is the CRC32C over the chain before (the header's CRC first), the
// first 8 bytes of the chunk and its payload; the footer's is that of the last
// chunk, and names the whole file.
const (
	checkpointMagic       = "NOKVCKP\n"
	checkpointVersion     = 1
	checkpointHeaderBytes = 64
	chunkHeaderBytes      = 12
	footerBytes           = 36
	footerMagic           = "end\n"
	// chunkTarget is the payload above which a chunk is written.
	chunkTarget = 256 << 10
	// maxChunkBytes is the largest payload of a chunk, and so of a record.
	maxChunkBytes = 16 << 20
)

func appendCheckpointHeader(b []byte, m CheckpointMeta) []byte {
	b = append(b, checkpointMagic...)
	b = binary.LittleEndian.AppendUint32(b, checkpointVersion)
	b = append(b, 0, 0, 0, 0)
	for _, v := range []uint64{m.ClusterID, m.ClusterIncarnation, m.Index, m.Term, m.StateHash} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, checksum(b[len(b)-60:]))
}

// checkpointWriter writes a checkpoint to out.
type checkpointWriter struct {
	out     io.Writer
	chunk   []byte
	count   uint32
	records uint64
	bytes   uint64
	chain   uint32
}

func newCheckpointWriter(out io.Writer, m CheckpointMeta) (*checkpointWriter, error) {
	w := &checkpointWriter{out: out, chunk: make([]byte, chunkHeaderBytes, chunkTarget+chunkTarget/4)}
	header := appendCheckpointHeader(nil, m)
	w.chain = binary.LittleEndian.Uint32(header[60:])
	return w, w.write(header)
}

func (w *checkpointWriter) write(b []byte) error {
	w.bytes += uint64(len(b))
	_, err := w.out.Write(b)
	return err
}

// add adds a record in the wire format. One that is too large is the caller's
// error.
func (w *checkpointWriter) add(r []byte) (caller, disk error) {
	if len(r) > maxChunkBytes-protowire.SizeBytes(0)-8 {
		return fmt.Errorf("a record of %d bytes is above the limit of %d", len(r), maxChunkBytes), nil
	}
	if len(w.chunk)-chunkHeaderBytes+protowire.SizeBytes(len(r)) > maxChunkBytes {
		if err := w.flush(); err != nil {
			return nil, err
		}
	}
	w.chunk = protowire.AppendBytes(w.chunk, r)
	w.count++
	w.records++
	if len(w.chunk)-chunkHeaderBytes < chunkTarget {
		return nil, nil
	}
	return nil, w.flush()
}

func (w *checkpointWriter) flush() error {
	if w.count == 0 {
		return nil
	}
	payload := w.chunk[chunkHeaderBytes:]
	binary.LittleEndian.PutUint32(w.chunk[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(w.chunk[4:], w.count)
	w.chain = chunkChain(w.chain, w.chunk[:8], payload)
	binary.LittleEndian.PutUint32(w.chunk[8:], w.chain)
	err := w.write(w.chunk)
	w.chunk, w.count = w.chunk[:chunkHeaderBytes], 0
	return err
}

// finish writes the footer.
func (w *checkpointWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.write(appendFooter(nil, w.chain, w.records, w.bytes+footerBytes))
}

func appendFooter(b []byte, chain uint32, records, bytes uint64) []byte {
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, chain)
	b = append(b, footerMagic...)
	b = binary.LittleEndian.AppendUint64(b, records)
	b = binary.LittleEndian.AppendUint64(b, bytes)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

func chunkChain(prev uint32, head, payload []byte) uint32 {
	return crc(crc(crc(0, binary.LittleEndian.AppendUint32(nil, prev)), head), payload)
}

// badCheckpoint says what is wrong with a checkpoint and where.
type badCheckpoint struct {
	offset int64
	what   string
}

func (e *badCheckpoint) Error() string {
	return fmt.Sprintf("checkpoint at offset %d: %s", e.offset, e.what)
}

// checkpointVersionError is a checkpoint of a newer release.
type checkpointVersionError uint32

func (e checkpointVersionError) Error() string {
	return fmt.Sprintf("checkpoint has format version %d, this release reads up to %d", uint32(e), checkpointVersion)
}

// readCheckpoint reads a whole checkpoint and checks every bit of it. fn, unless
// it is nil, takes its chunks: packed records, each with its length in front; they
// are its to keep. Errors: *badCheckpoint, checkpointVersionError, or what in or fn
// returned.
func readCheckpoint(in io.Reader, fn func(packed []byte) error) (CheckpointMeta, uint32, error) {
	r := checkpointReader{in: in}
	header, err := r.read(checkpointHeaderBytes)
	if err != nil {
		return CheckpointMeta{}, 0, err
	}
	meta, err := parseCheckpointHeader(header)
	if err != nil {
		return meta, 0, err
	}
	r.chain = binary.LittleEndian.Uint32(header[60:])
	if err := r.rest(fn); err != nil {
		return meta, 0, err
	}
	meta.Records, meta.Bytes = r.records, uint64(r.offset)
	return meta, r.chain, nil
}

// rest reads what is behind the header: chunks, the footer and the end.
func (r *checkpointReader) rest(fn func(packed []byte) error) error {
	for {
		start := r.offset
		packed, end, err := r.chunk()
		if err != nil {
			return err
		}
		if end {
			break
		}
		if fn == nil {
			continue
		}
		r.buf = nil // It is fn's.
		err = fn(packed)
		if bad, ok := errors.AsType[*badCheckpoint](err); ok {
			bad.offset = start
		}
		if err != nil {
			return err
		}
	}
	if n, err := r.in.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		if n > 0 || err == nil {
			err = r.bad("bytes behind the footer")
		}
		return err
	}
	return nil
}

func parseCheckpointHeader(b []byte) (m CheckpointMeta, err error) {
	if string(b[:8]) != checkpointMagic || checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return m, &badCheckpoint{what: "the header is not valid"}
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > checkpointVersion {
		return m, checkpointVersionError(v)
	}
	for i, into := range []*uint64{&m.ClusterID, &m.ClusterIncarnation, &m.Index, &m.Term, &m.StateHash} {
		*into = binary.LittleEndian.Uint64(b[16+8*i:])
	}
	return m, nil
}

// parseFooter checks a footer of a file of so many bytes.
func parseFooter(b []byte, size uint64) (records uint64, chain uint32, ok bool) {
	ok = len(b) == footerBytes && string(b[12:16]) == footerMagic &&
		binary.LittleEndian.Uint64(b) == 0 &&
		checksum(b[:32]) == binary.LittleEndian.Uint32(b[32:]) &&
		binary.LittleEndian.Uint64(b[24:]) == size
	if !ok {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b[8:]), true
}

type checkpointReader struct {
	in      io.Reader
	offset  int64
	chain   uint32
	records uint64
	buf     []byte
}

func (r *checkpointReader) bad(what string) error {
	return &badCheckpoint{offset: r.offset, what: what}
}

func (r *checkpointReader) read(n int) ([]byte, error) {
	if n > cap(r.buf) {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	got, err := io.ReadFull(r.in, b)
	if errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF {
		r.offset += int64(got)
		return nil, r.bad("the file ends")
	}
	if err != nil {
		return nil, err
	}
	r.offset += int64(n)
	return b, nil
}

// chunk reads a chunk, or the footer: then end is true.
func (r *checkpointReader) chunk() (packed []byte, end bool, err error) {
	start := r.offset
	b, err := r.read(chunkHeaderBytes)
	if err != nil {
		return nil, false, err
	}
	head := [chunkHeaderBytes]byte(b)
	length, count := binary.LittleEndian.Uint32(head[0:]), binary.LittleEndian.Uint32(head[4:])
	if length == 0 && count == 0 {
		return nil, true, r.footer(head)
	}
	if length > maxChunkBytes {
		return nil, false, &badCheckpoint{start, fmt.Sprintf("a chunk of %d bytes", length)}
	}
	packed, err = r.read(int(length))
	if err != nil {
		return nil, false, err
	}
	r.chain = chunkChain(r.chain, head[:8], packed)
	if r.chain != binary.LittleEndian.Uint32(head[8:]) {
		return nil, false, &badCheckpoint{start, "a chunk fails its checksum"}
	}
	n := uint32(0)
	if !eachRecord(packed, func([]byte) { n++ }) || n != count {
		return nil, false, &badCheckpoint{start, "a chunk is malformed"}
	}
	r.records += uint64(n)
	return packed, false, nil
}

// eachRecord hands out packed records; false: that is not what they are.
func eachRecord(packed []byte, fn func(record []byte)) bool {
	for len(packed) > 0 {
		size, n := protowire.ConsumeVarint(packed)
		if n < 0 || size > uint64(len(packed)-n) {
			return false
		}
		fn(packed[n : n+int(size)])
		packed = packed[n+int(size):]
	}
	return true
}

func (r *checkpointReader) footer(head [chunkHeaderBytes]byte) error {
	start := r.offset - chunkHeaderBytes
	rest, err := r.read(footerBytes - chunkHeaderBytes)
	if err != nil {
		return err
	}
	records, chain, ok := parseFooter(append(head[:], rest...), uint64(r.offset))
	if !ok || records != r.records || chain != r.chain {
		return &badCheckpoint{start, "the footer does not fit what is before it"}
	}
	return nil
}
