package local_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/store/local"
)

func open(t *testing.T, dir string) *local.Disk {
	t.Helper()
	d, err := local.Open(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A workdir is of one store, one cluster and one keyspace.
func TestN65WorkdirIsBound(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	if err := d.Bind(7, 1); err != nil {
		t.Fatal(err)
	}
	first, err := d.Identity()
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []struct {
		cluster  uint64
		keyspace uint32
		want     string
	}{{8, 1, "belongs to cluster 0000000000000007"}, {7, 2, "has regions of keyspace 1"}} {
		if err := d.Bind(other.cluster, other.keyspace); err == nil || !strings.Contains(err.Error(), other.want) {
			t.Errorf("cluster %d, keyspace %d: %v", other.cluster, other.keyspace, err)
		}
	}
	if _, err := local.Open(dir, 1); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("a second process: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Open(dir, 2); err == nil || !strings.Contains(err.Error(), "is the workdir of store 1, not of store 2") {
		t.Errorf("another store: %v", err)
	}
	d = open(t, dir)
	defer d.Close()
	if again, err := d.Identity(); err != nil || !bytes.Equal(again.GetId(), first.GetId()) || again.GetClusterId() != 7 {
		t.Errorf("%v, %v; was %v", again, err, first)
	}
}

// A folder registers behind a process of its own alone: an older copy, or the other one of two,
// is refused until somebody takes it as it is.
func TestN65AnOlderFolderIsRefused(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	live := func(rooted, nonce uint64, fine bool) {
		t.Helper()
		if err := d.Live(rooted, nonce); errors.Is(err, local.ErrOlder) == fine || fine && err != nil {
			t.Errorf("%d behind %d: %v", nonce, rooted, err)
		}
	}
	live(99, 1, true) // a new folder has nothing that could be old
	live(1, 2, true)
	live(1, 3, true) // the second one did not come to it
	live(3, 3, true) // the same process asks again
	live(3, 4, true)
	live(3, 5, true)
	live(9, 6, false)
	live(4, 6, true) // it came late
	live(3, 7, false)
	live(6, 7, true)
	live(9, 7, false)
	for nonce := uint64(100); nonce < 200; nonce++ { // a root that does not answer
		live(7, nonce, true)
	}
	live(199, 7, true)
	live(0, 7, true) // a root that was restored from before it all
	if err := d.Bind(7, 1); err != nil {
		t.Fatal(err)
	}
	if err := d.Keep([]*storev1.LocalRegion{{Region: &rootv1.Region{Id: 5, Revision: 100}, Leading: true}}); err != nil {
		t.Fatal(err)
	}
	live(9, 8, false)
	if err := d.Bind(8, 2); err == nil {
		t.Error("another cluster binds it")
	}
	if err := d.Rebind(); err != nil {
		t.Fatal(err)
	}
	if err := d.Bind(8, 2); err != nil {
		t.Error(err)
	}
	live(9, 8, true)
	if all, err := d.Regions(); err != nil || len(all) != 1 || !all[0].GetLeading() || all[0].GetRegion().GetRevision() != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// Files that are somebody else's, empty, cut short or spoilt are refused by name, and stay
// as they are.
func TestDamagedFilesAreRefusedAndKept(t *testing.T) {
	whole := t.TempDir()
	d := open(t, whole)
	for i := range 200 {
		if _, err := d.Write(local.Write{Key: fmt.Appendf(nil, "k%03d", i), Value: make([]byte, 1000), Admit: func() error { return nil }}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Keep([]*storev1.LocalRegion{{Region: &rootv1.Region{Id: 5}, Leading: true}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(whole, local.File))
	if err != nil {
		t.Fatal(err)
	}
	spoilt := bytes.Clone(good)
	for at := 0; ; at++ { // every copy of the record
		i := bytes.Index(spoilt[at:], []byte{0, 0, 0, 0, 0, 0, 0, 5})
		if i < 0 {
			break
		}
		at += i
		spoilt[at+8] ^= 0xff
	}
	for _, c := range []struct {
		name    string
		content []byte
	}{
		{"empty", nil},
		{"of another program", bytes.Repeat([]byte("hello "), 10_000)},
		{"cut behind the header", good[:8192]},
		{"cut in half", good[:len(good)/2/4096*4096]},
		{"spoilt", spoilt},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, local.File)
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := local.Open(dir, 1)
			if err == nil {
				_, err = d.Regions()
				d.Close()
			}
			if !errors.Is(err, local.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
			if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, c.content) {
				t.Errorf("the file was changed: %d bytes, %v", len(left), err)
			}
		})
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "root.raft.bin"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Open(foreign, 1); err == nil || !strings.Contains(err.Error(), "has root.raft.bin and no store.db") {
		t.Errorf("a root peer's folder: %v", err)
	}
}

// A start that was ended while it made the file is no obstacle.
func TestHalfMadeFileIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, local.File+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
}

// Writers that come together are judged each by what the one before has made: of all that expect one version, one has its way.
func TestOfManyWritersOneHasItsWay(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	const writers, rounds = 32, 20
	var wins [rounds]int
	var mu sync.Mutex
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for round := range rounds {
				none := uint64(0)
				w, err := d.Write(local.Write{Key: fmt.Appendf(nil, "k%d", round), Expected: &none, Admit: func() error { return nil }})
				if err != nil {
					t.Error(err)
				}
				if w.Done {
					mu.Lock()
					wins[round]++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	for round, n := range wins {
		if n != 1 {
			t.Errorf("round %d: %d writers have won", round, n)
		}
	}
}

// Who comes while a commit is on its way goes in the next one, with all others.
func TestWhoWaitsSharesACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, t.TempDir())
		defer d.Close()
		before, begun, held := d.Commits(), make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		write := func(key string, admit func() error) {
			all.Go(func() {
				if w, err := d.Write(local.Write{Key: []byte(key), Admit: admit}); err != nil || !w.Done {
					t.Errorf("%s: %+v, %v", key, w, err)
				}
			})
		}
		write("first", func() error {
			close(begun)
			<-held
			return nil
		})
		<-begun
		for i := range 32 {
			write(fmt.Sprint(i), func() error { return nil })
		}
		synctest.Wait()
		close(held)
		all.Wait()
		if n := d.Commits() - before; n != 2 {
			t.Errorf("%d commits for one write and 32 that came meanwhile, want 2", n)
		}
	})
}

// A refused writer changes nothing, and costs its neighbours nothing.
func TestRefusedWriter(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	no := errors.New("no")
	if _, err := d.Write(local.Write{Key: []byte("a"), Admit: func() error { return no }}); !errors.Is(err, no) {
		t.Errorf("%v", err)
	}
	if e, err := d.Get([]byte("a")); err != nil || e.Version != 0 {
		t.Errorf("%+v, %v", e, err)
	}
}

// BenchmarkWrite is 64 writers of 100 bytes each.
func BenchmarkWrite(b *testing.B) {
	d, err := local.Open(b.TempDir(), 1)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := d.Write(local.Write{Key: fmt.Appendf(nil, "k%d", i), Value: make([]byte, 100), Admit: func() error { return nil }}); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/float64(max(1, d.Commits())), "writes/commit")
}
