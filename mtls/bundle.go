package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nokv/nokv/mtls/principal"
)

// bundle is a folder's contents after all checks. Nobody writes it again.
type bundle struct {
	files   files
	dir     string
	pair    tls.Certificate
	cas     *x509.CertPool
	own     principal.Principal
	expires time.Time
	// warn is how long before its end that is warned of.
	warn time.Duration
	// revoked are the Source's.
	revoked *revocations
}

// warnBefore is how long before their end certificates are warned of; short ones
// in the last third of their life.
const warnBefore = 30 * 24 * time.Hour

// parse checks that files belong together and are valid now.
func (s *Source) parse(f files) (*bundle, error) {
	dir, now := s.dir, s.now()
	certFile, keyFile, caFile := filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile), filepath.Join(dir, CAFile)
	b := &bundle{files: f, dir: dir, cas: x509.NewCertPool(), revoked: &s.revoked}
	cas, err := Certificates(f.ca)
	if err != nil {
		return nil, fmt.Errorf("%s %w; put the certificates of the CAs to believe there", caFile, err)
	}
	for _, c := range cas {
		b.cas.AddCert(c)
	}
	chain, err := Certificates(f.cert)
	if err != nil {
		return nil, fmt.Errorf("%s %w; put the certificate there, or make one with nokv cert issue", certFile, err)
	}
	if b.own, err = principal.Of(chain[0]); err != nil {
		return nil, fmt.Errorf("%s: %w; nokv cert issue makes one", certFile, err)
	}
	if b.pair, err = tls.X509KeyPair(f.cert, f.key); err != nil {
		return nil, fmt.Errorf("%s is not the key of %s (%w); put a certificate there with its own key, or make both with nokv cert renew", keyFile, certFile, err)
	}
	chains, err := verify(chain, b.cas, now, uses(b.own.Role))
	if err != nil {
		return nil, fmt.Errorf("%s %w; nokv cert renew makes another", certFile, b.said(err, chain[0], now))
	}
	b.expires = ends(chains)
	b.warn = min(warnBefore, b.expires.Sub(chain[0].NotBefore)/3)
	return b, nil
}

// ReadCertificates are those of a file.
func ReadCertificates(name string) ([]*x509.Certificate, error) {
	raw, err := readFile(name)
	if err != nil {
		return nil, err
	}
	certs, err := Certificates(raw)
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return certs, nil
}

// Certificates are those of a PEM file, in their order: at least one.
func Certificates(raw []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	begun := strings.Count(string(raw), "-----BEGIN CERTIFICATE-----")
	for {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a certificate that cannot be read (%w)", err)
		}
		found = append(found, c)
	}
	switch {
	case begun == 0:
		return nil, errors.New("has no certificate in PEM")
	case begun != len(found):
		return nil, errors.New("has a certificate that is cut off or damaged")
	}
	return found, nil
}

// uses are what a role's own certificate has to be good for: everybody dials, and
// some listen.
func uses(r principal.Role) []x509.ExtKeyUsage {
	if r == principal.Root || r == principal.Coordinator || r == principal.Proxy {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// verify finds the ways from a certificate to a CA; it must be good for every use.
func verify(chain []*x509.Certificate, cas *x509.CertPool, now time.Time, uses []x509.ExtKeyUsage) (chains [][]*x509.Certificate, err error) {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	for _, use := range uses {
		chains, err = chain[0].Verify(x509.VerifyOptions{Roots: cas, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
		if err != nil {
			return nil, err
		}
	}
	return chains, nil
}

// ends is when the last of the chains ends.
func ends(chains [][]*x509.Certificate) (last time.Time) {
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// long is a time in its largest whole unit: days, hours, minutes or seconds.
func long(d time.Duration) string {
	n, unit := int(d/time.Second), "second"
	switch {
	case d >= 24*time.Hour:
		n, unit = Days(d), "day"
	case d >= time.Hour:
		n, unit = int(d/time.Hour), "hour"
	case d >= time.Minute:
		n, unit = int(d/time.Minute), "minute"
	}
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// unbelieved is what is wrong with the other side's certificate.
func (b *bundle) unbelieved(err error, c *x509.Certificate, now time.Time) error {
	return fmt.Errorf("has a certificate (%s) that %w", subject(c), b.said(err, c, now))
}

// said is what is wrong with a certificate, behind who has it.
func (b *bundle) said(err error, c *x509.Certificate, now time.Time) error {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("ended at %s, %s ago", c.NotAfter.Format(time.RFC3339), long(now.Sub(c.NotAfter)))
	case now.Before(c.NotBefore):
		return fmt.Errorf("is valid only from %s on, and the clock here says %s", c.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case unknown:
		return fmt.Errorf("is not signed by a CA that is in %s and valid (its issuer is %q): put its CA there, or take certificates of one cluster", filepath.Join(b.dir, CAFile), c.Issuer)
	case ok && invalid.Reason == x509.IncompatibleUsage:
		return errors.New("is not made for this use (its extended key usage lacks client or server authentication)")
	}
	return fmt.Errorf("cannot be verified (%w)", err)
}
