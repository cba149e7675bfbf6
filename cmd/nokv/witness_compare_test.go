package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// shows is what a root peer shows of itself at a position.
func shows(node, cluster, index, hash uint64, differs string) rootclient.PeerStatus {
	role := rootv1.RaftRole_RAFT_ROLE_FOLLOWER
	if node == 1 {
		role = rootv1.RaftRole_RAFT_ROLE_LEADER
	}
	return rootclient.PeerStatus{NodeID: node, Address: fmt.Sprint("root:", node), Status: &rootv1.StatusResponse{
		NodeId: node, ClusterId: cluster, Role: role, CommitIndex: index, AppliedIndex: index, StateHash: hash, StateDiffers: differs, NotVoting: differs != "",
	}}
}

// Root peers that show different states at one position, or of which one says so itself, are
// named by `nokv root status` and by the Witness, and both fail.
func TestRootPeersThatDiffer(t *testing.T) {
	const word = "DIFFER at entry"
	silent := rootclient.PeerStatus{NodeID: 3, Address: "root:3", Err: errors.New("nobody listens")}
	for name, c := range map[string]struct {
		peers []rootclient.PeerStatus
		want  string
	}{
		"all alike":              {[]rootclient.PeerStatus{shows(1, 9, 7, 5, ""), shows(2, 9, 7, 5, ""), shows(3, 9, 7, 5, "")}, ""},
		"one is away":            {[]rootclient.PeerStatus{shows(1, 9, 7, 5, ""), shows(2, 9, 7, 5, ""), silent}, ""},
		"at other positions":     {[]rootclient.PeerStatus{shows(1, 9, 7, 5, ""), shows(2, 9, 8, 6, "")}, ""},
		"nothing applied":        {[]rootclient.PeerStatus{shows(1, 9, 0, 5, ""), shows(2, 9, 0, 6, "")}, ""},
		"the third differs":      {[]rootclient.PeerStatus{shows(1, 9, 7, 5, ""), shows(2, 9, 7, 5, ""), shows(3, 9, 7, 6, "")}, "root peer 1 and root peer 3 DIFFER at entry 7: state 0000000000000005, and state 0000000000000006. At most one of them is right."},
		"behind one that is not": {[]rootclient.PeerStatus{shows(1, 9, 7, 5, ""), silent, shows(2, 9, 7, 6, "")}, "root peer 1 and root peer 2 DIFFER at entry 7"},
		"one says it itself":     {[]rootclient.PeerStatus{shows(1, 9, 9, 5, ""), shows(2, 9, 7, 6, "entry 4 made another state")}, "root peer 2 and another DIFFER at entry 7: entry 4 made another state. At most one of them is right."},
	} {
		var out bytes.Buffer
		err := showRootStatus(&env{stdout: &out}, c.peers)
		report := (&proof{report: witness.Judge(twoEras()), source: "root peer 1", compared: comparePeers(c.peers)}).output()
		read := table(t, report)
		if c.want == "" {
			if err != nil || strings.Contains(out.String(), word) || report.Verdict != witness.Holds.String() || strings.Contains(read, word) {
				t.Errorf("%s: %v\n%s\n%s", name, err, out.String(), read)
			}
			continue
		}
		if !errors.Is(err, errStatesDiffer) || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: root status ends with %v and without %q\n%s", name, err, c.want, out.String())
		}
		if report.Verdict != witness.Broken.String() || !strings.Contains(read, c.want) || !strings.HasPrefix(report.Headline, "The states of two root peers differ.") {
			t.Errorf("%s: the Witness says %s and not %q\n%s", name, report.Verdict, c.want, read)
		}
	}
}

// folderOf is the folder of a stopped root peer whose log has regions that start at these keys.
func folderOf(t *testing.T, keys ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "peer")
	s, err := storage.Open(dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	events := []*rootv1.Event{{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 0xc1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:3380"}},
	}}}}}
	for _, key := range keys {
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~"), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
		}}}})
	}
	err = s.SaveIdentity(storage.Identity{ClusterID: 0xc1, NodeID: 1, Incarnation: 11, Member: true})
	for i, e := range events {
		data, encode := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		index, term, vote := uint64(i+1), uint64(1), uint64(0)
		hard := &raftpb.HardState{Term: &term, Vote: &vote, Commit: &index}
		err = errors.Join(err, encode, s.Append(hard, []*raftpb.Entry{{Index: &index, Term: &term, Data: data}}, true))
	}
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// `nokv witness --workdir A --workdir B` compares the folders of stopped peers: a copy that is
// behind agrees, one of another past does not, and what has no log is refused.
func TestWitnessComparesFolders(t *testing.T) {
	whole, behind, strange := folderOf(t, "a", "b", "c"), folderOf(t, "a"), folderOf(t, "a", "elsewhere", "c")
	run := func(dirs ...string) (int, string) {
		args := []string{"witness"}
		for _, d := range dirs {
			args = append(args, "--workdir", d)
		}
		code, stdout, stderr := runHere(t, args...)
		return code, stdout + stderr
	}
	if code, said := run(whole, behind); code != exitOK || !strings.Contains(said, whole+" and "+behind+" agree at 2 positions.") {
		t.Errorf("one is behind: exit status %d\n%s", code, said)
	}
	if code, said := run(whole, behind, strange); code != exitRefused || !strings.Contains(said, whole+" and "+strange+" DIFFER at entry 3:") || !strings.Contains(said, "The states of two root peers differ.") {
		t.Errorf("one is of another past: exit status %d\n%s", code, said)
	}
	empty := t.TempDir()
	if code, said := run(whole, empty); code != exitRefused || !strings.Contains(said, empty) {
		t.Errorf("one is nobody's: exit status %d\n%s", code, said)
	}
}
