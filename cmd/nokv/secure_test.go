package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Everything that is done with a cluster is done once with certificates: each port
// takes those that it should and nobody else.
func TestSecureCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2).Secure()
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	ask := func(args ...string) string {
		t.Helper()
		r := c.Run(args...)
		if r.Code != exitOK || r.Stderr != "" {
			t.Fatalf("nokv %s: exit status %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
		}
		return r.Stdout
	}
	to := func(args ...string) []string { return append(args, "--coordinator-addr", c.Coordinators()) }
	roots := func(args ...string) []string { return append(args, c.RootFlags()...) }
	ask(to("id")...)
	ask(to("tso")...)
	ask(to("region", "publish", "a", "m")...)
	ask(to("region", "get", "banana", "--strong")...)
	ask(to("watch", "--for", "300ms")...)
	ask(to("bench", "watches", "--watches", "2", "--connections", "1", "--rate", "10", "--warmup", "1ms", "--duration", "2s")...)
	witnessHolds(t, c, to()...)
	witnessHolds(t, c, roots()...)
	ask(roots("root", "events")...)
	ask(roots("root", "backup", "--out", filepath.Join(t.TempDir(), "backup"))...)

	var out statusOutput
	proctest.Eventually(t, recoverWithin, func() error {
		out = statusOutput{}
		if err := json.Unmarshal([]byte(ask(to("status", "-o", "json")...)), &out); err != nil {
			return err
		}
		if len(out.Coordinators) != 2 || len(out.RootPeers) != 3 {
			return fmt.Errorf("status: %+v", out)
		}
		for _, p := range out.RootPeers { // they have little time to answer
			if !p.Reachable {
				return fmt.Errorf("status: root peer %d does not answer", p.NodeID)
			}
		}
		return nil
	})
	check := func(who, channel string, days *float64) {
		if channel != "tls" || days == nil || *days < 89 || *days > 90 {
			t.Errorf("status says of %s %s with %v days, want tls with a little less than 90", who, channel, days)
		}
	}
	for _, k := range out.Coordinators {
		check(k.ID, k.Channel, k.CertificateDays)
	}
	for _, p := range out.RootPeers {
		check(fmt.Sprint("root peer ", p.NodeID), p.Channel, p.CertificateDays)
	}
	metricsPort(t, c)
	everyCall(t, c)

	r := &replacing{t: t, c: c, lost: (leaderOf(t, c) + 1) % 3, node: 4}
	r.join()
	r.lose()
	r.replace(false)
	ask(to("region", "get", "banana", "--strong")...)
	c.Certs.Renew() // while all of them run
	c.Kill((r.lost + 1) % 3)
	ask(to("region", "publish", "m", "z", "--timeout", recoverWithin.String())...)
}

// everyCall makes every call of every service at a root peer and a coordinator, with
// nothing in the request, by a member and a client: over real connections, too, the table
// alone says who may.
func everyCall(t *testing.T, c *cluster) {
	t.Helper()
	ports := map[principal.Role]struct {
		address  string
		services []protoreflect.ServiceDescriptor
	}{
		principal.Root:        {c.RootAddrs[0], services(rootv1.File_nokv_root_v1_root_proto, healthpb.File_grpc_health_v1_health_proto)},
		principal.Coordinator: {c.CoordinatorAddrs[0], services(coordinatorv1.File_nokv_coordinator_v1_coordinator_proto, healthpb.File_grpc_health_v1_health_proto)},
	}
	var made, denied atomic.Int64
	var calls sync.WaitGroup
	for _, role := range []principal.Role{principal.Member, principal.Client} {
		certs := c.Certs.Open(role, "someone")
		for at, port := range ports {
			conn, err := grpc.NewClient(port.address, grpc.WithTransportCredentials(certs.Client(mtls.Peer{Role: at})))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, service := range port.services {
				for i := range service.Methods().Len() {
					m := service.Methods().Get(i)
					method := fmt.Sprintf("/%s/%s", service.FullName(), m.Name())
					calls.Go(func() { // some that are let in wait for more
						err := emptyCall(t, conn, m, method)
						refused := status.Code(err) == codes.PermissionDenied
						made.Add(1)
						if refused {
							denied.Add(1)
						}
						if rule := access.Of(method, role); rule == access.No != refused && (rule == access.No || rule == access.Allowed) {
							t.Errorf("%s by a %s: %v, the table says %s", method, role, err, rule)
						}
					})
				}
			}
		}
	}
	calls.Wait()
	testreport.Linef(t, "access, real processes: %d calls by a member and a client at a root peer and a coordinator, %d refused", made.Load(), denied.Load())
}

func services(files ...protoreflect.FileDescriptor) (out []protoreflect.ServiceDescriptor) {
	for _, f := range files {
		for i := range f.Services().Len() {
			out = append(out, f.Services().Get(i))
		}
	}
	return out
}

// emptyCall is how a call without anything in its request ends, or begins to be answered.
func emptyCall(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, method string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, method)
	if err == nil {
		err = stream.SendMsg(&emptypb.Empty{})
	}
	if err == nil || errors.Is(err, io.EOF) {
		_ = stream.CloseSend() // ends what would wait for more
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// metricsPort looks at who sees what of a process with certificates.
func metricsPort(t *testing.T, c *cluster) {
	t.Helper()
	var vars struct {
		Channel         string  `json:"channel"`
		Principal       string  `json:"principal"`
		CertificateDays float64 `json:"certificate_days"`
	}
	if err := c.Vars(0, &vars); err != nil || vars.Channel != "tls" || vars.Principal != "root/1" || vars.CertificateDays < 89 {
		t.Errorf("an operator reads %+v, %v", vars, err)
	}
	for _, role := range []principal.Role{principal.Member, principal.Client, principal.Coordinator} {
		web := http.Client{Transport: c.Certs.Open(role, "someone").Transport(mtls.Peer{Role: principal.Root}), Timeout: recoverWithin}
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/debug/vars": http.StatusForbidden, "/": http.StatusForbidden} {
			if role == principal.Coordinator && want == http.StatusForbidden {
				want = map[string]int{"/debug/vars": http.StatusOK, "/": http.StatusNotFound}[path]
			}
			resp, err := web.Get("https://" + c.MetricsAddrs[0] + path)
			if err != nil {
				t.Errorf("%s: %v", role, err)
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("a %s gets %s from %s, want %d", role, resp.Status, path, want)
			}
		}
		web.CloseIdleConnections()
	}
}

// A process starts with a certificate of its own name and role alone.
func TestServersWantTheirOwnCertificates(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1).Secure()
	other := c.Certs.Of(principal.Root, "7")
	for member, own := range map[int]string{0: "root/1", c.Roots(): "coordinator/c1"} {
		r := c.RunProcess(append(c.Args(member), "-certs", other)...)
		if r.Code != exitUsage || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("exit status %d, want %d\n%s", r.Code, exitUsage, r.Stderr)
		}
		wantWords(t, c.Name(member), r.Stderr, "root/7", own, "nokv cert issue")
	}
	r := c.RunProcess("worker", "--id", "w1", "--coordinator-addr", c.Coordinators()) // with an operator's
	if r.Code != exitUsage || strings.Contains(r.Stdout, "starts") {
		t.Errorf("exit status %d, want %d\n%s%s", r.Code, exitUsage, r.Stdout, r.Stderr)
	}
	wantWords(t, "the worker", r.Stderr, "operator/", "member/w1", "nokv cert issue")
}

// Without certificates a process listens where others reach it when it is told to,
// and says so everywhere.
func TestInsecureIsSaid(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.CommandLine = func(member int) []string {
		args := append(c.Args(member), "-insecure")
		if member == c.Roots() {
			_, port, _ := strings.Cut(c.CoordinatorAddrs[0], ":")
			args = append(args, "-addr", "0.0.0.0:"+port, "-advertise-addr", c.CoordinatorAddrs[0])
		}
		return args
	}
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	wantWords(t, "the log", c.Process(c.Roots()).Log(), "--insecure", "0.0.0.0")
	if log := c.Process(0).Log(); strings.Contains(log, "insecure") {
		t.Errorf("a process on loopback says that it is insecure:\n%s", log)
	}
	proctest.Eventually(t, recoverWithin, func() error { // root peers have little time to answer
		if r := c.Run("status", "--coordinator-addr", c.Coordinators()); !strings.Contains(r.Stdout, "insecure") || !strings.Contains(r.Stdout, "loopback") {
			return fmt.Errorf("status does not say insecure and loopback:\n%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	var vars struct {
		Channel string `json:"channel"`
	}
	if err := c.Vars(c.Roots(), &vars); err != nil || vars.Channel != "insecure" {
		t.Errorf("/debug/vars says %+v, %v", vars, err)
	}
}

// The certificates of the rotation: each is valid for rotatedLife, and all are
// replaced every rotatedEvery, so that a busy machine is late a few times before
// one ends that is in use.
const (
	rotatedLife  = 16 * time.Second
	rotatedEvery = 2 * time.Second
)

// TestCertificatesRotatedUnderLoad renews all certificates again and again, of
// callers too, until every connection of the beginning has ended with those that it
// was opened with.
func TestCertificatesRotatedUnderLoad(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, 2).SecureFor(rotatedLife)
	c.CoordinatorFlags = []string{"-tenure-ttl", longTTL}
	c.StartAll()
	rotations := 0
	rotating, end := context.WithCancel(t.Context())
	var rotation sync.WaitGroup
	rotation.Go(func() {
		tick := time.NewTicker(rotatedEvery)
		defer tick.Stop()
		for {
			select {
			case <-rotating.Done():
				return
			case <-tick.C: // certificates end by the clock of other processes
				c.Certs.Renew()
				rotations++
			}
		}
	})
	defer rotation.Wait()
	defer end()
	c.WaitHealthy(recoverWithin)
	l := startLoadOf(t, client.Config{Endpoints: c.CoordinatorAddrs, TLS: c.TLS()}, tryFor, 2*time.Millisecond)
	l.waitProgress(lowLoad, recoverWithin, "when certificates are rotated")
	era := eraOf(t, c)
	for member := range c.Roots() {
		proctest.Eventually(t, recoverWithin, func() error {
			var vars struct {
				Peers map[string]struct{ Connects uint64 }
			}
			if err := c.Vars(member, &vars); err != nil {
				return err
			}
			for id, p := range vars.Peers {
				if p.Connects < 2 {
					return fmt.Errorf("the connection of %s to root peer %s did not end with its certificate", c.Name(member), id)
				}
			}
			return nil
		})
	}
	l.waitProgress(lowLoad, recoverWithin, "when all connections of the beginning have ended")
	l.finish()
	ctx, cancel := context.WithTimeout(t.Context(), recoverWithin)
	defer cancel()
	judge(ctx, t, c, l)
	for kind := range loadKinds {
		if n := l.failed[kind].Load(); n != 0 {
			t.Errorf("%d %s failed while certificates were rotated; the last error: %s", n, kind, *l.lastErr.Load())
		}
	}
	if now := eraOf(t, c); now != era {
		t.Errorf("the era was %d and is %d", era, now)
	}
	end()
	rotation.Wait()
	testreport.Linef(t, "certificates: all of %d processes and of callers rotated %d times under load: %d publishes, %d id runs, %d timestamp runs, 0 failed calls, the same era",
		c.Size(), rotations, l.acknowledged(), len(l.ids), len(l.timestamps))
}

func eraOf(t *testing.T, c *cluster) uint64 {
	t.Helper()
	var out statusOutput
	proctest.Eventually(t, recoverWithin, func() error {
		r := c.Run("status", "-o", "json", "--coordinator-addr", c.Coordinators())
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || out.Era == 0 {
			return fmt.Errorf("status: %w\n%s%s", err, r.Stdout, r.Stderr)
		}
		return nil
	})
	return out.Era
}
