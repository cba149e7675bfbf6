package gate

import (
	"net"
	"testing"
)

// slow is a connection whose writes end when they are let.
type slow struct {
	net.Conn
	writing, let chan struct{}
}

func (s *slow) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (s *slow) Write(p []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.let
	return len(p), nil
}

// While a connection is held nothing is written on it; one with a write under way is
// not held, and nobody waits for it.
func TestHold(t *testing.T) {
	g, _ := trial(1 << 30)
	raw := &slow{writing: make(chan struct{}), let: make(chan struct{})}
	c := newConn(g, raw, raw, nil, "a", "origin")
	if (*Conn)(nil).Hold() || !c.Hold() || c.Hold() {
		t.Fatal("a connection that nobody writes on is held, once")
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = c.Write(frameOf(framePing, 0, 0, make([]byte, 8)))
	}()
	select {
	case <-raw.writing:
		t.Fatal("it was written while it was held")
	default:
	}
	c.Release()
	<-raw.writing
	if c.Hold() {
		t.Fatal("it was held in the middle of a write")
	}
	close(raw.let)
	<-written
	if !c.Hold() {
		t.Fatal("it could not be held behind the write")
	}
}
