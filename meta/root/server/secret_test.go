package server_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// TestSecretsGoToReadersWithAnID: to a reader without one neither the tail nor a
// snapshot has a byte of a key's secret, and what it builds of them has the
// hash of the root's.
func TestSecretsGoToReadersWithAnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		secret := bytes.Repeat([]byte("sEcReT!?"), state.KeySecretBytes/8)
		rotated := r.apply([]*rootv1.Command{
			joined("a", 100),
			{Events: []*rootv1.Event{{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{Secret: secret}}}}},
			{Events: []*rootv1.Event{{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: &rootv1.TokenKeyRotated{Secret: secret}}}}},
		})
		if got := rotated[1:]; got[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED || got[1].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatal(got)
		}
		r.apply([]*rootv1.Command{joined("b", 100)})
		root := serve(t, r, nil).root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		want := r.View().State
		for _, id := range []string{"", "c1"} {
			for name, read := range map[string]func(context.Context, rootv1.RootClient, string, []byte, uint64) (*state.State, bool, error){
				"tail": tailed, "snapshot": copied,
			} {
				got, has, err := read(ctx, root, id, secret, want.Token().Index)
				if err != nil || got.Hash() != want.Hash() || got.Token() != want.Token() {
					t.Fatalf("%s of reader %q: %v", name, id, err)
				}
				opens := bytes.Equal(got.PinKeys()[0].GetSecret(), secret)
				if bytes.Equal(got.TokenKeys()[0].GetSecret(), secret) != opens {
					t.Errorf("%s of reader %q: one key opens, the other does not", name, id)
				}
				if has != (id != "") || opens != has {
					t.Errorf("%s of reader %q: the secret is on the wire: %t, in the state: %t", name, id, has, opens)
				}
			}
		}
	})
}

// tailed is the state that a tail gives at index, and whether the secret was in it.
func tailed(ctx context.Context, root rootv1.RootClient, id string, secret []byte, index uint64) (*state.State, bool, error) {
	st, has := state.New(), false
	stream, err := root.Tail(ctx, &rootv1.TailRequest{ReaderId: id, FeatureLevel: state.SupportedLevel()})
	for err == nil && st.Token().Index < index {
		var msg *rootv1.TailResponse
		if msg, err = stream.Recv(); err != nil {
			break
		}
		has = has || onWire(msg, secret)
		for _, e := range msg.GetEntries() {
			if err = st.ApplyEntry(e.GetTerm(), e.GetIndex(), e.GetEntry(), nil); err != nil {
				break
			}
		}
	}
	return st, has, err
}

// copied is tailed for a snapshot.
func copied(ctx context.Context, root rootv1.RootClient, id string, secret []byte, _ uint64) (*state.State, bool, error) {
	has, at := false, state.Token{}
	var records []*rootv1.Record
	stream, err := root.Snapshot(ctx, &rootv1.SnapshotRequest{ReaderId: id, FeatureLevel: state.SupportedLevel()})
	for err == nil {
		var chunk *rootv1.SnapshotChunk
		if chunk, err = stream.Recv(); err != nil {
			break
		}
		has = has || onWire(chunk, secret)
		at, records = state.TokenFromProto(chunk.GetToken()), append(records, chunk.GetRecords()...)
	}
	if err != io.EOF {
		return nil, has, err
	}
	st, err := state.Restore(at, func() (*rootv1.Record, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		one := records[0]
		records = records[1:]
		return one, nil
	})
	return st, has, err
}

// onWire says whether any eight bytes of the secret are in the message as it was sent.
func onWire(m proto.Message, secret []byte) bool {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return bytes.Contains(data, secret[:8])
}
