package root_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A peer whose folder is put back from a copy of an earlier start is refused by name, ends
// with an error that says what to do, and says the same at its next start, whoever is
// there; the others go on.
func TestFolderPutBackIsRefused(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.mustWrite(5, 0)
	back := (p.leader() + 1) % 3
	p.Kill(back)
	dir, older := p.Workdir(back), filepath.Join(p.Dir, "older")
	if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	p.Start(back)
	p.mustWrite(5, 0)
	p.same()
	p.Kill(back)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if code := p.Start(back).Wait(patience); code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		if log := p.Process(back).Tail(); !strings.Contains(log, "is an older copy, or a second one") || !strings.Contains(log, "nokv root replace --lost") {
			t.Errorf("it does not say why:\n%s", log)
		}
	}
	p.mustWrite(5, 0)
}

// append adds an entry to the log of a peer that is down, as if it were committed: another
// region for each name.
func (p *peers) append(member int, name string) {
	p.t.Helper()
	s, err := storage.Open(p.Workdir(member), storage.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	last, err := s.LastIndex()
	hard, _, state := s.InitialState()
	data, encode := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		KeyspaceId: 1, StartKey: []byte(name), EndKey: []byte(name + "~"), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
	}}}}}}}})
	if err := errors.Join(err, state, encode); err != nil {
		p.t.Fatal(err)
	}
	next, term := last+1, hard.GetTerm()
	hard.Commit = &next
	err = s.Append(hard, []*raftpb.Entry{{Index: &next, Term: &term, Data: data}}, true)
	if err := errors.Join(err, s.Close()); err != nil {
		p.t.Fatal(err)
	}
}

// saysItDiffers is nil once a peer says everywhere that its state differs from another's and
// that it does not vote.
func (p *peers) saysItDiffers(member int) error {
	const word = "differs from that of root peer"
	var vars root.Vars
	if err := p.Vars(member, &vars); err != nil {
		return err
	}
	if !strings.Contains(vars.StateDiffers, word) || !vars.NotVoting {
		return fmt.Errorf("/debug/vars: state_differs %q, not_voting %t", vars.StateDiffers, vars.NotVoting)
	}
	said := false
	for _, s := range p.status() {
		if s.GetNodeId() == uint64(member+1) {
			said = strings.Contains(s.GetStateDiffers(), word) && s.GetNotVoting()
		}
	}
	if !said {
		return errors.New("its status does not say it")
	}
	resp, err := http.Get("http://" + p.MetricsAddrs[member] + "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), word) {
		return fmt.Errorf("/healthz: %s, %s, %w", resp.Status, body, err)
	}
	return nil
}

// Peers whose logs are of one past and whose states are not find it out by themselves: while
// there are only two of them neither votes, and both say so; the third shows which of the two
// is wrong. That one ends, at each start, and the others go on.
func TestPeersOfTwoPastsSaySo(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.StartAll()
	p.mustWrite(5, 0)
	p.same()
	for i := range 3 {
		p.Kill(i)
	}
	p.append(0, "right")
	p.append(1, "wrong")
	p.append(2, "right")
	p.Start(0)
	p.Start(1)
	for i := range 2 {
		proctest.Eventually(t, patience, func() error { return p.saysItDiffers(i) })
		p.Process(i).WaitLog("this peer does not vote any more", patience)
	}
	p.Start(2)
	for range 2 {
		if code := p.Process(1).Wait(patience); code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		if log := p.Process(1).Tail(); !strings.Contains(log, "state diverged at index") {
			t.Errorf("it does not say why it ends:\n%s", log)
		}
		p.mustWrite(5, 0)
		p.Start(1)
	}
}
