package proctest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// route is one connection through a proxy.
type route struct {
	near        net.Conn
	there, back *link

	once sync.Once
	gone chan struct{} // closed when the connection is over

	mu  sync.Mutex // guards what follows
	far net.Conn
}

func (r *route) extend(far net.Conn) {
	r.mu.Lock()
	r.far = far
	r.mu.Unlock()
	select {
	case <-r.gone:
		_ = far.Close()
	default:
	}
}

// reset breaks the connection off at both ends.
func (r *route) reset() { r.end(true) }

// end ends the connection at both ends. Neither end of this system uses one
// that is half closed.
func (r *route) end(reset bool) {
	r.once.Do(func() {
		close(r.gone)
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range []net.Conn{r.near, r.far} {
			if c == nil {
				continue
			}
			if t, ok := c.(*net.TCPConn); ok && reset {
				_ = t.SetLinger(0)
			}
			_ = c.Close()
		}
	})
}

// admitted waits until the connection may be made; false: it never was.
func (r *route) admitted() bool {
	unanswered := false
	for _, l := range []*link{r.there, r.back} {
		for held := false; ; {
			c, changed := l.now()
			if c.Broken {
				r.reset()
				return false
			}
			if unanswered && !c.Deaf {
				break
			}
			if !c.Cut && !c.Deaf {
				break
			}
			if c.Deaf && !unanswered {
				unanswered = true
				l.counts.unanswered.Add(1)
			}
			if c.Cut && !held {
				held = true
				l.counts.held.Add(1)
			}
			select {
			case <-changed:
			case <-r.gone:
				return false
			}
		}
	}
	if unanswered {
		r.reset()
	}
	return !unanswered
}

// piece is what one read brought.
type piece struct {
	bytes []byte
	due   time.Time
}

const (
	pieceBytes = 32 << 10
	// maxPieces bounds what a link holds of one connection; behind it the sender waits.
	maxPieces = 256
)

// pump carries one direction until the connection is over.
func (r *route) pump(l *link, first []byte, from io.Reader, to io.Writer) {
	pieces := make(chan piece, maxPieces)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pieces)
		if len(first) > 0 {
			pieces <- piece{bytes: first}
		}
		for {
			b := make([]byte, pieceBytes)
			n, err := from.Read(b)
			if n > 0 {
				p := piece{bytes: b[:n]}
				if c, _ := l.now(); c.Delay > 0 {
					p.due = time.Now().Add(c.Delay)
				}
				select {
				case pieces <- p:
				case <-r.gone:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range pieces {
		if !r.deliver(l, p, to) {
			break
		}
	}
	r.end(false)
	reading.Wait()
}

// deliver writes a piece when its link lets it through.
func (r *route) deliver(l *link, p piece, to io.Writer) bool {
	if !p.due.IsZero() {
		l.counts.late.Add(1)
		timer := time.NewTimer(time.Until(p.due))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.gone:
			return false
		}
	}
	for held := false; ; {
		c, changed := l.now()
		if !c.Cut {
			break
		}
		if !held {
			held = true
			l.counts.held.Add(1)
		}
		select {
		case <-changed:
		case <-r.gone:
			return false
		}
	}
	l.counts.bytes.Add(uint64(len(p.bytes))) // before anybody can answer it
	_, err := to.Write(p.bytes)
	return err == nil
}

// link is one direction between two places.
type link struct {
	counts linkCounters

	mu sync.Mutex // guards what follows
	Condition
	changed chan struct{} // closed when the condition changes
	conns   map[*route]struct{}
}

type linkCounters struct{ bytes, held, late, unanswered, resets atomic.Uint64 }

func (c *linkCounters) load() LinkCounts {
	return LinkCounts{Bytes: c.bytes.Load(), Held: c.held.Load(), Late: c.late.Load(), Unanswered: c.unanswered.Load(), Resets: c.resets.Load()}
}

func (l *link) now() (Condition, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Condition, l.changed
}

func (l *link) set(c Condition) {
	l.mu.Lock()
	var broken []*route
	if c.Broken {
		for r := range l.conns {
			broken = append(broken, r)
		}
	}
	l.Condition = c
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.counts.resets.Add(uint64(len(broken)))
	for _, r := range broken {
		r.reset()
	}
}

// enter adds a connection; false when the link is broken.
func (l *link) enter(r *route) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[r] = struct{}{}
	if l.Broken {
		l.counts.resets.Add(1)
	}
	return !l.Broken
}

func (l *link) leave(r *route) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, r)
}
