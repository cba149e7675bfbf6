package dial

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// port answers attempts by number, from 0.
type port struct {
	do func(n int, ctx context.Context) error

	mu sync.Mutex
	// Guarded by mu. open counts connections that were not closed.
	tries, open int
}

func (p *port) counts() (tries, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tries, p.open
}

type conn struct {
	net.Conn
	p *port
}

func (c conn) Close() error {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.open--
	return nil
}

func (p *port) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	n := p.tries
	p.tries++
	p.mu.Unlock()
	if err := p.do(n, ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open++
	return conn{p: p}, nil
}

func lost(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A lost attempt costs milliseconds, and what is not needed is closed.
func TestLostAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		p := &port{do: func(n int, ctx context.Context) error {
			switch n {
			case 0:
				time.Sleep(time.Second) // TCP's own repetition arrives
				return nil
			case 1:
				return lost(ctx)
			}
			return nil
		}}
		c, err := race(t.Context(), p.dial)
		if tries, _ := p.counts(); err != nil || time.Since(begun) != 3*firstPause || tries != 3 {
			t.Fatalf("%v after %v and %d attempts", err, time.Since(begun), tries)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, open := p.counts(); open != 1 {
			t.Errorf("%d connections are open", open)
		}
		_ = c.Close()
	})
}

func TestClosedPortIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		p := &port{do: func(n int, ctx context.Context) error {
			if n == 0 {
				return lost(ctx)
			}
			return syscall.ECONNREFUSED
		}}
		if _, err := race(t.Context(), p.dial); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) != firstPause {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		synctest.Wait()
	})
}

func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p := &port{do: func(_ int, ctx context.Context) error { return lost(ctx) }}
		_, err := race(ctx, p.dial)
		if tries, _ := p.counts(); !errors.Is(err, context.DeadlineExceeded) || tries != 6 {
			t.Errorf("%v after %d attempts", err, tries)
		}
		synctest.Wait()
	})
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	c, err := TCP(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := TCP(t.Context(), address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("closed port: %v", err)
	}
}
