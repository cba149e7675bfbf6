package gate

import "encoding/binary"

// HTTP/2 as far as the gate looks at it (RFC 9113, 4.1 and 6).
const (
	prefaceBytes = 24 // what a client sends before its first frame
	headerBytes  = 9
	// maxFrameBytes is the largest frame that gRPC takes; it closes the connection at
	// a larger one.
	maxFrameBytes = 16 << 10

	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindowUpdate = 0x8
	frameContinuation = 0x9

	flagEndStream  = 0x1 // of DATA and HEADERS
	flagAck        = 0x1 // of SETTINGS and PING
	flagEndHeaders = 0x4
	flagPadded     = 0x8

	settingInitialWindow = 0x4
	firstWindow          = 65535 // of a connection, and of a stream before SETTINGS
)

// frame is the header of a frame.
type frame struct {
	kind, flags uint8
	stream      uint32
	length      int
}

func (f frame) has(flag uint8) bool { return f.flags&flag != 0 }

// watcher is told of the frames of one direction.
type watcher interface {
	// begin is told of a frame when its header has come; false: it is not one that
	// the other side of the connection accepts.
	begin(f frame) bool
	// payload is told of the next part of the frame's payload.
	payload(f frame, part []byte) bool
	// end is told when the frame is complete.
	end(f frame)
}

// walker finds the frames in one direction of a connection, in pieces of any size.
// It copies at most the header of a frame.
type walker struct {
	preface int // bytes of it still to come
	header  [headerBytes]byte
	have    int // bytes of header
	frame   frame
	left    int // bytes of the frame's payload still to come, valid when inside
	inside  bool
}

// walk passes p on; false: the bytes are not HTTP/2, and there is no going on.
func (w *walker) walk(p []byte, to watcher) bool {
	if w.preface > 0 {
		n := min(w.preface, len(p))
		w.preface -= n
		p = p[n:]
	}
	for len(p) > 0 {
		if !w.inside {
			head := p
			if w.have > 0 || len(p) < headerBytes {
				n := copy(w.header[w.have:], p)
				w.have += n
				p = p[n:]
				if w.have < headerBytes {
					return true
				}
				head = w.header[:]
				w.have = 0
			} else {
				p = p[headerBytes:]
			}
			w.frame = frame{
				length: int(head[0])<<16 | int(head[1])<<8 | int(head[2]), kind: head[3], flags: head[4],
				stream: binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1),
			}
			w.left, w.inside = w.frame.length, true
			if w.frame.length > maxFrameBytes || !to.begin(w.frame) {
				return false
			}
		}
		n := min(w.left, len(p))
		if n > 0 && !to.payload(w.frame, p[:n]) {
			return false
		}
		w.left -= n
		p = p[n:]
		if w.left == 0 {
			w.inside = false
			to.end(w.frame)
		}
	}
	return true
}

// between says that no frame is under way.
func (w *walker) between() bool { return w.preface == 0 && w.have == 0 && !w.inside }

// number collects a number of the payload, in pieces of any size.
type number struct {
	value uint64
	have  int
}

// take appends the bytes of part until there are size, and returns the rest.
func (n *number) take(part []byte, size int) (rest []byte, complete bool) {
	for len(part) > 0 && n.have < size {
		n.value = n.value<<8 | uint64(part[0])
		n.have++
		part = part[1:]
	}
	return part, n.have == size
}
