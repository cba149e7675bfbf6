package mtls

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nokv/nokv/mtls/principal"
)

// What a connection is for, so that one that reached the wrong port is refused in
// the handshake.
var (
	forGRPC = []string{"h2"}
	forHTTP = []string{"h2", "http/1.1"}
	forBare = []string{"nokv"}
)

// Server makes credentials of a gRPC listener; callers need a certificate of the
// same cluster, in any role.
func (s *Source) Server() credentials.TransportCredentials {
	if s == nil {
		return insecure.NewCredentials()
	}
	s.listens()
	return &grpcCredentials{source: s}
}

// Peer is whom a dialer means.
type Peer struct {
	Role principal.Role
	// Name of the principal. Empty: any, where all that is known is an address that somebody wrote.
	Name string
}

// String is the peer in an error.
func (p Peer) String() string {
	if p.Name == "" {
		return "a " + p.Role.String()
	}
	return p.Role.String() + "/" + p.Name
}

// is says whether a principal is meant.
func (p Peer) is(who principal.Principal) bool {
	return p.Role == who.Role && (p.Name == "" || p.Name == who.Name)
}

// OtherError is that somebody of the cluster answers who is not meant.
type OtherError struct {
	Is   principal.Principal
	Want []Peer
}

// Error implements error.
func (e *OtherError) Error() string {
	words := make([]string, len(e.Want))
	for i, p := range e.Want {
		words[i] = p.String()
	}
	return fmt.Sprintf("has a certificate of %v, want %s", e.Is, cmp.Or(strings.Join(words, " or "), "nobody"))
}

// Client makes credentials to dial processes with; the other side must be one of
// these, in the same cluster. Where one ClientConn has several sides, Named says which is whose.
func (s *Source) Client(of ...Peer) credentials.TransportCredentials {
	if s == nil {
		return plain{insecure.NewCredentials()}
	}
	return &grpcCredentials{source: s, of: some(of)}
}

// nameOfAddress is the key of the name in the attributes of an address.
type nameOfAddress struct{}

// Named is for the attributes of an address in a resolver.Address: connections there want this name
// of the peers that Client was told.
func Named(a *attributes.Attributes, name string) *attributes.Attributes {
	return a.WithValue(nameOfAddress{}, name)
}

// ServerConn does what Server does for a connection that is not gRPC's. The
// handshake ends with ctx. The connection is closed when it fails. A nil Source
// returns c, and nobody.
func (s *Source) ServerConn(ctx context.Context, c net.Conn) (net.Conn, principal.Principal, error) {
	if s == nil {
		return c, principal.Principal{}, nil
	}
	s.listens()
	return s.accept(ctx, c, forBare)
}

// ClientConn does what Client does for a connection that is not gRPC's. The
// handshake ends with ctx. The connection is closed when it fails. A nil Source
// returns c, and nobody.
func (s *Source) ClientConn(ctx context.Context, c net.Conn, of ...Peer) (net.Conn, principal.Principal, error) {
	if s == nil {
		return c, principal.Principal{}, nil
	}
	return s.dial(ctx, c, forBare, some(of))
}

// HTTP has an HTTP listener speak TLS, with callers who show a certificate of the same cluster, in any
// role. Its handler is one of Handler. An own certificate that ended is shown all the same: who looks
// at it sees that, and the handler tells who does not. A nil Source returns l.
func (s *Source) HTTP(l net.Listener) net.Listener { return s.http(l, tls.RequireAndVerifyClientCert) }

// HTTPOpen is HTTP for a listener that has something for everybody: a client certificate is not
// needed, and judged when given. Its handler is one of HandlerOpen, and asks Caller whose it is.
func (s *Source) HTTPOpen(l net.Listener) net.Listener {
	return s.http(l, tls.VerifyClientCertIfGiven)
}

func (s *Source) http(l net.Listener, asks tls.ClientAuthType) net.Listener {
	if s == nil {
		return l
	}
	s.listens()
	return tls.NewListener(accepting{l}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			b, now := s.current(), s.now()
			s.count(b.usable(now))
			cfg := b.config(now, forHTTP)
			cfg.ClientAuth, cfg.ClientCAs = asks, b.cas
			cfg.VerifyConnection = func(cs tls.ConnectionState) error {
				if len(cs.PeerCertificates) == 0 {
					return nil
				}
				if _, err := b.named(cs.PeerCertificates[0], nil); err != nil {
					err = refusal(hello.Conn, err)
					s.count(err)
					return err
				}
				a := hello.Conn.(*accepted)
				a.begin(s, b, a.Conn, a, cs.PeerCertificates, x509.ExtKeyUsageClientAuth, ends(cs.VerifiedChains))
				return nil
			}
			return cfg, nil
		},
	})
}

// Caller is who an HTTP request's connection is with: nobody without a certificate,
// or when it has ended since, or is no longer believed. The listener is one of HTTP or HTTPOpen.
func (s *Source) Caller(cs *tls.ConnectionState) principal.Principal {
	if s == nil || cs == nil || len(cs.PeerCertificates) == 0 {
		return principal.Principal{}
	}
	b := s.current()
	if _, err := verify(cs.PeerCertificates, b.cas, s.now(), []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}); err != nil {
		return principal.Principal{}
	}
	p, err := b.named(cs.PeerCertificates[0], nil)
	if err != nil {
		return principal.Principal{}
	}
	return p
}

// config is what both sides have in common.
func (b *bundle) config(now time.Time, protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
		Certificates:           []tls.Certificate{b.pair},
		Time:                   func() time.Time { return now },
	}
}

// usable says what is wrong when the own certificate ended since it was read.
func (b *bundle) usable(now time.Time) error {
	if now.Before(b.expires) {
		return nil
	}
	return &Refusal{Sentence: fmt.Sprintf("our own certificate of %v in %s ended at %s: renew it with nokv cert renew", b.own, b.dir, b.expires.Format(time.RFC3339))}
}

// named is who a verified certificate names, when it is one of this cluster and of
// these; nil: anybody's.
func (b *bundle) named(c *x509.Certificate, of []Peer) (principal.Principal, error) {
	who, err := principal.Of(c)
	revoked := b.revoked.judge(c)
	switch {
	case err != nil:
		return who, &judgement{fmt.Errorf("has a certificate that does not say who it is (%w)", err)}
	case who.Cluster != b.own.Cluster:
		return who, &judgement{fmt.Errorf("has a certificate of cluster %s (%v), want one of cluster %s", who.Cluster, who, b.own.Cluster)}
	case revoked != nil: // whom it names proves nothing then
		return who, &judgement{revoked}
	case of != nil && !slices.ContainsFunc(of, func(p Peer) bool { return p.is(who) }):
		return who, &judgement{&OtherError{who, of}}
	}
	return who, nil
}

// some are peers that are not nil: a dialer that means nobody believes nobody.
func some(of []Peer) []Peer { return append([]Peer{}, of...) }

// accept is the listener's side of a handshake.
func (s *Source) accept(ctx context.Context, raw net.Conn, protocols []string) (net.Conn, principal.Principal, error) {
	b, now := s.current(), s.now()
	c, who, err := b.accept(ctx, raw, now, protocols)
	if err != nil {
		err = refusal(raw, err)
		s.count(err)
		dismiss(raw, err)
		return nil, principal.Principal{}, err
	}
	return s.mortal(c, b, c.ConnectionState().VerifiedChains, x509.ExtKeyUsageClientAuth, nil), who, nil
}

func (b *bundle) accept(ctx context.Context, raw net.Conn, now time.Time, protocols []string) (c *tls.Conn, who principal.Principal, err error) {
	// One that ended is shown, so that a caller can say which, and lets nobody in.
	ended := b.usable(now)
	cfg := b.config(now, protocols)
	cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, b.cas
	cfg.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		who, err = b.named(cs.PeerCertificates[0], nil)
		return cmp.Or(ended, err)
	}
	t := &turn{Conn: raw, ctx: ctx}
	defer t.end()
	c = tls.Server(t, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, who, cmp.Or(ended, b.accepting(err, now))
	}
	return c, who, nil
}

// accepting says what went wrong when a caller came.
func (b *bundle) accepting(err error, now time.Time) error {
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(bad.UnverifiedCertificates) > 0 {
		leaf := bad.UnverifiedCertificates[0]
		return b.unbelieved(bad.Err, leaf, now)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("does not speak TLS: it needs a certificate to call (%w)", err)
	}
	if strings.HasSuffix(err.Error(), "client didn't provide a certificate") {
		return fmt.Errorf("shows no certificate: it needs one of cluster %s to call", b.own.Cluster)
	}
	if alert(err) {
		return fmt.Errorf("did not take our certificate of %v in %s (%w)", b.own, b.dir, err)
	}
	return failed(err)
}

// dial is the caller's side of a handshake.
func (s *Source) dial(ctx context.Context, raw net.Conn, protocols []string, of []Peer) (net.Conn, principal.Principal, error) {
	b, now := s.current(), s.now()
	c, who, chains, err := b.dial(ctx, raw, now, protocols, of)
	if err != nil {
		_ = raw.Close()
		return nil, principal.Principal{}, refusal(raw, err)
	}
	return s.mortal(c, b, chains, x509.ExtKeyUsageServerAuth, func(err error) error { return refusal(raw, b.refused(err)) }), who, nil
}

func (b *bundle) dial(ctx context.Context, raw net.Conn, now time.Time, protocols []string, of []Peer) (c *tls.Conn, who principal.Principal, chains [][]*x509.Certificate, err error) {
	if err := b.usable(now); err != nil {
		return nil, who, nil, err
	}
	cfg := b.config(now, protocols)
	// No host name is looked at: VerifyConnection does what is skipped here, and
	// more.
	cfg.InsecureSkipVerify = true
	// It is shown also to a process whose CAs have other names: the refusal then says which
	// certificate is not believed, and not that there is none.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &b.pair, nil }
	cfg.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		leaf := cs.PeerCertificates[0]
		if chains, err = verify(cs.PeerCertificates, b.cas, now, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}); err != nil {
			return &judgement{b.unbelieved(err, leaf, now)}
		}
		who, err = b.named(leaf, of)
		return err
	}
	c = tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, who, nil, b.dialing(err)
	}
	return c, who, chains, nil
}

// dialing says what went wrong with a process that was dialled.
func (b *bundle) dialing(err error) error {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("does not speak TLS: start it with certificates, or leave ours away (%w)", err)
	}
	if alert(err) {
		return b.refused(err)
	}
	return failed(err)
}

// judgement is an error of VerifyConnection.
type judgement struct{ error }

func (j *judgement) Unwrap() error { return j.error }

// failed tells what we found wrong from what the network did.
func failed(err error) error {
	switch _, judged := errors.AsType[*judgement](err); {
	case judged:
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
		return &brokenError{fmt.Errorf("it closed the connection in the TLS handshake; it may have no certificates, or be ending (%w)", err)}
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return &brokenError{fmt.Errorf("the TLS handshake did not end in time (%w)", err)}
	}
	return &brokenError{fmt.Errorf("the TLS handshake failed (%w)", err)}
}

// alert says that the other side refused what we showed.
func alert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// refused is what an alert means for who gets it. TLS has a number for what is
// wrong and no words.
func (b *bundle) refused(err error) error {
	why := "it may be of another CA, cluster or role than is wanted there, or revoked; the log there says more"
	switch text := err.Error(); {
	case strings.HasSuffix(text, "expired certificate"):
		why = "it is not valid by the clock there: nokv cert show " + b.dir
	case strings.HasSuffix(text, "unknown certificate authority"):
		why = "no CA that is in " + CAFile + " there and valid has signed it"
	case strings.HasSuffix(text, "no application protocol"):
		return errors.New("speaks another protocol on this port: is it the right one?")
	}
	return fmt.Errorf("refused our certificate of %v in %s: %s (%w)", b.own, filepath.Clean(b.dir), why, err)
}

// subject is how a certificate that is not believed is called.
func subject(c *x509.Certificate) string {
	if who, err := principal.Of(c); err == nil {
		return who.URI().String()
	}
	return fmt.Sprintf("%q", c.Subject)
}

// grpcCredentials are a Source's, of one gRPC listener or dialer.
type grpcCredentials struct {
	source *Source
	// of is whom a dialer means.
	of []Peer
}

func info(c net.Conn, who principal.Principal, err error) (net.Conn, credentials.AuthInfo, error) {
	if err != nil {
		return nil, nil, err
	}
	return c, principal.Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Principal: who}, nil
}

func (g *grpcCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	of := g.of
	if name, ok := credentials.ClientHandshakeInfoFromContext(ctx).Attributes.Value(nameOfAddress{}).(string); ok {
		of = slices.Clone(of)
		for i := range of {
			of[i].Name = name
		}
	}
	return info(g.source.dial(ctx, raw, forGRPC, of))
}

// ServerHandshake is bounded by the deadline that gRPC has set on raw.
func (g *grpcCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return info(g.source.accept(context.Background(), raw, forGRPC))
}

func (g *grpcCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (g *grpcCredentials) Clone() credentials.TransportCredentials { return g }

func (g *grpcCredentials) OverrideServerName(string) error {
	return errors.New("certificates name principals here, not hosts")
}
