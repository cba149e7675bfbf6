package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/rooted"
)

const (
	// probeTime bounds a connection to the probe, probes how many shake hands at a time.
	probeTime = 2 * time.Second
	probes    = 64
	// What passes, such as too many open files, is waited for: meanwhile the system takes
	// connections and nobody answers, which proves nothing.
	acceptMin = 5 * time.Millisecond
	acceptMax = 100 * time.Millisecond
)

// probe tells whoever connects which incarnation this process is, in one line. That it
// is open is a promise that the process may serve; it is closed behind everything else. Who
// finds it closed has proof that nothing is served, so that what closes it sooner, lost is
// told of, and ends that.
type probe struct {
	listener    net.Listener
	line        string
	certs       *mtls.Source
	incarnation atomic.Uint64
	slots       chan struct{}
	serving     sync.WaitGroup
	lost        func(error)
}

// listenProbe opens the listener, and returns its address as it is to be registered: the one that
// it is bound to, whatever name it was asked for by.
func listenProbe(ctx context.Context, cfg Config, lost func(error)) (*probe, string, error) {
	if cfg.ProbeAddress == "" {
		return nil, "", nil
	}
	l, err := cfg.Listen(ctx, "tcp", cfg.ProbeAddress)
	if err != nil {
		return nil, "", fmt.Errorf("listen for probes: %w", err)
	}
	address := l.Addr().String()
	if err := rooted.CheckProbeAddress(address, cfg.Address); err != nil {
		_ = l.Close()
		return nil, "", fmt.Errorf("member config: ProbeAddress is %q: %w", cfg.ProbeAddress, err)
	}
	p := &probe{listener: l, line: cfg.ID, certs: cfg.TLS, slots: make(chan struct{}, probes), lost: lost}
	p.serving.Go(p.accept)
	return p, address, nil
}

func (p *probe) accept() {
	pause := acceptMin
	for {
		conn, err := p.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.EBADF), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOTSOCK):
			p.lost(err)
			return
		case err != nil:
			time.Sleep(pause)
			pause = min(2*pause, acceptMax)
			continue
		}
		pause = acceptMin
		if p.certs == nil { // one short line waits for nobody
			p.answer(conn)
			continue
		}
		select {
		case p.slots <- struct{}{}:
			p.serving.Go(func() {
				defer func() { <-p.slots }()
				p.answer(conn)
			})
		default:
			_ = conn.Close() // it was accepted, so somebody lives here
		}
	}
}

func (p *probe) answer(raw net.Conn) {
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(probeTime))
	conn := raw
	if p.certs != nil {
		ctx, cancel := context.WithTimeout(context.Background(), probeTime)
		defer cancel()
		secure, who, err := p.certs.ServerConn(ctx, raw)
		if err != nil {
			return
		}
		defer secure.Close()
		if who.Role != principal.Coordinator {
			return
		}
		conn = secure
	}
	_, _ = fmt.Fprintf(conn, "nokv-member %s %d\n", p.line, p.incarnation.Load())
}

func (p *probe) close() {
	if p == nil {
		return
	}
	_ = p.listener.Close()
	p.serving.Wait()
}
