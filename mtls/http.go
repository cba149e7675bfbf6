package mtls

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/nokv/nokv/internal/headers"
	"github.com/nokv/nokv/mtls/principal"
)

// forHTTP1 is what a dialer of HTTP speaks.
var forHTTP1 = []string{"http/1.1"}

// Transport asks the HTTP ports of these, at https:// with certificates. Its connections are kept
// by address: who means one of several names makes one for each, or dials by DialHTTP. A nil Source
// asks in plain text.
func (s *Source) Transport(of ...Peer) *http.Transport {
	t := new(http.Transport)
	if s != nil {
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return s.DialHTTP(ctx, network, addr, of...)
		}
	}
	return t
}

// DialHTTP is a connection of HTTP/1.1 to an address where one of these is to answer. The Source is
// not nil.
func (s *Source) DialHTTP(ctx context.Context, network, addr string, of ...Peer) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c, _, err := s.dial(ctx, raw, forHTTP1, some(of))
	return c, err
}

// Handler serves as h does to whoever has a certificate of the cluster, and nobody else: also where
// the listener does not ask for one, and behind the end of the one that a connection began with. The
// listener is one of HTTP. What a request says of who asks, in HeaderCaller, is taken away, but where a proxy
// asks. A nil Source returns h.
func (s *Source) Handler(h http.Handler) http.Handler {
	if s == nil {
		return h
	}
	return s.HandlerOpen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := s.Caller(r.TLS)
		if !who.Known() {
			http.Error(w, "show a client certificate of this cluster (nokv cert issue --role client)", http.StatusForbidden)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), openerKey{}, who))
		nobodySays(r, who.Role == principal.Proxy)
		h.ServeHTTP(w, r)
	}))
}

// HeaderCaller is in a request: who asks, ROLE/NAME or nobody. Who stands in front of a member and knows sets it,
// and takes away what callers say. It counts on the connection of a proxy alone.
const HeaderCaller = "Nokv-Caller"

// NamesCaller says whether a program may take a header for HeaderCaller: some take _ for -.
func NamesCaller(name string, _ []string) bool { return headers.Is(name, "nokv-caller") }

// nobodySays takes away what a request says of who asks, but what a proxy says.
func nobodySays(r *http.Request, proxy bool) {
	said := r.Header[HeaderCaller]
	maps.DeleteFunc(r.Header, NamesCaller)
	if proxy && said != nil {
		r.Header[HeaderCaller] = said
	}
	if r.Trailer == nil || r.Body == nil {
		return
	}
	maps.DeleteFunc(r.Trailer, NamesCaller)
	r.Body = &trailed{r.Body, r.Trailer}
}

// trailed is the body of a request with trailers, which come with its end, also those that were not announced.
type trailed struct {
	io.ReadCloser
	trailer http.Header
}

// Read implements io.Reader.
func (b *trailed) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	if err == io.EOF {
		maps.DeleteFunc(b.trailer, NamesCaller)
	}
	return n, err
}

// openerKey is the key of whose connection a request came by, in its context.
type openerKey struct{}

// OpenerOf is whose connection a request came by, who may have passed it on for somebody else. In a handler that Handler
// serves it is known, and not judged once more.
func (s *Source) OpenerOf(r *http.Request) principal.Principal {
	if who, ok := r.Context().Value(openerKey{}).(principal.Principal); ok {
		return who
	}
	return s.Caller(r.TLS)
}

// CallerOf is who asks: on the connection of a proxy whom that names in HeaderCaller, nobody too, and else whose connection it is.
func (s *Source) CallerOf(r *http.Request) principal.Principal {
	opener := s.OpenerOf(r)
	said := r.Header[HeaderCaller]
	if opener.Role != principal.Proxy || said == nil {
		return opener
	}
	if len(said) != 1 {
		return principal.Principal{}
	}
	who, err := principal.Parse(principal.Scheme + "://" + opener.Cluster + "/" + said[0])
	if err != nil {
		return principal.Principal{}
	}
	return who
}

// HandlerOpen serves as h does while the own certificate is valid, and says that it ended to
// whoever asks behind that. The listener is one of HTTPOpen. A nil Source returns h.
func (s *Source) HandlerOpen(h http.Handler) http.Handler {
	if s == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ended, ok := errors.AsType[*Refusal](s.Usable()); ok {
			http.Error(w, ended.Sentence, http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// accepting makes each connection one of accepted.
type accepting struct{ net.Listener }

// Accept implements net.Listener.
func (l accepting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &accepted{Conn: c}, nil
}

// accepted is a connection of an HTTP listener, below TLS. Its lifetime begins when its caller shows a certificate.
type accepted struct {
	net.Conn
	lifetime
}

// NetConn is the connection that the listener accepted.
func (a *accepted) NetConn() net.Conn { return a.Conn }

// Close implements net.Conn.
func (a *accepted) Close() error {
	a.over()
	return a.Conn.Close()
}

// Scheme is that of the URLs of HTTP ports: https with certificates.
func (s *Source) Scheme() string {
	if s == nil {
		return "http"
	}
	return "https"
}
