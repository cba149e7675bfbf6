package gate

import (
	"net"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
)

// frames is a connection whose every Read is full of what one attack repeats.
type frames struct {
	net.Conn
	repeated []byte
	at       int // in it
	most     int // that the last Read could take
}

func (f *frames) Read(p []byte) (n int, err error) {
	f.most = len(p)
	for n < len(p) {
		part := copy(p[n:], f.repeated[f.at:])
		n, f.at = n+part, (f.at+part)%len(f.repeated)
	}
	return n, nil
}
func (f *frames) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Connections that bring much to do, calls by the dozen or headers that are work, are
// read a little at a time, by turns; one that brings data is read as it asks to be.
func TestCrowdedConnectionsTakeTurns(t *testing.T) {
	var calls []byte
	for i := range byte(100) {
		calls = append(calls, 0, 0, 1, frameHeaders, flagEndHeaders|flagEndStream, 0, 0, 0, 2*i+1, 0x82)
	}
	for name, c := range map[string]struct {
		repeated []byte
		waits    bool
	}{
		"calls":       {calls, true},
		"long header": {append([]byte{0, 0x3f, 0xf7, frameHeaders, flagEndHeaders, 0, 0, 0, 1}, make([]byte, 16<<10-9)...), true},
		"data":        {append([]byte{0, 0x3f, 0xf7, frameData, 0, 0, 0, 0, 1}, make([]byte, 16<<10-9)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(Config{Budget: budget.New(budget.Minimum), MaxStreams: 1 << 20, Logger: hclog.NewNullLogger()})
			raw := &frames{repeated: c.repeated}
			conn := newConn(g, raw, raw, nil, "a", "a")
			conn.in.preface = 0
			if _, err := conn.Read(make([]byte, 16<<10)); err != nil {
				t.Fatal(err)
			}
			if conn.crowded != c.waits {
				t.Errorf("waits for its turn: %v", conn.crowded)
			}
			if _, err := conn.Read(make([]byte, 16<<10)); err != nil {
				t.Fatal(err)
			}
			if little := raw.most == crowdedBytes; little != c.waits {
				t.Errorf("%d bytes are read in a turn", raw.most)
			}
		})
	}
}
