package state_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const benchRegions = 1_000_000

func benchKey(i int) string { return fmt.Sprintf("user/%09d", i) }

// benchRegion is the i-th of a row of one-owner regions that touch each other.
func benchRegion(i int, version uint64) *rootv1.Region {
	return &rootv1.Region{
		KeyspaceId: 1, Id: uint64(i + 1), StartKey: []byte(benchKey(i)), EndKey: []byte(benchKey(i + 1)),
		Epoch:  &rootv1.RegionEpoch{Version: version, ConfVersion: 1},
		Owners: []*rootv1.Owner{{MemberId: fmt.Sprintf("store-%d", i%100), PeerId: uint64(i) + 5_000_000, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}},
	}
}

func publish(r *rootv1.Region) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}}}
}

// benchState is a State with n regions, published in the order of perm.
func benchState(tb testing.TB, n int, perm []int) *state.State {
	s, index := state.New(), uint64(0)
	next := func(commands ...*rootv1.Command) {
		index++
		var out state.Applied
		if err := s.ApplyEntry(1, index, encode(tb, commands...), &out); err != nil {
			tb.Fatal(err)
		}
		for _, r := range out.Results {
			if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
				tb.Fatal(r.Reject)
			}
		}
	}
	next(&rootv1.Command{Events: []*rootv1.Event{clusterEvent()}})
	for i := range 100 {
		next(&rootv1.Command{Events: []*rootv1.Event{memberEvent(fmt.Sprintf("store-%d", i), 1)}})
	}
	var batch []*rootv1.Command
	for i := range n {
		if perm != nil {
			i = perm[i]
		}
		if batch = append(batch, publish(benchRegion(i, 1))); len(batch) == 256 {
			next(batch...)
			batch = batch[:0]
		}
	}
	next(batch...)
	return s
}

func memberEvent(id string, nonce uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: nonce},
	}}}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkMemory reports the bytes of a State of a million one-owner regions
// a region: published in order, in random order, and restored.
func BenchmarkMemory(b *testing.B) {
	for _, order := range []string{"ordered", "random", "restored"} {
		b.Run(order, func(b *testing.B) {
			var perm []int
			if order == "random" {
				perm = rand.New(rand.NewPCG(1, 2)).Perm(benchRegions)
			}
			for b.Loop() {
				before := heap()
				s := benchState(b, benchRegions, perm)
				if order == "restored" {
					s = restoredStream(b, s)
				}
				b.ReportMetric(float64(heap()-before)/benchRegions, "B/region")
				runtime.KeepAlive(s)
			}
		})
	}
}

// restoredStream restores from the records without keeping them all.
func restoredStream(tb testing.TB, s *state.State) *state.State {
	records := make(chan *rootv1.Record, 1024)
	done := make(chan error, 1)
	go func() {
		done <- s.Records(func(r *rootv1.Record) error { records <- r; return nil })
		close(records)
	}()
	r, err := state.Restore(s.Token(), func() (*rootv1.Record, error) {
		if r, ok := <-records; ok {
			return r, nil
		}
		return nil, errEOF
	})
	if err == nil {
		err = <-done
	}
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// BenchmarkIdentityMemory reports the bytes of a remembered command.
func BenchmarkIdentityMemory(b *testing.B) {
	for b.Loop() {
		m, sequence := &machine{t: b, s: state.New()}, uint64(0)
		m.must(clusterEvent())
		m.fill(1, 1, &sequence)
		before := heap()
		m.fill(state.MaxRememberedCommands/2048, 2048, &sequence)
		m.out = state.Applied{}
		b.ReportMetric(float64(heap()-before)/state.MaxRememberedCommands, "B/command")
		runtime.KeepAlive(m)
	}
}

// BenchmarkEntry applies entries as 64 publishers make them; an op is one command.
func BenchmarkEntry(b *testing.B) {
	const commands = 64
	s := benchState(b, commands, nil)
	var out state.Applied
	b.ReportAllocs()
	for version := uint64(2); version < uint64(2+(b.N+commands-1)/commands); version++ {
		b.StopTimer()
		var batch []*rootv1.Command
		for i := range commands {
			batch = append(batch, publish(benchRegion(i, version)))
		}
		data := encode(b, batch...)
		b.StartTimer()
		out.Results, out.Changes = out.Results[:0], nil // as views do, which keep the changes
		if err := s.ApplyEntry(1, s.Token().Index+1, data, &out); err != nil || len(out.Changes) < commands {
			b.Fatal(err, len(out.Changes))
		}
	}
}

// BenchmarkMillion measures the operations on a State of a million regions.
func BenchmarkMillion(b *testing.B) {
	s := benchState(b, benchRegions, nil)
	r := rand.New(rand.NewPCG(3, 4))
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = benchKey(r.IntN(benchRegions)) + "/x"
	}
	b.Run("RegionAt", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if s.RegionAt(1, keys[i&0xffff]) == nil {
				b.Fatal("no region")
			}
		}
	})
	b.Run("Fork", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Fork()
		}
	})
	b.Run("Hash", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Hash()
		}
	})
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("Publish/batch=%d", batch), func(b *testing.B) { benchPublish(b, s.Fork(), batch, false, false) })
		b.Run(fmt.Sprintf("PublishAndFork/batch=%d", batch), func(b *testing.B) { benchPublish(b, s.Fork(), batch, true, false) })
		b.Run(fmt.Sprintf("PublishAndFork/identity/batch=%d", batch), func(b *testing.B) { benchPublish(b, s.Fork(), batch, true, true) })
	}
	b.Run("Records", func(b *testing.B) {
		for b.Loop() {
			if err := s.Records(func(r *rootv1.Record) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Restore", func(b *testing.B) {
		for b.Loop() {
			if restoredStream(b, s).Hash() != s.Hash() {
				b.Fatal("another hash")
			}
		}
	})
}

// benchPublish replaces random regions by newer ones; ns/op is a region, with
// decoding. With identities the window is full.
func benchPublish(b *testing.B, s *state.State, batch int, fork, identity bool) {
	sequence := uint64(0)
	if identity {
		m := &machine{t: b, s: s}
		m.fill(state.MaxRememberedCommands/2048, 2048, &sequence)
	}
	known := s.Token().Index
	r := rand.New(rand.NewPCG(5, 6))
	versions := map[int]uint64{}
	entries := make([][]byte, 20_000/batch)
	for i := range entries {
		var commands []*rootv1.Command
		for range batch {
			n := r.IntN(benchRegions)
			versions[n]++
			c := publish(benchRegion(n, s.Region(state.RegionID(n+1)).Epoch.Version+versions[n]))
			if identity {
				sequence++
				c.Identity = &rootv1.CommandIdentity{Origin: 1 << 60, Sequence: sequence, KnownIndex: known + uint64(i)}
			}
			commands = append(commands, c)
		}
		entries[i], _ = proto.Marshal(&rootv1.Entry{Commands: commands})
	}
	var out state.Applied
	fresh := s
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n%batch == 0 {
			i := n / batch % len(entries)
			if i == 0 {
				s = fresh.Fork()
			}
			out.Reset()
			if err := s.ApplyEntry(1, s.Token().Index+1, entries[i], &out); err != nil {
				b.Fatal(err)
			}
			if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
				b.Fatal(out.Results[0].Reject)
			}
			if fork {
				s.Fork()
			}
		}
		n++
	}
}

// BenchmarkIdentityCost publishes the same with and without identities, in turns, so
// that a busy machine disturbs both alike, and reports the medians of an entry of 64.
func BenchmarkIdentityCost(b *testing.B) {
	const regions, batch = 100_000, 64
	plain := benchState(b, regions, nil)
	with, sequence := plain.Fork(), uint64(0)
	(&machine{t: b, s: with}).fill(state.MaxRememberedCommands/2048, 2048, &sequence)
	r := rand.New(rand.NewPCG(5, 6))
	versions := make([]uint64, regions)
	states, took := []*state.State{plain, with}, [2][]time.Duration{}
	var out state.Applied
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		entries := [2][]byte{}
		var commands []*rootv1.Command
		for range batch {
			n := r.IntN(regions)
			versions[n]++
			commands = append(commands, publish(benchRegion(n, versions[n]+1)))
		}
		entries[0] = encode(b, commands...)
		for _, c := range commands {
			sequence++
			c.Identity = &rootv1.CommandIdentity{Origin: 1 << 60, Sequence: sequence, KnownIndex: with.Token().Index}
		}
		entries[1] = encode(b, commands...)
		b.StartTimer()
		for _, n := range [2]int{i & 1, 1 - i&1} {
			out.Reset()
			began := time.Now()
			err := states[n].ApplyEntry(1, states[n].Token().Index+1, entries[n], &out)
			states[n].Fork()
			took[n] = append(took[n], time.Since(began))
			if err != nil || out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
				b.Fatal(err, out.Results)
			}
		}
	}
	var medians [2]float64
	for n := range took {
		slices.Sort(took[n])
		medians[n] = float64(took[n][len(took[n])/2]) / batch
	}
	b.ReportMetric(medians[0], "plain-ns/command")
	b.ReportMetric(medians[1], "identity-ns/command")
	b.ReportMetric(100*(medians[1]/medians[0]-1), "%-more")
}

// BenchmarkAssign moves single regions between two members that own some in
// every keyspace, with a fork behind each, as the root does.
func BenchmarkAssign(b *testing.B) {
	for _, keyspaces := range []int{1, 2000} {
		b.Run(fmt.Sprintf("keyspaces=%d", keyspaces), func(b *testing.B) { benchAssign(b, keyspaces) })
	}
}

func benchAssign(b *testing.B, keyspaces int) {
	m := &machine{t: b, s: state.New()}
	m.must(clusterEvent())
	m.must(memberEvent("a", 1), memberEvent("b", 1))
	const regions = 20_000
	for i := range keyspaces {
		created := m.must(settingsEvent(fmt.Sprintf("k%d", i), drawSettings[0]))
		for j := range regions / keyspaces {
			m.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: created.Events[0].Keyspace.GetId(), Id: uint64(i*regions/keyspaces + j + 1),
				StartKey: []byte(benchKey(j)), EndKey: []byte(benchKey(j + 1)), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
			}}}})
		}
	}
	entries := make([][]byte, 2*regions)
	for i := range entries {
		owner := []string{"b", "a"}[(i+i/regions)&1]
		entries[i] = encode(b, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
			Assignments: []*rootv1.Assignment{{
				RegionId: uint64(i%regions + 1), Owners: []*rootv1.Owner{{MemberId: owner, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}},
			}},
		}}}}})
	}
	assign := func(i int) {
		m.out.Reset()
		if err := m.s.ApplyEntry(1, m.s.Token().Index+1, entries[i%len(entries)], &m.out); err != nil {
			b.Fatal(err)
		}
		if r := m.out.Results[0]; r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			b.Fatal(r.Outcome, r.Reject)
		}
		m.s.Fork()
	}
	for i := range regions {
		assign(i)
	}
	b.ReportAllocs()
	for i := regions; b.Loop(); i++ {
		assign(i)
	}
}
