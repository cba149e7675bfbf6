package tenure

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func rawConfig() RawConfig {
	return RawConfig{
		Settings: Settings{
			ID: "a", Incarnation: 1, Address: "a:1", TTL: time.Second,
			Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
		},
		IDStart: 1, TSOStart: 1, IDWindow: 10, Wall: func() uint64 { return 1 },
	}
}

// begin brings r into era 1, confirmed until 1 s, with both windows. change
// falsifies the windows.
func begin(t *testing.T, r *RawHolder, change func(*rootv1.Window)) {
	t.Helper()
	tenure := &rootv1.Tenure{
		Era: 1, HolderId: "a", HolderIncarnation: 1, TtlMillis: 1000, Inherited: &rootv1.Frontiers{},
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}
	r.OnView(Authority{Tenure: tenure}, 1)
	for _, m := range r.Messages() {
		a := Answer{Confirm: &rootv1.ConfirmTenureResponse{Active: true, Tenure: tenure}}
		if m.Command != nil {
			f := m.Command.Events[0].GetFenceExtended()
			w := &rootv1.Window{Era: 1, From: f.Floor, To: f.Floor + f.Size}
			change(w)
			a = Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Window: w}}}}
		}
		r.OnAnswer(m, a, 1)
	}
}

func asGiven(*rootv1.Window) {}

// interrupted is a clock at whose reading something happens.
type interrupted struct {
	clock.Manual
	during func()
}

func (c *interrupted) Now() clock.Instant {
	if c.during != nil {
		c.during()
	}
	return c.Manual.Now()
}

// Whoever stops between the values and the clock, or the clock and the check, sees
// an era that ended there as ended.
func TestEraEndsWhileItIsChecked(t *testing.T) {
	c := &interrupted{Manual: clock.Manual{Elapsed: 2, WallMillis: 1}}
	h, err := New(Config{
		ID: "a", Incarnation: 1, Address: "a:1", TTL: time.Second, IDStart: 1, TSOStart: 1,
		Root: unreachable{}, Views: unreachable{}, Clock: c,
	})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, h.raw, asGiven)
	if _, _, err := h.AllocID(t.Context(), 1); err != nil {
		t.Fatalf("a confirmed era is refused: %v", err)
	}
	c.during = func() {
		c.during = nil
		h.step(func(r *RawHolder, now clock.Instant) {
			r.core.OnEraOver(1, now)
			r.Tick(now)
		})
	}
	if id, _, err := h.AllocID(t.Context(), 1); err == nil {
		t.Errorf("%d of an era that ended when the clock was read is served", id)
	}
}

// unreachable is a root that nobody calls: the Holder is not run.
type unreachable struct {
	Root
	Views
}

// A window that is not what was asked for, of this era, is not served, nor is the era.
func TestForeignWindow(t *testing.T) {
	for name, change := range map[string]func(*rootv1.Window){
		"of another era": func(w *rootv1.Window) { w.Era++ },
		"larger":         func(w *rootv1.Window) { w.To++ },
	} {
		counters := new(Counters)
		r := NewRaw(rawConfig(), counters)
		begin(t, r, change)
		if s := r.Status(1); s.Era != 0 || counters.Violations.Inheritance.Load() == 0 {
			t.Errorf("a window %s: %+v, %d violations", name, s, counters.Violations.Total())
		}
	}
}

// Once an era has ended nothing more comes out of its windows, for whoever was
// on the way to them, so that the frontiers that are told stay true.
func TestWindowsOfAnEndedEraAreClosed(t *testing.T) {
	r := NewRaw(rawConfig(), new(Counters))
	begin(t, r, asGiven)
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
