package ca

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

func made(t *testing.T, cluster string, now time.Time) *Authority {
	t.Helper()
	a, err := New(cluster, now, DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issued(t *testing.T, a *Authority, r Request, now time.Time) (dir string, p *Pair) {
	t.Helper()
	p, err := a.Issue(r, now)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := p.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir, p
}

// What is issued can be used, says what was asked, and is for its owner to read.
func TestIssue(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	a := made(t, "prod", now)
	for _, o := range []struct {
		r     Request
		hosts []string
		life  time.Duration
	}{
		{Request{Role: principal.Root, Name: "1", Hosts: []string{"10.1.2.3", "db.example", "localhost", "*.db.example"}}, []string{"localhost", "db.example", "*.db.example", "127.0.0.1", "::1", "10.1.2.3"}, DefaultLife},
		{Request{Role: principal.Member, Name: "m-1_2.x", Life: time.Hour}, []string{"localhost", "127.0.0.1", "::1"}, time.Hour},
		{Request{Role: principal.Proxy, Name: "web", Hosts: []string{"web.example"}}, []string{"localhost", "web.example", "127.0.0.1", "::1"}, DefaultLife},
		{Request{Role: principal.Operator, Name: "o", Life: 9 * DefaultAuthorityLife}, []string{}, DefaultAuthorityLife},
	} {
		dir, p := issued(t, a, o.r, now)
		s, err := mtls.Open(dir, mtls.Options{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		if want := (principal.Principal{Cluster: "prod", Role: o.r.Role, Name: o.r.Name}); s.Principal() != want || !s.Expires().Equal(now.Add(o.life)) || !p.Cert.NotAfter.Equal(s.Expires()) {
			t.Errorf("%v: %v until %v", o.r, s.Principal(), s.Expires())
		}
		if got := Hosts(p.Cert); !slices.Equal(got, o.hosts) {
			t.Errorf("%v: hosts %q, want %q", o.r, got, o.hosts)
		}
		server := slices.Contains(p.Cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		if server != Listens(o.r.Role) {
			t.Errorf("%v: for listening %v", o.r, server)
		}
		for name, mode := range map[string]os.FileMode{mtls.KeyFile: 0o600, mtls.CertFile: 0o644, mtls.CAFile: 0o644} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	}
	for says, r := range map[string]Request{
		"does not listen: it has no hosts":        {Role: principal.Client, Name: "x", Hosts: []string{"h"}},
		`host "db:80": want a name or an address`: {Role: principal.Root, Name: "1", Hosts: []string{"db:80"}},
		`host "": want a name`:                    {Role: principal.Root, Name: "1", Hosts: []string{""}},
		"68 hosts, want at most 64":               {Role: principal.Root, Name: "1", Hosts: make([]string, 65)},
		`name "a/b"`:                              {Role: principal.Root, Name: "a/b"},
		"none is no role of a principal":          {Name: "x"},
	} {
		if _, err := a.Issue(r, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", r, err, says)
		}
	}
	if _, err := a.Issue(Request{Role: principal.Client, Name: "x"}, now.Add(DefaultAuthorityLife)); err == nil || !strings.Contains(err.Error(), "nokv cert init --again") {
		t.Errorf("an authority that ended issues: %v", err)
	}
}

// A renewed certificate says the same with another key, and belongs to the same
// user.
func TestRenew(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	a := made(t, "prod", now)
	dir, before := issued(t, a, Request{Role: principal.Root, Name: "1", Hosts: []string{"10.1.2.3"}, Life: time.Hour}, now)
	keyFile := filepath.Join(dir, mtls.KeyFile)
	if err := os.Chmod(keyFile, 0o640); err != nil {
		t.Fatal(err)
	}
	given := os.Chown(keyFile, 1234, 567) == nil
	if !given {
		t.Log("SKIPPED: files cannot be given to another user here")
	}
	later := now.Add(30 * time.Minute)
	after, err := a.Renew(dir, later, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := mtls.Open(dir, mtls.Options{Now: func() time.Time { return later }}); err != nil || s.Principal().Actor() != "root/1" || !s.Expires().Equal(later.Add(time.Hour)) {
		t.Errorf("%v", err)
	}
	if !slices.Equal(Hosts(after.Cert), Hosts(before.Cert)) || before.key.Equal(after.key) {
		t.Errorf("hosts %q, the same key: %v", Hosts(after.Cert), before.key.Equal(after.key))
	}
	info, err := os.Stat(keyFile)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if owner := info.Sys().(*syscall.Stat_t); given && (owner.Uid != 1234 || owner.Gid != 567) {
		t.Errorf("the key belongs to %d:%d", owner.Uid, owner.Gid)
	}
	if _, err := made(t, "test", now).Renew(dir, now, 0); err == nil || !strings.Contains(err.Error(), "is of cluster prod, and the authority of test") {
		t.Errorf("another cluster's: %v", err)
	}
	if _, err := a.Renew(t.TempDir(), now, 0); err == nil || !strings.Contains(err.Error(), "nokv cert issue makes one") {
		t.Errorf("nothing there: %v", err)
	}
}

// An authority survives its folder, and the next is believed beside it until the
// old one is left away or has ended.
func TestAuthorities(t *testing.T) {
	now := time.Now()
	a, dir := made(t, "prod", now), t.TempDir()
	saved := func(a *Authority) *Authority {
		t.Helper()
		if err := a.Save(dir); err != nil {
			t.Fatal(err)
		}
		again, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if again.Cluster != "prod" || !again.key.Equal(a.key) || !slices.EqualFunc(again.Believed, a.Believed, (*x509.Certificate).Equal) {
			t.Errorf("%+v became %+v", a, again)
		}
		return again
	}
	next, err := saved(a).Next(now.Add(time.Second), DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	next = saved(next)
	if len(next.Believed) != 2 || !next.Believed[1].Equal(a.Believed[0]) || next.Believed[0].Equal(a.Believed[0]) {
		t.Errorf("believed: %d", len(next.Believed))
	}
	if alone := saved(next.Alone()); len(alone.Believed) != 1 || !alone.Believed[0].Equal(next.Believed[0]) {
		t.Errorf("believed: %d", len(alone.Believed))
	}
	if late, err := a.Next(now.Add(DefaultAuthorityLife), time.Hour); err != nil || len(late.Believed) != 1 {
		t.Errorf("an authority that ended is believed: %v", err)
	}

	write := func(name string, raw []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key, err := pemKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name string
		raw  []byte
		says string
	}{
		{KeyFile, key, "is not the key of the first certificate in"},
		{KeyFile, key[:99], "has no private key in PEM"},
		{KeyFile, bytes.Replace(key, key[40:60], bytes.Repeat([]byte("A"), 20), 1), "has a key that cannot be read"},
		{mtls.CAFile, nil, "has no certificate in PEM"},
	} {
		saved(next)
		write(o.name, o.raw)
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), o.says) {
			t.Errorf("%s: %v, want %q", o.name, err, o.says)
		}
	}
	saved(next)
	_, pair := issued(t, next, Request{Role: principal.Root, Name: "1"}, now)
	if err := (&Authority{Believed: []*x509.Certificate{pair.Cert}, key: pair.key}).Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "was not made by nokv cert init") {
		t.Errorf("a certificate is an authority: %v", err)
	}
}

// When one of the files cannot be written, all stay what they were, and nothing
// is left beside them.
func TestSaveIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	old := []file{{"a", []byte("old"), 0o644}, {"b", []byte("old"), 0o600}}
	if err := save(dir, old); err != nil {
		t.Fatal(err)
	}
	if err := save(dir, []file{{"a", []byte("new"), 0o644}, {"b", []byte("new"), 0o600}, {"no/c", nil, 0o600}}); err == nil {
		t.Fatal("a file in no folder was written")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	for _, f := range old {
		if raw, err := os.ReadFile(filepath.Join(dir, f.name)); err != nil || !bytes.Equal(raw, f.raw) {
			t.Errorf("%s: %q, %v", f.name, raw, err)
		}
	}
}
