package mtls_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

// side makes a handshake.
type side func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error)

// end is one side of a connection after its handshake and one byte each way.
type end struct {
	net.Conn
	who principal.Principal
	err error
}

// shake opens a connection over TCP and sends a byte each way: a listener's
// refusal reaches a dialer with the first read.
func shake(t testing.TB, server, client side) (accepted, dialled end) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			accepted.err = err
			return
		}
		accepted.begin(t.Context(), raw, server)
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dialled.begin(t.Context(), raw, client)
	<-done
	return accepted, dialled
}

func (e *end) begin(ctx context.Context, raw net.Conn, s side) {
	if e.Conn, e.who, e.err = s(ctx, raw); e.err != nil {
		_ = raw.Close()
		return
	}
	defer e.Conn.Close()
	if _, e.err = e.Conn.Write([]byte{1}); e.err == nil {
		_, e.err = io.ReadFull(e.Conn, make([]byte, 1))
	}
}

func dialer(s *mtls.Source, roles ...principal.Role) side {
	var of []mtls.Peer
	for _, r := range roles {
		of = append(of, mtls.Peer{Role: r})
	}
	return meaning(s, of...)
}

func meaning(s *mtls.Source, of ...mtls.Peer) side {
	return func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		c, who, err := s.ClientConn(ctx, raw, of...)
		if err != nil && raw.SetDeadline(time.Time{}) == nil {
			err = errors.New("a connection that was refused is open")
		}
		return c, who, err
	}
}

// browser looks at host names, as others' programs do, and believes the CAs in dir, whose certificate it
// shows; shown: false.
func browser(t testing.TB, dir string, shown bool) *tls.Config {
	t.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	if !cfg.RootCAs.AppendCertsFromPEM(read(t, dir, mtls.CAFile)) {
		t.Fatalf("no CA in %s", dir)
	}
	if shown {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, mtls.CertFile), filepath.Join(dir, mtls.KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// rogue is a side that is not of this package, and shows whatever is in dir; as a server it lets everybody in.
func rogue(t testing.TB, dir string, server bool) side {
	t.Helper()
	cfg := browser(t, dir, true)
	cfg.ClientAuth = tls.RequireAnyClientCert
	return func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		c := tls.Client(raw, cfg)
		if server {
			c = tls.Server(raw, cfg)
		}
		return c, principal.Principal{}, c.HandshakeContext(ctx)
	}
}

// Each side knows the other; without certificates nobody knows anybody.
func TestBothSidesAreKnown(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	s := open(t, a.issue(t, principal.Root, "1", day), mtls.Options{})
	c := open(t, a.issue(t, principal.Coordinator, "c1", day), mtls.Options{})
	accepted, dialled := shake(t, s.ServerConn, dialer(c, principal.Coordinator, principal.Root))
	if accepted.err != nil || dialled.err != nil || accepted.who != c.Principal() || dialled.who != s.Principal() {
		t.Errorf("%v, %v; %v, %v", accepted.who, accepted.err, dialled.who, dialled.err)
	}
	var none *mtls.Source
	accepted, dialled = shake(t, none.ServerConn, dialer(none, principal.Root))
	if accepted.err != nil || dialled.err != nil || accepted.who.Known() || dialled.who.Known() {
		t.Errorf("plain: %v, %v; %v, %v", accepted.who, accepted.err, dialled.who, dialled.err)
	}
}

// Whoever does not belong is refused, and hears why in one sentence.
func TestRefused(t *testing.T) {
	now := time.Now()
	a, stranger, other := newAuthority(t, "prod", now), newAuthority(t, "prod", now), newAuthority(t, "test", now)
	source := func(dir string, ahead time.Duration) *mtls.Source {
		c := new(clock)
		s := open(t, dir, c.o())
		c.add(ahead)
		return s
	}
	root, member := source(a.issue(t, principal.Root, "1", 90*day), 0), source(a.issue(t, principal.Member, "m1", 90*day), 0)
	rootDir, memberDir := root.Dir(), member.Dir()
	asked := func(s *mtls.Source) side { return dialer(s, principal.Root) }
	believing := func(x *authority, role principal.Role, name string) *mtls.Source { // a as well
		dir := x.issue(t, role, name, 90*day)
		write(t, dir, mtls.CAFile, append(read(t, x.dir, mtls.CAFile), read(t, a.dir, mtls.CAFile)...))
		return source(dir, 0)
	}
	forged := func(names ...string) string {
		return a.forge(t, func(c *x509.Certificate) {
			c.ExtKeyUsage, c.URIs = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, nil
			for _, s := range names {
				c.URIs = append(c.URIs, uri(t, s))
			}
		})
	}
	unborn := a.forge(t, func(c *x509.Certificate) {
		c.NotBefore, c.ExtKeyUsage = now.Add(time.Hour), []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	})
	const lateness = 91 * day
	old, livelyDir := a.issue(t, principal.Root, "1", day), a.issue(t, principal.Member, "m1", 2*lateness)
	for name, o := range map[string]struct {
		server, client         side
		serverSays, clientSays string // behind the other's address
	}{
		"wrong role": {
			member.ServerConn, asked(member),
			"did not take our certificate of member/m1 in " + memberDir, "has a certificate of member/m1, want a root",
		},
		"one of two roles": {
			member.ServerConn, dialer(member, principal.Root, principal.Coordinator),
			"did not take our certificate of member/m1 in " + memberDir, "has a certificate of member/m1, want a root or a coordinator",
		},
		"another's name": {
			member.ServerConn, meaning(root, mtls.Peer{Role: principal.Member, Name: "m2"}, mtls.Peer{Role: principal.Coordinator}),
			"did not take our certificate of member/m1 in " + memberDir, "has a certificate of member/m1, want member/m2 or a coordinator",
		},
		"the name in another role": {
			member.ServerConn, meaning(root, mtls.Peer{Role: principal.Root, Name: "m1"}),
			"did not take our certificate of member/m1 in " + memberDir, "has a certificate of member/m1, want root/m1",
		},
		"no role is nobody": {member.ServerConn, dialer(member), "did not take our certificate", "has a certificate of member/m1, want nobody"},
		"server of another cluster": {
			rogue(t, forged("nokv://test/root/1"), true), asked(member),
			"", "has a certificate of cluster test (root/1), want one of cluster prod",
		},
		"client of another cluster": {
			root.ServerConn, rogue(t, forged("nokv://test/member/m1"), false),
			"has a certificate of cluster test (member/m1), want one of cluster prod", "",
		},
		"client of another cluster's CA": {
			root.ServerConn, asked(believing(other, principal.Member, "m1")),
			"", "has a certificate of cluster prod (root/1), want one of cluster test",
		},
		"server without a name":   {rogue(t, forged(), true), asked(member), "", "has 0 names nokv://CLUSTER/ROLE/NAME, want 1"},
		"client without a name":   {root.ServerConn, rogue(t, forged(), false), "has 0 names nokv://CLUSTER/ROLE/NAME, want 1", ""},
		"server with two names":   {rogue(t, forged("nokv://prod/root/1", "nokv://prod/root/2"), true), asked(member), "", "has 2 names"},
		"client with two names":   {root.ServerConn, rogue(t, forged("nokv://prod/root/1", "nokv://prod/member/2"), false), "has 2 names", ""},
		"client without any":      {root.ServerConn, rogueWithout(t, rootDir), "shows no certificate: it needs one of cluster prod to call", "certificate required"},
		"server that only dials":  {rogue(t, a.issue(t, principal.Operator, "o", day), true), asked(member), "", "has a certificate (nokv://prod/operator/o) that is not made for this use"},
		"server not yet valid":    {rogue(t, unborn, true), asked(member), "", "that is valid only from "},
		"client not yet valid":    {root.ServerConn, rogue(t, unborn, false), "that is valid only from ", ""},
		"server ended":            {source(old, 0).ServerConn, asked(source(memberDir, 2*day)), "did not take our certificate of root/1", "has a certificate (nokv://prod/root/1) that ended at "},
		"client ended":            {source(rootDir, 2*day).ServerConn, asked(source(old, 0)), "has a certificate (nokv://prod/root/1) that ended at ", "refused our certificate of root/1 in " + old + ": it is not valid by the clock there: nokv cert show " + old},
		"own ended, listening":    {source(rootDir, lateness).ServerConn, asked(source(livelyDir, lateness)), "our own certificate of root/1 in " + rootDir + " ended at ", "has a certificate (nokv://prod/root/1) that ended at "},
		"own ended, caller slow":  {source(rootDir, lateness).ServerConn, asked(member), "our own certificate of root/1 in " + rootDir + " ended at ", ""},
		"own ended, dialling":     {root.ServerConn, asked(source(memberDir, lateness)), "", "our own certificate of member/m1 in " + memberDir + " ended at "},
		"server of an unknown CA": {believing(stranger, principal.Root, "1").ServerConn, asked(member), "did not take our certificate of root/1", "has a certificate (nokv://prod/root/1) that is not signed by a CA that is in " + memberDir + "/ca.crt"},
		"client of an unknown CA": {
			root.ServerConn, asked(believing(stranger, principal.Member, "m1")),
			"has a certificate (nokv://prod/member/m1) that is not signed by a CA that is in " + rootDir + "/ca.crt", "refused our certificate of member/m1 in ",
		},
		"server in plain text":  {talker("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"), asked(member), "", "does not speak TLS: start it with certificates, or leave ours away"},
		"client in plain text":  {root.ServerConn, talker("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "does not speak TLS: it needs a certificate to call", ""},
		"garbage from a client": {root.ServerConn, talker(strings.Repeat("\xff", 1<<20)), "does not speak TLS", ""},
		"another protocol":      {root.ServerConn, speaking(t, member, "h2"), "", "no application protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			accepted, dialled := shake(t, o.server, o.client)
			for _, x := range []struct {
				who  string
				err  error
				says string
			}{{"server", accepted.err, o.serverSays}, {"client", dialled.err, o.clientSays}} {
				switch {
				case x.says == "":
				case x.err == nil || !strings.Contains(x.err.Error(), x.says) || strings.Contains(x.err.Error(), "\n"):
					t.Errorf("the %s says %v, want %q", x.who, x.err, x.says)
				case x.says == "certificate required" || x.says == "no application protocol":
				default:
					if r, ok := mtls.RefusalOf(x.err); !ok || (!strings.HasPrefix(r.Sentence, "127.0.0.1:") && !strings.HasPrefix(r.Sentence, "our own ")) {
						t.Errorf("the %s says no refusal that begins with whose: %v", x.who, x.err)
					}
				}
			}
		})
	}
}

// rogueWithout shows nothing.
func rogueWithout(t testing.TB, dir string) side {
	cfg := browser(t, dir, false)
	return func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		c := tls.Client(raw, cfg)
		return c, principal.Principal{}, c.HandshakeContext(ctx)
	}
}

// speaking offers another protocol than a bare connection's.
func speaking(t *testing.T, s *mtls.Source, protocol string) side {
	cfg := browser(t, s.Dir(), true)
	cfg.NextProtos = []string{protocol}
	return func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		c := tls.Client(raw, cfg)
		return c, principal.Principal{}, c.HandshakeContext(ctx)
	}
}

// talker says something in plain text, and hears what comes.
func talker(says string) side {
	return func(_ context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		_, err := io.WriteString(raw, says)
		if tcp, ok := raw.(*net.TCPConn); ok && err == nil {
			err = tcp.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, raw)
		return raw, principal.Principal{}, err
	}
}

// Refusals are counted, and logged now and then; a caller that goes away is none.
func TestRefusalsAreCounted(t *testing.T) {
	c, log := new(clock), new(written.Text)
	a := newAuthority(t, "prod", c.now())
	s := open(t, a.issue(t, principal.Root, "1", day), mtls.Options{Logger: log.Logger(hclog.Info), Now: c.now})
	for _, o := range []struct {
		client side
		later  time.Duration
		logged string
	}{
		{talker(""), 0, ""},
		{talker("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, "does not speak TLS"},
		{rogueWithout(t, s.Dir()), 9 * time.Second, ""},
		{rogueWithout(t, s.Dir()), 2 * time.Second, "shows no certificate: it needs one of cluster prod to call\" refused=3"},
	} {
		c.add(o.later)
		shake(t, s.ServerConn, o.client)
		if said := log.Take(); (said != "") != (o.logged != "") || !strings.Contains(said, o.logged) {
			t.Errorf("want %q, got %s", o.logged, said)
		}
	}
	if s.Refusals() != 3 {
		t.Errorf("%d refusals, want 3", s.Refusals())
	}
}

// Certificates of another authority work, with others between; the first that ends
// counts, on the way that lasts longest.
func TestForeignAuthority(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	top := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "top"}, IsCA: true, NotAfter: now.Add(9 * day)}, nil)
	between := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "between"}, IsCA: true, NotAfter: now.Add(2 * day)}, top)
	// The same authority with the certificate that it had before.
	before := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "top"}, IsCA: true, NotAfter: now.Add(day), PublicKey: &top.key.PublicKey}, top)
	leaf := func(name string) *mtls.Source {
		return open(t, leafOf(t, between, now.Add(3*day), name, slices.Concat(before.pem(), top.pem())), mtls.Options{})
	}
	s, c := leaf("nokv://prod/root/1"), leaf("nokv://prod/client/c")
	accepted, dialled := shake(t, s.ServerConn, dialer(c, principal.Root))
	if accepted.err != nil || dialled.err != nil || accepted.who.Actor() != "client/c" {
		t.Errorf("%v, %v; %v", accepted.who, accepted.err, dialled.err)
	}
	if !s.Expires().Equal(now.Add(2 * day)) {
		t.Errorf("ends %v", s.Expires())
	}
}

type foreigner struct {
	*x509.Certificate
	key *rsa.PrivateKey
}

func (f *foreigner) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Raw})
}

// leafOf makes a folder of a certificate that a foreigner signs.
func leafOf(t *testing.T, by *foreigner, end time.Time, name string, cas []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	x := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "x"}, NotAfter: end, DNSNames: []string{"localhost"}, URIs: []*url.URL{uri(t, name)}}, by)
	key, err := x509.MarshalPKCS8PrivateKey(x.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, mtls.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	write(t, dir, mtls.CertFile, slices.Concat([]byte("x of foreign\n"), x.pem(), by.pem()))
	write(t, dir, mtls.CAFile, cas)
	return dir
}

// foreign signs a certificate as another authority may: RSA, no usages.
func foreign(t *testing.T, template *x509.Certificate, by *foreigner) *foreigner {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.BasicConstraintsValid, template.NotBefore = big.NewInt(1), true, time.Now().Add(-day)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.Certificate, by.key
	}
	if template.PublicKey == nil {
		template.PublicKey = &key.PublicKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, template.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &foreigner{c, key}
}

// A handshake ends with its context, and is then no refusal: trying again may do.
func TestSilence(t *testing.T) {
	a := newAuthority(t, "prod", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	dir := a.issue(t, principal.Root, "1", day)
	synctest.Test(t, func(t *testing.T) {
		s := open(t, dir, mtls.Options{})
		for name, one := range map[string]side{"listening": s.ServerConn, "dialling": dialer(s, principal.Root)} {
			silent, raw := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, silent) }()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			begun := time.Now()
			_, _, err := one(ctx, raw)
			if _, refused := mtls.RefusalOf(err); !errors.Is(err, context.DeadlineExceeded) || refused || time.Since(begun) != 3*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(begun))
			}
			if _, err := raw.Write([]byte{1}); err == nil {
				t.Errorf("%s: the connection is open", name)
			}
			cancel()
			_ = silent.Close()
		}
		gone, raw := net.Pipe()
		_ = gone.Close()
		if _, _, err := s.ClientConn(t.Context(), raw, mtls.Peer{Role: principal.Root}); err == nil {
			t.Error("a connection that was closed is open")
		} else if _, refused := mtls.RefusalOf(err); refused {
			t.Errorf("a connection that was closed is a refusal: %v", err)
		}
	})
}

// Whoever is refused hears it before the connection is closed, also while it speaks.
func TestRefusedIsHeardOut(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	a, stranger := newAuthority(t, "prod", now), newAuthority(t, "prod", now)
	server, client := a.issue(t, principal.Root, "1", day), stranger.issue(t, principal.Member, "m1", day)
	write(t, client, mtls.CAFile, append(read(t, stranger.dir, mtls.CAFile), read(t, a.dir, mtls.CAFile)...))
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t, server, mtls.Options{}), open(t, client, mtls.Options{})
		here, there := net.Pipe()
		go func() { _, _, _ = s.ServerConn(t.Context(), there) }()
		dialled, _, err := c.ClientConn(t.Context(), here, mtls.Peer{Role: principal.Root})
		if err != nil {
			t.Fatal(err)
		}
		_, err = dialled.Read(make([]byte, 1))
		if _, refused := mtls.RefusalOf(err); !refused {
			t.Errorf("reading: %v", err)
		}
		if _, err := dialled.Write([]byte("hello")); err != nil {
			t.Errorf("writing: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := dialled.Write([]byte("hello")); err == nil {
			t.Error("the connection is open")
		}
		_ = dialled.Close()
	})
}

// sessions counts those that can be resumed.
type sessions int

func (*sessions) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (n *sessions) Put(string, *tls.ClientSessionState)      { *n++ }

// lone is the listener of one connection.
type lone struct{ net.Conn }

func (l lone) Accept() (net.Conn, error) { return l.Conn, nil }
func (l lone) Addr() net.Addr            { return l.LocalAddr() }

// Nothing before TLS 1.3 is spoken, and no session is resumed, on any listener.
func TestNothingOld(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	s := open(t, a.issue(t, principal.Root, "1", day), mtls.Options{})
	http := func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
		c, err := s.HTTP(lone{raw}).Accept()
		if err != nil {
			return nil, principal.Principal{}, err
		}
		return c, principal.Principal{}, c.(*tls.Conn).HandshakeContext(ctx)
	}
	for name, server := range map[string]side{"bare": s.ServerConn, "HTTP": http} {
		var kept sessions
		shake(t, server, func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
			cfg := browser(t, s.Dir(), true)
			cfg.ClientSessionCache = &kept
			c := tls.Client(raw, cfg)
			err := c.HandshakeContext(ctx)
			if err != nil || c.ConnectionState().Version != tls.VersionTLS13 {
				t.Errorf("%s: %v, version %x", name, err, c.ConnectionState().Version)
			}
			return c, principal.Principal{}, err
		})
		if kept > 0 {
			t.Errorf("%s: %d sessions can be resumed", name, kept)
		}
		_, dialled := shake(t, server, func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
			cfg := browser(t, s.Dir(), true)
			cfg.MaxVersion = tls.VersionTLS12
			c := tls.Client(raw, cfg)
			return c, principal.Principal{}, c.HandshakeContext(ctx)
		})
		if dialled.err == nil {
			t.Errorf("%s: TLS 1.2 is spoken", name)
		}
	}
}

// Everything is replaced, the authority too, while connections are made: none
// fails, and afterwards each side has what is new.
func TestRotationUnderLoad(t *testing.T) {
	c := new(clock)
	a := newAuthority(t, "prod", c.now())
	server, client := a.issue(t, principal.Root, "1", 30*day), a.issue(t, principal.Member, "m1", 30*day)
	s, d := open(t, server, c.o()), open(t, client, c.o())
	first := a.Believed[0]
	stop := make(chan struct{})
	var made [4]chan struct{}
	var load sync.WaitGroup
	for i := range made {
		made[i] = make(chan struct{})
		load.Go(func() {
			for {
				accepted, dialled := shake(t, s.ServerConn, dialer(d, principal.Root))
				if accepted.err != nil || dialled.err != nil {
					t.Errorf("%v; %v", accepted.err, dialled.err)
				}
				select {
				case <-stop:
					return
				case made[i] <- struct{}{}:
				}
			}
		})
	}
	// settle waits until connections were made with what is in the folders: of each
	// caller one that began since, as one of them may still be reading the folder.
	settle := func() {
		c.add(2 * time.Second)
		s.Principal()
		d.Principal()
		for _, one := range made {
			<-one
			<-one
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	renew := func(x *ca.Authority) {
		for _, dir := range []string{server, client} {
			_, err := x.Renew(dir, c.now(), 0)
			check(err)
			settle()
		}
	}
	believe := func(x *ca.Authority) {
		check(x.Save(a.dir))
		for _, dir := range []string{server, client} {
			raw := read(t, a.dir, mtls.CAFile)
			write(t, dir, mtls.CAFile, raw[:len(raw)-100]) // copied in place
			settle()
			write(t, dir, mtls.CAFile, raw)
			settle()
		}
	}
	settle()
	renew(a.Authority)
	c.add(day)
	next, err := a.Next(c.now(), 10*365*day)
	check(err)
	believe(next)
	renew(next)
	believe(next.Alone())
	close(stop)
	load.Wait()
	if certs, err := mtls.Certificates(read(t, server, mtls.CAFile)); err != nil || len(certs) != 1 || certs[0].Equal(first) {
		t.Errorf("the authority of before is still believed: %v", err)
	}
	if old, err := mtls.Open(server, c.o()); err != nil || !old.Expires().Equal(s.Expires()) {
		t.Errorf("the certificates in use are not those in the folder: %v", err)
	}
}

// Handshakes a second, both sides in this process.
func BenchmarkHandshake(b *testing.B) {
	a := newAuthority(b, "prod", time.Now())
	s := open(b, a.issue(b, principal.Root, "1", day), mtls.Options{})
	d := open(b, a.issue(b, principal.Member, "m1", day), mtls.Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if accepted, dialled := shake(b, s.ServerConn, dialer(d, principal.Root)); accepted.err != nil || dialled.err != nil {
				b.Error(accepted.err, dialled.err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
}
