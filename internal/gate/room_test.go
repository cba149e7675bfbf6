package gate_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/gate"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/tap"
)

// from is a connection of an address of its own, as each has its own account on one
// machine.
type from struct {
	net.Conn
	port int
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: f.port} }

var ports int

// held is a connection through a gate in a bubble of virtual time, whose server reads
// what comes, and closes it only at the end of the test.
func held(t *testing.T, g *gate.Gate) *heldConn {
	ours, theirs := net.Pipe()
	ports++
	server, _, err := g.Credentials(nil).ServerHandshake(from{ours, ports})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, server) }()
	a := newAttacker(theirs)
	go a.listen()
	t.Cleanup(func() {
		_ = theirs.Close()
		_ = server.Close()
	})
	a.greet()
	return &heldConn{a, server}
}

// heldConn is both sides of a connection.
type heldConn struct {
	*attacker
	server net.Conn
}

// crowd runs fn beside a gate that has 8 MiB for what comes.
func crowd(t *testing.T, fn func(t *testing.T, g *gate.Gate, b *budget.Budget)) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64 * mib)
		g := gate.New(gate.Config{Budget: b, MaxStreams: 100, Logger: hclog.NewNullLogger()})
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan struct{})
		go func() {
			g.Run(ctx)
			close(running)
		}()
		fn(t, g, b)
		cancel()
		<-running
	})
}

// unfinished begins a message and sends so many bytes of it.
func unfinished(t *testing.T, a *heldConn, bytes int) {
	if err := a.open(1, unary); err != nil {
		t.Fatal(err)
	}
	for part := append([]byte{0, 0, 64, 0, 0}, make([]byte, bytes)...); len(part) > 0; {
		n := min(len(part), 16<<10)
		if err := a.WriteData(1, false, part[:n]); err != nil {
			t.Fatal(err)
		}
		part = part[n:]
	}
}

// Room is made by those who hold most, and by no more of them than must be, also
// while those that were ended still hold what they held.
func TestRoomIsMadeByThoseWhoHoldMost(t *testing.T) {
	crowd(t, func(t *testing.T, g *gate.Gate, b *budget.Budget) {
		honest := held(t, g)
		unfinished(t, honest, 16<<10)
		for range 5 {
			unfinished(t, held(t, g), 5*mib/4)
		}
		synctest.Wait()
		if v := b.Vars().Holders["receiving"]; v.Used < v.Limit/4*3 {
			t.Fatalf("the attack fills %d bytes of %d", v.Used, v.Limit)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := g.Vars(nil).Closed["memory"]; n != 1 {
			t.Errorf("%d of 5 were ended, one is enough", n)
		}
		if honest.ended {
			t.Errorf("who holds 16 KiB was ended: %s", honest.goAway)
		}
	})
}

// Nobody is ended for what others keep ready and do not hold.
func TestWhatIsKeptReadyIsNotHeld(t *testing.T) {
	crowd(t, func(t *testing.T, g *gate.Gate, b *budget.Budget) {
		for range 40 {
			a := held(t, g)
			unfinished(t, a, 1)
			if err := a.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			unfinished(t, held(t, g), 11*mib/10)
		}
		synctest.Wait()
		if v := b.Vars().Holders["receiving"]; v.Granted <= v.Limit/4*3 || v.Used > v.Limit/3*2 {
			t.Fatalf("%d bytes are granted and %d used of %d", v.Granted, v.Used, v.Limit)
		}
		time.Sleep(5 * time.Second)
		if n := g.Vars(nil).Closed["memory"]; n != 0 {
			t.Errorf("%d were ended, nobody had to be", n)
		}
		if v := b.Vars().Holders["receiving"]; v.Granted > v.Limit/4*3 {
			t.Errorf("%d bytes of %d are granted still", v.Granted, v.Limit)
		}
	})
}

// A caller that has one call open is ended by nobody, however many others there are:
// how many, the listener says.
func TestWhoHoldsLittleIsNotEnded(t *testing.T) {
	crowd(t, func(t *testing.T, g *gate.Gate, b *budget.Budget) {
		for range 2500 {
			unfinished(t, held(t, g), 1)
		}
		synctest.Wait()
		if v := b.Vars().Holders["receiving"]; v.Used < v.Limit {
			t.Fatalf("they hold %d bytes of %d", v.Used, v.Limit)
		}
		time.Sleep(5 * time.Second)
		if n := g.Vars(nil).Closed["memory"]; n != 0 {
			t.Errorf("%d of 2500 callers with a call each were ended", n)
		}
	})
}

// Memory is given back once when many connections have gone, also those that asked
// nothing, and not while they are there.
func TestMemoryGoesBack(t *testing.T) {
	crowd(t, func(t *testing.T, g *gate.Gate, _ *budget.Budget) {
		given := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumForcedGC
		}
		before := given()
		var all []*heldConn
		for range 400 {
			all = append(all, held(t, g))
		}
		time.Sleep(time.Minute)
		if n := given() - before; n != 0 {
			t.Errorf("%d times beside 400 connections", n)
		}
		for _, a := range all {
			_ = a.server.Close()
		}
		time.Sleep(time.Minute)
		if n := given() - before; n != 1 {
			t.Errorf("%d times within a minute of their end", n)
		}
	})
}

// Those who hold little fill the memory together, and whoever asks anything, or holds
// a dozen calls, pays for it.
func TestManyWhoHoldLittleLockNobodyOut(t *testing.T) {
	crowd(t, func(t *testing.T, g *gate.Gate, b *budget.Budget) {
		honest := held(t, g)
		for i := range uint32(16) { // calls whose requests come soon
			if err := honest.open(2*i+1, unary); err != nil {
				t.Fatal(err)
			}
		}
		for range gate.Connections(b, 10_000) { // strangers with two calls that bring nothing, ever
			a := held(t, g)
			for id := range uint32(2) {
				if err := a.open(2*id+1, unary); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := g.Vars(nil).Closed["memory"]; n > 0 {
			t.Errorf("%d were ended for memory, the honest one: %v %s", n, honest.ended, honest.goAway)
		}
		time.Sleep(10 * time.Minute)
		if _, err := g.Tap(t.Context(), &tap.Info{FullMethodName: unary}); err != nil {
			v := b.Vars().Holders["receiving"]
			t.Errorf("a newcomer's call is refused after ten minutes still, of %d bytes %d are taken: %v", v.Limit, v.Used, err)
		}
	})
}
