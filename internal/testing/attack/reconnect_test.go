package attack

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"golang.org/x/net/http2"
)

// dialersAtOnce is how many connections shake hands at a time, as many clients would.
const dialersAtOnce = 64

// TestReconnectStorm has all connections of a coordinator, with certificates, made
// again at once because it was started again, and counts what is left of them when
// they are gone. With -attack.long they are 9,500, nearly as many as it takes.
func TestReconnectStorm(t *testing.T) {
	alongside(t)
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	c := proctest.NewCluster(t, path, nil, 1)
	c.Secure()
	c.StartAll()
	c.WaitHealthy(patience)
	n, member := sized(300, 9500), roots
	begun := time.Now()
	conns := connectAll(t, c, n)
	first := time.Since(begun)
	before := processOf(t, c, member)
	c.Process(member).Signal(syscall.SIGKILL)
	c.Process(member).Wait(patience)
	for _, conn := range conns {
		_ = conn.Close()
	}
	c.Start(member)
	proctest.Eventually(t, patience, func() error { return c.Healthy(member) })
	atRest := processOf(t, c, member)
	begun = time.Now()
	conns = connectAll(t, c, n)
	again := time.Since(begun)
	for _, conn := range conns {
		_ = conn.Close()
	}
	var left process
	proctest.Eventually(t, patience, func() error {
		left = processOf(t, c, member)
		if left.Goroutines > atRest.Goroutines+20 || left.OpenFiles > atRest.OpenFiles+20 {
			return fmt.Errorf("%d goroutines and %d files are left, %d and %d were there before", left.Goroutines, left.OpenFiles, atRest.Goroutines, atRest.OpenFiles)
		}
		return nil
	})
	testreport.Linef(t, "attack reconnects with certificates: %d connections in %s, again behind a restart in %s (%d a second); %d goroutines and %s with them, %d and %s without",
		n, first.Round(time.Millisecond), again.Round(time.Millisecond), int(float64(n)/again.Seconds()), before.Goroutines, mib(int64(before.Resident)), left.Goroutines, mib(int64(left.Resident)))
}

// process is what a member says of itself.
type process struct {
	Goroutines int `json:"goroutines"`
	OpenFiles  int `json:"open_files"`
	Resident   int `json:"resident_bytes"`
}

func processOf(t *testing.T, c *proctest.Cluster, member int) (p process) {
	t.Helper()
	if err := c.ProcessVars(member, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// connectAll opens connections that have shaken hands, and HTTP/2's with it.
func connectAll(t *testing.T, c *proctest.Cluster, n int) []net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conns := make([]net.Conn, n)
	var next atomic.Int64
	var last atomic.Pointer[error]
	var all sync.WaitGroup
	for range dialersAtOnce {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				for conns[i] == nil && ctx.Err() == nil {
					var err error
					if conns[i], err = connect(ctx, c); err != nil {
						last.Store(&err)
					}
				}
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		t.Fatalf("%d connections were not made within %s: %v", n, patience, *last.Load())
	}
	return conns
}

// connect opens one, and waits for the server's SETTINGS.
func connect(ctx context.Context, c *proctest.Cluster) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", c.CoordinatorAddrs[0])
	if err != nil {
		return nil, err
	}
	conn, _, err := c.TLS().Client(mtls.Peer{Role: principal.Coordinator}).ClientHandshake(ctx, c.CoordinatorAddrs[0], raw)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	hello := bytes.NewBufferString(http2.ClientPreface)
	framer := http2.NewFramer(hello, conn)
	if err = framer.WriteSettings(); err == nil {
		if _, err = conn.Write(hello.Bytes()); err == nil {
			_, err = framer.ReadFrame()
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
