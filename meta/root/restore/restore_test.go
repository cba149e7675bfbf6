package restore_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/meta/root/restore"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// made is a state of many coordinators, and a checkpoint of it in chunks of one record.
func made(t *testing.T) (*state.State, storage.CheckpointMeta, [][]byte) {
	st := state.New()
	apply := func(e *rootv1.Event) {
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		if err == nil {
			err = st.ApplyEntry(1, st.Token().Index+1, data, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 7, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11}}},
	}}})
	for i := range 50 {
		apply(&rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
			Id: string(rune('A' + i)), Address: "a:1", Incarnation: 1,
		}}})
	}
	var chunks [][]byte
	if err := st.EncodedRecords(func(r []byte) error {
		chunks = append(chunks, append(binary.AppendUvarint(nil, uint64(len(r))), r...))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	at := st.Token()
	return st, storage.CheckpointMeta{ClusterID: 7, ClusterIncarnation: at.Incarnation, Index: at.Index, Term: at.Term, StateHash: st.Hash()}, chunks
}

// What is read is the state that it was made of, or an error; either way nothing
// runs on behind it: the bubble would not end.
func TestState(t *testing.T) {
	st, meta, chunks := made(t)
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		spoil  func(chunks [][]byte, got *storage.CheckpointMeta) [][]byte
		failed error
		ok     bool
	}{
		"whole":              {ok: true},
		"the reader fails":   {failed: boom},
		"a chunk is no part": {spoil: func(c [][]byte, _ *storage.CheckpointMeta) [][]byte { c[3] = []byte{9}; return c }},
		"a part is refused":  {spoil: func(c [][]byte, _ *storage.CheckpointMeta) [][]byte { c[0], c[4] = c[4], c[0]; return c }},
		"a record is gone":   {spoil: func(c [][]byte, _ *storage.CheckpointMeta) [][]byte { return c[:len(c)-1] }},
		"another was read":   {spoil: func(c [][]byte, got *storage.CheckpointMeta) [][]byte { got.Index++; return c }},
	} {
		synctest.Test(t, func(t *testing.T) {
			got, all := meta, append([][]byte{}, chunks...)
			if c.spoil != nil {
				all = c.spoil(all, &got)
			}
			restored, err := restore.State(meta, func(fn func([]byte) error) (storage.CheckpointMeta, error) {
				for _, packed := range all {
					if err := fn(packed); err != nil {
						return got, err
					}
				}
				return got, c.failed
			})
			switch {
			case c.ok != (err == nil), c.failed != nil && !errors.Is(err, c.failed):
				t.Errorf("%s: %v", name, err)
			case c.ok && (restored.Hash() != st.Hash() || restored.Token() != st.Token()):
				t.Errorf("%s: it is at %s with hash %x", name, restored.Token(), restored.Hash())
			}
		})
	}
}
