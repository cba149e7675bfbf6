// Package listen admits connections to a server, as many as it may hold.
//
// It owns the connections between Accept and Close, as a count. It promises:
//
//  1. Accept returns no error before the listener is closed or its deadline
//     passes: an error that may pass by itself, such as that of a process that has
//     no descriptor left, is waited for.
//  2. At most the limit's number of connections are open. One more is closed as
//     soon as it is accepted, so that a flood of them costs no memory.
//  3. Connections leaves enough of the process's descriptors for its files and for
//     what it dials itself.
package listen

import (
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
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
func Connections() int { return connections(openFiles()) }

func connections(files uint64) int {
	return int(min(max(files-min(files, reserve), files/4), 1<<20))
}

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
	limit int

	mu     sync.Mutex // guards what follows
	open   map[*admitted]struct{}
	closed bool // connections are closed at once
}

// Limit makes a listener of lis that holds at most limit connections.
func Limit(lis net.Listener, limit int) *Listener {
	return &Listener{Listener: lis, limit: limit, open: map[*admitted]struct{}{}}
}

// Accept implements net.Listener; promises 1 and 2.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := Accept(l.Listener)
		if err != nil {
			return nil, err
		}
		if c := l.admit(accepted); c != nil {
			return c, nil
		}
		_ = accepted.Close() // The other side sees a closed connection either way.
	}
}

// admit counts a connection; nil: there are too many, or none are wanted.
func (l *Listener) admit(accepted net.Conn) *admitted {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.open) >= l.limit {
		return nil
	}
	c := &admitted{Conn: accepted, lis: l}
	l.open[c] = struct{}{}
	return c
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

// admitted is a connection that counts until it is closed.
type admitted struct {
	net.Conn
	lis *Listener
}

// Close implements net.Conn.
func (c *admitted) Close() error {
	c.lis.mu.Lock()
	delete(c.lis.open, c)
	c.lis.mu.Unlock()
	return c.Conn.Close()
}
