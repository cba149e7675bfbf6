package mtls_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// A certificate that this process cannot work with, because it names another
// process, another role or another cluster, changes nothing when it is read again:
// what was read before stays.
func TestRereadKeepsWhoItIs(t *testing.T) {
	for name, swap := range map[string]func(t *testing.T, dir string, a *authority){
		"another role": func(t *testing.T, dir string, a *authority) { a.issueTo(t, dir, principal.Member, "m1", day) },
		"another name": func(t *testing.T, dir string, a *authority) { a.issueTo(t, dir, principal.Coordinator, "c2", day) },
		"another cluster": func(t *testing.T, dir string, a *authority) {
			newAuthority(t, "test", a.now).issueTo(t, dir, principal.Coordinator, "c1", day)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, clock := newAuthority(t, "prod", time.Now()), new(clock)
			dir := a.issue(t, principal.Coordinator, "c1", day)
			s, err := mtls.Open(dir, clock.o())
			if err != nil {
				t.Fatal(err)
			}
			before := s.Principal()
			caller, err := mtls.Open(a.issue(t, principal.Client, "app", day), clock.o())
			if err != nil {
				t.Fatal(err)
			}
			swap(t, dir, a)
			clock.add(2 * time.Second)
			if got := s.Principal(); got != before {
				t.Errorf("the process was %s of %s and is %s of %s now", before, before.Cluster, got, got.Cluster)
			}
			left, right := net.Pipe()
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			accepted := make(chan error, 1)
			go func() {
				_, _, err := s.ServerConn(ctx, right)
				accepted <- err
			}()
			if _, _, err := caller.ClientConn(ctx, left, mtls.Peer{Role: principal.Coordinator}); err != nil {
				t.Errorf("nobody reaches it any more: %v", err)
			}
			if err := <-accepted; err != nil {
				t.Errorf("it takes nobody any more: %v", err)
			}
			_ = left.Close()
			_ = right.Close()
		})
	}
}

// A folder is opened while it is renewed: what stands between two renames is waited for, and a renewal that was
// broken off there is told as what it left.
func TestOpenBetweenTwoRenames(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	for name, goesOn := range map[string]bool{"that goes on": true, "that was broken off": false} {
		t.Run(name, func(t *testing.T) {
			dir, next := a.issue(t, principal.Coordinator, "c1", day), a.issue(t, principal.Coordinator, "c1", day)
			beside := filepath.Join(dir, mtls.CertFile+".1"+mtls.BesideSuffix)
			for from, to := range map[string]string{mtls.KeyFile: filepath.Join(dir, mtls.KeyFile), mtls.CertFile: beside} {
				if err := os.Rename(filepath.Join(next, from), to); err != nil {
					t.Fatal(err)
				}
			}
			renewed := make(chan error, 1)
			go func() {
				time.Sleep(50 * time.Millisecond) // the reader has seen what there is by then, or is late: both are right
				if goesOn {
					renewed <- os.Rename(beside, filepath.Join(dir, mtls.CertFile))
					return
				}
				renewed <- nil
			}()
			_, err := mtls.Open(dir, mtls.Options{})
			if goesOn && err != nil || !goesOn && (err == nil || !strings.Contains(err.Error(), "tls.key is not the key of ")) {
				t.Errorf("it is opened with %v", err)
			}
			if err := <-renewed; err != nil {
				t.Error(err)
			}
		})
	}
}

// Whoever opens a folder while it is renewed again and again always gets one that belongs together.
func TestOpenWhileItIsRenewed(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	dir := a.issue(t, principal.Coordinator, "c1", day)
	renewed := make(chan error, 1)
	go func() {
		for range 50 {
			if _, err := a.Renew(dir, a.now, 0); err != nil {
				renewed <- err
				return
			}
		}
		renewed <- nil
	}()
	for {
		if _, err := mtls.Open(dir, mtls.Options{}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-renewed:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}
