package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Serial numbers are written in several ways, and rooted in one.
func TestRevokedNames(t *testing.T) {
	for arg, want := range map[string]string{"member/M7": "member/M7", "ab12": "ab12", "00:AB:12": "ab12", "0AB12": "ab12", "m7": "m7", "0": ""} {
		if got := revokedName(arg); got != want {
			t.Errorf("%q is %q, want %q", arg, got, want)
		}
	}
	wantRefused(t, "cert revoke --undo", exitUsage, "ROLE/NAME or SERIAL")
}

// port is where something is asked that goes on: open returns how it ends, or why it does not begin.
type port struct {
	name string
	open func(ctx context.Context, who *mtls.Source) (ended <-chan error, err error)
}

// streams is a port of gRPC.
func streams(address string, role principal.Role) port {
	return port{"gRPC of a " + role.String(), func(ctx context.Context, who *mtls.Source) (<-chan error, error) {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(who.Client(mtls.Peer{Role: role})))
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := stream.Recv(); err != nil {
					ended <- err
					return
				}
			}
		}()
		return ended, nil
	}}
}

// answers is a port of HTTP.
func answers(name, address string, role principal.Role, request string) port {
	return port{name, func(ctx context.Context, who *mtls.Source) (<-chan error, error) {
		c, err := who.DialHTTP(ctx, "tcp", address, mtls.Peer{Role: role})
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = c.Close() })
		if _, err := io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
			return nil, err
		}
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err == nil && resp.StatusCode > 200 {
			err = errors.New(resp.Status)
		}
		if err == nil {
			_, err = io.ReadFull(r, make([]byte, 1))
		}
		if err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, r)
			ended <- err
		}()
		return ended, nil
	}}
}

// A certificate that is revoked is refused everywhere within moments, and what goes on by it ends: streams at a root peer, a
// coordinator and a store, a watch over HTTP, WebSockets and streams through the proxy and at a sidecar. Others go on. The commands are those of the documents.
func TestARevokedCertificateIsOutEverywhere(t *testing.T) {
	t.Parallel()
	s := startStores(t, newCluster(t, 1).Secure())
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	run := func(args ...string) proctest.Result {
		t.Helper()
		r := s.Run(args...)
		if r.Code != exitOK {
			t.Fatalf("nokv %q: exit status %d: %s", args, r.Code, r.Stderr)
		}
		return r
	}
	atRoots := func(line, name string) proctest.Result {
		t.Helper()
		return run(append(strings.Fields(strings.ReplaceAll(line, "member/m7", name)), s.RootFlags()...)...)
	}
	run("keyspace", "create", "games", "--preset", "games", "--coordinator-addr", s.Coordinators())
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/nokv/") {
			_, _ = io.WriteString(w, "{}")
			return
		}
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x82\x01x")
		_, _ = io.Copy(io.Discard, rw)
	}))
	t.Cleanup(app.Close)
	addrs, err := procs.Addrs(2)
	if err != nil {
		t.Fatal(err)
	}
	sidecar := s.Options("sidecar", "sidecar", "--keyspace", "games", "--id", "g1", "--address", addrs[0], "--app", app.URL, "--certs", s.Certs.Of(principal.Member, "g1"),
		"--coordinator-addr", s.Coordinators(), "--", "sleep", "1000")
	sidecar.Parent = true
	proctest.Start(t, sidecar)
	proctest.Start(t, s.Options("proxy", "proxy", "--keyspace", "games", "--key-header", "X-Game", "--claim", "--addr", addrs[1], "--hold", "30s", "--no-access-log",
		"--certs", s.Certs.Of(principal.Proxy, "p1"), "--coordinator-addr", s.Coordinators()))

	const get = "GET / HTTP/1.1\nHost: games\nX-Game: g\n"
	const upgrade = get + "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n"
	ports := []port{
		streams(s.RootAddrs[0], principal.Root), streams(s.CoordinatorAddrs[0], principal.Coordinator), streams(s.addrs[0], principal.Member),
		answers("REST", s.MetricsAddrs[procs.RootPeers], principal.Coordinator, "GET /v1/watch HTTP/1.1\nHost: c1\n\n"),
		answers("sidecar", addrs[0], principal.Member, get+"\n"), answers("sidecar, upgraded", addrs[0], principal.Member, upgrade),
		answers("proxy", addrs[1], principal.Proxy, get+"\n"), answers("proxy, upgraded", addrs[1], principal.Proxy, upgrade),
	}
	takes := func(p port, who *mtls.Source) (ended <-chan error) {
		t.Helper()
		proctest.Eventually(t, hostedWithin, func() (err error) {
			ended, err = p.open(ctx, who)
			return err
		})
		return ended
	}
	refuses := func(p port, who *mtls.Source) {
		t.Helper()
		proctest.Eventually(t, hostedWithin, func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if _, err := p.open(ctx, who); err == nil {
				return fmt.Errorf("%s takes who was revoked", p.name)
			}
			return nil
		})
	}
	gone, stays := s.Certs.Open(principal.Operator, "gone"), s.Certs.Open(principal.Operator, "stays")
	var theirs, mine []<-chan error
	for _, p := range ports {
		theirs, mine = append(theirs, takes(p, stays)), append(mine, takes(p, gone))
	}

	atRoots(documentedCommand(t, "nokv cert revoke member/m7"), "operator/gone")
	begun := time.Now()
	for i, ended := range mine {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				t.Fatal(ctx.Err(), err)
			}
		case <-ctx.Done():
			t.Fatalf("%s: what was opened by who was revoked goes on", ports[i].name)
		}
	}
	took := time.Since(begun)
	testreport.Linef(t, "certificates: what was open by one that was revoked had ended at %d ports %v behind the command", len(ports), took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("it took %v, want about a second", took)
	}
	for i, p := range ports {
		refuses(p, gone)
		select {
		case err := <-theirs[i]:
			t.Errorf("%s: what another one has opened ends: %v", p.name, err)
		default:
		}
		takes(p, stays)
	}

	// A certificate by its number; what else is set for the cluster stays, and stays apart.
	own, err := mtls.ReadCertificates(filepath.Join(stays.Dir(), mtls.CertFile))
	if err != nil {
		t.Fatal(err)
	}
	serial := own[0].SerialNumber.Text(16)
	if r := run("cert", "show", stays.Dir()); !strings.Contains(r.Stdout, serial) {
		t.Errorf("cert show does not show %s:\n%s", serial, r.Stdout)
	}
	atRoots("cert revoke member/m7", strings.ToUpper(serial))
	atRoots("root settings set --max-tenure-ttl 20s", "")
	listed := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		var out revokedOutput
		if r := atRoots("cert revoke -o json", ""); json.Unmarshal([]byte(r.Stdout), &out) != nil || !slices.Equal(out.Revoked, want) {
			t.Errorf("%q is revoked, want %q", out.Revoked, want)
		}
	}
	listed("operator/gone", serial)
	refuses(ports[1], stays)
	atRoots(documentedCommand(t, "nokv cert revoke --undo member/m7"), "operator/gone")
	listed(serial)
	for _, p := range ports {
		takes(p, gone)
		refuses(p, stays)
	}
	if r := s.Run(append([]string{"cert", "revoke", "root/1"}, s.RootFlags()...)...); r.Code == exitOK || !strings.Contains(r.Stderr, "by their serial numbers") {
		t.Errorf("a root peer by its name: exit status %d, %s", r.Code, r.Stderr)
	}
	if r := atRoots("root settings -o json", ""); !strings.Contains(r.Stdout, "20000") {
		t.Errorf("root settings: %s", r.Stdout)
	}
	if r := atRoots("root events -o json", ""); !strings.Contains(r.Stdout, "operator/gone") {
		t.Errorf("root events do not name what was revoked:\n%s", r.Stdout)
	}
}
