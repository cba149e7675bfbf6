package gate

import (
	"context"
	"fmt"
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
	_, _ = dial("d").Close(), dial("e").Close() // are forgotten before
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
	_ = last.Close()
	g.now.Add(int64(rememberFlood) + 1)
	dial("c")
	if len(g.refusing.of) != 2 { // b is still there
		t.Errorf("%d callers are remembered", len(g.refusing.of))
	}
}

// Connections of a caller, one after the other, are read as slowly as one, also when none
// of them alone has more refusals than one is patient for; those of a caller that was
// refused now and then, and served else, are not.
func TestConnectionsInSuccessionAreReadSlowly(t *testing.T) {
	g, _ := trial(1 << 30)
	full := refusal.New(rootv1.Reason_REASON_OVERLOADED, "full")
	connect := func(key string, refused, served int) (pause time.Duration) {
		raw := new(ended)
		c := newConn(g, raw, raw, nil, key, "origin")
		pause = c.refused.pause(1)
		for range refused {
			c.refused.note(full)
		}
		for range served {
			c.refused.note(nil)
		}
		_ = c.Close()
		return pause
	}
	_, _ = connect("a", patientUntil, 0), connect("a", patientUntil, 0)
	if connect("a", 0, 0) == 0 {
		t.Error("128 refusals in a row, on two connections, and the caller is read at full speed")
	}
	for range 1000 {
		if connect("b", 2, 1) != 0 {
			t.Fatal("of three calls on each connection two are refused, and the caller is read slowly")
		}
	}
}

// What is refused behind the end of a connection counts for the caller: who hangs up at
// once behind a crowd of calls does not get away with it.
func TestRefusalsBehindTheEndCount(t *testing.T) {
	g, _ := trial(1 << 30)
	raw := new(ended)
	c := newConn(g, raw, raw, nil, "a", "origin")
	_ = c.Close()
	for range 1000 {
		c.refused.note(refusal.New(rootv1.Reason_REASON_OVERLOADED, "full"))
	}
	if newConn(g, raw, raw, nil, "a", "origin").refused.pause(1) == 0 {
		t.Error("1,000 refusals, and the caller is read at full speed")
	}
}

// A connection of a caller that is read slowly begins slowly: its first Reads do not bring
// all the calls that there is room for.
func TestASlowConnectionBeginsSlowly(t *testing.T) {
	g, _ := trial(1 << 30)
	raw := &ended{frames: frames{repeated: frameOf(framePing, 0, 0, make([]byte, 8))}}
	c := newConn(g, raw, raw, nil, "a", "origin")
	c.in.preface = 0
	for range 2 * patientUntil {
		c.refused.note(refusal.New(rootv1.Reason_REASON_OVERLOADED, "full"))
	}
	if n, err := c.Read(make([]byte, 16<<10)); n > slowBytes || err != nil {
		t.Errorf("%d bytes at once: %v", n, err)
	}
}

// A connection more or less has the gate look at a few callers, however many there are,
// and how many are remembered has an end.
func TestAConnectionForgetsFewCallers(t *testing.T) {
	var r refusing
	for i := range 2 * maxClosed {
		r.open(fmt.Sprint("open", i), 0)
		r.close(r.open(fmt.Sprint("closed", i), 0), 0)
		if r.closed.Len() > maxClosed || len(r.of) > i+1+maxClosed {
			t.Fatalf("%d callers without a connection are remembered, %d in all", r.closed.Len(), len(r.of))
		}
	}
	now := int64(rememberFlood) + 1
	for i := range maxClosed {
		before := len(r.of)
		r.open(fmt.Sprint("open", i), now) // has one
		if n := before - len(r.of); n > forgetAtOnce {
			t.Fatalf("it looked at %d callers, under the lock of all", n)
		}
	}
	if r.closed.Len() != 0 || len(r.of) != 2*maxClosed {
		t.Errorf("%d callers are remembered for ever, %d in all", r.closed.Len(), len(r.of))
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
