package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"postgres", "pod", "caller"}, os.Args[1]) { // this program, as a process of the test
		main()
	}
	os.Exit(proctest.Main(m))
}

// connections is what each pod of the test may have open: fewer than it gets tenants.
const connections = 8

// system is PostgreSQL, a cluster, pods and callers, as processes.
type system struct {
	*testing.T
	cluster *proctest.Cluster
	data    string
	pods    map[string]*proctest.Process
	callers []string // their URLs
	http    *http.Client
}

// startPostgres starts a server, which ends with the test; data is its folder.
func startPostgres(t *testing.T) (data string) {
	t.Helper()
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := program(name); err != nil {
			t.Skipf("SKIPPED: the example needs PostgreSQL: %v", err)
		}
	}
	// Not t.TempDir: PostgreSQL's user may not enter that.
	data, err := os.MkdirTemp("", "tenantpool-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(data); err != nil {
			t.Error(err)
		}
	})
	s := &system{T: t}
	database := s.self("postgres", "postgres", "--dir", data)
	t.Cleanup(func() {
		database.Signal(syscall.SIGTERM)
		if code := database.Wait(proctest.Patience); code != 0 {
			t.Errorf("PostgreSQL: exit status %d", code)
		}
	})
	return data
}

func start(t *testing.T) *system {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	data := startPostgres(t)
	s := &system{T: t, data: data, pods: map[string]*proctest.Process{}, http: &http.Client{Timeout: proctest.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	t.Cleanup(s.http.CloseIdleConnections)
	s.cluster = proctest.NewCluster(t, path, nil, 2)
	s.cluster.StartAll()
	s.cluster.WaitHealthy(proctest.Patience)
	s.nokv(append(settings(), "--liveness-interval", "200ms")...)
	s.nokv("pin", "rotate")
	for _, id := range []string{"p1", "p2", "p3"} {
		s.pod(id, "shared")
	}
	for i, addr := range proctest.Addrs(t, 2) {
		s.self(fmt.Sprintf("caller-%d", i+1), "caller", "--addr", addr, "--hold", proctest.Patience.String(), "--coordinator-addr", s.cluster.Coordinators())
		s.callers = append(s.callers, "http://"+addr)
	}
	return s
}

func (s *system) self(name string, args ...string) *proctest.Process {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	return proctest.Start(s.T, proctest.Options{Name: name, Path: self, Args: args})
}

func (s *system) pod(id, group string) {
	s.Helper()
	s.pods[id] = s.self("pod-"+id, "pod", "--id", id, "--group", group, "--postgres", at(s.data), "--connections", fmt.Sprint(connections), "--coordinator-addr", s.cluster.Coordinators())
}

func (s *system) nokv(args ...string) string {
	s.Helper()
	out := s.cluster.Run(append(args, "--coordinator-addr", s.cluster.Coordinators())...)
	if out.Code != 0 {
		s.Fatalf("nokv %s: exit status %d: %s", strings.Join(args, " "), out.Code, out.Stderr)
	}
	return out.Stdout
}

// await says how long it took until something held.
func (s *system) await(what string, ask func() error) time.Duration {
	s.Helper()
	begun := time.Now()
	proctest.Eventually(s.T, proctest.Patience, func() error {
		if err := ask(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return time.Since(begun).Round(time.Millisecond)
}

// listed is a pod as the control plane has it.
type listed struct{ ID, Address, State string }

func (s *system) members() map[string]listed {
	s.Helper()
	var all []listed
	if err := json.Unmarshal([]byte(s.nokv("member", "list", "-o", "json")), &all); err != nil {
		s.Fatal(err)
	}
	found := map[string]listed{}
	for _, m := range all {
		found[m.ID] = m
	}
	return found
}

// owners are the pods of each tenant, by the control plane.
func (s *system) owners() map[string][]string {
	s.Helper()
	var regions []struct {
		Start  string `json:"start_key"`
		Owners []struct {
			Member string `json:"member_id"`
		}
	}
	out := s.nokv("region", "list", "--keyspace", keyspace, "-o", "json")
	if err := json.Unmarshal([]byte(out), &regions); err != nil {
		s.Fatal(err)
	}
	all := map[string][]string{}
	for _, r := range regions {
		all[r.Start] = []string{}
		for _, o := range r.Owners {
			all[r.Start] = append(all[r.Start], o.Member)
		}
	}
	return all
}

// try asks a caller.
func (s *system) try(caller int, method, path, pin, text string) (reply, error) {
	return ask(s.Context(), s.http, method, s.callers[caller]+path, pin, text)
}

// must asks a caller, for what has to be answered.
func (s *system) must(caller int, method, path, pin, text string) reply {
	s.Helper()
	said, err := s.try(caller, method, path, pin, text)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	return said
}

// no asks a caller, for what has to be refused.
func (s *system) no(caller int, method, path, pin, text string, status int, reason string) {
	s.Helper()
	said, err := s.try(caller, method, path, pin, text)
	var refusal *refused
	if !errors.As(err, &refusal) || refusal.Status != status || refusal.Reason != reason {
		s.Errorf("%s %s: %+v, %v; want %d %s", method, path, said, err, status, reason)
	}
}

// pooled is what a pod says of itself, at the address that it registered.
func (s *system) pooled(m listed) (p pooled) {
	s.Helper()
	resp, err := s.http.Get("http://" + m.Address + "/pool")
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		s.Fatal(err)
	}
	return p
}

// opened is how many connections pods have at PostgreSQL, as it counts them, and its limit.
func (s *system) opened(c *pgx.Conn) (n, most int) {
	s.Helper()
	if err := c.QueryRow(s.Context(), "select count(*), current_setting('max_connections')::int from pg_stat_activity where application_name like 'tenantpool %'").Scan(&n, &most); err != nil {
		s.Fatal(err)
	}
	return n, most
}

// The demo ends, and says why, where PostgreSQL does not come up: here its socket would have too long a path.
func TestTheDemoEndsWithItsDatabase(t *testing.T) {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOKV", path)
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 80))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if err := show(ctx); err == nil || !strings.Contains(err.Error(), "postgres has ended") {
		t.Errorf("it ended with %v", err)
	}
}

// The demo that is ended while PostgreSQL is being made leaves nothing behind, and says nothing.
func TestTheDemoLeavesNothing(t *testing.T) {
	if _, err := program("initdb"); err != nil {
		t.Skipf("SKIPPED: the example needs PostgreSQL: %v", err)
	}
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOKV", path)
	dir, err := os.MkdirTemp("", "leaves-") // not t.TempDir: PostgreSQL's user may not enter that
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- show(ctx) }()
	proctest.Eventually(t, proctest.Patience, func() error {
		found, err := filepath.Glob(filepath.Join(dir, "tenantpool-*", "data", "base"))
		if err == nil && len(found) == 0 {
			err = errors.New("PostgreSQL has no data yet")
		}
		return err
	})
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	for _, of := range []string{"tenantpool-*", "nokv-example-*"} {
		if found, err := filepath.Glob(filepath.Join(dir, of)); len(found) > 0 || err != nil {
			t.Errorf("left: %v, %v", found, err)
		}
	}
}

// Tenants on pods, by callers that keep nothing: they are spread by load, packed many to a pod, begin
// and end transactions where these are pinned, get another pod when one is not enough, have pods of
// their own if their name says so, and are elsewhere when their pod ends or is killed.
func TestP01P54P55P63P68P71P72P82P83P84P85TenantsOnPods(t *testing.T) {
	s := start(t)
	pods := s.threePods()
	s.coldStart()
	s.packed(pods)
	s.transactions()
	s.misused(pods)
	s.lost()
	s.fanOut(pods)
	s.dedicated()
	s.ended()
	s.killed()
	s.replaced()
}

// P-63, P-72, P-82: three pods are listed, at the addresses that they chose; nothing is open yet. One that
// would leave too little of PostgreSQL to others does not start.
func (s *system) threePods() map[string]listed {
	var pods map[string]listed
	s.await("three pods are listed", func() error {
		if pods = s.members(); len(pods) != 3 {
			return fmt.Errorf("%v", pods)
		}
		return nil
	})
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	greedy := proctest.Run(s.T, proctest.Options{Name: "greedy", Path: self, Args: []string{"pod", "--id", "p4", "--postgres", at(s.data), "--connections", "17", "--coordinator-addr", s.cluster.Coordinators()}})
	if greedy.Code != 1 || !strings.Contains(greedy.Stderr, "give 16 at most") {
		s.Errorf("a pod that would have 17 of 100 connections: exit status %d, %s", greedy.Code, greedy.Stderr)
	}
	for id, m := range pods {
		if p := s.pooled(m); p.Pod != id || p.Open != 0 {
			s.Errorf("at the address of %s: %+v", id, p)
		}
	}
	return pods
}

// P-82: six creates use all three pods; a row is read, by the other caller, where it was made.
func (s *system) coldStart() {
	at := map[string]int{}
	for i := range 6 {
		path := fmt.Sprintf("/tenants/t-%d/rows", i)
		made := s.must(0, http.MethodPost, path, "", "hello")
		at[made.Pod]++
		if read := s.must(1, http.MethodGet, fmt.Sprintf("%s/%d", path, made.ID), "", ""); read.Pod != made.Pod || read.Text != "hello" {
			s.Errorf("tenant t-%d: made %+v, read %+v", i, made, read)
		}
	}
	testreport.Linef(s.T, "tenantpool: six new tenants are at %v", at)
	if len(at) != 3 {
		s.Errorf("six tenants are at %v, want all three pods", at)
	}
}

// P-54, P-71, P-72: more tenants than there may be connections: each has its own when it asks, and no
// pod has more than it may; PostgreSQL counts as many as pods do.
func (s *system) packed(pods map[string]listed) {
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			for range 2 {
				if _, err := s.try(i%2, http.MethodPost, fmt.Sprintf("/tenants/small-%d/rows", i), "", "x"); err != nil {
					s.Error(err)
				}
			}
		})
	}
	all.Wait()
	c, err := pgx.Connect(s.Context(), at(s.data))
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(s.Context()))
	var tenants, open, counted, most int
	s.await("PostgreSQL counts as many connections as pods do", func() error {
		tenants, open = 0, 0
		for id, m := range pods {
			p := s.pooled(m)
			if p.Open > connections {
				s.Errorf("pod %s has %d connections, and may have %d", id, p.Open, connections)
			}
			tenants, open = tenants+len(p.Tenants), open+p.Open
		}
		if counted, most = s.opened(c); counted != open {
			return fmt.Errorf("it counts %d, they %d", counted, open)
		}
		return nil
	})
	testreport.Linef(s.T, "tenantpool: %d tenants at 3 pods have %d connections, PostgreSQL takes %d", tenants, open, most)
	if tenants != 30 {
		s.Errorf("pods have %d tenants, want 30", tenants)
	}
	if err := (poolConfig{Connections: connections}).fits(most); err != nil {
		s.Error(err)
	}
}

// P-83: what is not committed is seen by nobody else; a rollback leaves nothing; what is no pin is 404.
func (s *system) transactions() {
	begun := s.must(0, http.MethodPost, "/tenants/t-0/transactions", "", "")
	made := s.must(1, http.MethodPost, "/transaction/rows", begun.Transaction, "mine")
	row := fmt.Sprintf("/tenants/t-0/rows/%d", made.ID)
	s.must(0, http.MethodGet, fmt.Sprintf("/transaction/rows/%d", made.ID), begun.Transaction, "")
	s.no(0, http.MethodGet, row, "", "", 404, "")
	s.must(1, http.MethodPost, "/transaction/commit", begun.Transaction, "")
	if read := s.must(0, http.MethodGet, row, "", ""); read.Text != "mine" {
		s.Errorf("committed, it is %+v", read)
	}
	s.no(1, http.MethodPost, "/transaction/rows", begun.Transaction, "late", 404, "pin_lost")

	begun = s.must(0, http.MethodPost, "/tenants/t-0/transactions", "", "")
	made = s.must(0, http.MethodPost, "/transaction/rows", begun.Transaction, "not")
	s.must(0, http.MethodPost, "/transaction/rollback", begun.Transaction, "")
	s.no(0, http.MethodGet, fmt.Sprintf("/tenants/t-0/rows/%d", made.ID), "", "", 404, "")
	s.no(0, http.MethodPost, "/transaction/commit", "nokvpin_x", "", 404, "not_found")
}

// P-54, P-72: what is no name makes no tenant; what is no text, or does not come, holds no connection; who is refused is
// told why, and others are served.
func (s *system) misused(pods map[string]listed) {
	for _, name := range []string{"ANN", "a_b", "-a", "ann%2Fbob", strings.Repeat("a", 41)} {
		s.no(0, http.MethodGet, "/tenants/"+name+"/rows/1", "", "", 400, "invalid_request")
	}
	for tenant := range s.owners() {
		if !tenantName.MatchString(tenant) {
			s.Errorf("there is a tenant %q", tenant)
		}
	}
	for _, text := range []string{"\x00", "a\xff", strings.Repeat("a", maxText)} {
		s.no(1, http.MethodPost, "/tenants/t-0/rows", "", text, 400, "")
	}
	s.no(1, http.MethodGet, "/tenants/t-0/rows/none", "", "", 400, "")
	made := s.must(0, http.MethodPost, "/tenants/t-0/rows", "", "kept")
	for range 4 { // as many as the tenant has connections
		slow, err := net.Dial("tcp", pods[made.Pod].Address)
		if err != nil {
			s.Fatal(err)
		}
		defer slow.Close()
		if _, err := io.WriteString(slow, "POST /tenants/t-0/rows HTTP/1.1\r\nHost: pod\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntext="); err != nil {
			s.Fatal(err)
		}
	}
	for range 4 { // all of them at the pod, which has read the others by then or not
		if read := s.must(0, http.MethodGet, fmt.Sprintf("/tenants/t-0/rows/%d", made.ID), "", ""); read.Text != "kept" || read.Pod != made.Pod {
			s.Errorf("beside clients that do not go on: %+v", read)
		}
	}
}

// P-83, P-84: a transaction of which a statement failed says so; one whose connection breaks is lost, and gives its place
// back; what a tenant had and was removed is made anew.
func (s *system) lost() {
	c, err := pgx.Connect(s.Context(), at(s.data))
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(s.Context()))
	exec := func(sql string) {
		s.Helper()
		if _, err := c.Exec(s.Context(), sql); err != nil {
			s.Fatal(err)
		}
	}
	s.must(0, http.MethodPost, "/tenants/t-4/rows", "", "first")
	exec(`alter table "tenant t-4".rows add check (text <> 'bad')`)
	s.no(0, http.MethodPost, "/tenants/t-4/rows", "", "bad", 400, "")
	begun := s.must(0, http.MethodPost, "/tenants/t-4/transactions", "", "")
	s.no(0, http.MethodPost, "/transaction/rows", begun.Transaction, "bad", 400, "")
	s.no(0, http.MethodPost, "/transaction/rows", begun.Transaction, "good", 409, "")
	s.no(0, http.MethodPost, "/transaction/commit", begun.Transaction, "", 409, "")
	s.no(0, http.MethodPost, "/transaction/commit", begun.Transaction, "", 404, "pin_lost")

	begun = s.must(0, http.MethodPost, "/tenants/t-4/transactions", "", "")
	s.must(0, http.MethodPost, "/transaction/rows", begun.Transaction, "gone")
	exec("select pg_terminate_backend(pid, 10000) from pg_stat_activity where state = 'idle in transaction' and application_name like 'tenantpool %'")
	s.no(1, http.MethodPost, "/transaction/rows", begun.Transaction, "late", 404, "pin_lost")
	s.no(1, http.MethodPost, "/transaction/commit", begun.Transaction, "", 404, "pin_lost")
	s.await("a transaction that is lost has no place", func() error {
		for _, m := range s.members() {
			if p := s.pooled(m); p.Transactions != 0 {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})

	exec(`drop schema "tenant t-4" cascade`)
	s.await("the tenant is served again", func() error {
		_, err := s.try(0, http.MethodPost, "/tenants/t-4/rows", "", "anew")
		return err
	})
	for dsn, want := range map[string]string{
		at(s.data) + " dbname=none":                     "lets nobody in",
		"host=" + s.data + " user=none dbname=postgres": "lets nobody in",
	} {
		if err := answers(s.Context(), dsn); err == nil || !strings.Contains(err.Error(), want) {
			s.Errorf("%s: %v", dsn, err)
		}
	}
}

// P-54, P-68: a tenant whose requests wait for connections is given a second pod, while a transaction
// goes on at the first one.
func (s *system) fanOut(pods map[string]listed) {
	c, err := pgx.Connect(s.Context(), at(s.data))
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(s.Context()))
	begun := s.must(0, http.MethodPost, "/tenants/t-1/transactions", "", "")
	busy, stop := context.WithCancel(s.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var mu sync.Mutex
	answered := map[string]int{}
	for i := range 12 {
		all.Go(func() {
			for busy.Err() == nil {
				said, err := ask(busy, s.http, http.MethodGet, s.callers[i%2]+"/tenants/t-1/report?takes=50ms", "", "")
				switch {
				case err == nil:
					mu.Lock()
					answered[said.Pod]++
					mu.Unlock()
				case busy.Err() == nil:
					s.Errorf("a busy tenant: %v", err)
					return
				}
			}
		})
	}
	begin := time.Now()
	peak, most := 0, 0
	s.await("two pods answer for a busy tenant", func() error {
		var n int
		if n, most = s.opened(c); n > peak {
			peak = n
		}
		mu.Lock()
		defer mu.Unlock()
		if len(answered) < 2 {
			return fmt.Errorf("%v; it is at %v", answered, s.owners()["t-1"])
		}
		return nil
	})
	took := time.Since(begin).Round(time.Millisecond)
	for range 8 {
		if said := s.must(1, http.MethodPost, "/transaction/rows", begun.Transaction, "pinned"); said.Pod != begun.Pod {
			s.Errorf("a transaction begun at %s is at %s", begun.Pod, said.Pod)
		}
	}
	if said := s.must(0, http.MethodPost, "/transaction/commit", begun.Transaction, ""); said.Pod != begun.Pod {
		s.Errorf("a transaction begun at %s was committed at %s", begun.Pod, said.Pod)
	}
	stop()
	all.Wait()
	testreport.Linef(s.T, "tenantpool: a busy tenant has a second pod after %v, %v answers; %d connections at most, pods may have %d, and PostgreSQL takes %d", took, answered, peak, len(pods)*connections, most)
	if peak > most/2 { // PostgreSQL counts one that was closed a moment longer than its pod does
		s.Errorf("PostgreSQL counts %d connections of %d, and pods may have %d", peak, most, len(pods)*connections)
	}
}

// P-55: a tenant whose name says so is served by a pod for such tenants, and nobody else is.
func (s *system) dedicated() {
	s.pod("d1", "dedicated")
	s.await("the pod is listed", func() error {
		if len(s.members()) != 4 {
			return errors.New("it is not")
		}
		return nil
	})
	if made := s.must(0, http.MethodPost, "/tenants/big-1/rows", "", "x"); made.Pod != "d1" {
		s.Errorf("big-1 is at %s, want d1", made.Pod)
	}
	for i := range 6 {
		s.must(0, http.MethodPost, fmt.Sprintf("/tenants/late-%d/rows", i), "", "x")
	}
	for tenant, at := range s.owners() {
		if slices.Contains(at, "d1") != strings.HasPrefix(tenant, "big-") {
			s.Errorf("%s is at %v", tenant, at)
		}
	}
}

// moved waits until a row is answered by another pod than before, and says how long that took.
func (s *system) moved(path, from, text string) (time.Duration, string) {
	s.Helper()
	begun := time.Now()
	read := s.must(1, http.MethodGet, path, "", "")
	for read.Pod == from && s.Context().Err() == nil { // it may answer until it was told
		read = s.must(1, http.MethodGet, path, "", "")
	}
	if read.Text != text {
		s.Errorf("behind the end of %s: %+v, want %q", from, read, text)
	}
	return time.Since(begun).Round(time.Millisecond), read.Pod
}

// of says that a tenant is at none of a pod's.
func (s *system) without(pod string) error {
	for tenant, at := range s.owners() {
		if slices.Contains(at, pod) || len(at) == 0 {
			return fmt.Errorf("%s is at %v", tenant, at)
		}
	}
	return nil
}

// P-84: a pod that is asked to end gives its tenants away first: they are elsewhere at once, its
// record says so, and no request fails. A transaction that is not ended in a second is rolled back.
func (s *system) ended() {
	made := s.must(0, http.MethodPost, "/tenants/t-2/rows", "", "kept")
	other := ""
	for tenant, at := range s.owners() {
		if strings.HasPrefix(tenant, "small-") && slices.Equal(at, []string{made.Pod}) {
			other = "/tenants/" + tenant
		}
	}
	begun := s.must(0, http.MethodPost, other+"/transactions", "", "")
	lost := s.must(0, http.MethodPost, "/transaction/rows", begun.Transaction, "not")
	s.pods[made.Pod].Signal(syscall.SIGTERM)
	took, to := s.moved(fmt.Sprintf("/tenants/t-2/rows/%d", made.ID), made.Pod, "kept")
	if code := s.pods[made.Pod].Wait(proctest.Patience); code != 0 {
		s.Errorf("pod %s: exit status %d after SIGTERM, want 0", made.Pod, code)
	}
	if err := s.without(made.Pod); err != nil {
		s.Errorf("%s has ended: %v", made.Pod, err)
	}
	s.no(0, http.MethodPost, "/transaction/commit", begun.Transaction, "", 404, "pin_lost")
	s.no(0, http.MethodGet, fmt.Sprintf("%s/rows/%d", other, lost.ID), "", "", 404, "")
	state := s.members()[made.Pod].State
	testreport.Linef(s.T, "tenantpool: SIGTERM of a pod: its tenants are elsewhere after %v, its record is %q", took, state)
	if state == "active" || to == made.Pod {
		s.Errorf("%s has ended, and is %q; its tenant is at %s", made.Pod, state, to)
	}
	delete(s.pods, made.Pod)
}

// P-85: the tenants of a pod that is killed are elsewhere when it has been silent for as long as the
// settings say. Its transactions are lost, and say so.
func (s *system) killed() {
	made := s.must(0, http.MethodPost, "/tenants/t-3/rows", "", "kept")
	begun := s.must(0, http.MethodPost, "/tenants/t-3/transactions", "", "")
	s.must(0, http.MethodPost, "/transaction/rows", begun.Transaction, "gone")
	victim := begun.Pod
	// Only now: on a busy machine a pod that lives may be silent for as long, and its transactions are lost then.
	s.nokv("keyspace", "update", keyspace, "--liveness-suspect-after", "1s", "--liveness-dead-after", "1500ms")
	s.pods[victim].Kill()
	took, _ := s.moved(fmt.Sprintf("/tenants/t-3/rows/%d", made.ID), victim, "kept")
	s.no(0, http.MethodPost, "/transaction/commit", begun.Transaction, "", 404, "pin_lost")
	all := s.await("no tenant is at the dead pod", func() error { return s.without(victim) })
	testreport.Linef(s.T, "tenantpool: SIGKILL of a pod: a request of its tenant is answered by another after %v, all are elsewhere %v later; here silence of 1.5s is death, and in the preset of 30s", took, all)
	if again := s.must(0, http.MethodPost, "/tenants/t-3/rows", "", "again"); again.Pod == victim {
		s.Errorf("a dead pod answers")
	}
}

// P-63: a pod of a name that another one has takes its place: the other ends, and says why.
func (s *system) replaced() {
	for id, first := range s.pods {
		if !first.Running() {
			continue
		}
		s.pod(id, "shared")
		if code := first.Wait(proctest.Patience); code != 1 {
			s.Errorf("%s was replaced, and ended with exit status %d", id, code)
		}
		said := first.Tail()
		if !strings.Contains(said, "another process registered under this member's id") || strings.Contains(said, "not drained") {
			s.Errorf("%s was replaced, and says %s", id, said)
		}
		return
	}
	s.Error("no pod is left")
}
