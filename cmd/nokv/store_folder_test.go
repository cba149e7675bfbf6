package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
)

// A folder that is put back from before a run of its store ends that store, by name, when
// coordinators answer; --rebind takes it as it is.
func TestN65OlderFolders(t *testing.T) {
	t.Parallel()
	s := startStores(t, newCluster(t, 1))
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	if _, err := s.client.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.DefaultKeyspace, Owners: []rooted.Owner{{Member: "store-1"}}}); err != nil {
		t.Fatal(err)
	}
	s.put("a", "old")
	stop := func() {
		t.Helper()
		s.processes[0].Signal(syscall.SIGTERM)
		if code := s.processes[0].Wait(hostedWithin); code != 0 {
			t.Fatalf("exit status %d after SIGTERM", code)
		}
	}
	leading := func(st *storev1.StatusResponse) bool { return st.GetIncarnation() != 0 && roles(st) == "leading" }
	stop()
	file := filepath.Join(s.workdir(0), local.File)
	older, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.serve(0)
	s.status(0, leading)
	s.put("a", "new")
	stop()
	if err := os.WriteFile(file, older, 0o600); err != nil {
		t.Fatal(err)
	}
	s.serve(0)
	if code := s.processes[0].Wait(hostedWithin); code != exitRefused {
		t.Errorf("exit status %d", code)
	}
	args := []string{
		"serve", "--coordinator-addr", s.Coordinators(), "--store-id", "1", "--workdir", s.workdir(0), "--addr", s.addrs[0], "--heartbeat", "200ms",
	}
	if r := s.Run(args...); r.Code == 0 || !strings.Contains(r.Stderr, "another folder has run as store 1") || !strings.Contains(r.Stderr, "--rebind") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	s.processes[0] = proctest.Start(t, s.Options("store-1", append(args, "--rebind")...))
	s.status(0, leading)
	s.wantAll(map[string]string{"a": "old"})
}

// A folder of another cluster is told by name, with what may be done about it.
func TestN65FoldersOfAnotherCluster(t *testing.T) {
	t.Parallel()
	s := startStores(t, newCluster(t, 1))
	s.processes[0].Signal(syscall.SIGTERM)
	if code := s.processes[0].Wait(hostedWithin); code != 0 {
		t.Fatalf("exit status %d after SIGTERM", code)
	}
	other := newCluster(t, 1)
	settle(t, other)
	r := other.RunProcess("serve", "--coordinator-addr", other.Coordinators(), "--store-id", "1", "--workdir", s.workdir(0), "--addr", s.addrs[0])
	if r.Code != exitRefused || !strings.Contains(r.Stderr, "this workdir is of another cluster") || !strings.Contains(r.Stderr, "an empty --workdir") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
}
