package rootview_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const clusterID = 0xC1

// rootLog is the truth that views are compared with: a log, and the state after
// every entry.
type rootLog struct {
	t       failer
	entries []*rootv1.TailEntry
	states  []*state.State // states[i] has the first i entries
	term    uint64
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// newRootLog returns a log whose first entries bootstrap a cluster.
func newRootLog(t failer) *rootLog {
	l := newRootLogOf(t, clusterID, 1)
	return l
}

func newRootLogOf(t failer, cluster, incarnation uint64) *rootLog {
	l := &rootLog{t: t, states: []*state.State{state.New()}, term: 1}
	l.append(nil)
	l.commit(bootstrap(cluster, incarnation))
	return l
}

func bootstrap(cluster, incarnation uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{
			ClusterId: cluster, Incarnation: incarnation,
			Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:1"}},
		},
	}}}
}

// commit appends one entry with one command a event; all must apply.
func (l *rootLog) commit(events ...*rootv1.Event) state.Token {
	l.t.Helper()
	e := &rootv1.Entry{}
	for _, ev := range events {
		e.Commands = append(e.Commands, &rootv1.Command{Events: []*rootv1.Event{ev}})
	}
	data, err := proto.Marshal(e)
	if err != nil {
		l.t.Fatalf("marshal: %v", err)
	}
	for _, r := range l.append(data).Results {
		if r.Outcome == rootv1.Outcome_OUTCOME_REJECTED {
			l.t.Fatalf("the log's own command was rejected: %v", r.Reject)
		}
	}
	return l.token()
}

func (l *rootLog) append(data []byte) state.Applied {
	l.t.Helper()
	next := l.last().Fork()
	index := uint64(len(l.entries)) + 1
	var out state.Applied
	if err := next.ApplyEntry(l.term, index, data, &out); err != nil {
		l.t.Fatalf("apply entry %d: %v", index, err)
	}
	l.entries = append(l.entries, &rootv1.TailEntry{Term: l.term, Index: index, Entry: data})
	l.states = append(l.states, next)
	return out
}

func (l *rootLog) last() *state.State { return l.states[len(l.states)-1] }
func (l *rootLog) token() state.Token { return l.last().Token() }

// message is what a peer with a leader sends: entries (from, to] and its commit
// index.
func (l *rootLog) message(from, to, commit int) *rootv1.TailResponse {
	return &rootv1.TailResponse{
		Entries: l.entries[from:to], CommitIndex: uint64(commit), LeaderId: 1,
		ClusterId: l.last().Cluster().GetClusterId(), Incarnation: l.last().Cluster().GetIncarnation(),
	}
}

// all is the message that brings a reader at from level.
func (l *rootLog) all(from int) *rootv1.TailResponse {
	return l.message(from, len(l.entries), len(l.entries))
}

// chunks is the snapshot of a state in chunks of n records.
func chunks(t failer, st *state.State, n int) []*rootv1.SnapshotChunk {
	t.Helper()
	var out []*rootv1.SnapshotChunk
	var count uint64
	chunk := &rootv1.SnapshotChunk{Token: st.Token().Proto()}
	if err := st.Records(func(r *rootv1.Record) error {
		count++
		chunk.Records = append(chunk.Records, proto.CloneOf(r))
		if len(chunk.Records) == n {
			out = append(out, chunk)
			chunk = &rootv1.SnapshotChunk{Token: st.Token().Proto()}
		}
		return nil
	}); err != nil {
		t.Fatalf("records: %v", err)
	}
	chunk.Last, chunk.RecordCount, chunk.StateHash = true, count, st.Hash()
	return append(out, chunk)
}

// region publishes [start, end) of the default keyspace.
func region(id uint64, start, end string, version uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		Id: id, KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end),
		Epoch: &rootv1.RegionEpoch{Version: version, ConfVersion: 1},
	}}}}
}

func tombstone(id uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
}

// slot is the n-th of many small intervals that never overlap.
func slot(n int) (start, end string) {
	return fmt.Sprintf("k%06d", n), fmt.Sprintf("k%06d", n+1)
}

// grow commits n regions, numbered on from the ones there are.
func (l *rootLog) grow(n int) {
	l.t.Helper()
	for range n {
		id := l.last().RegionCount() + 1
		start, end := slot(id)
		l.commit(region(uint64(id), start, end, 1))
	}
}

func TestLogFixture(t *testing.T) {
	l := newRootLog(t)
	l.grow(3)
	if got := l.last().RegionCount(); got != 3 || l.token() != (state.Token{Incarnation: 1, Term: 1, Index: 5}) {
		t.Fatalf("regions %d at %s", got, l.token())
	}
}
