package witness_test

import (
	"math/rand/v2"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

var logs = size.Int("witness-logs", 100, 1000, "random logs that the audit must find nothing in")

// Whatever the state machine lets through, from whoever asks for whatever, the
// audit and the records agree that nothing is broken.
func TestStateMachineNeverBreaksAGuarantee(t *testing.T) {
	applied, refused, eras := 0, 0, 0
	for seed := range uint64(*logs) {
		r := rand.New(rand.NewPCG(seed, 4))
		b := newBook(t)
		a, whole := witness.NewAudit(witness.Of(b.state)), witness.NewAudit(witness.Of(b.state))
		for range 150 {
			entry, out := b.apply(anything(r, b.state))
			a.Entry(out.Token, entry, out)
			whole.Entry(out.Token, entry, out)
			if out.Results[0].Outcome == rootv1.Outcome_OUTCOME_APPLIED {
				applied++
			} else {
				refused++
			}
			if r.IntN(50) == 0 { // as after a restart from a checkpoint
				a = witness.NewAudit(witness.Of(b.state.Fork()))
			}
		}
		rep := a.Report(witness.Of(b.state))
		if got, want := len(whole.RootIDs()), b.state.RegionCount(); got != want || whole.Entries() != 150 {
			t.Fatalf("seed %d: %d ids of the root noted in %d entries, it gave %d", seed, got, whole.Entries(), want)
		}
		if got, want := uint64(len(whole.Tenures())), b.state.Tenure().GetEra(); got != want {
			t.Fatalf("seed %d: %d Tenures noted of %d", seed, got, want)
		}
		eras += int(b.state.Tenure().GetEra())
		for _, found := range rep.Anomalies {
			if !found.Note {
				t.Fatalf("seed %d: %+v", seed, found)
			}
		}
	}
	if applied < 10**logs || refused < 10**logs || eras < 2**logs {
		t.Errorf("%d applied, %d refused, %d eras: too few to mean anything", applied, refused, eras)
	}
	testreport.Linef(t, "witness: %d random logs, %d events applied, %d refused, %d eras: nothing broken", *logs, applied, refused, eras)
}

// anything is an event that is about right, most of the time.
func anything(r *rand.Rand, s *state.State) *rootv1.Event {
	era := s.Tenure().GetEra()
	if r.IntN(10) == 0 {
		era += uint64(r.IntN(3)) - 1
	}
	near := func(v uint64) uint64 {
		if r.IntN(10) == 0 {
			v += uint64(r.IntN(21)) - 10
		}
		return v
	}
	holder, process := []string{"c1", "c2", "c3"}[r.IntN(3)], uint64(r.IntN(4))+1
	fences := s.Allocators()
	switch r.IntN(10) {
	case 9:
		return askToEnd(era)
	case 0:
		c := claim(holder, process, era, r.IntN(3) > 0)
		if r.IntN(4) > 0 {
			c.GetTenureClaimed().RetireDigest = digestOf(secretOf(process))
		}
		if r.IntN(3) == 0 {
			c.GetTenureClaimed().Mandates = both[r.IntN(2):][:1]
		}
		return c
	case 1, 2:
		from := near(fences.GetIdFence())
		return extend(idMandate, era, from, from+uint64(r.IntN(50)))
	case 3, 4:
		from := near(fences.GetTsoFence())
		return extend(tsoMandate, era, from, max(from, at(0))+uint64(r.IntN(20)))
	case 5:
		return by(s.Tenure().GetHolderId(), s.Tenure().GetHolderIncarnation(), advance(era, rootv1.HandoverStage(1+r.IntN(3))))
	case 6:
		if r.IntN(2) == 0 {
			holder, process = s.Tenure().GetHolderId(), s.Tenure().GetHolderIncarnation()
		}
		e := retire(holder, max(process, 1), era, near(fences.GetIdFence()-uint64(r.IntN(5))), near(fences.GetTsoFence()))
		e.GetTenureRetired().RetireSecret = secretOf(e.GetTenureRetired().GetHolderIncarnation())
		return e
	case 7:
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
			Name: string(rune('a' + r.IntN(26))), Settings: &rootv1.KeyspaceSettings{
				Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 4}}},
				Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			},
		}}}
	default:
		key := byte(r.IntN(250))
		return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 1, StartKey: []byte{key, 0}, EndKey: []byte{key, 1}, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
		}}}}
	}
}
