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
// or what they speak.
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

// lookAgain is how long at most a connection relies on elapsed time: the wall
// clock may be set, and machines sleep.
const lookAgain = time.Hour

// mortal ends with the certificates that it was opened with.
type mortal struct {
	*tls.Conn
	now func() time.Time
	end time.Time
	// alert says what an alert of the other side means; nil on its own side.
	alert func(error) error

	mu sync.Mutex
	// Guarded by mu. timer is nil when the connection is closed.
	timer *time.Timer
}

// mortal starts the clock of a connection.
func (s *Source) mortal(c *tls.Conn, until time.Time, alert func(error) error) *mortal {
	left := until.Sub(s.now())
	early := min(left/20, time.Minute)
	m := &mortal{Conn: c, now: s.now, alert: alert, end: until.Add(-time.Duration(rand.Int64N(int64(max(early, 0)) + 1)))}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timer = time.AfterFunc(m.wait(), m.expire)
	return m
}

func (m *mortal) wait() time.Duration { return min(max(m.end.Sub(m.now()), 0), lookAgain) }

func (m *mortal) expire() {
	m.mu.Lock()
	if m.timer == nil {
		m.mu.Unlock()
		return
	}
	if d := m.wait(); d > 0 {
		m.timer.Reset(d)
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	_ = m.Close()
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
