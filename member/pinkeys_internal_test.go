package member

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/pin"
	"github.com/nokv/nokv/rooted"
)

// Keys that are in use stay, however many keyspaces something is pinned in; what is kept for pins
// that were goes.
func TestKeysOfManyKeyspacesStay(t *testing.T) {
	p := newPins(&Member{cfg: Config{ID: "m1"}})
	p.cfg.Max, p.cfg.MaxBytes = 1<<20, 1<<30
	open := func(at int) {
		e := &pinned{Pin: Pin{ID: fmt.Sprint(at)}, keyspace: rooted.KeyspaceID(at), nonce: pin.Nonce{byte(at), byte(at >> 8), byte(at >> 16)}}
		if err := p.add(e, pin.NewRing(1, e.keyspace)); err != nil {
			t.Fatal(err)
		}
	}
	for at := range maxPinKeyspaces + 10 {
		open(at)
	}
	first := p.keysOf("a")
	for at := range 100 {
		_ = p.keysOf(fmt.Sprint("b", at))
	}
	if p.keysOf("a") != first {
		t.Error("keys were forgotten that are in use")
	}
	if len(p.rings) != maxPinKeyspaces+10 {
		t.Errorf("%d rings", len(p.rings))
	}
	clear(p.at)
	for at := range 2 * maxPinKeyspaces {
		open(1<<16 + at)
		clear(p.at)
	}
	if n := len(p.rings); n > 2*(maxPinKeyspaces+10) {
		t.Errorf("%d rings of nothing are kept", n)
	}
	for at := range 3 * maxPinKeyspaces {
		_ = p.keysOf(fmt.Sprint(at))
	}
	if n := len(p.keys); n > maxPinKeyspaces {
		t.Errorf("keys of %d keyspaces are kept", n)
	}
}
