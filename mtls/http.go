package mtls

import (
	"context"
	"errors"
	"net"
	"net/http"

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
// listener's configuration is that of HTTP. A nil Source returns h.
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
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
	}))
}

// callerKey is the key of who asks, in the context of a request.
type callerKey struct{}

// CallerOf is Caller of a request. In a handler that Handler serves it is known, and not judged once more.
func (s *Source) CallerOf(r *http.Request) principal.Principal {
	if who, ok := r.Context().Value(callerKey{}).(principal.Principal); ok {
		return who
	}
	return s.Caller(r.TLS)
}

// HandlerOpen serves as h does while the own certificate is valid, and says that it ended to
// whoever asks behind that. The listener's configuration is that of HTTPOpen. A nil Source returns h.
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

// Scheme is that of the URLs of HTTP ports: https with certificates.
func (s *Source) Scheme() string {
	if s == nil {
		return "http"
	}
	return "https"
}
