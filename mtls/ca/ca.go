// Package ca makes the certificates of a cluster: an authority of its own, and
// what it signs.
//
// An authority is a folder with ca.crt, the certificates to believe with the one
// that signs first, and ca.key, the key of that one. What it issues is a folder
// for package mtls. Keys are for their owner alone to read.
//
// Files are replaced by renaming, the key last but one and the certificate last:
// a crash leaves a pair that does not match at worst, which processes that run do
// not take over, and Renew mends.
package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// KeyFile is the authority's key in its folder; its certificates are in
// mtls.CAFile.
const KeyFile = "ca.key"

// Lives of certificates unless told otherwise.
const (
	DefaultAuthorityLife = 10 * 365 * 24 * time.Hour
	DefaultLife          = 90 * 24 * time.Hour
)

// skew is by how much clocks may be behind and still find a certificate valid
// that was just made.
const skew = 5 * time.Minute

// Authority signs certificates of one cluster. Nobody writes it again.
type Authority struct {
	// Cluster is what its certificates are of.
	Cluster string
	// Believed are the authorities to believe while one takes over from another:
	// its own certificate first.
	Believed []*x509.Certificate
	key      *ecdsa.PrivateKey
}

// New makes an authority that is valid from now on.
func New(cluster string, now time.Time, life time.Duration) (*Authority, error) {
	if err := principal.CheckName(cluster); err != nil {
		return nil, fmt.Errorf("cluster %w", err)
	}
	key, serial, err := draw()
	if err != nil {
		return nil, err
	}
	cert, err := sign(&x509.Certificate{
		SerialNumber: serial,
		// The name has the moment in it, so that one is told from the next.
		Subject:               pkix.Name{Organization: []string{cluster}, CommonName: organ + now.UTC().Format(time.RFC3339)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil, key, key)
	if err != nil {
		return nil, err
	}
	return &Authority{Cluster: cluster, Believed: []*x509.Certificate{cert}, key: key}, nil
}

// organ begins the name of an authority.
const organ = "NoKV authority of "

// Load reads an authority's folder.
func Load(dir string) (*Authority, error) {
	certFile, keyFile := filepath.Join(dir, mtls.CAFile), filepath.Join(dir, KeyFile)
	believed, err := mtls.ReadCertificates(certFile)
	if err != nil {
		return nil, fmt.Errorf("%w; nokv cert init makes an authority", err)
	}
	rawKey, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("%w; certificates are made where the authority's key is", err)
	}
	if err := mtls.Exposed(keyFile); err != nil {
		return nil, err
	}
	key, err := parseKey(rawKey)
	if err != nil {
		return nil, fmt.Errorf("%s %w", keyFile, err)
	}
	own := believed[0]
	if !key.PublicKey.Equal(own.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of the first certificate in %s", keyFile, certFile)
	}
	if !own.IsCA || len(own.Subject.Organization) != 1 || principal.CheckName(own.Subject.Organization[0]) != nil {
		return nil, fmt.Errorf("%s was not made by nokv cert init: its subject %q has no cluster as its organization", certFile, own.Subject)
	}
	return &Authority{Cluster: own.Subject.Organization[0], Believed: believed, key: key}, nil
}

// Next is an authority that takes over: those of before are believed on, as far as
// they are valid.
func (a *Authority) Next(now time.Time, life time.Duration) (*Authority, error) {
	n, err := New(a.Cluster, now, life)
	if err != nil {
		return nil, err
	}
	for _, c := range a.Believed {
		if now.Before(c.NotAfter) {
			n.Believed = append(n.Believed, c)
		}
	}
	return n, nil
}

// Alone is the authority without those of before.
func (a *Authority) Alone() *Authority {
	return &Authority{Cluster: a.Cluster, Believed: a.Believed[:1], key: a.key}
}

// Save writes the authority's folder.
func (a *Authority) Save(dir string) error {
	key, err := pemKey(a.key)
	if err != nil {
		return err
	}
	return save(dir, []file{{KeyFile, key, 0o600}, {mtls.CAFile, pemCerts(a.Believed...), 0o644}})
}

// Request is what a certificate is to say.
type Request struct {
	Role principal.Role
	// Name of the principal; a root peer's is its node id.
	Name string
	// Hosts are names and addresses by which others' programs reach it, as curl and browsers
	// do; localhost is always among those of a process that listens. Processes of the cluster
	// look at the principal alone.
	Hosts []string
	// Life is how long it is valid, though not longer than the authority; default
	// DefaultLife.
	Life time.Duration
}

// MaxHosts bounds the hosts of a certificate.
const MaxHosts = 64

// Pair is a certificate with its key and whom its owner is to believe.
type Pair struct {
	Cert     *x509.Certificate
	Believed []*x509.Certificate
	key      *ecdsa.PrivateKey
}

// Issue makes a certificate that is valid from now on.
func (a *Authority) Issue(r Request, now time.Time) (*Pair, error) {
	who, err := principal.New(a.Cluster, r.Role, r.Name)
	if err != nil {
		return nil, err
	}
	names, ips, err := hosts(r)
	if err != nil {
		return nil, err
	}
	own := a.Believed[0]
	if !now.Before(own.NotAfter) {
		return nil, fmt.Errorf("the authority ended at %s: nokv cert init --again makes the next", own.NotAfter.Format(time.RFC3339))
	}
	if r.Life == 0 {
		r.Life = DefaultLife
	}
	end := now.Add(r.Life)
	if own.NotAfter.Before(end) {
		end = own.NotAfter
	}
	key, serial, err := draw()
	if err != nil {
		return nil, err
	}
	uses := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if Listens(r.Role) {
		uses = append(uses, x509.ExtKeyUsageServerAuth)
	}
	cert, err := sign(&x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{a.Cluster}, CommonName: who.Actor()},
		NotBefore:             now.Add(-skew),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           uses,
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{who.URI()},
		DNSNames:              names,
		IPAddresses:           ips,
	}, own, key, a.key)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: cert, Believed: a.Believed, key: key}, nil
}

// Check says what is wrong with the hosts.
func (r Request) Check() error {
	_, _, err := hosts(r)
	return err
}

// Listens says whether principals of a role are dialled.
func Listens(r principal.Role) bool {
	return r == principal.Root || r == principal.Coordinator || r == principal.Member || r == principal.Proxy
}

func hosts(r Request) (names []string, ips []net.IP, err error) {
	all := r.Hosts
	switch {
	case Listens(r.Role):
		all = append([]string{"localhost", "127.0.0.1", "::1"}, all...)
	case len(all) > 0:
		return nil, nil, fmt.Errorf("a %s does not listen: it has no hosts", r.Role)
	}
	if len(all) > MaxHosts {
		return nil, nil, fmt.Errorf("%d hosts, want at most %d", len(all), MaxHosts)
	}
	for i, h := range all {
		ip := net.ParseIP(h)
		switch {
		case slices.Contains(all[:i], h):
		case ip != nil:
			ips = append(ips, ip)
		case validHost(h):
			names = append(names, h)
		default:
			return nil, nil, fmt.Errorf("host %q: want a name or an address, without a port", h)
		}
	}
	return names, ips, nil
}

func validHost(h string) bool {
	return len(h) <= 253 && strings.Trim(h, ".") != "" && !strings.ContainsFunc(strings.TrimPrefix(h, "*."), func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", c)
	})
}

// RequestOf is the request that a certificate answers: the same name, hosts and
// life.
func RequestOf(c *x509.Certificate) (cluster string, r Request, err error) {
	who, err := principal.Of(c)
	if err != nil {
		return "", Request{}, err
	}
	r = Request{Role: who.Role, Name: who.Name, Life: c.NotAfter.Sub(c.NotBefore) - skew}
	if r.Life <= 0 {
		r.Life = DefaultLife
	}
	if Listens(who.Role) {
		r.Hosts = Hosts(c)
	}
	return who.Cluster, r, nil
}

// Hosts are the names and addresses in a certificate.
func Hosts(c *x509.Certificate) []string {
	all := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	return all
}

// Save writes a folder for package mtls: whom to believe first, then the key, then
// its certificate.
func (p *Pair) Save(dir string) error {
	key, err := pemKey(p.key)
	if err != nil {
		return err
	}
	return save(dir, []file{
		{mtls.CAFile, pemCerts(p.Believed...), 0o644}, {mtls.KeyFile, key, 0o600}, {mtls.CertFile, pemCerts(p.Cert), 0o644},
	})
}

// Renew issues again what the certificate in dir says, with a new key, and
// replaces it. A life of 0 is that of before.
func (a *Authority) Renew(dir string, now time.Time, life time.Duration) (*Pair, error) {
	name := filepath.Join(dir, mtls.CertFile)
	chain, err := mtls.ReadCertificates(name)
	if err != nil {
		return nil, fmt.Errorf("%w; nokv cert issue makes one", err)
	}
	cluster, r, err := RequestOf(chain[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if cluster != a.Cluster {
		return nil, fmt.Errorf("%s is of cluster %s, and the authority of %s", name, cluster, a.Cluster)
	}
	if life > 0 {
		r.Life = life
	}
	p, err := a.Issue(r, now)
	if err != nil {
		return nil, err
	}
	return p, p.Save(dir)
}

// draw makes a key and a serial number.
func draw() (*ecdsa.PrivateKey, *big.Int, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[0] &= 0x7f
	return key, new(big.Int).SetBytes(raw), nil
}

// sign makes a certificate; without a parent it is its own.
func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func pemCerts(certs ...*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // to memory
	}
	return out.Bytes()
}

func pemKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(raw []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("has no private key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("has a key that cannot be read (%w)", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("has a %T, want an ECDSA key: it was not made by nokv cert init", key)
	}
	return ec, nil
}
