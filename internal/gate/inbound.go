package gate

// What a frame or a stream costs and earns, in the credits of a connection. What
// is asked for as gRPC clients do it costs nothing in the end: a message that
// came, and one that went out, earn what the frames around them cost.
const (
	costOfFrame   = 1               // one that brings no message forward
	costOfCall    = 1               // a stream that ends without a message
	costOfHeaders = 256             // bytes of headers of such a stream per credit more
	smallData     = 512             // bytes below which DATA costs, if it completes nothing
	earned        = 2               // by a message
	firstCredits  = 5000            // of a new connection
	maxCredits    = 10_000          // that a connection saves
	creditsASec   = 200             // that come by themselves
	streamBytes   = 2 << 10         // that an open stream takes, and as many more before its first message has come
	littleBytes   = 4 * streamBytes // that a caller has in any case: how many there are is the listener's
	frameBytes    = 160             // that gRPC needs for a DATA frame beside its payload
	bufferSmall   = 1 << 10         // payloads up to this are kept as they are,
	bufferMedium  = 4 << 10         // up to this in buffers of this size, others in the largest
)

// dataBytes is what a DATA frame takes in memory.
func dataBytes(length int) int {
	switch {
	case length == 0:
		return 0
	case length <= bufferSmall:
		return length + frameBytes
	case length <= bufferMedium:
		return bufferMedium + frameBytes
	}
	return maxFrameBytes + frameBytes
}

// stream is a call as the frames of both directions show it.
type stream struct {
	// The message that is coming: how much of its 5 bytes of prefix, its length, and
	// how much of it is missing.
	have    int
	length  uint32
	missing uint32
	// sum is what the frames of the message take in memory, cost what is counted.
	sum, cost int
	// Behind the first message, which is read when its call begins: how many have come
	// and were not read, and what their frames take in memory.
	unread, kept int
	headers      int  // bytes of the header block
	complete     bool // a message has come
	since        int64
	bytes        int // of the message that have come

	receive     int64 // what the client may send, in bytes of DATA
	send        int64 // what may be sent to it
	unreadSince int64 // when send was used up; 0: it is not
}

// unfinished says that a message has begun to come.
func (s *stream) unfinished() bool { return s.have > 0 }

// unreadBytes is what counts of complete messages: what they take beyond what an open
// stream counts for, and no less than what the server's window says for certain, which
// it opens again by quarters.
func (s *stream) unreadBytes(window int64) int {
	if s.unread == 0 {
		return 0
	}
	certain := window - window/4 - s.receive - int64(s.bytes)
	return max(max(s.kept, int(certain))-streamBytes, 0)
}

// read notes that the call has read one of them.
func (s *stream) read() {
	s.kept -= s.kept / s.unread
	if s.unread--; s.unread == 0 {
		s.kept = 0
	}
}

// inbound watches what the client sends. Conn.mu is held.
type inbound struct {
	c       *Conn
	block   bool // headers are under way
	crossed bool // a frame has ended outside of headers
	// Of the frame under way.
	stream    *stream
	completed bool // the DATA frame has completed a message
	padding   int  // bytes at its end; -1: its length has not come
	content   int  // bytes still to come of what is not padding
	number    number
	setting   number
}

func (in *inbound) begin(f frame) bool {
	c := in.c
	switch f.kind {
	case frameData:
		in.stream, in.completed, in.content = c.streams[f.stream], false, f.length
		if in.padding = 0; f.has(flagPadded) {
			if in.padding = -1; f.length == 0 {
				return false
			}
		}
		if f.length == 0 {
			c.spend(costOfFrame)
		}
		if s := in.stream; s != nil {
			s.sum += dataBytes(f.length)
			s.receive -= int64(f.length)
		} else {
			c.spend(costOfFrame)
		}
	case frameHeaders:
		in.block = !f.has(flagEndHeaders)
		in.stream = c.open(f.stream)
		in.stream.headers = f.length
		c.work += f.length / costOfHeaders
		c.charge(in.stream)
	case frameContinuation:
		c.spend(costOfFrame)
		if in.stream != nil {
			in.stream.headers += f.length
		}
		if f.has(flagEndHeaders) {
			in.block = false
		}
	case frameReset:
		c.spend(costOfFrame)
		c.close(f.stream)
	default:
		c.spend(costOfFrame)
	}
	in.number, in.setting = number{}, number{}
	return true
}

func (in *inbound) payload(f frame, part []byte) bool {
	switch f.kind {
	case frameData:
		return in.data(part)
	case frameWindowUpdate:
		if _, complete := in.number.take(part, 4); complete {
			in.c.mayBeSent(f.stream, int64(in.number.value&(1<<31-1)))
		}
	case frameSettings:
		for len(part) > 0 && !f.has(flagAck) {
			var complete bool
			if part, complete = in.number.take(part, 2); !complete {
				break
			}
			if part, complete = in.setting.take(part, 4); complete {
				if in.number.value == settingInitialWindow {
					in.c.windowIs(int64(in.setting.value))
				}
				in.number, in.setting = number{}, number{}
			}
		}
	}
	return true
}

// data is a part of a DATA frame.
func (in *inbound) data(part []byte) bool {
	if in.padding < 0 {
		in.padding = int(part[0])
		part = part[1:]
		in.content -= 1 + in.padding
		if in.content < 0 {
			return false
		}
	}
	n := min(in.content, len(part))
	in.content -= n
	if in.stream != nil {
		in.message(in.stream, part[:n])
		in.c.charge(in.stream)
	}
	return true
}

// message follows the messages of a stream: a byte of flags, four of length, and
// as many as that.
func (in *inbound) message(s *stream, part []byte) {
	for len(part) > 0 {
		if s.have < 5 {
			if s.have == 0 {
				s.since, s.bytes, s.length = in.c.gate.now.Load(), 0, 0
			} else {
				s.length = s.length<<8 | uint32(part[0])
			}
			s.have++
			s.bytes++
			part = part[1:]
			s.missing = s.length
		} else {
			n := min(uint64(s.missing), uint64(len(part)))
			s.missing -= uint32(n)
			s.bytes += int(n)
			part = part[n:]
		}
		if s.have == 5 && s.missing == 0 {
			if s.complete {
				s.unread++
				s.kept += s.sum
				s.sum = 0
			} else {
				s.sum = dataBytes(in.c.in.frame.length)
			}
			s.have, s.bytes = 0, 0
			s.complete, in.completed = true, true
			in.c.earn()
		}
	}
}

func (in *inbound) end(f frame) {
	if f.kind == frameData && in.stream != nil && f.length > 0 && f.length < smallData && !in.completed {
		in.c.spend(costOfFrame)
	}
	if f.kind == frameData && in.stream != nil && !in.stream.unfinished() {
		in.stream.sum = 0
	}
	in.crossed = in.crossed || !in.block
}

// outbound watches what the server sends. Conn.mu is held.
type outbound struct {
	c       *Conn
	block   bool // headers are under way
	last    bool // of them the stream's last
	number  number
	setting number
}

func (out *outbound) begin(f frame) bool {
	c := out.c
	out.number, out.setting = number{}, number{}
	switch f.kind {
	case frameData:
		if f.length > 0 {
			c.earn()
			c.sent(f.stream, int64(f.length))
		}
	case frameHeaders:
		out.block, out.last = !f.has(flagEndHeaders), f.has(flagEndStream)
	case frameContinuation:
		out.block = !f.has(flagEndHeaders)
	case framePing, frameSettings:
		if !f.has(flagAck) {
			c.credits++ // is answered
		}
	}
	return true
}

func (out *outbound) payload(f frame, part []byte) bool {
	switch f.kind {
	case frameWindowUpdate:
		if _, complete := out.number.take(part, 4); complete && f.stream != 0 {
			out.c.mayCome(f.stream, int64(out.number.value))
		}
	case frameSettings:
		for len(part) > 0 && !f.has(flagAck) {
			var complete bool
			if part, complete = out.number.take(part, 2); !complete {
				break
			}
			if part, complete = out.setting.take(part, 4); complete {
				if out.number.value == settingInitialWindow {
					out.c.receiveWindow = int64(out.setting.value)
				}
				out.number, out.setting = number{}, number{}
			}
		}
	}
	return true
}

func (out *outbound) end(f frame) {
	switch {
	case f.kind == frameReset,
		f.kind == frameData && f.has(flagEndStream),
		(f.kind == frameHeaders || f.kind == frameContinuation) && out.last && !out.block:
		out.c.close(f.stream)
	}
}
