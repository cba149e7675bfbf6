package proxy

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/router"
)

// Bounds of connections to members.
const (
	maxIdle        = 4096
	maxIdleAMember = 256
	// idleFor is below the time after which servers end connections that nobody uses: 2 s of gunicorn is the shortest known.
	idleFor         = 1500 * time.Millisecond
	maxAnswerHeader = 64 << 10
	continueTimeout = time.Second
)

// transports makes the two ways to ask members: by connections that stay, and by one that is new.
func (p *Proxy) transports() {
	t := new(http.Transport)
	if p.cfg.TLS != nil {
		t.DialTLSContext = p.dials(func(ctx context.Context, network, addr string) (net.Conn, error) {
			member, address := memberOf(addr)
			return p.cfg.TLS.DialHTTP(ctx, network, address, mtls.Peer{Role: principal.Member, Name: member})
		})
	} else if p.cfg.dial != nil {
		t.DialContext = p.dials(p.cfg.dial)
	} else {
		t.DialContext = p.dials(new(net.Dialer).DialContext)
	}
	t.Proxy, t.DisableCompression, t.MaxIdleConns, t.MaxIdleConnsPerHost = nil, true, maxIdle, maxIdleAMember
	t.IdleConnTimeout, t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = idleFor, p.cfg.Timeout, maxAnswerHeader
	t.ExpectContinueTimeout = continueTimeout
	p.pool, p.fresh = t, t.Clone()
	p.fresh.MaxIdleConnsPerHost = -1
}

// dials bounds how long a connection takes, and makes it a memberConn.
func (p *Proxy) dials(connect func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, p.cfg.Dial)
		defer cancel()
		c, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &memberConn{Conn: c}, nil
	}
}

// hostOf is the host of a member's URL. With certificates the transport keeps its connections by member and
// address, so that one to a member that was there before is no other member's: memberOf reads it, behind the port
// that the transport adds.
func (p *Proxy) hostOf(t router.Target) string {
	if p.cfg.TLS == nil {
		return t.Address
	}
	return hex.EncodeToString([]byte(string(t.Member) + " " + t.Address))
}

func memberOf(host string) (member, address string) {
	host, _, _ = strings.Cut(host, ":")
	raw, _ := hex.DecodeString(host)
	at := bytes.LastIndexByte(raw, ' ') // an address has none
	return string(raw[:max(at, 0)]), string(raw[at+1:])
}

// sending is one request on its way to one member, by one connection. The transport repeats some requests by itself, and says
// nothing of it: that ends here, so that what a member may have been sent is counted, and repeated, in one place.
type sending struct {
	attempt *router.Attempt
	// conn is nil until there is a connection. Set before anything is written.
	conn   *memberConn
	reused bool
	asked  bool // for a connection
	wrote  atomic.Bool
}

// errTwice is why a request ends that the transport would repeat.
var errTwice = errors.New("the transport would repeat the request")

// trace has the transport tell which connection it takes.
func (s *sending) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			if s.asked {
				s.attempt.End(errTwice)
			}
			s.asked = true
		},
		GotConn: func(g httptrace.GotConnInfo) {
			c := g.Conn.(*memberConn) // every connection is made by dials
			if s.conn == nil {
				s.conn, s.reused = c, g.Reused
			}
			c.half.Store(true)
			c.sends.Store(s)
		},
	}
}

// memberConn is a connection to a member. It has one request at a time.
type memberConn struct {
	net.Conn
	sends atomic.Pointer[sending]
	// half: of an answer nothing has come yet, or what came last is not the end of a line.
	half atomic.Bool
	// ended: the member ended the connection, and this process did not.
	ended atomic.Bool
}

// Read implements io.Reader.
func (c *memberConn) Read(buf []byte) (int, error) {
	n, err := c.Conn.Read(buf)
	if n > 0 {
		c.half.Store(buf[n-1] != '\n')
	}
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		c.ended.Store(true)
	}
	return n, err
}

// Write implements io.Writer. It takes a request for one that was written before it knows how much was.
func (c *memberConn) Write(b []byte) (int, error) {
	s := c.sends.Load()
	if s.conn != c {
		return 0, errTwice
	}
	before := s.wrote.Swap(true)
	n, err := c.Conn.Write(b)
	if n == 0 && !before {
		s.wrote.Store(false)
	}
	return n, err
}

// broke says whether the connection ended before an answer, or within a line of its head, which reads as one that
// is wrong.
func (c *memberConn) broke() bool { return c.ended.Load() && c.half.Load() }
