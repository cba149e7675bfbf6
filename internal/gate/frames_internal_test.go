package gate

import (
	"bytes"
	"net"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
	"golang.org/x/net/http2"
)

// trial is a gate of a small budget.
func trial(total budget.Size) (*Gate, *budget.Budget) {
	b := budget.New(total)
	return New(Config{Budget: b, MaxStreams: 100, Changes: func(string) bool { return false }, Logger: hclog.NewNullLogger()}), b
}

// recorder keeps the frames that a walker finds.
type recorder struct {
	watcher
	frames []frame
}

func (r *recorder) begin(f frame) bool { return r.watcher.begin(f) }
func (r *recorder) end(f frame) {
	r.frames = append(r.frames, f)
	r.watcher.end(f)
}

// feed walks data in pieces of the given size, as the client's bytes or the server's.
func feed(c *Conn, data []byte, piece int, fromServer bool) (frames []frame, ok bool) {
	in := &recorder{watcher: &c.inbound}
	w := &c.in
	if fromServer {
		in, w = &recorder{watcher: &c.outbound}, &c.out
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.preface = 0
	for len(data) > 0 {
		n := min(piece, len(data))
		ok = w.walk(data[:n], in)
		if c.settle(); !ok {
			return in.frames, false
		}
		data = data[n:]
	}
	return in.frames, true
}

// FuzzWalk: whatever comes, in whatever pieces, the walker sees the frames that the
// framer of gRPC sees, gives up at none that the framer takes, and what is held is
// the sum over the open streams, and nothing at the end.
func FuzzWalk(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("abc")})
	_ = framer.WriteContinuation(1, true, []byte("def"))
	_ = framer.WriteData(1, false, []byte{0, 0, 0, 0, 3, 1})
	_ = framer.WriteDataPadded(1, false, []byte{2, 3, 0, 0}, make([]byte, 9))
	_ = framer.WriteWindowUpdate(1, 99)
	_ = framer.WriteWindowUpdate(0, 99)
	_ = framer.WritePing(false, [8]byte{1})
	_ = framer.WriteRSTStream(1, 8)
	_ = framer.WriteData(1, true, nil)
	f.Add(b.Bytes(), 1, false)
	f.Add(b.Bytes(), 9, true)
	f.Add(b.Bytes(), 1<<20, false)
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, 3, false)
	f.Fuzz(func(t *testing.T, data []byte, piece int, fromServer bool) {
		g, b := trial(1 << 20)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := newConn(g, ours, ours, nil, "a", "origin")
		c.credits = 1 << 40
		got, ok := feed(c, data, max(1, piece), fromServer)

		want := http2.NewFramer(nil, bytes.NewReader(data))
		want.SetMaxReadFrameSize(maxFrameBytes)
		n := 0
		for ; ; n++ {
			theirs, err := want.ReadFrame()
			if err != nil {
				break
			}
			h := theirs.Header()
			if n >= len(got) {
				t.Fatalf("frame %d of %v is not seen, walker ok: %v", n, h, ok)
			}
			if f := got[n]; f.kind != uint8(h.Type) || f.flags != uint8(h.Flags) || f.stream != h.StreamID || f.length != int(h.Length) {
				t.Fatalf("frame %d is %v, seen as %+v", n, h, f)
			}
		}
		sum := 0
		for _, s := range c.streams {
			if s.cost < 0 {
				t.Fatalf("a stream costs %d", s.cost)
			}
			sum += s.cost
		}
		if sum != c.held || c.held < 0 || c.ended == nil && c.taken != c.held {
			t.Fatalf("streams cost %d, held %d, taken %d", sum, c.held, c.taken)
		}
		_ = c.Close()
		for name, h := range b.Vars().Holders {
			if h.Used != 0 || h.Accounts != 0 {
				t.Fatalf("left in %s: %+v", name, h)
			}
		}
	})
}
