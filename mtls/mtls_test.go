package mtls_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// clock is a wall clock that is set by hand.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time      { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) add(d time.Duration) { c.ahead.Add(int64(d)) }
func (c *clock) o() mtls.Options     { return mtls.Options{Now: c.now} }
func at(t time.Time) mtls.Options    { return mtls.Options{Now: func() time.Time { return t }} }

// A folder that cannot be used is refused with the file and the way out.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	now := time.Now()
	a, other := newAuthority(t, "prod", now), newAuthority(t, "prod", now)
	issue := func() string { return a.issue(t, principal.Member, "m1", day) }
	for name, o := range map[string]struct {
		make func() string
		at   time.Time
		says string
	}{
		"no folder": {func() string { return filepath.Join(t.TempDir(), "x") }, now, "tls.crt: no such file or directory; a folder of certificates has tls.crt, tls.key and ca.crt: nokv cert issue makes one"},
		"no key":    {func() string { d := issue(); _ = os.Remove(filepath.Join(d, "tls.key")); return d }, now, "tls.key: no such file"},
		"swapped key": {func() string {
			d := issue()
			write(t, d, mtls.KeyFile, read(t, issue(), mtls.KeyFile))
			return d
		}, now, "tls.key is not the key of "},
		"half a bundle": {func() string {
			d := issue()
			raw := read(t, d, mtls.CAFile)
			write(t, d, mtls.CAFile, append(raw, raw[:len(raw)/2]...))
			return d
		}, now, "ca.crt has a certificate that is cut off or damaged"},
		"empty bundle": {func() string { d := issue(); write(t, d, mtls.CAFile, nil); return d }, now, "ca.crt has no certificate in PEM; put the certificates of the CAs to believe there"},
		"huge file":    {func() string { d := issue(); write(t, d, mtls.CAFile, make([]byte, 1<<20+1)); return d }, now, "ca.crt has more than 1048576 bytes"},
		"half a key":   {func() string { d := issue(); write(t, d, mtls.KeyFile, read(t, d, mtls.KeyFile)[:99]); return d }, now, "tls.key is not the key of "},
		"wrong CA": {func() string {
			d := issue()
			write(t, d, mtls.CAFile, read(t, other.dir, mtls.CAFile))
			return d
		}, now, "tls.crt is not signed by a CA that is in "},
		"ended":             {issue, now.Add(3*day + time.Hour), "2 days ago; nokv cert renew makes another"},
		"ended yesterday":   {issue, now.Add(2*day + time.Hour), ", 1 day ago; nokv cert renew makes another"},
		"ended today":       {issue, now.Add(day + 2*time.Hour), ", 2 hours ago; nokv cert renew makes another"},
		"ended a while ago": {issue, now.Add(day + 90*time.Second), ", 1 minute ago; nokv cert renew makes another"},
		"ended just now":    {issue, now.Add(day + 3*time.Second), ", 3 seconds ago; nokv cert renew makes another"},
		"not yet valid":     {issue, now.Add(-day), "tls.crt is valid only from "},
		"no name":           {func() string { return a.forge(t, func(c *x509.Certificate) { c.URIs = nil }) }, now, "has 0 names nokv://CLUSTER/ROLE/NAME, want 1"},
		"two names": {func() string {
			return a.forge(t, func(c *x509.Certificate) { c.URIs = append([]*url.URL{uri(t, "nokv://prod/root/1")}, c.URIs...) })
		}, now, "has 2 names"},
		"no use": {func() string {
			return a.forge(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} })
		}, now, "is not made for this use"},
	} {
		s, err := mtls.Open(o.make(), at(o.at))
		if err == nil || !strings.Contains(err.Error(), o.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v; want %q", name, s, err, o.says)
		}
	}
}

// An unusable file changes nothing but the log, which hears of each state once;
// files that can be used again are, the next second.
func TestFilesThatChange(t *testing.T) {
	c := new(clock)
	a := newAuthority(t, "prod", c.now())
	dir := a.issue(t, principal.Member, "m1", day)
	log := new(written.Text)
	s := open(t, dir, mtls.Options{Logger: log.Logger(hclog.Info), Now: c.now})
	first := s.Expires()
	good := map[string][]byte{}
	for _, name := range []string{mtls.CertFile, mtls.KeyFile, mtls.CAFile} {
		good[name] = read(t, dir, name)
	}
	for _, o := range []struct{ name, what string }{
		{mtls.CertFile, "gone"},
		{mtls.KeyFile, "gone"},
		{mtls.CAFile, "gone"},
		{mtls.CertFile, "half"},
		{mtls.KeyFile, "half"},
		{mtls.CAFile, "half"},
		{mtls.KeyFile, "swapped"},
	} {
		log.Take()
		switch o.what {
		case "gone":
			if err := os.Remove(filepath.Join(dir, o.name)); err != nil {
				t.Fatal(err)
			}
		case "half":
			write(t, dir, o.name, good[o.name][:len(good[o.name])/2])
		case "swapped":
			write(t, dir, o.name, read(t, a.issue(t, principal.Member, "m1", day), o.name))
		}
		for range 3 {
			c.add(time.Second)
			if got := s.Expires(); !got.Equal(first) {
				t.Fatalf("%s is %s: ends %v, want %v", o.name, o.what, got, first)
			}
		}
		if said := log.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "[WARN]") || !strings.Contains(said, o.name) {
			t.Errorf("%s is %s: want one warning, got\n%s", o.name, o.what, said)
		}
		write(t, dir, o.name, good[o.name])
		for range 3 {
			c.add(time.Second)
			s.Expires()
		}
		if said := log.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "[INFO]") {
			t.Errorf("%s is back: want one line, got\n%s", o.name, said)
		}
	}

	// Within a second nobody looks.
	a.issueTo(t, dir, principal.Member, "m1", 2*day)
	c.add(time.Second / 2)
	if got := s.Expires(); !got.Equal(first) {
		t.Errorf("the files were looked at twice in a second")
	}
	c.add(time.Second)
	second := s.Expires()
	if !second.After(first) {
		t.Errorf("a new certificate is not used: ends %v", second)
	}
	// A clock that was set back does not end the looking.
	a.issueTo(t, dir, principal.Member, "m1", 3*day)
	c.add(-time.Minute)
	if got := s.Expires(); !got.After(second) {
		t.Errorf("behind a clock that was set back it ends %v", got)
	}
}

// A key that every user of the machine can read or write is refused, and so is one that a renewal
// brings: the one of before stays in use.
func TestKeysThatOthersRead(t *testing.T) {
	c := new(clock)
	a := newAuthority(t, "prod", c.now())
	log := new(written.Text)
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o604: true, 0o602: true} {
		dir := a.issue(t, principal.Member, "m1", day)
		key := filepath.Join(dir, mtls.KeyFile)
		s := open(t, dir, mtls.Options{Logger: log.Logger(hclog.Info), Now: c.now})
		before := s.Expires()
		log.Take()
		a.issueTo(t, dir, principal.Member, "m1", 2*day)
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.add(time.Second)
			s.Expires()
		}
		if said := log.Take(); strings.Count(said, "chmod o= "+key) != map[bool]int{true: 1}[refused] || s.Expires().Equal(before) != refused {
			t.Errorf("mode %o, renewed: it ends %v and %v\n%s", mode, before, s.Expires(), said)
		}
		if _, err := mtls.Open(dir, mtls.Options{Now: c.now}); (err != nil) != refused || refused && !strings.Contains(err.Error(), "chmod o= "+key) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := mtls.Exposed(filepath.Join(t.TempDir(), "x")); err != nil {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Expires is the CA's end when that is earlier.
func TestExpires(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	a := newAuthority(t, "prod", now)
	for life, want := range map[time.Duration]time.Duration{day: day, 100 * 365 * day: 10 * 365 * day} {
		s := open(t, a.issue(t, principal.Member, "m1", life), at(now))
		if got := s.Expires().Sub(now); got != want {
			t.Errorf("a life of %v: ends in %v, want %v", life, got, want)
		}
	}
	var none *mtls.Source
	if !none.Expires().IsZero() || none.Principal().Known() || none.Dir() != "" || none.HTTP(nil) != nil || none.Caller(nil).Known() {
		t.Error("no certificates are somebody's")
	}
}

// Expiry is warned of daily without a handshake, of short certificates late, and
// renewal ends it.
func TestRunWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, "prod", time.Now().Add(-61*day))
		dir := a.issue(t, principal.Member, "m1", 92*day)
		log := new(written.Text)
		s := open(t, dir, mtls.Options{Logger: log.Logger(hclog.Info)})
		ctx, stop := context.WithCancel(t.Context())
		go s.Run(ctx)
		pass := func(d time.Duration, want int, says string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if said := log.Take(); strings.Count(said, "\n") != want || !strings.Contains(said, says) {
				t.Errorf("want %d lines with %q, got\n%s", want, says, said)
			}
		}
		renew := func(life time.Duration) {
			t.Helper()
			a.now = time.Now()
			a.issueTo(t, dir, principal.Member, "m1", life)
			pass(time.Minute, 1, "certificates read again")
		}
		pass(day-time.Hour, 0, "")
		pass(4*day, 4, "days=29")
		renew(90 * day)
		pass(4*day, 0, "")
		renew(day)
		pass(15*time.Hour, 0, "")
		pass(2*time.Hour, 1, "days=0")
		stop()
		synctest.Wait()
	})
}

func ExampleOpen() {
	_, err := mtls.Open("/nonexistent", mtls.Options{})
	fmt.Println(err)
	// Output: open /nonexistent/tls.crt: no such file or directory; a folder of certificates has tls.crt, tls.key and ca.crt: nokv cert issue makes one
}
