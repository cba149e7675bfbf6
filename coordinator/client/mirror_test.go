package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// What Save wrote Load reads, in parts or in one; of anything else, a byte
// changed or missing, or of another keyspace, it takes nothing.
func TestMirrorSavesAndLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			m := snapshot(5)
			for i := range 300 { // more than one part of a saved copy
				m.Changes = append(m.Changes, now(region(uint64(i+1), fmt.Sprintf("%03d%s", i, strings.Repeat("x", 1000)), fmt.Sprintf("%03d", i+1), 4))...)
			}
			must(t, s.Send(m))
			<-s.Context().Done()
			return nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		cfg := client.MirrorConfig{Keyspace: "k", OnChange: func(client.Update) { cancel() }}
		m := c.NewMirror(cfg)
		if m.Save(&bytes.Buffer{}) == nil {
			t.Error("saved before there was anything")
		}
		must(t, m.Run(ctx))
		var saved bytes.Buffer
		must(t, m.Save(&saved))

		again := c.NewMirror(cfg)
		must(t, again.Load(bytes.NewReader(saved.Bytes())))
		if at, ok := again.At(); !ok || at.String() != "1.1.5@0000000000000007" {
			t.Errorf("at %v", at)
		}
		n := 0
		for one := range again.All() {
			if have := m.Region(one.ID); have == nil || have.Start != one.Start || have.Revision != one.Revision {
				t.Errorf("%v, want %v", one, have)
			}
			n++
		}
		if n != 300 {
			t.Errorf("%d regions", n)
		}
		refuse := func(what string, cfg client.MirrorConfig, data []byte) {
			t.Helper()
			other := c.NewMirror(cfg)
			if err := other.Load(bytes.NewReader(data)); !errors.Is(err, client.ErrSaved) {
				t.Errorf("%s: %v", what, err)
			}
			if _, ok := other.At(); ok {
				t.Errorf("%s: it has a position", what)
			}
		}
		refuse("of another keyspace", client.MirrorConfig{Keyspace: "l"}, saved.Bytes())
		refuse("longer", cfg, append(bytes.Clone(saved.Bytes()), 0))
		for i := 0; i < saved.Len(); i += 997 {
			refuse(fmt.Sprint("cut at ", i), cfg, saved.Bytes()[:i])
			spoiled := bytes.Clone(saved.Bytes())
			spoiled[i] ^= 1
			refuse(fmt.Sprint("spoiled at ", i), cfg, spoiled)
		}
		full := c.NewMirror(client.MirrorConfig{Keyspace: "k", MaxRegions: 299})
		if err := full.Load(bytes.NewReader(saved.Bytes())); !errors.Is(err, client.ErrMirrorFull) {
			t.Errorf("too large: %v", err)
		}
	})
}

// A mirror that is full stays as it was, at the position that it was at: what
// OnChange did not hear of is not in it. A batch that leaves no more than there may
// be is taken in, whatever its order.
func TestAFullMirrorStaysAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			first := snapshot(5)
			first.Changes = now(region(1, "", "m", 2))
			must(t, s.Send(first))
			gone := now(region(1, "", "m", 2))
			gone[0].Removed = true
			_ = s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: append(now(region(2, "m", "", 6)), gone...), Disclosure: says(6)})
			_ = s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(7), Changes: now(region(2, "m", "", 7), region(3, "", "m", 7)), Disclosure: says(7)})
			<-s.Context().Done()
			return nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var told uint64
		m := c.NewMirror(client.MirrorConfig{Keyspace: "k", MaxRegions: 1, OnChange: func(u client.Update) { told = u.At.Token.Index }})
		wantIs(t, m.Run(t.Context()), client.ErrMirrorFull)
		var all []uint64
		for r := range m.All() {
			all = append(all, uint64(r.ID), r.Revision)
		}
		if at, _ := m.At(); told != 6 || at.Token.Index != told || !slices.Equal(all, []uint64{2, 6}) {
			t.Errorf("OnChange heard of %d, want 6; the mirror is at %d with regions and revisions %v", told, at.Token.Index, all)
		}
	})
}

// What takes the place of a region stays when that one goes, in whatever order the
// batch says both.
func TestAMirrorKeepsWhatTookAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			first := snapshot(5)
			first.Changes = now(region(1, "", "m", 2))
			must(t, s.Send(first))
			gone := now(region(1, "", "m", 2))
			gone[0].Removed = true
			must(t, s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: append(now(region(2, "", "m", 6)), gone...), Disclosure: says(6)}))
			<-s.Context().Done()
			return nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		ctx, stop := context.WithCancel(t.Context())
		m := c.NewMirror(client.MirrorConfig{OnChange: func(u client.Update) {
			if u.At.Token.Index == 6 {
				stop()
			}
		}})
		must(t, m.Run(ctx))
		var all []rooted.RegionID
		for r := range m.All() {
			all = append(all, r.ID)
		}
		if !slices.Equal(all, []rooted.RegionID{2}) || m.Region(2) == nil || m.Region(1) != nil {
			t.Errorf("it has %v", all)
		}
	})
}
