package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// Refusal is why there is no connection: one sentence that says with whom and what
// to do. Nothing was asked over it.
type Refusal struct{ Sentence string }

// refusalMark is how a sentence is found in the text of a gRPC status, which keeps
// no errors.
const refusalMark = "no connection: "

// Error implements error.
func (r *Refusal) Error() string { return refusalMark + r.Sentence }

// RefusalOf finds the refusal in an error, that of a gRPC call included: it says
// whether the connection was refused because of who the sides are or what they
// speak.
func RefusalOf(err error) (*Refusal, bool) {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r, true
	}
	if err == nil {
		return nil, false
	}
	if _, said, ok := strings.Cut(err.Error(), refusalMark); ok {
		return &Refusal{strings.TrimSuffix(said, `"`)}, true
	}
	return nil, false
}

// refusal names the other side; an error without one is a failure of the network,
// and stays.
func refusal(c net.Conn, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Refusal](err); ok {
		return err
	}
	return &Refusal{c.RemoteAddr().String() + " " + err.Error()}
}

// tell logs who was refused, at most one in ten seconds.
func (s *Source) tell(err error) {
	now, last := s.now().UnixNano(), s.told.Load()
	if d := time.Duration(now - last); d >= 0 && d < 10*time.Second || !s.told.CompareAndSwap(last, now) {
		s.untold.Add(1)
		return
	}
	s.log.Warn("refused a connection", "err", err, "others", s.untold.Swap(0))
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

// SyscallConn lets gRPC see the socket.
func (m *mortal) SyscallConn() (syscall.RawConn, error) { return socket(m.NetConn()) }

func socket(c net.Conn) (syscall.RawConn, error) {
	if sc, ok := c.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, errors.ErrUnsupported
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
	if _, ok := c.(*net.TCPConn); !ok {
		return
	}
	_ = c.SetDeadline(time.Now().Add(lingering))
	_, _ = io.CopyN(io.Discard, c, 64<<10)
}

// plainServer is a listener without certificates.
type plainServer struct {
	credentials.TransportCredentials
}

// plainClient is a dialer without certificates.
type plainClient struct {
	credentials.TransportCredentials
}

// ClientHandshake notices when the other side speaks TLS.
func (p plainClient) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return p.TransportCredentials.ClientHandshake(ctx, authority, raw)
}
