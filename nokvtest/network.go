package nokvtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// host is one start of a process, as the network knows it: what was killed stays dead when
// another process starts under its name.
type host struct {
	name string
	dead bool // guarded by network.mu
}

// network carries connections between hosts in memory.
type network struct {
	mu sync.Mutex
	// Guarded by mu. at has who listens where, and of whom an address was last; changed is
	// closed and made anew when links are cut or mended.
	at      map[string]*listener
	of      map[string]string
	ips     map[string]int // of names, the numbers of their IP addresses
	conns   map[*conn]struct{}
	cut     map[[2]string]bool
	paused  map[string]bool
	changed chan struct{}
	dialled int
}

func newNetwork() *network {
	return &network{
		at: map[string]*listener{}, of: map[string]string{}, ips: map[string]int{}, conns: map[*conn]struct{}{},
		cut: map[[2]string]bool{}, paused: map[string]bool{}, changed: make(chan struct{}),
	}
}

// cutLocked reports whether nothing goes from one host to another.
func (n *network) cutLocked(from, to string) bool {
	return from != to && (n.cut[[2]string{from, to}] || n.paused[from] || n.paused[to])
}

// bound is where a probe listens that is asked for by an address: probes are of IP addresses, and
// a name has one.
func (n *network) bound(address string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, _, err := net.SplitHostPort(address)
	if err == nil && net.ParseIP(name) == nil && n.ips[name] == 0 {
		n.ips[name] = len(n.ips) + 1
	}
	return n.resolveLocked(address)
}

func ipOf(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&0xff, i>>8&0xff, i&0xff) }

// resolveLocked is an address with the IP address of a name that has one, as others write it.
func (n *network) resolveLocked(address string) string {
	if name, port, err := net.SplitHostPort(address); err == nil && n.ips[name] != 0 {
		return net.JoinHostPort(ipOf(n.ips[name]), port)
	}
	return address
}

// change changes links, of connections that are open too.
func (n *network) change(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
	for c := range n.conns {
		c.out.setCut(n.cutLocked(c.here.name, c.there.name))
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// kill has nothing of a host be there any more: its connections are reset, its ports refuse.
func (n *network) kill(h *host) {
	n.mu.Lock()
	h.dead = true
	var ends []*conn
	for c := range n.conns {
		if c.here == h {
			ends = append(ends, c)
		}
	}
	var open []*listener
	for _, l := range n.at {
		if l.host == h {
			open = append(open, l)
		}
	}
	n.mu.Unlock()
	for _, c := range ends {
		c.out.end(syscall.ECONNRESET, true)
		_ = c.Close()
	}
	for _, l := range open {
		_ = l.Close()
	}
}

func (n *network) forget(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// refused is what a closed port says.
func refused(address_ string) error {
	return &net.OpError{Op: "dial", Net: "memory", Addr: address(address_), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// dial connects a host. An address that nobody ever had here is the machine's, if it is one of it.
func (n *network) dial(ctx context.Context, from *host, to string) (net.Conn, error) {
	for {
		n.mu.Lock()
		if _, known := n.of[to]; !known {
			to = n.resolveLocked(to)
		}
		name, known := n.of[to]
		l, changed := n.at[to], n.changed
		switch {
		case from.dead:
			n.mu.Unlock()
			return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(to), Err: os.NewSyscallError("connect", syscall.ENETDOWN)}
		case !known:
			n.mu.Unlock()
			if ip, _, err := net.SplitHostPort(to); err == nil && net.ParseIP(ip).IsLoopback() {
				return new(net.Dialer).DialContext(ctx, "tcp", to)
			}
			return nil, refused(to)
		case n.cutLocked(from.name, name) || n.cutLocked(name, from.name):
			n.mu.Unlock()
			select {
			case <-ctx.Done():
				return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(to), Err: context.Cause(ctx)}
			case <-changed:
			}
			continue
		case l == nil || l.host.dead:
			n.mu.Unlock()
			return nil, refused(to)
		}
		n.dialled++
		there, back := newHalf(), newHalf()
		own := address(fmt.Sprintf("%s:%d", from.name, 20000+n.dialled))
		near := &conn{net: n, here: from, there: l.host, in: back, out: there, local: own, remote: address(to)}
		far := &conn{net: n, here: l.host, there: from, in: there, out: back, local: address(to), remote: own}
		n.conns[near], n.conns[far] = struct{}{}, struct{}{}
		n.mu.Unlock()
		if !l.offer(far) {
			_ = far.Close()
			_ = near.Close()
			return nil, refused(to)
		}
		return near, nil
	}
}

// listen has a host listen at an address in memory; door, if there is one, is where
// connections from outside come in too.
func (n *network) listen(h *host, at string, door net.Listener) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "memory", Addr: address(at), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{net: n, host: h, address: address(at), door: door}
	l.moved.L = &l.mu
	n.at[at], n.of[at] = l, h.name
	if door != nil {
		l.outside.Go(l.admit)
	}
	return l, nil
}

// listener takes connections from memory, and from a door.
type listener struct {
	net     *network
	host    *host
	address address
	door    net.Listener
	outside sync.WaitGroup

	mu    sync.Mutex
	moved sync.Cond
	// Guarded by mu.
	waiting []net.Conn
	closed  bool
	until   deadline
}

// maxBacklog bounds connections that nobody has accepted yet.
const maxBacklog = 1024

func (l *listener) offer(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) >= maxBacklog {
		return false
	}
	l.waiting = append(l.waiting, c)
	l.moved.Signal()
	return true
}

// admit brings in who comes from outside.
func (l *listener) admit() {
	for {
		c, err := l.door.Accept()
		if err != nil {
			return // closed with the listener
		}
		if !l.offer(c) {
			_ = c.Close()
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, net.ErrClosed
		case len(l.waiting) > 0:
			c := l.waiting[0]
			l.waiting = l.waiting[1:]
			return c, nil
		case l.until.passed():
			return nil, os.ErrDeadlineExceeded
		}
		l.moved.Wait()
	}
}

// SetDeadline bounds Accept.
func (l *listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.until.setLocked(&l.moved, t)
	}
	return nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.net.mu.Lock()
	if l.net.at[string(l.address)] == l {
		delete(l.net.at, string(l.address))
	}
	l.net.mu.Unlock()
	l.mu.Lock()
	closed, waiting := l.closed, l.waiting
	l.closed, l.waiting = true, nil
	l.until.setLocked(&l.moved, time.Time{})
	l.mu.Unlock()
	for _, c := range waiting {
		_ = c.Close()
	}
	if l.door != nil && !closed {
		_ = l.door.Close()
	}
	l.outside.Wait()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.address }
