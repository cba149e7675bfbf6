// Package listen admits connections to a server, as many as it may hold.
//
// It owns the connections between Accept and Close, as a count. It promises:
//
//  1. Accept returns no error before the listener is closed or its deadline
//     passes: an error that may pass by itself, such as that of a process that has
//     no descriptor left, is waited for.
//  2. At most the limit's number of connections are open, and of one address that is
//     not this machine's a quarter. All listeners of the process together leave
//     it enough descriptors for its files and for what it dials itself.
//  3. A connection above that takes the place of one on which nothing is asked, of the
//     one longest so: of those that never asked before those that did. When there is
//     none, it is closed as soon as it is accepted, so that a flood of them costs no
//     memory.
package listen

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The pause behind an error of accept(2) doubles from minPause to maxPause.
const (
	minPause = 5 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// reserve is how many descriptors are left for everything but connections that
// were accepted: segments, checkpoints, connections to other peers.
const reserve = 64

// Connections is how many connections all listeners of the process together may
// hold, by its limit of open files.
func Connections() int { return connections(OpenFileLimit()) }

func connections(files uint64) int {
	return int(min(max(files-min(files, reserve), files/4), 1<<20))
}

// inProcess is how many connections all listeners of the process have.
var inProcess atomic.Int64

// Accept is lis.Accept by promise 1.
func Accept(lis net.Listener) (net.Conn, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		conn, err := lis.Accept()
		if err == nil || !passes(err) {
			return conn, err
		}
		time.Sleep(pause)
	}
}

// passes says whether an error of Accept says nothing about the listener: the
// process or the machine lacks something at the moment, or a connection broke
// before it was accepted.
func passes(err error) bool {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return false // Closed, or the deadline has passed.
	}
	switch number {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EFAULT, syscall.EOPNOTSUPP:
		return false
	}
	return true
}

// Listener is a listener with a limit. Make it with Limit.
type Listener struct {
	net.Listener
	limit   int
	process int64 // the limit of all listeners together
	// arrivals is the clock of silences: they matter when somebody arrives.
	arrivals atomic.Int64
	refused  atomic.Uint64
	evicted  atomic.Uint64

	mu     sync.Mutex // guards what follows
	open   map[*admitted]struct{}
	from   map[netip.Addr]int // open connections of addresses that are not this machine's
	silent []*admitted        // candidates to make room, the last one first
	looked time.Time          // when there were none
	closed bool               // connections are closed at once
}

// Limit makes a listener of lis that holds at most limit connections.
func Limit(lis net.Listener, limit int) *Listener {
	return &Listener{
		Listener: lis, limit: limit, process: int64(Connections()),
		open: map[*admitted]struct{}{}, from: map[netip.Addr]int{},
	}
}

// Accept implements net.Listener; promises 1 to 3.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := Accept(l.Listener)
		if err != nil {
			return nil, err
		}
		c := l.admit(conn)
		if c == nil && l.makeRoom() {
			c = l.admit(conn)
		}
		if c != nil {
			runtime.Gosched() // A crowd at the door does not hold up what is inside.
			return c, nil
		}
		l.refused.Add(1)
		_ = conn.Close() // The other side sees a closed connection either way.
	}
}

// admit counts a connection; nil: there are too many, or none are wanted.
func (l *Listener) admit(conn net.Conn) *admitted {
	c := &admitted{Conn: conn, lis: l, from: source(conn)}
	c.idleSince.Store(l.arrivals.Add(1))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.open) >= l.limit || c.from.IsValid() && l.from[c.from] >= max(l.limit/4, 1) {
		return nil
	}
	if inProcess.Add(1) > l.process {
		inProcess.Add(-1)
		return nil
	}
	l.open[c] = struct{}{}
	if c.from.IsValid() {
		l.from[c.from]++
	}
	return c
}

// source is the address of the other side; none for this machine.
func source(conn net.Conn) netip.Addr {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || remote.IP.IsLoopback() {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(remote.IP)
	return ip.Unmap()
}

// Bounds of a search for connections that can make room.
const (
	candidates = 256
	lookEvery  = 100 * time.Millisecond // when the last one found nothing
)

// makeRoom ends the connection that is silent longest; false: something is asked on all of them.
func (l *Listener) makeRoom() bool {
	for {
		c := l.mostSilent()
		if c == nil {
			return false
		}
		if c.idleSince.Load() == 0 {
			continue // It was when it was looked at.
		}
		l.evicted.Add(1)
		if end := c.end.Load(); end != nil {
			(*end)()
		}
		_ = c.Close()
		return true
	}
}

// mostSilent takes one of the candidates to make room; nil: there is none.
func (l *Listener) mostSilent() *admitted {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if len(l.silent) == 0 && time.Since(l.looked) >= lookEvery {
		l.silent = l.search()
		if len(l.silent) == 0 {
			l.looked = time.Now()
		}
	}
	for len(l.silent) > 0 {
		c := l.silent[len(l.silent)-1]
		l.silent = l.silent[:len(l.silent)-1]
		if _, open := l.open[c]; open {
			return c
		}
	}
	return nil
}

// search finds the connections that are silent longest. l.mu is held.
func (l *Listener) search() []*admitted {
	type silence struct {
		c     *admitted
		asked bool
		since int64
	}
	var all []silence
	for c := range l.open {
		if since := c.idleSince.Load(); since != 0 {
			all = append(all, silence{c, c.asked.Load(), since})
		}
	}
	slices.SortFunc(all, func(a, b silence) int {
		switch {
		case a.asked != b.asked && a.asked:
			return 1
		case a.asked != b.asked:
			return -1
		}
		return cmp.Compare(a.since, b.since)
	})
	all = all[:min(candidates, len(all))]
	out := make([]*admitted, len(all))
	for i, s := range all {
		out[len(all)-1-i] = s.c
	}
	return out
}

// CloseAll closes the connections, and those that are accepted from now on.
func (l *Listener) CloseAll() {
	l.mu.Lock()
	l.closed = true
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // What it has not sent is lost either way.
	}
}

// Vars is a listener as /debug/vars shows it.
type Vars struct {
	Open  int `json:"open"`
	Limit int `json:"limit"`
	// Refused were too many; Evicted made room for others.
	Refused uint64 `json:"refused"`
	Evicted uint64 `json:"evicted"`
}

// Vars returns how many connections there are and were refused.
func (l *Listener) Vars() Vars {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Vars{Open: len(l.open), Limit: l.limit, Refused: l.refused.Load(), Evicted: l.evicted.Load()}
}

// admitted is a connection that counts until it is closed.
type admitted struct {
	net.Conn
	lis       *Listener
	from      netip.Addr   // invalid: this machine
	idleSince atomic.Int64 // the arrival behind which nothing is asked; 0: something is
	asked     atomic.Bool
	end       atomic.Pointer[func()]
}

// SetBusy says whether something is being asked: then it makes no room for others.
func (c *admitted) SetBusy(busy bool) {
	if !busy {
		c.idleSince.Store(c.lis.arrivals.Load())
		return
	}
	c.asked.Store(true)
	c.idleSince.Store(0)
}

// OnEvict says how to end the connection when it makes room; end does not wait.
func (c *admitted) OnEvict(end func()) { c.end.Store(&end) }

// Close implements net.Conn.
func (c *admitted) Close() error {
	l := c.lis
	l.mu.Lock()
	if _, open := l.open[c]; open {
		delete(l.open, c)
		inProcess.Add(-1)
		if c.from.IsValid() {
			if l.from[c.from]--; l.from[c.from] == 0 {
				delete(l.from, c.from)
			}
		}
	}
	l.mu.Unlock()
	return c.Conn.Close()
}
