package state_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
)

// packed is what a checkpoint has of the records of a State, cut into parts.
func packed(t tester, s *state.State, records int) [][]byte {
	t.Helper()
	parts, n := [][]byte{nil}, 0
	if err := s.EncodedRecords(func(r []byte) error {
		if n++; n > records {
			parts, n = append(parts, nil), 1
		}
		last := &parts[len(parts)-1]
		*last = append(binary.AppendUvarint(*last, uint64(len(r))), r...)
		return nil
	}); err != nil {
		t.Fatalf("records: %v", err)
	}
	return parts
}

func fromParts(t tester, at state.Token, hash uint64, parts [][]byte) (*state.State, error) {
	t.Helper()
	r := state.NewRestoring()
	for _, b := range parts {
		p, err := state.DecodePart(b)
		clear(b) // nothing of it is kept
		if err == nil {
			err = r.Add(p)
		}
		if err != nil {
			return nil, err
		}
	}
	return r.Finish(at, hash)
}

// A State made of parts, however they are cut, is the one they came from; with
// another hash it is none.
func TestRestoringOfParts(t *testing.T) {
	s := benchState(t, 1000, nil)
	for _, records := range []int{1, 7, 256, 5000} {
		got, err := fromParts(t, s.Token(), s.Hash(), packed(t, s, records))
		if err != nil || got.Hash() != s.Hash() || got.RegionCount() != 1000 || got.MemberRegionCount("store-7") != 10 {
			t.Fatalf("of parts of %d: %v, %v", records, got, err)
		}
	}
	if _, err := fromParts(t, s.Token(), s.Hash()+1, packed(t, s, 100)); err == nil || !strings.Contains(err.Error(), "state hash") {
		t.Errorf("with another hash: %v", err)
	}
}

// What is cut off, repeated, out of place or overlapping makes no State.
func TestRestoringRefuses(t *testing.T) {
	s := benchState(t, 1000, nil)
	whole := func() [][]byte { return packed(t, s, 100) }
	for name, parts := range map[string][][]byte{
		"the end is missing":  whole()[:5],
		"one is there twice":  append(whole()[:5], whole()[4:]...),
		"two changed places":  append(append(whole()[:4], whole()[5], whole()[4]), whole()[6:]...),
		"one is cut off":      append(whole()[:4], whole()[4][:50]),
		"one is not a record": append(whole()[:4], []byte{3, 0xff, 0xff, 0xff}),
	} {
		if _, err := fromParts(t, s.Token(), s.Hash(), parts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A region with what this version does not know is refused, wherever it stands.
func TestRestoringRefusesUnknownRegions(t *testing.T) {
	for _, body := range []string{"\x08\x01\x48\x01", "\x08\x01\x32\x04\x0a\x00\x20\x63", "\x08\x01\x2a\x02\x18\x01"} {
		b := append([]byte{byte(len(body) + 2), 9<<3 | 2, byte(len(body))}, body...)
		if _, err := state.DecodePart(b); err == nil || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("% x: %v", body, err)
		}
	}
}
