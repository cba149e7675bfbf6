package transport

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// kind says what a frame carries.
type kind byte

const (
	kindHello    kind = 1  // who dials, and what for: hello
	kindWelcome  kind = 2  // who answers: welcome
	kindRefusal  kind = 3  // why not: a sentence; the connection is closed after it
	kindAlive    kind = 4  // empty: a sign of life, in both directions
	kindMessage  kind = 5  // a raftpb.Message
	kindStanding kind = 6  // what the sender says of itself, and remembers of others: standing
	kindBegin    kind = 7  // a checkpoint follows; the raftpb.Message that stands for it
	kindChunk    kind = 8  // bytes of a checkpoint
	kindEnd      kind = 9  // the checkpoint's length and CRC32C: 8 and 4 bytes
	kindReceived kind = 10 // empty: the checkpoint is complete and verified
	kindNotYet   kind = 11 // a sentence: not before something has happened, try again
	kindReplaced kind = 12 // a sentence: who says hello is a peer no more
	kindTooOld   kind = 13 // a sentence: who says hello understands less than the cluster has
	kindStale    kind = 14 // a sentence: who says hello runs on an older copy of its folder
	kindAsk      kind = 15 // 8 bytes for the dialing side to send back: is its process alive?
	kindEcho     kind = 16 // the 8 bytes of the newest kindAsk
)

const (
	// headerBytes is a frame's header: payload length (4), kind (1), CRC32C (4) over
	// length, kind and payload. Integers are big-endian.
	headerBytes = 9
	// maxMessageBytes bounds a raft message: replicas send at most 1 MiB of
	// entries at a time, or a single larger one.
	maxMessageBytes = 16 << 20
	// chunkBytes bounds one chunk of a checkpoint.
	chunkBytes = 256 << 10
	// maxHelloBytes bounds everything that is read from a stranger.
	maxHelloBytes = 8 << 10
)

// limit is the longest payload of a kind; -1: there is no such kind.
func (k kind) limit() int {
	switch k {
	case kindHello, kindWelcome, kindRefusal, kindNotYet, kindReplaced, kindTooOld, kindStale, kindStanding:
		return maxHelloBytes
	case kindAlive, kindReceived:
		return 0
	case kindMessage, kindBegin:
		return maxMessageBytes
	case kindAsk, kindEcho:
		return 8
	case kindChunk:
		return chunkBytes
	case kindEnd:
		return 12
	}
	return -1
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// beginFrame appends a header to be completed by endFrame.
func beginFrame(b []byte, k kind) []byte {
	return append(b, 0, 0, 0, 0, byte(k), 0, 0, 0, 0)
}

// endFrame completes the header at start: the frame's payload is all behind it.
func endFrame(b []byte, start int) []byte {
	payload := b[start+headerBytes:]
	binary.BigEndian.PutUint32(b[start:], uint32(len(payload)))
	crc := crc32.Update(crc32.Checksum(b[start:start+5], castagnoli), castagnoli, payload)
	binary.BigEndian.PutUint32(b[start+5:], crc)
	return b
}

// appendFrame appends a whole frame.
func appendFrame(b []byte, k kind, payload []byte) []byte {
	start := len(b)
	return endFrame(append(beginFrame(b, k), payload...), start)
}

// frameReader reads frames. The payload is valid until the next read.
type frameReader struct {
	r    *bufio.Reader
	only kind // refuse every other kind before anything is allocated; 0: any
	buf  []byte
}

func newFrameReader(r io.Reader, only kind) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10), only: only}
}

// next reads one frame. io.EOF: the stream ended between two frames.
func (f *frameReader) next() (kind, []byte, error) {
	header, err := f.r.Peek(headerBytes)
	if err != nil {
		if err == io.EOF && len(header) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	k, size := kind(header[4]), binary.BigEndian.Uint32(header)
	crc := binary.BigEndian.Uint32(header[5:])
	sum := crc32.Checksum(header[:5], castagnoli)
	if limit := k.limit(); limit < 0 || (f.only != 0 && k != f.only) {
		return 0, nil, fmt.Errorf("frame of kind %d is not expected here", k)
	} else if int64(size) > int64(limit) {
		return 0, nil, fmt.Errorf("frame of kind %d claims %d bytes, at most %d are allowed", k, size, limit)
	}
	if _, err := f.r.Discard(headerBytes); err != nil {
		return 0, nil, err
	}
	if err := f.fill(int(size)); err != nil {
		return 0, nil, err
	}
	if crc32.Update(sum, castagnoli, f.buf) != crc {
		return 0, nil, fmt.Errorf("checksum of a frame of kind %d with %d bytes is wrong", k, size)
	}
	return k, f.buf, nil
}

// fill reads size bytes into buf, which grows only as bytes arrive: a claim
// alone allocates at most 64 KiB.
func (f *frameReader) fill(size int) error {
	f.buf = f.buf[:0]
	for len(f.buf) < size {
		have := len(f.buf)
		step := min(size-have, max(64<<10, have))
		if cap(f.buf) < have+step {
			grown := make([]byte, have, have+step)
			copy(grown, f.buf)
			f.buf = grown
		}
		f.buf = f.buf[:have+step]
		if _, err := io.ReadFull(f.r, f.buf[have:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
