package coordinator

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/testing/proctest"
)

// TestProbeProves: what is a proof of death at a member's own address, and what is none.
func TestProbeProves(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn) // nil: nobody listens
		want  liveness.ProbeResult
	}{
		"nobody listens":             {nil, liveness.Refused},
		"itself":                     {says("nokv-member m1 7\n"), liveness.AnsweredSame},
		"another incarnation":        {says("nokv-member m1 8\n"), liveness.AnsweredOther},
		"another member":             {says("nokv-member m2 7\n"), liveness.AnsweredOther},
		"one that is not registered": {says("nokv-member m1 0\n"), liveness.AnsweredOther},
		"something else":             {says("SSH-2.0-OpenSSH\r\n"), liveness.AnsweredOther},
		"something without an end":   {says("\x16\x03\x01"), liveness.AnsweredOther},
		"a part of a line":           {says("nokv-mem"), liveness.NoAnswer},
		"less than a number":         {says("nokv-member m1 7"), liveness.NoAnswer},
		"a close":                    {says(""), liveness.NoAnswer},
		"a reset":                    {func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, liveness.NoAnswer},
		"silence":                    {func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }, liveness.NoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			defer serving.Wait()
			defer lis.Close()
			if c.serve == nil {
				_ = lis.Close()
			}
			serving.Go(func() {
				for {
					conn, err := lis.Accept()
					if err != nil {
						return
					}
					c.serve(conn)
					_ = conn.Close()
				}
			})
			within := proctest.Patience
			if c.want == liveness.NoAnswer {
				within = 300 * time.Millisecond // which no answer outlasts
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			p := liveness.Probe{Member: "m1", Incarnation: 7, Address: lis.Addr().String()}
			if got := memberProbe(nil, nil)(ctx, p); got != c.want {
				t.Errorf("the probe says %d, want %d", got, c.want)
			}
		})
	}
}

// A process that dies may still take a connection while its port is closed.
func TestProbeOfOneThatDies(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dying sync.WaitGroup
	defer dying.Wait()
	dying.Go(func() {
		conn, err := lis.Accept()
		if err == nil {
			_ = conn.Close()
		}
		_ = lis.Close()
	})
	p := liveness.Probe{Member: "m1", Incarnation: 7, Address: lis.Addr().String()}
	if got := memberProbe(nil, nil)(t.Context(), p); got != liveness.Refused {
		t.Errorf("the probe says %d, want that it was refused", got)
	}
}

// What was lost while a port closed is not waited for: the kernel sends it again after a
// second, and others have the regions by then.
func TestProbeDoesNotWaitForWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials, begun := 0, time.Now()
		k := memberProber{dial: func(ctx context.Context, _ string) (net.Conn, error) {
			if dials++; dials == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := k.probe(ctx, liveness.Probe{Member: "m1", Incarnation: 7, Address: "10.0.0.7:1"}); got != liveness.Refused {
			t.Errorf("the probe says %d, want that it was refused", got)
		}
		if took := time.Since(begun); took > 150*time.Millisecond {
			t.Errorf("that took %v", took)
		}
	})
}

// Rule 6: a name, or an address that is no socket's in particular, is not even dialled: a refusal
// there proves nothing of the member.
func TestRule6ProbeDialsTheLiteralOnly(t *testing.T) {
	for address, want := range map[string]liveness.ProbeResult{
		"10.0.0.7:7001": liveness.Refused, "[fd00::7]:7001": liveness.Refused,
		"localhost:7001": liveness.NoAnswer, "m1:7001": liveness.NoAnswer, "0.0.0.0:7001": liveness.NoAnswer, "[::]:7001": liveness.NoAnswer, ":7001": liveness.NoAnswer,
		"[::ffff:0.0.0.0]:7001": liveness.NoAnswer,
	} {
		dialled := ""
		k := memberProber{dial: func(_ context.Context, at string) (net.Conn, error) {
			dialled = at
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}}
		if got := k.probe(t.Context(), liveness.Probe{Member: "m1", Incarnation: 7, Address: address}); got != want {
			t.Errorf("at %s the probe says %d, want %d", address, got, want)
		}
		if dialled != "" && (want == liveness.NoAnswer || dialled != address) {
			t.Errorf("for %s it dialled %s", address, dialled)
		}
	}
}

func says(text string) func(net.Conn) {
	return func(c net.Conn) { fmt.Fprint(c, text) }
}
