package client

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nokv/nokv/mtls"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Pauses between two passes over the coordinators in which none could tell what is revoked. They double: the
// processes of a large cluster do not ask a root that is away all at once.
const (
	revokedPauseMin = time.Second
	revokedPauseMax = 8 * time.Second
)

// KeepRevoked has certs, once something listens with them, believe no certificate that is revoked, until
// Close: as coordinators tell it, within a second as a rule, and within some while the one that told it is cut off from the root;
// while all are, by what was told last. A client does that by itself for the certificates of Config.TLS.
func (c *Client) KeepRevoked(certs *mtls.Source) {
	if certs != nil && certs != c.cfg.TLS {
		c.spawn(func() { c.keepRevoked(certs) })
	}
}

func (c *Client) keepRevoked(certs *mtls.Source) {
	select {
	case <-certs.Listening():
	case <-c.ctx.Done():
		return
	}
	pause, silent := revokedPauseMin, 0
	for at := 0; ; at++ {
		all := *c.ends.list.Load()
		told, err := c.watchRevoked(all[at%len(all)], certs)
		switch {
		case c.ctx.Err() != nil:
			return
		case status.Code(err) == codes.PermissionDenied:
			c.log.Warn("a coordinator does not tell which certificates are revoked: members, proxies and operators are told", "endpoint", all[at%len(all)].address, "err", err)
		case told:
			pause, silent = revokedPauseMin, 0
		}
		c.log.Debug("a coordinator tells no more which certificates are revoked", "endpoint", all[at%len(all)].address, "err", err)
		if silent++; silent < len(all) {
			continue
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-c.ctx.Done():
			return
		}
		pause, silent = min(2*pause, revokedPauseMax), 0
	}
}

// watchRevoked passes on what one coordinator tells until it breaks off, and whether it told anything.
func (c *Client) watchRevoked(e *endpoint, certs *mtls.Source) (told bool, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := e.rpc.WatchRevoked(ctx, &coordinatorv1.WatchRevokedRequest{})
	for err == nil {
		var m *coordinatorv1.WatchRevokedResponse
		if m, err = stream.Recv(); err == nil {
			certs.Revoke(m.GetCertificates())
			told = true
		}
	}
	return told, err
}
