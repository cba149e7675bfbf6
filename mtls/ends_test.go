package mtls_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// pipe is a connection between two sides in virtual time.
func pipe(t *testing.T, server, client side) (accepted, dialled net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		accepted, _, _ = server(t.Context(), there)
	}()
	dialled, _, err := client(t.Context(), here)
	<-done
	if err != nil || accepted == nil {
		t.Fatal(err)
	}
	return accepted, dialled
}

// A connection ends with the certificate that ends first, of either side, at most
// a minute or a twentieth of its life before, and each side sees to it.
func TestConnectionsEnd(t *testing.T) {
	a := newAuthority(t, "prod", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	dirs := map[time.Duration]string{}
	for _, life := range []time.Duration{10 * time.Minute, 2 * day, 9 * day} {
		dirs[life] = a.issue(t, principal.Root, "1", life)
	}
	serving := func(t *testing.T, life time.Duration) side { return open(t, dirs[life], mtls.Options{}).ServerConn }
	dialling := func(t *testing.T, life time.Duration) side {
		return dialer(open(t, dirs[life], mtls.Options{}), principal.Root)
	}
	careless := func(server bool) func(*testing.T, time.Duration) side {
		return func(t *testing.T, life time.Duration) side { return rogue(t, dirs[life], server) }
	}
	for _, o := range []struct {
		server, client func(*testing.T, time.Duration) side
		s, c           time.Duration
		first, early   time.Duration
	}{
		{serving, dialling, 9 * day, 2 * day, 2 * day, time.Minute},
		{serving, careless(false), 10 * time.Minute, 9 * day, 10 * time.Minute, 30 * time.Second},
		{serving, careless(false), 9 * day, 10 * time.Minute, 10 * time.Minute, 30 * time.Second},
		{careless(true), dialling, 10 * time.Minute, 9 * day, 10 * time.Minute, 30 * time.Second},
		{careless(true), dialling, 9 * day, 10 * time.Minute, 10 * time.Minute, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			accepted, dialled := pipe(t, o.server(t, o.s), o.client(t, o.c))
			begun := time.Now()
			var ended sync.WaitGroup
			for _, c := range []net.Conn{accepted, dialled} {
				ended.Go(func() { _, _ = io.Copy(io.Discard, c) })
			}
			ended.Wait()
			if life := time.Since(begun); life > o.first || life < o.first-o.early {
				t.Errorf("certificates of %v and %v: the connection ended after %v", o.s, o.c, life)
			}
			_, _ = accepted.Close(), dialled.Close()
		})
	}
}

// A connection ends within a minute of the moment when the other side's CA is no
// longer believed, also when nobody else comes; each side sees to it. One whose
// certificate another CA that is believed has signed goes on.
func TestConnectionsEndWithTheirAuthority(t *testing.T) {
	const goesOn, watched = time.Hour, 10 * time.Minute
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	a := newAuthority(t, "prod", now)
	next, err := a.Next(now, 365*day)
	if err != nil {
		t.Fatal(err)
	}
	b := &authority{next, t.TempDir(), now} // believes both
	if err := b.Save(b.dir); err != nil {
		t.Fatal(err)
	}
	both := read(t, b.dir, mtls.CAFile)
	if err := next.Alone().Save(b.dir); err != nil {
		t.Fatal(err)
	}
	only := read(t, b.dir, mtls.CAFile)
	folder := func(by *authority) string {
		dir := by.issue(t, principal.Root, "1", 90*day)
		write(t, dir, mtls.CAFile, both)
		return dir
	}
	for name, o := range map[string]struct {
		of    *authority // the other side's
		after string     // in ca.crt
		ends  bool
	}{
		"of an authority that is gone": {a, string(only), true},
		"of the one that stays":        {b, string(only), false},
		"nothing changed":              {a, string(both), false},
		"both are believed on":         {a, string(only) + string(both), false},
		"a file that is damaged":       {a, string(only[:len(only)/2]), false},
	} {
		for _, listens := range []bool{true, false} {
			own, other := folder(b), folder(o.of)
			synctest.Test(t, func(t *testing.T) {
				log := new(written.Text)
				s := open(t, own, mtls.Options{Logger: log.Logger(hclog.Info)})
				var here, there net.Conn
				if listens {
					here, there = pipe(t, s.ServerConn, rogue(t, other, false))
				} else {
					there, here = pipe(t, rogue(t, other, true), dialer(s, principal.Root))
				}
				begun := time.Now()
				var ended sync.WaitGroup
				for _, c := range []net.Conn{here, there} {
					ended.Go(func() { _, _ = io.Copy(io.Discard, c) })
				}
				time.Sleep(goesOn)
				write(t, own, mtls.CAFile, []byte(o.after))
				time.AfterFunc(watched, func() { _, _ = here.Close(), there.Close() })
				ended.Wait()
				want := goesOn + watched
				if o.ends {
					want = goesOn + time.Minute
				}
				if life := time.Since(begun); life > want || o.ends != (life < goesOn+watched) {
					t.Errorf("%s, listening %v: ended after %v, want %v", name, listens, life, want)
				}
				if said := log.Take(); o.ends != strings.Contains(said, "is not signed by a CA that is in "+filepath.Join(own, mtls.CAFile)) {
					t.Errorf("%s, listening %v: the log says %s", name, listens, said)
				}
				_, _ = here.Close(), there.Close()
			})
		}
	}
}

// A connection ends with what is left of the ways to a CA that is believed.
func TestConnectionsEndWithTheWayThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		long := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "top"}, IsCA: true, NotAfter: begun.Add(9 * day)}, nil)
		short := foreign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "top"}, IsCA: true, NotAfter: begun.Add(day), PublicKey: &long.key.PublicKey}, long)
		folder := func(name string) string {
			return leafOf(t, long, begun.Add(3*day), name, slices.Concat(short.pem(), long.pem()))
		}
		own, other := folder("nokv://prod/root/1"), folder("nokv://prod/root/2")
		here, there := pipe(t, open(t, own, mtls.Options{}).ServerConn, rogue(t, other, false))
		go func() { _, _ = io.Copy(io.Discard, there) }()
		write(t, own, mtls.CAFile, short.pem())
		_, _ = io.Copy(io.Discard, here)
		if life := time.Since(begun); life > day || life < day-time.Minute {
			t.Errorf("ended after %v, want %v", life, day)
		}
		_, _ = here.Close(), there.Close()
	})
}

// A connection that was closed is forgotten at once: its timer does not keep it.
func TestClosedConnectionsAreForgotten(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	s := open(t, a.issue(t, principal.Root, "1", day), mtls.Options{})
	forgotten := make(chan struct{}, 2)
	watched := func(one side) side {
		return func(ctx context.Context, raw net.Conn) (net.Conn, principal.Principal, error) {
			c, who, err := one(ctx, raw)
			if err == nil {
				runtime.SetFinalizer(c, func(any) { forgotten <- struct{}{} })
			}
			return c, who, err
		}
	}
	shake(t, watched(s.ServerConn), watched(dialer(s, principal.Root)))
	late := time.After(proctest.Patience)
	for left := 2; left > 0; {
		runtime.GC() // finds one only when no stack has it any more
		select {
		case <-forgotten:
			left--
		case <-late:
			t.Fatalf("%d of 2 closed connections are not forgotten", left)
		default:
		}
	}
}

// A wall clock that is set forward ends connections within ten seconds.
func TestConnectionsEndByTheWallClock(t *testing.T) {
	a := newAuthority(t, "prod", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	dir := a.issue(t, principal.Root, "1", 30*day)
	synctest.Test(t, func(t *testing.T) {
		c := new(clock)
		accepted, dialled := pipe(t, open(t, dir, c.o()).ServerConn, dialer(open(t, dir, c.o()), principal.Root))
		begun := time.Now()
		c.add(40 * day)
		go func() { _, _ = io.Copy(io.Discard, accepted) }()
		_, _ = io.Copy(io.Discard, dialled)
		if d := time.Since(begun); d > 10*time.Second {
			t.Errorf("ended after %v", d)
		}
		_, _ = accepted.Close(), dialled.Close()
	})
}
