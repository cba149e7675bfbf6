package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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
	// minRecordBytes is about the size of a small record, for a first guess.
	minRecordBytes = 16
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

// readCheckpoint reads a whole checkpoint and checks every bit of it. record
// may be nil: then records are decoded, not handed out; otherwise chunks are
// read and decoded while record has those before. Errors: *badCheckpoint,
// checkpointVersionError, or what in or record returned.
func readCheckpoint(in io.Reader, record func(*rootv1.Record) error) (CheckpointMeta, uint32, error) {
	r := checkpointReader{in: in, keep: record != nil}
	header, err := r.read(checkpointHeaderBytes)
	if err != nil {
		return CheckpointMeta{}, 0, err
	}
	meta, err := parseCheckpointHeader(header)
	if err != nil {
		return meta, 0, err
	}
	r.chain = binary.LittleEndian.Uint32(header[60:])
	if record == nil {
		err = r.rest(nil)
	} else {
		err = r.ahead(record)
	}
	if err != nil {
		return meta, 0, err
	}
	meta.Records, meta.Bytes = r.records, uint64(r.offset)
	return meta, r.chain, nil
}

// ahead is rest in a goroutine of its own, at most two chunks ahead of record.
func (r *checkpointReader) ahead(record func(*rootv1.Record) error) (err error) {
	chunks, stop := make(chan []*rootv1.Record, 1), make(chan struct{})
	var ended error
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(stop)
	reading.Go(func() {
		defer close(chunks)
		ended = r.rest(func(records []*rootv1.Record) bool {
			select {
			case chunks <- records:
				return true
			case <-stop:
				return false
			}
		})
	})
	for records := range chunks {
		for _, rec := range records {
			if err := record(rec); err != nil {
				return err
			}
		}
	}
	return ended
}

// rest reads what is behind the header: chunks, as long as more takes what is in
// them, the footer and the end.
func (r *checkpointReader) rest(more func([]*rootv1.Record) bool) error {
	for {
		records, end, err := r.chunk()
		if len(records) > 0 && !more(records) {
			return nil
		}
		if err != nil {
			return err
		}
		if end {
			break
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
	keep    bool // records are wanted, not only checked
	regions regionDecoder
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

// chunk reads a chunk, or the footer: then end is true. The records, if they are
// kept, are those before what is wrong, if anything is.
func (r *checkpointReader) chunk() (records []*rootv1.Record, end bool, err error) {
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
	payload, err := r.read(int(length))
	if err != nil {
		return nil, false, err
	}
	if r.keep {
		r.buf = nil // Records share their keys with the payload.
	}
	r.chain = chunkChain(r.chain, head[:8], payload)
	if r.chain != binary.LittleEndian.Uint32(head[8:]) {
		return nil, false, &badCheckpoint{start, "a chunk fails its checksum"}
	}
	records, err = r.decode(start, payload, count)
	return records, false, err
}

func (r *checkpointReader) decode(start int64, payload []byte, count uint32) (records []*rootv1.Record, err error) {
	if r.keep {
		records = make([]*rootv1.Record, 0, min(int(count), len(payload)/minRecordBytes))
	}
	for ; count > 0; count-- {
		size, n := protowire.ConsumeVarint(payload)
		if n < 0 || size > uint64(len(payload)-n) {
			return records, &badCheckpoint{start, "a chunk is malformed"}
		}
		rec := r.regions.decode(payload[n : n+int(size)])
		if rec == nil {
			rec = &rootv1.Record{}
			if err := proto.Unmarshal(payload[n:n+int(size)], rec); err != nil {
				return records, &badCheckpoint{start, fmt.Sprintf("record %d: %v", r.records, err)}
			}
		}
		payload = payload[n+int(size):]
		r.records++
		if r.keep {
			records = append(records, rec)
		}
	}
	if len(payload) > 0 {
		return records, &badCheckpoint{start, "a chunk is malformed"}
	}
	return records, nil
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
