package member

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/mtls"
)

const (
	// probeTime bounds a connection to the probe, probes how many there are at a time.
	probeTime = 2 * time.Second
	probes    = 64
)

// probe tells whoever connects which incarnation this process is, in one line. That it
// is open is a promise that the process may serve; it is closed behind everything else.
type probe struct {
	listener    net.Listener
	line        string
	certs       *mtls.Source
	incarnation atomic.Uint64
	slots       chan struct{}
	serving     sync.WaitGroup
}

// listenProbe opens the listener, and returns its address as it is to be registered.
func listenProbe(ctx context.Context, cfg Config) (*probe, string, error) {
	if cfg.ProbeAddress == "" {
		return nil, "", nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.ProbeAddress)
	if err != nil {
		return nil, "", fmt.Errorf("listen for probes: %w", err)
	}
	host, _, err := net.SplitHostPort(cfg.ProbeAddress)
	if err != nil {
		_ = l.Close()
		return nil, "", fmt.Errorf("probe address %q: %w", cfg.ProbeAddress, err)
	}
	p := &probe{listener: l, line: cfg.ID, certs: cfg.TLS, slots: make(chan struct{}, probes)}
	p.serving.Add(1)
	go func() {
		defer p.serving.Done()
		p.accept()
	}()
	return p, net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)), nil
}

func (p *probe) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				continue
			}
			return
		}
		select {
		case p.slots <- struct{}{}:
			p.serving.Add(1)
			go func() {
				defer p.serving.Done()
				defer func() { <-p.slots }()
				p.answer(conn)
			}()
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
