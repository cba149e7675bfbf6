package state_test

import (
	"bytes"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// What is told to readers without secrets has none, and makes the same State.
func TestStrippedOfSecrets(t *testing.T) {
	pin := func(e *rootv1.PinKeyRotated) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: e}}
	}
	token := func(e *rootv1.PinKeyRotated) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: &rootv1.TokenKeyRotated{
			ExpectedId: e.ExpectedId, Secret: e.Secret, Sealed: e.Sealed,
		}}}
	}
	for _, size := range []int{state.KeySecretBytes, state.SealedSecretBytes} {
		strippedOfSecrets(t, pin, (*state.State).PinKeys, size)
		strippedOfSecrets(t, token, (*state.State).TokenKeys, size)
	}
}

func strippedOfSecrets(t *testing.T, event func(*rootv1.PinKeyRotated) *rootv1.Event, keys func(*state.State) []*rootv1.PinKey, size int) {
	t.Helper()
	whole, bare := state.New(), state.New()
	secret := bytes.Repeat([]byte("s3cret"), 11)[:size]
	rotate := func(expected uint32) *rootv1.Command {
		return &rootv1.Command{Events: []*rootv1.Event{event(&rootv1.PinKeyRotated{ExpectedId: expected, Secret: secret, Sealed: size != state.KeySecretBytes})}}
	}
	for i, commands := range [][]*rootv1.Command{
		{{Events: []*rootv1.Event{clusterEvent()}}},
		{publish(&rootv1.Region{KeyspaceId: 1, Frontier: []byte{0xb2, 1}}), rotate(0)},
		{rotate(0), rotate(1)},
		{publish(&rootv1.Region{KeyspaceId: 1, Frontier: []byte{0xb2, 1, 2}})},
	} {
		data := encode(t, commands...)
		stripped, changed := state.StripSecrets(data)
		if want := i == 1 || i == 2; changed != want || !changed && !bytes.Equal(stripped, data) || bytes.Contains(stripped, secret[:6]) {
			t.Fatalf("entry %d: changed %v: %q", i, changed, stripped)
		}
		var a, b state.Applied
		for s, in := range map[*state.State][]byte{whole: data, bare: stripped} {
			out := &a
			if s == bare {
				out = &b
			}
			if err := s.ApplyEntry(1, s.Token().Index+1, in, out); err != nil {
				t.Fatal(err)
			}
		}
		if whole.Hash() != bare.Hash() || len(a.Results) != len(b.Results) || a.Results[0].Outcome != b.Results[0].Outcome {
			t.Fatalf("entry %d: the states differ: %v, %v", i, a.Results, b.Results)
		}
	}
	if k := keys(whole); len(k) != 2 || !bytes.Equal(k[1].GetSecret(), secret) || len(keys(bare)[1].GetSecret()) != 0 {
		t.Fatalf("keys %v, without secrets %v", k, keys(bare))
	}
	found := 0
	err := whole.EncodedRecords(func(record []byte) error {
		stripped, changed := state.StripRecord(record)
		if changed {
			found++
		}
		if changed == bytes.Equal(stripped, record) || bytes.Contains(stripped, secret[:6]) {
			t.Errorf("record %q became %q", record, stripped)
		}
		return proto.Unmarshal(stripped, &rootv1.Record{})
	})
	if err != nil || found != 2 || restored(t, bare).Hash() != whole.Hash() {
		t.Errorf("%d records had secrets, %v", found, err)
	}
}
