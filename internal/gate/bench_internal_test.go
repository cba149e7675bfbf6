package gate

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"
)

// still is a connection on which the same bytes come again and again, and what is
// written is gone.
type still struct {
	net.Conn
	next []byte
}

func (s *still) Read(p []byte) (int, error)  { return copy(p, s.next), nil }
func (s *still) Write(p []byte) (int, error) { return len(p), nil }
func (s *still) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func frameOf(kind, flags uint8, stream uint32, payload []byte) []byte {
	b := []byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// messageOf is a DATA frame with a message of n bytes.
func messageOf(stream uint32, flags uint8, n int) []byte {
	return frameOf(frameData, flags, stream, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...))
}

// BenchmarkGate is what the gate adds to a request and its answer: on a stream, and as
// a call of its own.
func BenchmarkGate(b *testing.B) {
	bench := func(b *testing.B, wrapped bool, request, answer []byte) {
		g, _ := trial(1 << 30)
		inner := &still{}
		c := newConn(g, inner, inner, nil, "a", "origin")
		var conn net.Conn = inner
		buf := make([]byte, 32<<10)
		if wrapped {
			conn = c
			inner.next = make([]byte, prefaceBytes)
			_, _ = c.Read(buf)
			c.mu.Lock()
			c.open(1)
			c.mu.Unlock()
		}
		inner.next = request
		b.ReportAllocs()
		for b.Loop() {
			if _, err := conn.Read(buf); err != nil {
				b.Fatal(err)
			}
			_, _ = conn.Write(answer)
			c.send, c.sendWindow = 1<<30, 1<<30
		}
	}
	call := append(frameOf(frameHeaders, flagEndHeaders, 3, make([]byte, 60)), messageOf(3, flagEndStream, 60)...)
	reply := append(append(frameOf(frameHeaders, flagEndHeaders, 3, make([]byte, 20)), messageOf(3, 0, 300)...), frameOf(frameHeaders, flagEndHeaders|flagEndStream, 3, make([]byte, 20))...)
	for name, wrapped := range map[string]bool{"with": true, "without": false} {
		b.Run("stream/"+name, func(b *testing.B) { bench(b, wrapped, messageOf(1, 0, 60), messageOf(1, 0, 300)) })
		b.Run("call/"+name, func(b *testing.B) { bench(b, wrapped, call, reply) })
	}
}

// BenchmarkConnections is what a connection more, and its end, cost the refusals beside so
// many callers: the same.
func BenchmarkConnections(b *testing.B) {
	for _, callers := range []int{500, 20_000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var r refusing
			for i := range callers {
				r.open(fmt.Sprint(i), 0)
			}
			for b.Loop() {
				r.close(r.open("new", 0), 0)
			}
		})
	}
}
