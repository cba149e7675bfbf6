package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// abrupt is a connection under TLS. Its end is that of the connection below, at
// once: TLS says farewell first, and waits for who takes nothing.
type abrupt struct {
	net.Conn
	below net.Conn
}

// Close implements net.Conn.
func (c abrupt) Close() error {
	err := c.below.Close()
	_ = c.Conn.Close() // has nobody to tell any more; ends what it started
	return err
}

// secureAccepted puts TLS on a connection that was accepted, and says who is at the
// other end. Without certificates it is nobody in particular.
func secureAccepted(ctx context.Context, certs *mtls.Source, conn net.Conn, within time.Duration) (net.Conn, principal.Principal, error) {
	if certs == nil {
		return conn, principal.Principal{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	secured, who, err := certs.ServerConn(ctx, conn)
	if err != nil {
		return nil, who, err
	}
	return abrupt{secured, conn}, who, nil
}

// secureDialed puts TLS on a connection to a root peer, within ctx. conn stays the
// caller's when it fails.
func secureDialed(ctx context.Context, certs *mtls.Source, conn net.Conn, node uint64, address string) (net.Conn, error) {
	if certs == nil {
		return conn, nil
	}
	secured, who, err := certs.ClientConn(ctx, conn, mtls.Peer{Role: principal.Root})
	if err != nil {
		return nil, err
	}
	if why := notNamed(who, node); why != "" {
		_ = secured.Close()
		return nil, &RefusedError{Peer: node, Why: fmt.Sprintf("at %s, where root peer %d should be, %s", address, node, why)}
	}
	return abrupt{secured, conn}, nil
}

// whyRefused says why a peer and this one do not talk, by a handshake that failed;
// empty: they may yet.
func whyRefused(err error) string {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused.Why
	}
	if refused, ok := errors.AsType[*mtls.Refusal](err); ok {
		return refused.Sentence
	}
	return ""
}

// notNamed says why whoever a certificate names does not speak for a root peer;
// empty: it does, or there are no certificates.
func notNamed(who principal.Principal, node uint64) string {
	if !who.Known() || who.Role == principal.Root && who.Name == strconv.FormatUint(node, 10) {
		return ""
	}
	return fmt.Sprintf("the certificate is that of %s, want root/%d: each root peer takes one of its own, with its node id as name", who, node)
}
