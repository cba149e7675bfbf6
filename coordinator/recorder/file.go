package recorder

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A file is Magic, and segments behind it. A segment is its length and its CRC-32C, four bytes
// each, little endian, and so many bytes: a RecordedSegment, deflated.

// Magic begins a file.
const Magic = "nokv recording 1\n"

const (
	// version of segments that are written, and the newest that is read.
	version = 1
	header  = 8
	// maxSegment bounds a segment as it is stored, maxInflated as it is read.
	maxSegment  = 8 << 20
	maxInflated = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal makes a segment of encoded frames.
func seal(frames [][]byte) []byte {
	var packed bytes.Buffer
	packed.Write(make([]byte, header))
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		panic("recorder: " + err.Error())
	}
	write := func(b []byte) { _, _ = w.Write(b) } // into memory
	write(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), version))
	for _, f := range frames {
		write(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), uint64(len(f))))
		write(f)
	}
	_ = w.Close()
	data := packed.Bytes()
	binary.LittleEndian.PutUint32(data, uint32(len(data)-header))
	binary.LittleEndian.PutUint32(data[4:], crc32.Checksum(data[header:], castagnoli))
	return data
}

// Errors of files.
var (
	// ErrForeign: it is no recording.
	ErrForeign = errors.New("it is no recording of nokv plan record")
	// ErrTorn: it ends before its time, or is damaged.
	ErrTorn = errors.New("it is cut off or damaged")
	// ErrNewer: this software is too old for it.
	ErrNewer = errors.New("a newer nokv wrote it: use that one")
)

// ReadFile calls fn for each segment of a file, in order. It fails with one of the errors
// above, and what fn says.
func ReadFile(in io.Reader, fn func(*coordinatorv1.RecordedSegment) error) error {
	magic := make([]byte, len(Magic))
	if n, err := io.ReadFull(in, magic); err != nil || string(magic) != Magic {
		if n > 0 && err != nil && bytes.HasPrefix([]byte(Magic), magic[:n]) {
			return fmt.Errorf("%w: it has %d bytes", ErrTorn, n)
		}
		return ErrForeign
	}
	for at := int64(len(Magic)); ; {
		head := make([]byte, header)
		switch n, err := io.ReadFull(in, head); {
		case n == 0 && errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: at byte %d", ErrTorn, at)
		}
		size := binary.LittleEndian.Uint32(head)
		if size > maxSegment {
			return fmt.Errorf("%w: at byte %d a segment has %d bytes", ErrTorn, at, size)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in, data); err != nil {
			return fmt.Errorf("%w: at byte %d", ErrTorn, at)
		}
		if crc32.Checksum(data, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			return fmt.Errorf("%w: the segment at byte %d has another checksum", ErrTorn, at)
		}
		s, err := open(data)
		if err != nil {
			return fmt.Errorf("segment at byte %d: %w", at, err)
		}
		if err := fn(s); err != nil {
			return err
		}
		at += int64(header + size)
	}
}

func open(data []byte) (*coordinatorv1.RecordedSegment, error) {
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), maxInflated+1))
	if err != nil || len(plain) > maxInflated {
		return nil, ErrTorn
	}
	s := &coordinatorv1.RecordedSegment{}
	if err := proto.Unmarshal(plain, s); err != nil {
		return nil, ErrTorn
	}
	if s.GetVersion() > version {
		return nil, fmt.Errorf("version %d: %w", s.GetVersion(), ErrNewer)
	}
	if s.GetVersion() == 0 || len(s.GetFrames()) == 0 || !s.GetFrames()[0].GetWhole() {
		return nil, ErrTorn
	}
	return s, nil
}
