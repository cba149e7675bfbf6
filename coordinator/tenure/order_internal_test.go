package tenure

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// holding is a RawHolder in era 1, confirmed until 1 s, with both windows.
func rawInEra1(t *testing.T) *RawHolder {
	t.Helper()
	r := NewRaw(RawConfig{
		Settings: Settings{
			ID: "a", Incarnation: 1, Address: "a:1", TTL: time.Second,
			Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
		},
		IDStart: 1, TSOStart: 1, Wall: func() uint64 { return 1 },
	}, new(Counters))
	tenure := &rootv1.Tenure{
		Era: 1, HolderId: "a", HolderIncarnation: 1, TtlMillis: 1000, Inherited: &rootv1.Frontiers{},
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}
	r.OnView(Authority{Tenure: tenure}, 1)
	for _, m := range r.Messages() {
		a := Answer{Confirm: &rootv1.ConfirmTenureResponse{Active: true, Tenure: tenure}}
		if f := m.Command.GetEvents(); m.Command != nil {
			w := &rootv1.Window{Era: 1, From: f[0].GetFenceExtended().GetFloor()}
			w.To = w.From + f[0].GetFenceExtended().GetSize()
			a = Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Window: w}}}}
		}
		r.OnAnswer(m, a, 1)
	}
	if s := r.Status(1); s.Era != 1 || !s.Confirmed || s.IDsLeft == 0 || s.TimestampsLeft == 0 {
		t.Fatalf("%+v", s)
	}
	return r
}

// Whoever stops between the clock and the check sees an era that ended there as
// ended.
func TestEraEndsWhileItIsChecked(t *testing.T) {
	r := rawInEra1(t)
	run, ok := r.Take(rootv1.Mandate_MANDATE_ALLOC_ID, 1)
	now := clock.Instant(2)
	if !ok || !run.Good(now) {
		t.Fatal("a confirmed era is refused")
	}
	r.OnSuperseded(now)
	if run.Good(now) {
		t.Error("an era that ended after the clock was read is served")
	}
}

// Once an era has ended nothing more comes out of its windows, for whoever was
// on the way to them, so that the frontiers that are told stay true.
func TestWindowsOfAnEndedEraAreClosed(t *testing.T) {
	r := rawInEra1(t)
	e := r.era
	for _, a := range []*allocator{e.ids, e.tso} {
		if _, ok := a.takeRun(e, 1); !ok {
			t.Fatalf("%s: no value", a.mandate)
		}
	}
	consumed := e.frontiers()
	r.core.OnEraOver(1, 2)
	r.Tick(2)
	for _, a := range []*allocator{e.ids, e.tso} {
		if v, ok := a.takeRun(e, 1); ok {
			t.Errorf("%s: %d was taken after the era had ended", a.mandate, v.First)
		}
	}
	if got := e.frontiers(); got.String() != consumed.String() {
		t.Errorf("consumed %v, and when the era ended %v", got, consumed)
	}
}
