package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// stores is a cluster with two stores as processes, and a client that routes to them.
type stores struct {
	*cluster
	t         *testing.T
	certs     *mtls.Source // of an operator; nil: none
	client    *client.Client
	addrs     []string // of the stores, then of their metrics
	processes []*proctest.Process
	conns     map[string]storev1.StoreClient
}

func startStores(t *testing.T, c *cluster) *stores {
	t.Helper()
	s := &stores{cluster: c, t: t, processes: make([]*proctest.Process, 2), conns: map[string]storev1.StoreClient{}}
	s.StartAll()
	s.WaitHealthy(hostedWithin)
	if c.Certs != nil {
		s.certs = c.Certs.Open(principal.Operator, "test")
	}
	var err error
	if s.client, err = client.New(client.Config{Endpoints: s.CoordinatorAddrs, TLS: s.certs}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	if s.addrs, err = procs.Addrs(4); err != nil {
		t.Fatal(err)
	}
	for i := range s.processes {
		s.serve(i)
	}
	s.eventually(func(ctx context.Context) error {
		for _, id := range []rooted.MemberID{"store-1", "store-2"} {
			if m, err := s.client.GetMember(ctx, id); err != nil || m.GetLastHeartbeat() == nil {
				return fmt.Errorf("%s: %v, %w", id, m, err)
			}
		}
		return nil
	})
	return s
}

func (s *stores) workdir(i int) string { return filepath.Join(s.Dir, fmt.Sprintf("store-%d", i+1)) }

// serve starts a store; how each reaches the other the root says.
func (s *stores) serve(i int) {
	s.t.Helper()
	name := fmt.Sprintf("store-%d", i+1)
	args := []string{
		"serve", "--coordinator-addr", s.Coordinators(), "--store-id", fmt.Sprint(i + 1), "--workdir", s.workdir(i),
		"--addr", s.addrs[i], "--metrics-addr", s.addrs[2+i], "--heartbeat", "200ms",
	}
	if s.Certs != nil {
		args = append(args, "--certs", s.Certs.Of(principal.Member, name))
	}
	s.processes[i] = proctest.Start(s.t, s.Options(name, args...))
}

func (s *stores) eventually(ask func(context.Context) error) {
	s.t.Helper()
	proctest.Eventually(s.t, hostedWithin, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		return ask(ctx)
	})
}

func (s *stores) at(address string) storev1.StoreClient {
	s.t.Helper()
	if s.conns[address] == nil {
		s.conns[address] = s.as(s.certs, address)
	}
	return s.conns[address]
}

// as connects to a store by certificates.
func (s *stores) as(certs *mtls.Source, address string) storev1.StoreClient {
	s.t.Helper()
	conn, err := grpc.NewClient(address, append(clusterid.Caller(s.client.ClusterID).Options(), grpc.WithTransportCredentials(certs.Client(mtls.Peer{Role: principal.Member})))...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return storev1.NewStoreClient(conn)
}

func regionAt(r *rooted.Region) *storev1.RegionAt {
	return &storev1.RegionAt{RegionId: uint64(r.ID), Epoch: r.Epoch.Proto()}
}

// routed calls the store that leads the region of a key, as a coordinator says.
func (s *stores) routed(key string, call func(context.Context, storev1.StoreClient, *storev1.RegionAt) error) {
	s.t.Helper()
	s.eventually(func(ctx context.Context) error {
		route, err := s.client.GetRegionByKey(ctx, []byte(key))
		if err != nil {
			return err
		}
		for _, m := range route.Members() {
			if m.ID == route.Region.Owners[0].Member {
				return call(ctx, s.at(m.Address), regionAt(route.Region))
			}
		}
		return errors.New("nobody owns it")
	})
}

func (s *stores) put(key, value string) {
	s.t.Helper()
	s.routed(key, func(ctx context.Context, c storev1.StoreClient, at *storev1.RegionAt) error {
		_, err := c.Put(ctx, &storev1.PutRequest{Region: at, Key: []byte(key), Value: []byte(value)})
		return err
	})
}

func (s *stores) wantAll(want map[string]string) {
	s.t.Helper()
	for key, value := range want {
		s.routed(key, func(ctx context.Context, c storev1.StoreClient, at *storev1.RegionAt) error {
			got, err := c.Get(ctx, &storev1.GetRequest{Region: at, Key: []byte(key)})
			if err == nil && string(got.GetValue()) != value {
				err = fmt.Errorf("%s is %q, want %q", key, got.GetValue(), value)
			}
			return err
		})
	}
}

// status waits until a store's status is as wanted.
func (s *stores) status(i int, want func(*storev1.StatusResponse) bool) {
	s.t.Helper()
	s.eventually(func(ctx context.Context) error {
		got, err := s.at(s.addrs[i]).Status(ctx, &storev1.StatusRequest{})
		if err == nil && !want(got) {
			err = fmt.Errorf("store %d: %v", i+1, got)
		}
		return err
	})
}

func roles(st *storev1.StatusResponse) string {
	var all []string
	for _, r := range st.GetRegions() {
		all = append(all, r.GetRole())
	}
	return strings.Join(all, " ")
}

// TestN64Serve: two stores as a user starts them: routes, epochs, a split, the hint that
// evens out leads, a kill, a start while no coordinator answers.
func TestN64Serve(t *testing.T) {
	t.Parallel()
	s := startStores(t, newCluster(t, 1))
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	if _, err := s.client.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.DefaultKeyspace, Owners: []rooted.Owner{{Member: "store-1"}, {Member: "store-2"}}}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for i := range 40 {
		key := fmt.Sprintf("k%02d", i)
		want[key] = "value of " + key
		s.put(key, want[key])
	}
	old, err := s.client.GetRegionByKey(ctx, []byte("k30"), client.Strong())
	if err != nil || old.Leader() != "store-1" && old.Leader() != "" {
		t.Fatalf("%v, %v", old, err)
	}
	split, err := s.at(s.addrs[0]).Split(ctx, &storev1.SplitRequest{Region: regionAt(old.Region)})
	if err != nil || string(split.GetRight().GetStartKey()) != "k20" {
		t.Fatalf("%v, %v", split, err)
	}
	// Whoever has the old route is told what is so.
	_, err = s.at(s.addrs[0]).Put(ctx, &storev1.PutRequest{Region: regionAt(old.Region), Key: []byte("k30")})
	if d := reason.From(err); d.GetReason() != rootv1.Reason_REASON_EPOCH_STALE || string(d.GetRegion().GetEndKey()) != "k20" {
		t.Fatalf("%v", err)
	}
	// One of the two leads goes to who had none, with its data.
	s.status(0, func(st *storev1.StatusResponse) bool { return strings.Count(roles(st), "leading") == 1 })
	s.status(1, func(st *storev1.StatusResponse) bool { return strings.Count(roles(st), "leading") == 1 })
	s.wantAll(want)

	// It serves while no coordinator answers; a start serves when one has.
	s.Kill(s.Roots()) // the only coordinator
	alone := func(st *storev1.StatusResponse) bool {
		return st.GetControlPlaneError() != "" && st.GetRegionCount() == 2 && strings.Count(roles(st), "leading") == 1
	}
	s.status(0, alone)
	led := func(value string) (key string, err error) {
		for _, r := range s.shown(ctx, 0) {
			if r.GetRole() == "leading" {
				key = string(r.GetRegion().GetStartKey()) + "k00x"
				at := &storev1.RegionAt{RegionId: r.GetRegion().GetId(), Epoch: r.GetRegion().GetEpoch()}
				_, err = s.at(s.addrs[0]).Put(ctx, &storev1.PutRequest{Region: at, Key: []byte(key), Value: []byte(value)})
			}
		}
		return key, err
	}
	key, err := led("meanwhile")
	if err != nil {
		t.Fatal(err)
	}
	want[key] = "meanwhile"
	s.processes[0].Kill()
	s.serve(0)
	s.status(0, alone)
	if _, err := led("too early"); reason.Of(err) != rootv1.Reason_REASON_RANGE_CHANGE_PENDING || !strings.Contains(err.Error(), "its registration") {
		t.Errorf("before it has registered: %v", err)
	}
	s.Start(s.Roots())
	s.status(0, func(st *storev1.StatusResponse) bool {
		return st.GetControlPlaneError() == "" && st.GetIncarnation() != 0
	})
	s.wantAll(want)

	// TestN67: its numbers, and a health check that is about what it serves.
	for path, part := range map[string]string{"/debug/vars": `"store_id":1`, "/healthz": "ok"} {
		if got := httpGet(t, "http://"+s.addrs[2]+path); !strings.Contains(got, part) {
			t.Errorf("%s: %s", path, got)
		}
	}
	// TestN65: the workdir is of one store.
	s.processes[0].Signal(syscall.SIGTERM)
	if code := s.processes[0].Wait(hostedWithin); code != 0 {
		t.Errorf("exit status %d after SIGTERM", code)
	}
	r := s.RunProcess("serve", "--coordinator-addr", s.Coordinators(), "--store-id", "3", "--workdir", s.workdir(0), "--addr", s.addrs[0])
	if r.Code != exitRefused || !strings.Contains(r.Stderr, "is the workdir of store 1, not of store 3") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
}

// With certificates a store is member store-N to everybody: a client reads and writes, an
// operator changes regions, and copies come from the store that leads alone.
func TestSecureStores(t *testing.T) {
	t.Parallel()
	s := startStores(t, newCluster(t, 1).Secure())
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	if _, err := s.client.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.DefaultKeyspace, Owners: []rooted.Owner{{Member: "store-1"}, {Member: "store-2"}}}); err != nil {
		t.Fatal(err)
	}
	s.put("a", "1")
	route, err := s.client.GetRegionByKey(ctx, []byte("a"), client.Strong())
	if err != nil {
		t.Fatal(err)
	}
	at := regionAt(route.Region)
	someone := s.as(s.Certs.Open(principal.Client, "someone"), s.addrs[0])
	if _, err := someone.Put(ctx, &storev1.PutRequest{Region: at, Key: []byte("b"), Value: []byte("2")}); err != nil {
		t.Fatal(err)
	}
	denied := func(what string, err error) {
		t.Helper()
		if reason.Of(err) != rootv1.Reason_REASON_PERMISSION_DENIED {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = someone.TransferLeader(ctx, &storev1.TransferLeaderRequest{Region: at, ToMemberId: "store-2"})
	denied("a transfer by a client", err)
	stranger, err := s.as(s.Certs.Open(principal.Member, "store-7"), s.addrs[1]).Import(ctx)
	if err == nil {
		if err = stranger.Send(&storev1.ImportRequest{Header: &storev1.ImportHeader{Region: route.Region.Proto(), Version: 9}}); err == nil {
			_, err = stranger.CloseAndRecv()
		}
	}
	denied("a copy by a store that does not lead", err)
	if _, err := s.at(s.addrs[0]).TransferLeader(ctx, &storev1.TransferLeaderRequest{Region: at, ToMemberId: "store-2"}); err != nil {
		t.Fatal(err)
	}
	s.wantAll(map[string]string{"a": "1", "b": "2"})
	s.publishes(ctx, 1)
	r := s.RunProcess("serve", "--coordinator-addr", s.Coordinators(), "--store-id", "3", "--workdir", t.TempDir(), "--addr", "127.0.0.1:0",
		"--certs", s.Certs.Of(principal.Member, "store-1"))
	if r.Code != exitUsage || !strings.Contains(r.Stderr, "this process is member/store-3") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
}

// publishes has a store split and merge what it leads, by its certificate, and tries each kind of event by that.
func (s *stores) publishes(ctx context.Context, i int) {
	s.t.Helper()
	at := func(r *rootv1.Region) *storev1.RegionAt {
		return &storev1.RegionAt{RegionId: r.GetId(), Epoch: r.GetEpoch()}
	}
	route, err := s.client.GetRegionByKey(ctx, []byte("a"), client.Strong())
	if err != nil {
		s.t.Fatal(err)
	}
	parts, err := s.at(s.addrs[i]).Split(ctx, &storev1.SplitRequest{Region: regionAt(route.Region), Key: []byte("b")})
	if err != nil {
		s.t.Fatal(err)
	}
	whole, err := s.at(s.addrs[i]).Merge(ctx, &storev1.MergeRequest{Left: at(parts.GetLeft()), Right: at(parts.GetRight())})
	if err != nil {
		s.t.Fatal(err)
	}
	planned, err := s.client.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
		RegionId: whole.GetRegion().GetId(), ExpectedEpoch: whole.GetRegion().GetEpoch(), SplitKey: []byte("b"),
	}}})
	if err != nil {
		s.t.Fatal(err)
	}
	name := fmt.Sprint("store-", i+1)
	own := impersonate.Things{ID: name, Region: whole.GetRegion().GetId(), Change: planned.GetEvents()[0].GetTransition().GetId(), Keyspace: uint32(rooted.DefaultKeyspace)}
	member, err := client.New(client.Config{Endpoints: s.CoordinatorAddrs, TLS: s.Certs.Open(principal.Member, name)})
	if err != nil {
		s.t.Fatal(err)
	}
	defer member.Close()
	for i := range impersonate.Kinds().Len() {
		e := impersonate.Event(impersonate.Kinds().Get(i), own)
		if state.Publishable(e) != nil {
			continue // nobody's
		}
		rule, _ := access.OfEvent(e, principal.Member)
		if _, err := member.PublishRootEvent(ctx, e); errors.Is(err, client.ErrPermissionDenied) != (rule == access.No) {
			s.t.Errorf("%s publishes %s (%v): %v", name, impersonate.Kinds().Get(i).Name(), rule, err)
		}
	}
}

func (s *stores) shown(ctx context.Context, i int) []*storev1.HostedRegion {
	s.t.Helper()
	st, err := s.at(s.addrs[i]).Status(ctx, &storev1.StatusRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	return st.GetRegions()
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	c := http.Client{Timeout: hostedWithin}
	defer c.CloseIdleConnections()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
