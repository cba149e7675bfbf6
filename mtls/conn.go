package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
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
// or what they speak, and how many ended because the other side's certificate was revoked,
// or its CA is no longer believed.
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

// mortal is a connection that ends with its lifetime.
type mortal struct {
	*tls.Conn
	lifetime
	// alert says what an alert of the other side means; nil on its own side.
	alert func(error) error
}

// mortal starts the lifetime of a connection whose other side b believed on the way of these chains.
func (s *Source) mortal(c *tls.Conn, b *bundle, chains [][]*x509.Certificate, use x509.ExtKeyUsage, alert func(error) error) *mortal {
	until := ends(chains)
	if b.expires.Before(until) {
		until = b.expires
	}
	m := &mortal{Conn: c, alert: alert}
	m.begin(s, b, c.NetConn(), m, c.ConnectionState().PeerCertificates, use, until)
	return m
}

// Close ends the connection and its lifetime.
func (m *mortal) Close() error {
	m.over()
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
