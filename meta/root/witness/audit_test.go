package witness_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func TestGoodLogHasNoAnomaly(t *testing.T) {
	b := good(t)
	r := audit(b.steps, witness.Of(b.state))
	if r.Verdict() != witness.Holds || len(r.Anomalies) != 0 {
		t.Errorf("%v: %+v", r.Verdict(), r)
	}
	if len(r.Eras) != 3 || r.Eras[0].End != witness.Active || r.Eras[1].End != witness.Expired || r.Eras[2].End != witness.Retired {
		t.Fatalf("%+v", r.Eras)
	}
	if first := r.Eras[2]; !first.Exact || first.Consumed != (witness.Frontiers{ID: 57, TSO: at(20_000)}) || first.Holder != "c1" || first.Incarnation != 11 {
		t.Errorf("%+v", first)
	}
	if second := r.Eras[1]; second.Exact || second.Inherited.ID != 57 || second.Consumed.ID != 157 || second.Ended != r.Eras[0].Opened {
		t.Errorf("%+v", second)
	}
	if a := r.Eras[0]; a.Stage != closed || a.Closed.Index != close3+1 || a.Consumed.TSO != at(50_000) {
		t.Errorf("%+v", a)
	}
}

func drop(lost ...int) func([]step) []step {
	return func(steps []step) []step {
		var out []step
		for i, s := range steps {
			keep := true
			for _, l := range lost {
				keep = keep && i != l
			}
			if keep {
				out = append(out, s)
			}
		}
		return out
	}
}

func alter(i int, change func(*step)) func([]step) []step {
	return func(steps []step) []step {
		change(&steps[i])
		return steps
	}
}

// A retirement that an older build let take effect, and one that this build
// refuses and a claim builds on, are found; an orderly one is not.
func TestAuditFindsARetirementBelowItsWindows(t *testing.T) {
	given := func(consumed uint64, claims bool) *witness.Report {
		b := newBook(t)
		a := witness.NewAudit(witness.Of(b.state))
		steps := []*rootv1.Event{
			claim("c1", 11, 0, false), extend(idMandate, 1, 0, 100), extend(idMandate, 1, 100, 200), extend(idMandate, 1, 200, 300),
			retire("c1", 11, 1, consumed, 0), claim("c2", 22, 1, false),
		}
		if !claims {
			steps = steps[:len(steps)-1]
		}
		for _, e := range steps {
			entry, out := b.apply(e)
			a.Entry(out.Token, entry, out)
		}
		return a.Report(witness.Of(b.state))
	}
	if r := given(0, true); r.Verdict() != witness.Broken || find(r, witness.ConsumedBelow) == nil || find(r, witness.ConsumedBelow).At.Index != 7 {
		t.Errorf("forged and built on: %v", r.Anomalies)
	}
	for name, r := range map[string]*witness.Report{"refused, and nobody builds on it": given(0, false), "orderly": given(100, true)} {
		if r.Findings[witness.Inheritance].Verdict != witness.Holds {
			t.Errorf("%s: %v", name, r.Anomalies)
		}
	}

	b := newBook(t)
	for _, e := range []*rootv1.Event{
		claim("c1", 11, 0, false), extend(tsoMandate, 1, 0, at(3000)), extend(tsoMandate, 1, at(3000), at(6000)), extend(tsoMandate, 1, at(6000), at(9000)),
		retire("c1", 11, 1, 0, at(4000)),
	} {
		b.must(e)
	}
	last := len(b.steps) - 1
	b.steps[last].event.GetTenureRetired().Consumed.Tso = at(2999)
	if x := find(audit(b.steps, witness.Of(b.state)), witness.ConsumedBelow); x == nil || x.At != b.steps[last].at {
		t.Errorf("forged and applied: %v", x)
	}
}

// Each fault in the middle of a log is found, at its entry, though the records
// at the end show nothing of it.
func TestAuditFindsEveryFault(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func([]step) []step
		want  witness.Kind
		at    int // step that shows it; -1: the records at the end
	}{
		"claim lost":                  {drop(claim2), witness.EraGap, ids2},
		"claim of another era":        {alter(claim2, func(s *step) { s.event.GetTenureClaimed().ExpectedEra = 4 }), witness.EraGap, claim2},
		"handover of another era":     {alter(claim2, func(s *step) { s.handed.Era = 3 }), witness.EraGap, claim2},
		"handover advanced too early": {alter(confirm2, func(s *step) { s.event.GetHandoverAdvanced().Era = 3 }), witness.EraGap, confirm2},
		"window of no era":            {alter(ids2, func(s *step) { s.event.GetFenceExtended().Era = 9 }), witness.EraGap, ids2},

		"retirement lost":          {drop(retire1), witness.TwoActive, claim2},
		"claim over an active era": {alter(claim3, func(s *step) { s.event.GetTenureClaimed().PredecessorExpired = false }), witness.TwoActive, claim3},
		"retired by another":       {alter(retire1, func(s *step) { s.event.GetTenureRetired().HolderIncarnation = 5 }), witness.TwoActive, retire1},
		"handover to another":      {alter(claim3, func(s *step) { s.handed.SuccessorIncarnation = 5 }), witness.TenureMismatch, claim3},
		"last claim lost":          {drop(claim3, ids3, tso3, confirm3, close3, tso3Later), witness.TenureMismatch, ask2},

		"starts below what was consumed": {alter(claim2, func(s *step) { s.handed.Inherited.AllocId = 56 }), witness.SuccessorIncomplete, claim2},
		"timestamps start below":         {alter(claim2, func(s *step) { s.handed.Inherited.Tso = at(19_999) }), witness.SuccessorIncomplete, claim2},
		"starts below the fence": {alter(claim3, func(s *step) {
			s.handed.Inherited.AllocId, s.handed.Legacy.Consumed.AllocId = 156, 156
			s.handed.Legacy.Digest = state.Lineage(s.handed.Legacy, 0)
		}), witness.SuccessorIncomplete, claim3},
		"digest altered":       {alter(claim3, func(s *step) { s.handed.Legacy.Digest++ }), witness.LineageMismatch, claim3},
		"Legacy of another":    {alter(claim2, func(s *step) { s.handed.Legacy.HolderId = "c9" }), witness.LineageMismatch, claim2},
		"Legacy of an old era": {alter(claim3, func(s *step) { s.handed.Legacy.Era = 1 }), witness.LineageMismatch, claim3},
		"no Legacy":            {alter(claim3, func(s *step) { s.handed.Legacy = nil }), witness.LineageMismatch, claim3},
		"window given twice":   {alter(ids2, func(s *step) { s.window.From = 56 }), witness.OverlappingWindows, ids2},
		"timestamps twice":     {alter(tso3, func(s *step) { s.window.From = at(23_000) }), witness.OverlappingWindows, tso3},
		"window larger":        {alter(ids3, func(s *step) { s.window.From = 100 }), witness.OverlappingWindows, ids3},
		"window lost":          {drop(ids1), witness.ConsumedUnfenced, retire1},
		"retired above":        {alter(retire1, func(s *step) { s.event.GetTenureRetired().Consumed.Tso = at(23_001) }), witness.ConsumedUnfenced, retire1},

		"window of the last era": {alter(ids2, func(s *step) { s.event.GetFenceExtended().Era = 1 }), witness.WindowAfterEnd, ids2},
		"window after retirement": {func(steps []step) []step {
			steps[tso1Later].event, steps[retire1].event = steps[retire1].event, steps[tso1Later].event
			return steps
		}, witness.WindowAfterEnd, retire1},

		"asked to end by nobody":       {drop(ask2), witness.LineageMismatch, claim3},
		"another era asked to end":     {alter(ask2, func(s *step) { s.event.GetTenureEnded().Era = 1 }), witness.EraGap, ask2},
		"asked to end after its end":   {alter(claim2, func(s *step) { s.event = askToEnd(1) }), witness.TenureMismatch, claim2},
		"asked to end, and forgotten":  {alter(tso3Later, func(s *step) { s.event = askToEnd(3) }), witness.TenureMismatch, tso3Later},
		"retired by who has no secret": {alter(claim1, func(s *step) { s.event.GetTenureClaimed().RetireDigest = digestOf(secretOf(12)) }), witness.TwoActive, retire1},

		"confirm lost":           {drop(confirm2), witness.CloseWithoutConfirm, close2},
		"confirm and close lost": {drop(confirm1, close1), witness.MissingConfirm, claim2},
		"close lost":             {drop(close1), witness.MissingClose, claim2},
		"last close lost":        {drop(close3), witness.OpenPastDeadline, tso3Later},
	} {
		t.Run(name, func(t *testing.T) {
			b := good(t)
			r := audit(c.spoil(copySteps(b.steps)), witness.Of(b.state))
			a := find(r, c.want)
			if a == nil {
				t.Fatalf("%s was not found in %+v", c.want, r.Anomalies)
			}
			if a.Note || a.Numbers == "" || r.Findings[a.Guarantee].Verdict != witness.Broken || r.Verdict() != witness.Broken ||
				!strings.Contains(r.Findings[a.Guarantee].Numbers, a.Numbers) {
				t.Errorf("%+v is not what breaks %+v", a, r.Findings)
			}
			if want := b.steps[c.at].at; a.At != want {
				t.Errorf("found at %s, it is at %s: %s", a.At, want, a.Numbers)
			}
		})
	}
}

// A holder that was killed between claim and close broke nothing: the next
// handover ends its. It is noted, with its era.
func TestHandoverCutShortIsANote(t *testing.T) {
	for want, lost := range map[witness.Kind][]int{
		witness.MissingConfirm: {confirm2, close2},
		witness.MissingClose:   {close2},
	} {
		b := good(t)
		r := audit(drop(lost...)(copySteps(b.steps)), witness.Of(b.state))
		a := find(r, want)
		if a == nil || !a.Note || a.Era != 2 || r.Verdict() != witness.Holds {
			t.Errorf("%s: %v %+v", want, r.Verdict(), r.Anomalies)
		}
		if n := r.Findings[witness.Finality].Numbers; !strings.Contains(n, "note: era 2") {
			t.Errorf("Finality does not name era 2: %s", n)
		}
	}
}

// Who retired an era that was claimed without a digest cannot be told, which is said.
func TestARetirementWithoutADigestIsANote(t *testing.T) {
	for name, c := range map[string]struct {
		digest, secret []byte
		noted          bool
	}{
		"without a digest": {nil, nil, true},
		"with a digest":    {digestOf(secretOf(11)), secretOf(11), false},
	} {
		b := newBook(t)
		begin, end := claim("c1", 11, 0, false), retire("c1", 11, 1, 10, 0)
		begin.GetTenureClaimed().RetireDigest, end.GetTenureRetired().RetireSecret = c.digest, c.secret
		b.must(begin)
		b.must(extend(idMandate, 1, 0, 10))
		for _, stage := range []rootv1.HandoverStage{confirmed, closed} {
			b.must(by("c1", 11, advance(1, stage)))
		}
		b.must(end)
		records := witness.Judge(witness.Of(b.state))
		b.must(claim("c2", 22, 1, false)) // behind which the records do not show it
		for how, r := range map[string]*witness.Report{"the log": audit(b.steps, witness.Of(b.state)), "the records": records} {
			a := find(r, witness.RetirementUnproven)
			if (a != nil) != c.noted || a != nil && (!a.Note || a.Era != 1) || r.Findings[witness.Inheritance].Verdict != witness.Holds {
				t.Errorf("%s, by %s: %v %+v", name, how, r.Verdict(), r.Anomalies)
			}
		}
	}
}

// A log that ends with a handover open does not say for how long.
func TestOpenAtTheEndCannotBeTold(t *testing.T) {
	b := newBook(t)
	b.must(claim("c1", 11, 0, false))
	r := audit(b.steps, witness.Of(b.state))
	f := r.Findings[witness.Finality]
	if f.Verdict != witness.CannotTell || !strings.Contains(f.Numbers, "era 1 is open") || r.Verdict() != witness.CannotTell {
		t.Errorf("%+v", f)
	}
	if v := r.Findings[witness.Primacy].Verdict; v != witness.Holds {
		t.Error(v)
	}
}

// The audit goes on from the records of a checkpoint.
func TestAuditGoesOnFromRecords(t *testing.T) {
	b := newBook(t)
	for _, s := range good(t).steps[claim1:claim3] {
		b.must(s.event)
	}
	a := witness.NewAudit(witness.Of(b.state.Fork()))
	end := good(t)
	for _, s := range end.steps[claim3:] {
		a.Event(s.at, s.event, &state.EventResult{Handover: s.handed, Window: s.window})
	}
	if r := a.Report(witness.Of(end.state)); r.Verdict() != witness.Holds || len(r.Anomalies) != 0 {
		t.Errorf("%+v", r.Anomalies)
	}
	if n := len(a.Tenures()); n != 3 {
		t.Errorf("%d tenures", n)
	}
	// What the records fenced is known.
	a = witness.NewAudit(witness.Of(b.state))
	a.Event(end.steps[ids3].at, extend(idMandate, 2, 150, 250), &state.EventResult{Window: &rootv1.Window{Era: 2, From: 150, To: 250}})
	if r := a.Report(witness.Of(b.state)); find(r, witness.OverlappingWindows) == nil {
		t.Errorf("a window below the checkpoint's fence was not found: %+v", r.Anomalies)
	}
}

// A mandate that an era does not have counts for nothing when it retires.
func TestMandatesCount(t *testing.T) {
	b := newBook(t)
	c := claim("c1", 11, 0, false)
	c.GetTenureClaimed().Mandates = []rootv1.Mandate{idMandate}
	end := retire("c1", 11, 1, 10, at(9))
	c.GetTenureClaimed().RetireDigest, end.GetTenureRetired().RetireSecret = digestOf(secretOf(11)), secretOf(11)
	for _, e := range []*rootv1.Event{c, extend(idMandate, 1, 0, 10), by("c1", 11, advance(1, confirmed)), by("c1", 11, advance(1, closed)), end, claim("c2", 22, 1, false)} {
		b.must(e)
	}
	if r := audit(b.steps, witness.Of(b.state)); len(r.Anomalies) != 0 {
		t.Errorf("%+v", r.Anomalies)
	}
}

// judged are the events that the model follows; the others have no part in
// authority, but for ids that the root gives, which noteRootIDs finds.
var judged = []string{"tenure_claimed", "fence_extended", "tenure_retired", "handover_advanced", "tenure_ended", "cluster_bootstrapped", "feature_level_raised"}

var noAuthority = []string{
	"coordinator_joined", "coordinator_left", "member_joined", "member_state_changed", "keyspace_created",
	"keyspace_updated", "keyspace_deleted", "region_bootstrapped", "region_published", "region_tombstoned", "regions_assigned",
	"peer_change_planned", "split_planned", "merge_planned", "transition_completed", "transition_cancelled", "pin_key_rotated",
	"root_peer_added", "root_peer_promoted", "root_peers_settled", "root_peer_dropped",
	"move_planned", "move_ready", "cluster_settings_changed", "access_granted", "access_revoked",
	"token_key_rotated", "token_revoked",
}

// An event that changes authority and is not judged would make the audit
// believe what it should not.
func TestEveryEventIsConsidered(t *testing.T) {
	fields := (&rootv1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); !slices.Contains(judged, name) && !slices.Contains(noAuthority, name) {
			t.Errorf("event %s: if it changes Tenure, handovers or fences, Audit.Event must judge it; if not, name it in noAuthority", name)
		}
	}
}
