package mtls

import (
	"crypto/x509"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// lookAgain is how long at most a connection relies on elapsed time and on who was
// believed: the wall clock may be set, machines sleep, and ca.crt changes.
const lookAgain = 10 * time.Second

// lifetime ends a connection with the certificates that it was opened with, when no CA that is
// believed has signed the other side's any more, and when Revoke names that one.
type lifetime struct {
	source *Source
	raw    net.Conn // below TLS
	// certs are the other side's, use what they have to be good for.
	certs []*x509.Certificate
	use   x509.ExtKeyUsage

	mu sync.Mutex
	// Guarded by mu: when it ends, and what the other side was judged by; conn is what is closed then,
	// which calls over, and is nil, as timer is, when it is closed.
	end    time.Time
	judged *bundle
	conn   io.Closer
	timer  *time.Timer
	closed bool
}

// begin starts the lifetime of a connection whose other side b believed: until then, or a
// twentieth of that earlier, at most a minute, so that not all end at once.
func (l *lifetime) begin(s *Source, b *bundle, raw net.Conn, conn io.Closer, certs []*x509.Certificate, use x509.ExtKeyUsage, until time.Time) {
	early := min(until.Sub(s.now())/20, time.Minute)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // while it shook hands
		return
	}
	l.source, l.raw, l.conn, l.certs, l.use, l.judged = s, raw, conn, certs, use, b
	l.end = until.Add(-time.Duration(rand.Int64N(int64(max(early, 0)) + 1)))
	s.open.Store(l, nil)
	if s.revoked.judge(certs[0]) != nil { // since the handshake; from here on Revoke finds it
		l.end = s.now()
	}
	l.timer = time.AfterFunc(l.leftLocked(), l.look)
}

// over is called when the connection is closed.
func (l *lifetime) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
		l.timer, l.conn = nil, nil
		l.source.open.Delete(l)
	}
}

// lookNow has the connection looked at now.
func (l *lifetime) lookNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Reset(0)
	}
}

// leftLocked is how long it may go on without another look.
func (l *lifetime) leftLocked() time.Duration {
	return min(max(l.end.Sub(l.source.now()), 0), lookAgain)
}

// look is what the timer does.
func (l *lifetime) look() {
	b := l.source.current()
	l.mu.Lock()
	if l.timer == nil {
		l.mu.Unlock()
		return
	}
	err, conn := l.judgeLocked(b), l.conn
	left := l.leftLocked()
	if err == nil && left > 0 {
		l.timer.Reset(left)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if err != nil {
		l.source.count(refusal(l.raw, err))
		_ = l.raw.Close() // nothing of it is read any more while a farewell waits for its reader
	}
	_ = conn.Close()
}

// judgeLocked looks at the other side's certificate again, at the way to its CA when what is read changed.
func (l *lifetime) judgeLocked(b *bundle) error {
	if err := b.revoked.judge(l.certs[0]); err != nil {
		return err
	}
	if b == l.judged {
		return nil
	}
	l.judged = b
	now := l.source.now()
	chains, err := verify(l.certs, b.cas, now, []x509.ExtKeyUsage{l.use})
	if err != nil {
		return b.unbelieved(err, l.certs[0], now)
	}
	if end := ends(chains); end.Before(l.end) {
		l.end = end
	}
	return nil
}
