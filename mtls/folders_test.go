package mtls_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

const day = 24 * time.Hour

// authority is one of a cluster, with its folder.
type authority struct {
	*ca.Authority
	dir string
	now time.Time
}

func newAuthority(t testing.TB, cluster string, now time.Time) *authority {
	t.Helper()
	a, err := ca.New(cluster, now, 10*365*day)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	return &authority{a, dir, now}
}

// issue makes a folder of a new certificate.
func (a *authority) issue(t testing.TB, role principal.Role, name string, life time.Duration) string {
	t.Helper()
	dir := t.TempDir()
	a.issueTo(t, dir, role, name, life)
	return dir
}

func (a *authority) issueTo(t testing.TB, dir string, role principal.Role, name string, life time.Duration) {
	t.Helper()
	p, err := a.Issue(ca.Request{Role: role, Name: name, Life: life}, a.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Save(dir); err != nil {
		t.Fatal(err)
	}
}

// forge makes a folder of a certificate that no Issue would make.
func (a *authority) forge(t testing.TB, change func(*x509.Certificate)) string {
	t.Helper()
	dir := a.issue(t, principal.Member, "m1", day)
	block, _ := pem.Decode(read(t, a.dir, ca.KeyFile))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := mtls.Certificates(read(t, dir, mtls.CertFile))
	if err != nil {
		t.Fatal(err)
	}
	leaf := certs[0]
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: leaf.Subject, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		KeyUsage: leaf.KeyUsage, ExtKeyUsage: leaf.ExtKeyUsage, URIs: leaf.URIs, BasicConstraintsValid: true,
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.Believed[0], leaf.PublicKey, key.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, mtls.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return dir
}

func read(t testing.TB, dir, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t testing.TB, dir, name string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func uri(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func open(t testing.TB, dir string, o mtls.Options) *mtls.Source {
	t.Helper()
	s, err := mtls.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
