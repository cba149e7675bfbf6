package proctest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Condition is what is wrong with a directed link. The zero Condition is none.
type Condition struct {
	// Cut holds everything back, also new connections: both ends see a peer that
	// says nothing. What was held arrives when the cut ends, as after a partition.
	Cut bool
	// Delay makes everything late by so much, in order.
	Delay time.Duration
	// Deaf has new connections accepted and never answered. They break when the
	// condition ends.
	Deaf bool
	// Broken resets the connections that there are, and new ones at once.
	Broken bool
}

// LinkCounts say what a link has done to what went over it.
type LinkCounts struct {
	// Bytes that were passed on.
	Bytes uint64
	// Held counts pieces and connections that a cut held back, Late pieces that
	// were delayed, Unanswered connections that nobody answered, Resets
	// connections that were broken.
	Held, Late, Unanswered, Resets uint64
}

// Faults is the number of things that went wrong.
func (c LinkCounts) Faults() uint64 { return c.Held + c.Late + c.Unanswered + c.Resets }

// Network carries the TCP connections of a test over loopback proxies, so that
// a test can cut, delay and break them without any right on the machine. Places
// are names; a link leads from one to another, and a connection uses both
// directions between its ends.
type Network struct {
	t     testing.TB
	begun sync.WaitGroup

	mu sync.Mutex // guards what follows
	// links by from and to.
	links  map[[2]string]*link
	doors  []*door
	closed bool
}

// NewNetwork makes a network without links. It ends with the test.
func NewNetwork(t testing.TB) *Network {
	n := &Network{t: t, links: make(map[[2]string]*link)}
	t.Cleanup(n.close)
	return n
}

func (n *Network) close() {
	n.mu.Lock()
	n.closed = true
	for _, d := range n.doors {
		d.close()
	}
	for _, l := range n.links {
		l.set(Condition{Broken: true})
	}
	n.mu.Unlock()
	n.begun.Wait()
}

// Set puts a link into a condition, and ends the one it had.
func (n *Network) Set(from, to string, c Condition) { n.link(from, to).set(c) }

// Heal ends every condition.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.set(Condition{})
	}
}

// Counts is what a link has done since the test began.
func (n *Network) Counts(from, to string) LinkCounts { return n.link(from, to).counts.load() }

func (n *Network) link(from, to string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := [2]string{from, to}
	l := n.links[key]
	if l == nil {
		l = &link{changed: make(chan struct{}), conns: make(map[*route]struct{}), Condition: Condition{Broken: n.closed}}
		n.links[key] = l
	}
	return l
}

// Door returns an address that leads from one place to another, which listens
// on target.
func (n *Network) Door(from, to, target string) string {
	return n.CommonDoor(to, target, 0, func([]byte) string { return from })
}

// CommonDoor is a Door for many places: whoever comes says who it is in its
// first size bytes. "" of who: a stranger, whose connection is closed.
func (n *Network) CommonDoor(to, target string, size int, who func([]byte) string) string {
	n.t.Helper()
	d := &door{n: n, to: to, address: Addrs(n.t, 1)[0], target: target, size: size, who: who}
	n.mu.Lock()
	n.doors = append(n.doors, d)
	n.mu.Unlock()
	if err := d.open(); err != nil {
		n.t.Fatalf("proxy to %s: %v", to, err)
	}
	return d.address
}

// Close closes the doors to a place whose process is down: connections are
// refused, as the place's own machine would refuse them.
func (n *Network) Close(to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.doors {
		if d.to == to {
			d.close()
		}
	}
}

// Open opens them again.
func (n *Network) Open(to string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.doors {
		if d.to != to {
			continue
		}
		if err := d.open(); err != nil {
			n.t.Fatalf("proxy to %s: %v", to, err)
		}
	}
}

// door is one listening address.
type door struct {
	n                   *Network
	to, address, target string
	size                int
	who                 func([]byte) string
	lis                 net.Listener // guarded by Network.mu; nil: closed
}

func (d *door) open() error {
	if d.lis != nil {
		return nil
	}
	lis, err := net.Listen("tcp", d.address)
	if err != nil {
		return err
	}
	d.lis = lis
	d.n.begun.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			d.n.begun.Go(func() { d.carry(conn) })
		}
	})
	return nil
}

func (d *door) close() {
	if d.lis != nil {
		_ = d.lis.Close()
		d.lis = nil
	}
}

// helloWithin bounds the wait for the first bytes of a common door's visitor.
const helloWithin = Patience

// carry serves one connection.
func (d *door) carry(near net.Conn) {
	defer near.Close()
	head := make([]byte, d.size)
	if d.size > 0 {
		_ = near.SetReadDeadline(time.Now().Add(helloWithin))
		if _, err := io.ReadFull(near, head); err != nil {
			return
		}
		_ = near.SetReadDeadline(time.Time{})
	}
	from := d.who(head)
	if from == "" {
		return
	}
	r := &route{near: near, there: d.n.link(from, d.to), back: d.n.link(d.to, from), gone: make(chan struct{})}
	if !r.there.enter(r) || !r.back.enter(r) {
		r.reset()
	}
	defer r.there.leave(r)
	defer r.back.leave(r)
	if !r.admitted() {
		return
	}
	far, err := net.DialTimeout("tcp", d.target, helloWithin)
	if err != nil {
		r.reset()
		return
	}
	defer far.Close()
	r.extend(far)
	var both sync.WaitGroup
	both.Go(func() { r.pump(r.there, head, near, far) })
	both.Go(func() { r.pump(r.back, nil, far, near) })
	both.Wait()
}
