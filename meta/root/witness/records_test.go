package witness_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// copyTruth copies records deeply.
func copyTruth(t witness.Truth) witness.Truth {
	t.Tenure, t.Allocators = proto.CloneOf(t.Tenure), proto.CloneOf(t.Allocators)
	handovers := make([]*rootv1.Handover, 0, len(t.Handovers))
	for _, h := range t.Handovers {
		handovers = append(handovers, proto.CloneOf(h))
	}
	t.Handovers = handovers
	return t
}

// Records that the state machine never makes are found out without a log.
func TestRecordsAreJudged(t *testing.T) {
	b := good(t)
	if r := witness.Judge(witness.Of(b.state)); r.Verdict() != witness.Holds || len(r.Anomalies) != 0 {
		t.Fatalf("%+v", r)
	}
	for name, c := range map[string]struct {
		spoil func(*witness.Truth)
		want  witness.Kind
	}{
		"handover lost":               {func(r *witness.Truth) { r.Handovers = append(r.Handovers[:1:1], r.Handovers[2]) }, witness.EraGap},
		"wrong predecessor":           {func(r *witness.Truth) { r.Handovers[1].PredecessorEra = 0 }, witness.EraGap},
		"positions go back":           {func(r *witness.Truth) { r.Handovers[1].OpenedAt.Index = 1 }, witness.EraGap},
		"Tenure lost":                 {func(r *witness.Truth) { r.Tenure = nil }, witness.TenureMismatch},
		"handovers lost":              {func(r *witness.Truth) { r.Handovers = nil }, witness.TenureMismatch},
		"Tenure of last era":          {func(r *witness.Truth) { r.Tenure.Era = 2 }, witness.TenureMismatch},
		"Tenure of another":           {func(r *witness.Truth) { r.Tenure.HolderIncarnation = 4 }, witness.TenureMismatch},
		"Tenure starts lower":         {func(r *witness.Truth) { r.Tenure.Inherited.AllocId-- }, witness.TenureMismatch},
		"Tenure ends before it began": {func(r *witness.Truth) { r.Tenure.End = &rootv1.TenureEnd{AskedAt: r.Tenure.GetIssuedAt()} }, witness.TenureMismatch},
		"not covered":                 {func(r *witness.Truth) { r.Handovers[1].Inherited.AllocId = 56 }, witness.SuccessorIncomplete},
		"inherits less":               {func(r *witness.Truth) { r.Handovers[2].Inherited.Tso = 3 }, witness.SuccessorIncomplete},
		"fence too low":               {func(r *witness.Truth) { r.Allocators.TsoFence = 3 }, witness.SuccessorIncomplete},
		"inherits less than inherited": {func(r *witness.Truth) {
			h := r.Handovers[2]
			h.Inherited.Tso, h.Legacy.Consumed.Tso, r.Tenure.Inherited.Tso = 3, 2, 3
			h.Legacy.Digest = state.Lineage(h.Legacy, r.Handovers[1].Legacy.Digest)
		}, witness.SuccessorIncomplete},
		"Legacy of an older era": {func(r *witness.Truth) {
			h := r.Handovers[2]
			h.Legacy.Era, h.Legacy.Digest = 1, 0
			h.Legacy.Digest = state.Lineage(h.Legacy, r.Handovers[1].Legacy.Digest)
		}, witness.LineageMismatch},
		"Legacy of another holder": {func(r *witness.Truth) {
			h := r.Handovers[2]
			h.Legacy.HolderIncarnation = 5
			h.Legacy.Digest = state.Lineage(h.Legacy, r.Handovers[1].Legacy.Digest)
		}, witness.LineageMismatch},
		"chain broken":        {func(r *witness.Truth) { r.Handovers[1].Legacy.Digest++ }, witness.LineageMismatch},
		"window above fence":  {func(r *witness.Truth) { r.Allocators.LastIdWindow.To++ }, witness.OverlappingWindows},
		"window inherited":    {func(r *witness.Truth) { r.Allocators.LastIdWindow.From-- }, witness.OverlappingWindows},
		"window of last era":  {func(r *witness.Truth) { r.Allocators.LastIdWindow.Era = 2 }, witness.OverlappingWindows},
		"window of next era":  {func(r *witness.Truth) { r.Allocators.LastTsoWindow.Era = 4 }, witness.WindowAfterEnd},
		"closed, no confirm":  {func(r *witness.Truth) { r.Handovers[1].ConfirmedAt = nil }, witness.CloseWithoutConfirm},
		"closed before":       {func(r *witness.Truth) { r.Handovers[1].ClosedAt.Index = 10 }, witness.CloseWithoutConfirm},
		"stage without place": {func(r *witness.Truth) { r.Handovers[1].ClosedAt = nil }, witness.MissingClose},
		"place without stage": {func(r *witness.Truth) { r.Handovers[1].Stage = confirmed }, witness.MissingClose},
		"open for too long": {func(r *witness.Truth) {
			r.Handovers[2].Stage, r.Handovers[2].ClosedAt, r.OpenFor = confirmed, nil, time.Minute
		}, witness.OpenPastDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := copyTruth(witness.Of(b.state))
			c.spoil(&spoiled)
			r := witness.Judge(spoiled)
			a := find(r, c.want)
			if a == nil || a.Note || r.Findings[a.Guarantee].Verdict != witness.Broken || !strings.Contains(r.Findings[a.Guarantee].Numbers, a.Numbers) {
				t.Errorf("want %s, found %+v", c.want, r.Anomalies)
			}
		})
	}
}

func TestUnfinishedRecordsAreNotes(t *testing.T) {
	for want, stage := range map[witness.Kind]rootv1.HandoverStage{witness.MissingConfirm: isOpen, witness.MissingClose: confirmed} {
		r := copyTruth(witness.Of(good(t).state))
		h := r.Handovers[1]
		h.Stage, h.ClosedAt = stage, nil
		if stage == isOpen {
			h.ConfirmedAt = nil
		}
		got := witness.Judge(r)
		if a := find(got, want); a == nil || !a.Note || a.Era != 2 || got.Verdict() != witness.Holds {
			t.Errorf("%s: %+v", want, got.Anomalies)
		}
	}
}

// Unknown is not ok.
func TestUnknownIsNotOk(t *testing.T) {
	none := witness.Judge(witness.Of(state.New()))
	if none.Verdict() != witness.CannotTell {
		t.Errorf("nothing was loaded: %v", none.Verdict())
	}
	stale := witness.Of(good(t).state)
	stale.Unknown = "no root quorum answers"
	for _, f := range witness.Judge(stale).Findings {
		if f.Verdict != witness.CannotTell || f.Numbers != stale.Unknown {
			t.Errorf("%+v", f)
		}
	}
	stale = copyTruth(stale)
	stale.Handovers[1].Legacy.Digest++
	if v := witness.Judge(stale).Verdict(); v != witness.Broken {
		t.Errorf("what is broken is broken however old it is: %v", v)
	}
	idle := witness.Judge(witness.Of(newBook(t).state))
	if idle.Verdict() != witness.Holds || !strings.Contains(idle.Findings[witness.Primacy].Numbers, "no era") {
		t.Errorf("a cluster without a holder: %+v", idle.Findings)
	}
}

// Of eras that the root has forgotten the report says that it cannot tell.
func TestForgottenErasAreNamed(t *testing.T) {
	b := newBook(t)
	b.must(claim("c1", 1, 0, false))
	for era := uint64(1); era < 40; era++ {
		b.must(by("c1", era, advance(era, confirmed)))
		b.must(by("c1", era, advance(era, closed)))
		b.must(claim("c1", era+1, era, true))
	}
	truth := witness.Of(b.state)
	truth.OpenFor = time.Second
	r := witness.Judge(truth)
	if r.Verdict() != witness.Holds || r.Forgotten != 8 || len(r.Eras) != state.MaxHandovers {
		t.Fatalf("%v, %d forgotten, %d eras: %+v", r.Verdict(), r.Forgotten, len(r.Eras), r.Anomalies)
	}
	for _, g := range []witness.Guarantee{witness.Primacy, witness.Inheritance, witness.Finality} {
		if n := r.Findings[g].Numbers; !strings.Contains(n, "eras 1 to 8: cannot tell, forgotten") {
			t.Errorf("%s: %s", g, n)
		}
	}
	if n := r.Findings[witness.Finality].Numbers; !strings.Contains(n, "era 40's open for 1s of at most 5s") {
		t.Error(n)
	}
}
