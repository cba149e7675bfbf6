package mtls_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// serialOf is the number of a Source's own certificate, as it is revoked by.
func serialOf(t *testing.T, s *mtls.Source) string {
	t.Helper()
	own, err := mtls.ReadCertificates(filepath.Join(s.Dir(), mtls.CertFile))
	if err != nil {
		t.Fatal(err)
	}
	return own[0].SerialNumber.Text(16)
}

// opened is a connection, by its two sides.
type opened struct{ dialled, accepted net.Conn }

// passes sends a byte.
func (o opened) passes() bool {
	written := make(chan error, 1)
	go func() {
		_, err := o.dialled.Write([]byte("x"))
		written <- err
	}()
	_, err := io.ReadFull(o.accepted, make([]byte, 1))
	return errors.Join(err, <-written) == nil
}

// wantEnd waits until reading ends, other than because nothing comes.
func wantEnd(t *testing.T, what string, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s goes on", what)
	}
}

// A certificate that is revoked, by the name of its principal or by its number, is believed by nobody: what is open with it ends at
// once, whoever dialled, and nothing is opened. Others, of the same name too, go on, and what is taken back is believed again.
func TestRevokedCertificatesEndConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		a := newAuthority(t, "prod", now)
		server := open(t, a.issue(t, principal.Coordinator, "c1", day), at(now))
		sources := map[string]*mtls.Source{
			"one": open(t, a.issue(t, principal.Member, "m1", day), at(now)), "another of its name": open(t, a.issue(t, principal.Member, "m1", day), at(now)),
			"m2": open(t, a.issue(t, principal.Member, "m2", day), at(now)),
		}
		connect := func(from *mtls.Source) (o opened, err error) {
			near, far := net.Pipe()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			taken := make(chan error, 1)
			go func() {
				var err error
				if o.accepted, _, err = server.ServerConn(ctx, far); err == nil {
					_, err = o.accepted.Write([]byte("x"))
				}
				taken <- err
			}()
			if o.dialled, _, err = from.ClientConn(ctx, near, mtls.Peer{Role: principal.Coordinator}); err == nil {
				_, err = io.ReadFull(o.dialled, make([]byte, 1)) // a refusal comes with the first read
			}
			if err != nil {
				_ = near.Close()
			}
			return o, errors.Join(err, <-taken)
		}
		all := map[string]opened{}
		for name, from := range sources {
			o, err := connect(from)
			if err != nil {
				t.Fatal(name, err)
			}
			defer o.dialled.Close()
			defer o.accepted.Close()
			all[name] = o
		}
		for _, step := range []struct {
			revoked    string
			ends, stay []string
		}{
			{serialOf(t, sources["one"]), []string{"one"}, []string{"another of its name", "m2"}},
			{"member/m1", []string{"another of its name"}, []string{"m2"}},
		} {
			server.Revoke([]string{step.revoked})
			for _, name := range step.ends {
				wantEnd(t, step.revoked+" was revoked: "+name, all[name].dialled)
				if _, err := connect(sources[name]); err == nil || !strings.Contains(err.Error(), "that was revoked: nokv cert revoke --undo "+step.revoked) {
					t.Errorf("%s was revoked, and %s connects: %v", step.revoked, name, err)
				}
			}
			for _, name := range step.stay {
				if !all[name].passes() {
					t.Errorf("%s was revoked, and %s has ended", step.revoked, name)
				}
			}
		}
		if n := server.Refusals(); n < 4 {
			t.Errorf("%d refusals are counted, want those of 2 connections that were open and of 2 that were tried", n)
		}
		server.Revoke(nil)
		o, err := connect(sources["one"])
		if err != nil {
			t.Fatalf("taken back: %v", err)
		}
		defer o.accepted.Close()
		// Who has dialled goes by it as well.
		sources["one"].Revoke([]string{"coordinator/c1"})
		wantEnd(t, "a connection to whom the dialler does not believe", o.accepted)
		if _, err := connect(sources["one"]); err == nil || !strings.Contains(err.Error(), "coordinator/c1") {
			t.Errorf("a dialler is told of who was revoked: %v", err)
		}
	})
}

// What is under way at an HTTP listener ends with a certificate that is revoked, whatever it is, and nothing of others does.
func TestRevokedCertificatesEndRequests(t *testing.T) {
	a := newAuthority(t, "prod", time.Now())
	s := open(t, a.issue(t, principal.Member, "m1", day), mtls.Options{})
	var url string
	asks := func(who *mtls.Source, path string, protocol int) io.Reader {
		t.Helper()
		transport := &http.Transport{TLSClientConfig: browser(t, who.Dir(), true), Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(protocol == 1)
		transport.Protocols.SetHTTP2(protocol == 2)
		t.Cleanup(transport.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if protocol == 1 {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "x")
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.ProtoMajor != protocol {
			t.Fatalf("%s is answered by HTTP/%d: %v", path, resp.ProtoMajor, err)
		}
		return resp.Body
	}
	for what, secured := range map[string]func(net.Listener) net.Listener{"HTTP": s.HTTP, "HTTPOpen": s.HTTPOpen} {
		url = listening(t, secured, s.Handler(http.HandlerFunc(ongoing)))
		web, stays := open(t, a.issue(t, principal.Client, "web", day), mtls.Options{}), open(t, a.issue(t, principal.Client, "stays", day), mtls.Options{})
		s.Revoke(nil)
		for path, protocol := range map[string]int{"/hijacked": 1, "/stream": 1, "/stream?": 2} {
			mine, theirs := asks(web, path, protocol), asks(stays, path, protocol)
			s.Revoke([]string{"client/web"})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, mine)
			}()
			select {
			case <-ended:
			case <-time.After(proctest.Patience):
				t.Fatalf("%s, %s by HTTP/%d goes on", what, path, protocol)
			}
			if code, text := gets(&http.Client{Transport: &http.Transport{TLSClientConfig: browser(t, web.Dir(), true)}}, url); code != 0 {
				t.Errorf("%s: who was revoked is answered %d %s", what, code, text)
			}
			read := make(chan error, 1)
			go func() {
				_, err := theirs.Read(make([]byte, 1))
				read <- err
			}()
			select {
			case err := <-read:
				t.Errorf("%s, %s by HTTP/%d of another one ends: %v", what, path, protocol, err)
			default:
			}
			s.Revoke(nil)
		}
	}
}
