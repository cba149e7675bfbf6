package mtls

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/nokv/nokv/mtls/principal"
)

// Revoke has these certificates believed no more: a connection that one of them was shown on ends
// at once, and none is made. Each is ROLE/NAME, for all of that principal, or the serial number of
// one in lower-case hexadecimal digits. What was said before counts no more. A nil Source has nothing to do.
//
// Coordinators and root peers call it with what is rooted, a client of package coordinator/client for the
// certificates that it was given.
func (s *Source) Revoke(certificates []string) {
	if s == nil {
		return
	}
	all := slices.Sorted(slices.Values(certificates))
	s.revoked.all.Store(&all)
	s.open.Range(func(key, _ any) bool {
		if l := key.(*lifetime); s.revoked.judge(l.certs[0]) != nil {
			l.lookNow()
		}
		return true
	})
}

// Listening is closed when the Source is first asked for what a listener needs: who has none need not
// hear what is revoked. It is nil for a nil Source.
func (s *Source) Listening() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.listening
}

func (s *Source) listens() { s.listenOnce.Do(func() { close(s.listening) }) }

// revocations are the certificates that Revoke named, in order.
type revocations struct {
	all atomic.Pointer[[]string]
}

// judge says of a certificate that it was revoked.
func (r *revocations) judge(c *x509.Certificate) error {
	all := r.all.Load()
	if all == nil || len(*all) == 0 {
		return nil
	}
	who, _ := principal.Of(c)
	for _, name := range []string{who.Actor(), c.SerialNumber.Text(16)} {
		if _, revoked := slices.BinarySearch(*all, name); revoked {
			return fmt.Errorf("has a certificate of %v (serial %x) that was revoked: nokv cert revoke --undo %s takes that back", who, c.SerialNumber, name)
		}
	}
	return nil
}
