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

// Transport asks HTTP ports, at https:// with certificates, of processes that have one of
// these roles; none: root peers and coordinators. A nil Source asks in plain text.
func (s *Source) Transport(roles ...principal.Role) *http.Transport {
	t := new(http.Transport)
	if len(roles) == 0 {
		roles = []principal.Role{principal.Root, principal.Coordinator}
	}
	if s != nil {
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			c, _, err := s.dial(ctx, raw, forHTTP1, roles)
			return c, err
		}
	}
	return t
}

// Handler serves as h does while the own certificate is valid, and says that it ended
// to whoever asks behind that. The listener's configuration is that of HTTP. A nil Source
// returns h.
func (s *Source) Handler(h http.Handler) http.Handler {
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
