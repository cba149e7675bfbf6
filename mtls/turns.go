package mtls

import (
	"context"
	"net"
	"runtime"
)

// turns are what handshakes of callers compute in: half of the processors, one at
// least. A crowd that connects at once is served in order, by the other half of which
// the process does everything else; all at once they would all be late.
var turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// turn is a connection that shakes hands: it has a turn while it computes, and none
// while it waits for the other side.
type turn struct {
	net.Conn
	ctx  context.Context
	held bool
	over bool // of the handshake: what follows is not counted
}

// Read implements net.Conn.
func (t *turn) Read(b []byte) (int, error) {
	if t.over {
		return t.Conn.Read(b)
	}
	t.pass()
	n, err := t.Conn.Read(b)
	if err != nil {
		return n, err
	}
	select {
	case turns <- struct{}{}:
		t.held = true
		return n, nil
	case <-t.ctx.Done():
		return 0, t.ctx.Err()
	}
}

func (t *turn) pass() {
	if t.held {
		t.held = false
		<-turns
	}
}

// end ends the handshake.
func (t *turn) end() {
	t.pass()
	t.over, t.ctx = true, nil
}
