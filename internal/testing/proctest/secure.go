package proctest

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

// Certificates are an authority of a test and what it has issued, each in a folder
// of its own.
type Certificates struct {
	t   testing.TB
	dir string
	// Life is how long what is issued from now on is valid.
	Life time.Duration

	authority *ca.Authority
	issued    map[string]ca.Request
}

// NewCertificates makes the authority of a cluster.
func NewCertificates(t testing.TB, cluster string) *Certificates {
	t.Helper()
	authority, err := ca.New(cluster, time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	return &Certificates{t: t, dir: t.TempDir(), Life: ca.DefaultLife, authority: authority, issued: map[string]ca.Request{}}
}

// Of is the folder with the certificate of a principal, which is made when there is
// none yet.
func (c *Certificates) Of(role principal.Role, name string) string {
	c.t.Helper()
	dir := filepath.Join(c.dir, fmt.Sprintf("%s-%s", role, name))
	if _, ok := c.issued[dir]; !ok {
		c.issue(dir, ca.Request{Role: role, Name: name})
	}
	return dir
}

func (c *Certificates) issue(dir string, r ca.Request) {
	c.t.Helper()
	r.Life = c.Life
	pair, err := c.authority.Issue(r, time.Now())
	if err == nil {
		err = pair.Save(dir)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.issued[dir] = r
}

// Roots are whom others' programs are to believe, that look at host names.
func (c *Certificates) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, a := range c.authority.Believed {
		pool.AddCert(a)
	}
	return pool
}

// Renew replaces every certificate by another one with another key.
func (c *Certificates) Renew() {
	c.t.Helper()
	for dir, r := range c.issued {
		c.issue(dir, r)
	}
}

// Open reads the folder of a principal.
func (c *Certificates) Open(role principal.Role, name string) *mtls.Source {
	c.t.Helper()
	s, err := mtls.Open(c.Of(role, name), mtls.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// Secure gives every member a certificate, and the commands of Run that of an
// operator. It is called before anything is started.
func (c *Cluster) Secure() *Cluster {
	c.t.Helper()
	return c.SecureFor(ca.DefaultLife)
}

// SecureFor is Secure with certificates that are valid for so long.
func (c *Cluster) SecureFor(life time.Duration) *Cluster {
	c.t.Helper()
	c.Certs = NewCertificates(c.t, "test")
	c.Certs.Life = life
	c.env = append(c.env[:len(c.env):len(c.env)], "NOKV_CERTS="+c.Certs.Of(principal.Operator, "test"))
	c.certs = c.Certs.Open(principal.Operator, "test")
	c.CertsOf = func(member int) string {
		if member < procs.RootPeers {
			return c.Certs.Of(principal.Root, fmt.Sprint(member+1))
		}
		return c.Certs.Of(principal.Coordinator, fmt.Sprintf("c%d", member-procs.RootPeers+1))
	}
	return c
}

// TLS are the certificates of an operator; nil unless the cluster is secure.
func (c *Cluster) TLS() *mtls.Source { return c.certs }

// Vars reads what a member shows under "nokv" at /debug/vars.
func (c *Cluster) Vars(member int, to any) error {
	raw, err := c.get(member, "/debug/vars", Patience)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, &struct {
		NoKV any `json:"nokv"`
	}{to})
}

// ProcessVars reads what a member shows under "process" at /debug/vars.
func (c *Cluster) ProcessVars(member int, to any) error {
	raw, err := c.get(member, "/debug/vars", Patience)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, &struct {
		Process any `json:"process"`
	}{to})
}
