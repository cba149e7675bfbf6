package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Refusal is why there is no connection: one sentence that says with whom and what
// to do. It does not pass by itself, and nothing was asked.
type Refusal struct {
	Sentence string
	cause    error
}

// refusalMark is how a sentence is found in the text of a gRPC status, which keeps
// no errors.
const refusalMark = "no connection: "

// Error implements error.
func (r *Refusal) Error() string { return refusalMark + r.Sentence }

// Unwrap is what the sentence was made of; nil when there was no error.
func (r *Refusal) Unwrap() error { return r.cause }

// RefusalOf finds the refusal in an error, that of a gRPC call included.
func RefusalOf(err error) (*Refusal, bool) {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r, true
	}
	if err == nil {
		return nil, false
	}
	_, said, ok := strings.Cut(err.Error(), refusalMark)
	if !ok {
		return nil, false
	}
	// gRPC puts what a connection says into quotes.
	if quoted, err := strconv.QuotedPrefix(`"` + said); err == nil {
		said, _ = strconv.Unquote(quoted)
	}
	return &Refusal{Sentence: said}, true
}

// refusal says with whom; an error of the network stays one.
func refusal(c net.Conn, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Refusal](err); ok {
		return err
	}
	if broken, ok := errors.AsType[*brokenError](err); ok {
		return fmt.Errorf("%s: %w", c.RemoteAddr(), broken.error)
	}
	return &Refusal{c.RemoteAddr().String() + " " + err.Error(), err}
}

// brokenError is a handshake that was not finished, whoever the sides are.
type brokenError struct{ error }

func (b *brokenError) Unwrap() error { return b.error }

// Refusals is how many connections were refused to callers because of who they are
// or what they speak, and how many ended because the other side's CA is no longer
// believed.
func (s *Source) Refusals() uint64 {
	if s == nil {
		return 0
	}
	return s.refusals.Load()
}

// toldEvery is how often at most a refusal is logged: strangers must not fill logs.
const toldEvery = 10 * time.Second

// count counts and logs a refusal. What the network did is none: port scans and
// probes of load balancers end in the middle.
func (s *Source) count(err error) {
	if _, ok := errors.AsType[*Refusal](err); !ok {
		return
	}
	n := s.refusals.Add(1)
	now, last := s.now().UnixNano(), s.told.Load()
	if d := time.Duration(now - last); (d >= toldEvery || d < 0) && s.told.CompareAndSwap(last, now) {
		s.log.Warn("refused a connection", "err", err, "refused", n)
	}
}

// until is when a connection ends whose other side has these chains.
func (b *bundle) until(chains [][]*x509.Certificate) time.Time {
	if end := ends(chains); end.Before(b.expires) {
		return end
	}
	return b.expires
}

// lookAgain is how long at most a connection relies on elapsed time and on who was
// believed: the wall clock may be set, machines sleep, and ca.crt changes.
const lookAgain = 10 * time.Second

// mortal ends with the certificates that it was opened with, and when no CA that is
// believed has signed the other side's any more.
type mortal struct {
	*tls.Conn
	source *Source
	// use is what the other side's certificate has to be good for.
	use x509.ExtKeyUsage
	// alert says what an alert of the other side means; nil on its own side.
	alert func(error) error

	// Owned by the timer: when it ends, and what the other side was judged by.
	end    time.Time
	judged *bundle

	mu sync.Mutex
	// Guarded by mu. timer is nil when the connection is closed.
	timer *time.Timer
}

// mortal starts the clock of a connection whose other side b believed on the way
// of these chains.
func (s *Source) mortal(c *tls.Conn, b *bundle, chains [][]*x509.Certificate, use x509.ExtKeyUsage, alert func(error) error) *mortal {
	until := b.until(chains)
	left := until.Sub(s.now())
	early := min(left/20, time.Minute)
	m := &mortal{
		Conn: c, source: s, use: use, alert: alert, judged: b,
		end: until.Add(-time.Duration(rand.Int64N(int64(max(early, 0)) + 1))),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timer = time.AfterFunc(m.left(), m.look)
	return m
}

// left is how long it may go on without another look.
func (m *mortal) left() time.Duration { return min(max(m.end.Sub(m.source.now()), 0), lookAgain) }

// look is what the timer does.
func (m *mortal) look() {
	if err := m.judge(m.source.current()); err != nil {
		m.source.count(refusal(m.Conn, err))
	} else if d := m.left(); d > 0 {
		m.mu.Lock()
		if m.timer != nil {
			m.timer.Reset(d)
		}
		m.mu.Unlock()
		return
	}
	_ = m.Close()
}

// judge looks at the other side's certificate again when what is read changed.
func (m *mortal) judge(b *bundle) error {
	if b == m.judged {
		return nil
	}
	m.judged = b
	now, certs := m.source.now(), m.ConnectionState().PeerCertificates
	chains, err := verify(certs, b.cas, now, []x509.ExtKeyUsage{m.use})
	if err != nil {
		return b.unbelieved(err, certs[0], now)
	}
	if end := ends(chains); end.Before(m.end) {
		m.end = end
	}
	return nil
}

// Close ends the connection and its timer.
func (m *mortal) Close() error {
	m.mu.Lock()
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	m.mu.Unlock()
	return m.Conn.Close()
}

// Read turns an alert into a sentence: a listener judges a certificate when the
// dialer's handshake is over, so that the first read hears of it.
func (m *mortal) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if err != nil && m.alert != nil && alert(err) {
		err = m.alert(err)
	}
	return n, err
}

// lingering is how long a refused caller may take to read why.
const lingering = time.Second

// alertTLS is the record by which TLS refuses before anything is agreed upon:
// fatal, unexpected message.
var alertTLS = []byte{21, 3, 3, 0, 2, 2, 10}

// dismiss closes a refused connection so that the other side can read why: closing
// while its bytes are unread would take back what was sent.
func dismiss(c net.Conn, err error) {
	defer c.Close()
	if _, ok := errors.AsType[*Refusal](err); !ok {
		return // it does not listen
	}
	_ = c.SetDeadline(time.Now().Add(lingering))
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		_, _ = c.Write(alertTLS)
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, c, 64<<10)
}

// plain makes credentials of dialers without certificates, which notice when the
// other side wants TLS.
type plain struct {
	credentials.TransportCredentials
}

// ClientHandshake sends nothing.
func (p plain) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return p.TransportCredentials.ClientHandshake(ctx, authority, &unsure{Conn: raw})
}

// Clone returns p: it has no state.
func (p plain) Clone() credentials.TransportCredentials { return p }

// unsure is a connection whose other side may yet turn out to speak TLS.
type unsure struct {
	net.Conn
	// heard is owned by the one reader.
	heard bool
}

// Read looks at the first byte: HTTP/2 begins with the length of its settings, and
// TLS refuses with an alert.
func (u *unsure) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	if !u.heard && n > 0 {
		u.heard = true
		if p[0] == alertTLS[0] {
			return 0, refusal(u.Conn, errors.New("speaks TLS: it needs a certificate to be called (a folder of nokv cert issue, named by --certs or NOKV_CERTS)"))
		}
	}
	return n, err
}
