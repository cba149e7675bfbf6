package gate

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	refusal "github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// ended is a connection that notes when it was closed, and how often it was read.
type ended struct {
	frames
	reads int
	at    time.Time
}

func (e *ended) Read(p []byte) (int, error) {
	e.reads++
	return e.frames.Read(p)
}
func (e *ended) Write(p []byte) (int, error)      { return len(p), nil }
func (e *ended) SetWriteDeadline(time.Time) error { return nil }
func (e *ended) SetReadDeadline(time.Time) error  { return nil }
func (e *ended) Close() error {
	if e.at.IsZero() {
		e.at = time.Now()
	}
	return nil
}

// server is a stream of a call on a connection.
type server struct {
	grpc.ServerStream
	ctx context.Context
}

func (s server) Context() context.Context { return s.ctx }
func (server) SendMsg(any) error          { return nil }

// A connection whose calls are refused for want of room is read the slower the longer
// that goes on, up to a bound; one of which a part is served is not.
func TestRefusedConnectionsAreReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := trial(1 << 30)
		calls := append(frameOf(frameHeaders, flagEndHeaders, 1, []byte{0x82}), messageOf(1, 0, 1)...)
		raw := &ended{frames: frames{repeated: append(calls, frameOf(frameReset, 0, 1, make([]byte, 4))...)}}
		c := newConn(g, raw, raw, nil, "a", "origin")
		c.in.preface = 0
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()})
		full := refusal.New(rootv1.Reason_REASON_OVERLOADED, "full")
		call := func(err error) {
			_, _ = g.Unary(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, err })
		}
		open := func(err error) {
			_ = g.Stream(nil, server{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
				if err == nil {
					_ = s.SendMsg(nil)
				}
				return err
			})
		}
		took := func() time.Duration {
			begun := time.Now()
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			return time.Since(begun)
		}
		took()
		if d := took(); d != 0 {
			t.Errorf("nothing was refused, and a Read waited for %v", d)
		}
		for range 50 {
			call(full)
			open(full)
		}
		first := took()
		if first == 0 {
			t.Error("100 refusals in a row have no Read wait")
		}
		for range 2000 {
			call(full)
		}
		if d := took(); d <= first || d > maxPause {
			t.Errorf("behind 2,100 refusals a Read waited for %v, behind 100 for %v", d, first)
		}
		for range 2000 {
			call(nil)
			open(nil)
			call(full)
			call(full)
		}
		if d := took(); d != 0 {
			t.Errorf("half of the calls are served, and a Read waited for %v", d)
		}
	})
}

// A caller that is read slowly is not read faster on another connection, nor on the next
// one; another caller is, and so is the first one some time later.
func TestRefusedCallersAreReadSlowly(t *testing.T) {
	g, _ := trial(1 << 30)
	full := refusal.New(rootv1.Reason_REASON_OVERLOADED, "full")
	dial := func(key string) *Conn {
		raw := new(ended)
		return newConn(g, raw, raw, nil, key, "origin")
	}
	one, beside := dial("a"), dial("a")
	for range 2000 {
		one.refused.note(full)
	}
	paused := one.refused.pause(1)
	if paused == 0 || beside.refused.pause(1) != paused || dial("b").refused.pause(1) != 0 {
		t.Error("another connection of the caller is not read as slowly, or one of another caller is")
	}
	_, _, _, _ = one.Close(), one.Close(), beside.Close(), one.Close()
	if next := dial("a"); next.refused.pause(1) != paused {
		t.Error("its next connection is read at once")
	} else {
		_ = next.Close()
	}
	g.now.Add(int64(rememberFlood) + 1)
	last := dial("a")
	if last.refused.pause(1) != 0 {
		t.Error("it is read slowly for ever")
	}
	if _ = last.Close(); len(g.refusing.of) != 1 { // b is still there
		t.Errorf("%d callers are remembered", len(g.refusing.of))
	}
}

// A connection that was ended for a flood is neither read nor closed for a while, as
// often as it is told to close.
func TestAFloodIsNotReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := trial(1 << 30)
		raw := &ended{frames: frames{repeated: frameOf(framePing, 0, 0, make([]byte, 8))}}
		c := newConn(g, raw, raw, nil, "a", "origin")
		c.in.preface = 0
		var err error
		for err == nil {
			_, err = c.Read(make([]byte, 16<<10))
		}
		begun, reads := time.Now(), raw.reads
		_, _ = c.Close(), c.Close()
		time.Sleep(2 * restFor)
		synctest.Wait()
		if after := raw.at.Sub(begun); after != restFor || raw.reads != reads {
			t.Errorf("it was closed after %v, and read %d times more", after, raw.reads-reads)
		}
		raw.at = time.Time{}
		c = newConn(g, raw, raw, nil, "a", "origin")
		if _ = c.Close(); raw.at.IsZero() {
			t.Error("one that did nothing wrong is not closed at once")
		}
	})
}

var _ net.Conn = (*ended)(nil)
