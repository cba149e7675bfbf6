package audit_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/audit"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var events = []*rootv1.Event{
	{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 0xc1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:3380"}},
	}}}},
	claim("c1", 0),
	{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Mandate: rootv1.Mandate_MANDATE_ALLOC_ID, Era: 1, Size: 100}}},
	advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED),
	advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED),
	claim("c2", 1),
	{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}}}}},
	advance(2, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED),
	advance(2, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED),
}

func claim(holder string, expected uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: holder, HolderIncarnation: 7, HolderAddress: holder + ":1", ExpectedEra: expected, PredecessorExpired: expected > 0,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}}
}

// advance is of the era's holder: c1, c2 and so on.
func advance(era uint64, stage rootv1.HandoverStage) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{
		Era: era, Stage: stage, HolderId: fmt.Sprint("c", era), HolderIncarnation: 7,
	}}}
}

// workdir writes the events as entries of term 1, with a checkpoint at the
// index, 0 for none. change may alter a record of it.
func workdir(t *testing.T, checkpoint, commit uint64, change func(*rootv1.Record)) string {
	t.Helper()
	return workdirOf(t, events, checkpoint, commit, change)
}

func workdirOf(t *testing.T, events []*rootv1.Event, checkpoint, commit uint64, change func(*rootv1.Record)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "work")
	s, err := storage.Open(dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	must(t, err)
	must(t, s.SaveIdentity(storage.Identity{ClusterID: 0xc1, NodeID: 3, Incarnation: 5, Member: true}))
	st := state.New()
	for i, e := range events {
		index, term := uint64(i+1), uint64(1)
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		must(t, err)
		known, vote := min(commit, index), uint64(0)
		entry := &raftpb.Entry{Index: &index, Term: &term, Data: data}
		if state.RootPeerEvent(e) {
			inside, err := proto.Marshal(&raftpb.ConfChangeV2{Context: data})
			must(t, err)
			entry.Type, entry.Data = raftpb.EntryConfChangeV2.Enum(), inside
		}
		must(t, s.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &known}, []*raftpb.Entry{entry}, true))
		var out state.Applied
		must(t, st.ApplyEntry(1, index, data, &out))
		if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatalf("event %d: %v", i, out.Results[0].Reject)
		}
		if index == checkpoint {
			write(t, s, st, change)
		}
	}
	must(t, s.Close())
	return dir
}

// TestReplacedRootPeer: the steps of a replacement ride inside raft's own changes,
// and are followed like every other entry, whatever comes before and behind.
func TestReplacedRootPeer(t *testing.T) {
	steps := []*rootv1.Event{
		{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{Peer: &rootv1.RootPeer{NodeId: 3, Incarnation: 13, TransportAddress: "c:1"}, Replaces: 1}}},
		{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: 3}}},
		{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{Peer: &rootv1.RootPeer{NodeId: 4, Incarnation: 14, TransportAddress: "d:1"}, Replaces: 1}}},
		{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: 4}}},
		{Kind: &rootv1.Event_RootPeersSettled{RootPeersSettled: &rootv1.RootPeersSettled{NodeId: 4}}},
	}
	all := slices.Concat(events[:3], steps, events[3:])
	for _, checkpoint := range []uint64{0, 5, 7} {
		n := uint64(len(all))
		r, err := audit.Workdir(workdirOf(t, all, checkpoint, n, nil), storage.Options{SegmentBytes: storage.MinSegmentBytes})
		must(t, err)
		if r.Report.Verdict() != witness.Holds || len(r.Report.Anomalies) > 0 || r.From.Index != checkpoint || r.Entries != n-checkpoint || len(r.Tenures) != 2 {
			t.Errorf("checkpoint at %d: %+v, %+v", checkpoint, r, r.Report)
		}
	}
}

// write writes a checkpoint, altered and with the hash that fits.
func write(t *testing.T, s *storage.Storage, st *state.State, change func(*rootv1.Record)) {
	t.Helper()
	var records []*rootv1.Record
	must(t, st.Records(func(r *rootv1.Record) error {
		r = proto.CloneOf(r)
		if change != nil {
			change(r)
		}
		records = append(records, r)
		return nil
	}))
	i := 0
	altered, err := state.Restore(st.Token(), func() (*rootv1.Record, error) {
		if i == len(records) {
			return nil, io.EOF
		}
		i++
		return proto.CloneOf(records[i-1]), nil
	})
	must(t, err)
	meta := storage.CheckpointMeta{ClusterID: 0xc1, ClusterIncarnation: 1, Index: st.Token().Index, Term: 1, StateHash: altered.Hash()}
	must(t, s.WriteCheckpoint(meta, func(yield func([]byte) error) error {
		for _, r := range records {
			wire, err := proto.Marshal(r)
			if err != nil {
				return err
			}
			if err := yield(wire); err != nil {
				return err
			}
		}
		return nil
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkdirThatIsWell(t *testing.T) {
	for _, checkpoint := range []uint64{0, 1, 5, 6, 9} {
		r, err := audit.Workdir(workdir(t, checkpoint, 9, nil), storage.Options{})
		must(t, err)
		if r.Report.Verdict() != witness.Holds || len(r.Report.Anomalies) != 0 || r.Report.Token.Index != 9 {
			t.Errorf("checkpoint at %d: %+v", checkpoint, r.Report)
		}
		if r.Entries != 9-checkpoint || r.From.Index != checkpoint || r.Uncommitted != 0 || r.NodeID != 3 || len(r.Tenures) != 2 {
			t.Errorf("checkpoint at %d: %+v", checkpoint, r)
		}
		if ids := len(r.RootIDs); (ids == 1) != (checkpoint < 7) {
			t.Errorf("checkpoint at %d: %d ids of the root", checkpoint, ids)
		}
	}
}

// What may never have been committed is not judged.
func TestUncommittedEntriesAreNotJudged(t *testing.T) {
	r, err := audit.Workdir(workdir(t, 0, 7, nil), storage.Options{})
	must(t, err)
	if r.Entries != 7 || r.Uncommitted != 2 || r.Report.Token.Index != 7 || r.Report.Findings[witness.Finality].Verdict != witness.CannotTell {
		t.Errorf("%+v %+v", r, r.Report.Findings)
	}
}

func TestWorkdirAndBackupWithAFault(t *testing.T) {
	dir := workdir(t, 6, 9, func(r *rootv1.Record) {
		if h := r.GetHandover(); h.GetEra() == 2 {
			h.Inherited.AllocId = 99
		}
	})
	one, err := audit.Workdir(dir, storage.Options{})
	must(t, err)
	two, err := audit.Backup(filepath.Join(dir, "root.checkpoint.binpb"))
	must(t, err)
	for what, r := range map[string]*audit.Result{"workdir": one, "backup": two} {
		f := r.Report.Findings[witness.Inheritance]
		if f.Verdict != witness.Broken || !strings.Contains(f.Numbers, "era 2 starts above id 99, era 1 consumed 100") {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if two.Entries != 0 || two.From.Index != 6 || len(two.Tenures) != 2 {
		t.Errorf("%+v", two)
	}
}

// What rides in a change of raft's membership is applied; what nobody knows is
// refused, not passed over.
func TestMembershipEntries(t *testing.T) {
	carried, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{claim("c3", 2)}}}})
	must(t, err)
	_, change, err := raftpb.MarshalConfChange(&raftpb.ConfChangeV2{Context: carried})
	must(t, err)
	for kind, want := range map[raftpb.EntryType]uint64{raftpb.EntryConfChangeV2: 3, raftpb.EntryConfChange: 0} {
		dir := workdir(t, 0, 9, nil)
		s, err := storage.Open(dir, storage.Options{})
		must(t, err)
		index, term, vote := uint64(10), uint64(1), uint64(0)
		must(t, s.Append(&raftpb.HardState{Term: &term, Vote: &vote, Commit: &index}, []*raftpb.Entry{{Index: &index, Term: &term, Type: &kind, Data: change}}, true))
		must(t, s.Close())
		r, err := audit.Workdir(dir, storage.Options{})
		switch {
		case want == 0:
			if err == nil || !strings.Contains(err.Error(), "entry 10") {
				t.Errorf("%s: %v", kind, err)
			}
		case err != nil:
			t.Errorf("%s: %v", kind, err)
		case r.Report.Eras[0].Era != want:
			t.Errorf("%s: era %d", kind, r.Report.Eras[0].Era)
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := workdir(t, 5, 9, nil)
	s, err := storage.Open(dir, storage.Options{})
	must(t, err)
	if _, err := audit.Workdir(dir, storage.Options{}); !errors.As(err, new(*storage.LockedError)) {
		t.Errorf("in use: %v", err)
	}
	must(t, s.Close())
	if _, err := audit.Backup(filepath.Join(dir, "LOCK")); err == nil {
		t.Error("a file that is no checkpoint was read")
	}
	if _, err := audit.Backup(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	file := filepath.Join(dir, "root.checkpoint.binpb")
	b, err := os.ReadFile(file)
	must(t, err)
	b[100] ^= 1
	must(t, os.WriteFile(file, b, 0o600))
	if _, err := audit.Backup(file); !errors.As(err, new(*storage.DamageError)) {
		t.Errorf("damaged: %v", err)
	}
	if _, err := audit.Workdir(dir, storage.Options{}); !errors.As(err, new(*storage.DamageError)) {
		t.Errorf("damaged: %v", err)
	}
}
