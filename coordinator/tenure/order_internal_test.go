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

// Nothing of a window that cannot be the one that was asked for is served. It is asked
// for anew, as another command, and what the root gives then is served.
func TestForeignWindow(t *testing.T) {
	for name, change := range map[string]func(*rootv1.Window){
		"of another era":  func(w *rootv1.Window) { w.Era++ },
		"larger":          func(w *rootv1.Window) { w.To++ },
		"smaller":         func(w *rootv1.Window) { w.To-- },
		"the wrong way":   func(w *rootv1.Window) { w.From, w.To = w.To, w.From },
		"below the floor": func(w *rootv1.Window) { w.From, w.To = w.From-1, w.To-1 },
		"none":            func(w *rootv1.Window) { w.Reset() },
	} {
		cfg, counters := rawConfig(), new(Counters)
		cfg.IDStart, cfg.TSOStart = 100, 1<<30
		r := NewRaw(cfg, counters)
		begin(t, r, change)
		now := clock.Instant(1)
		for _, m := range []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO} {
			if run, ok := r.Take(m, 1); ok {
				t.Errorf("a window %s: %d is served", name, run.First)
			}
		}
		if s := r.Status(now); s.Era != 1 || counters.Violations.Inheritance.Load() != 2 {
			t.Errorf("a window %s: %+v, %d violations", name, s, counters.Violations.Total())
		}
		now = now.Add(retryMost)
		r.Tick(now)
		asked := 0
		for _, m := range r.Messages() {
			if f := extensionOf(m); f != nil {
				if asked++; m.Command.Identity.Sequence <= 2 {
					t.Errorf("a window %s is asked for anew as %v", name, m.Command.Identity)
				}
				r.OnAnswer(m, given(f, f.Floor+10), now)
				if run, ok := r.Take(f.Mandate, 1); !ok || run.First != f.Floor+11 {
					t.Errorf("behind a window %s the next one is not served: %+v", name, run)
				}
			}
		}
		if asked != 2 {
			t.Errorf("behind a window %s, %d windows are asked for", name, asked)
		}
	}
}

// A window that reaches below an earlier one is not served.
func TestWindowGivenBefore(t *testing.T) {
	r := NewRaw(rawConfig(), new(Counters))
	begin(t, r, asGiven)
	served := map[uint64]bool{}
	now := clock.Instant(2)
	for range 30 {
		if run, ok := r.Take(rootv1.Mandate_MANDATE_ALLOC_ID, 1); ok {
			if served[run.First] {
				t.Fatalf("%d is served twice", run.First)
			}
			served[run.First] = true
		}
		now = now.Add(time.Millisecond)
		r.Tick(now)
		for _, m := range r.Messages() {
			if f := extensionOf(m); f != nil {
				r.OnAnswer(m, given(f, 5), now)
			}
		}
	}
	if len(served) != 10 {
		t.Errorf("%d ids of one window of 10", len(served))
	}
}

// extensionOf is what m asks a window for, nil when it asks for none.
func extensionOf(m *Message) *rootv1.FenceExtended {
	if m.Command == nil {
		return nil
	}
	return m.Command.Events[0].GetFenceExtended()
}

// given is the answer that the root gave a window from there.
func given(f *rootv1.FenceExtended, from uint64) Answer {
	return Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{
		Window: &rootv1.Window{Era: f.Era, From: from, To: from + f.Size},
	}}}}
}

// Of what a Tenure shows nothing tells the identities that its holder will use: two
// processes that look the same have nothing in common there.
func TestOriginIsSecret(t *testing.T) {
	origins := map[uint64]bool{0: true}
	for range 3 {
		cfg := rawConfig()
		origins[cfg.Incarnation] = true
		r := NewRaw(cfg, new(Counters))
		begin(t, r, func(w *rootv1.Window) { w.Reset() })
		r.Tick(clock.Instant(1).Add(retryMost))
		for _, m := range r.Messages() {
			if extensionOf(m) != nil {
				origins[m.Command.Identity.Origin] = true
			}
		}
	}
	if len(origins) != 5 {
		t.Errorf("the origins %v: want 0, the incarnation, and one of each process", origins)
	}
}

// A holder whose view lags further than the root remembers still gets windows: the
// refusal says how far the log is, and nobody else can tell it.
func TestWindowsWhileTheViewLags(t *testing.T) {
	r := NewRaw(rawConfig(), new(Counters))
	begin(t, r, asGiven)
	now, forgotten, windows := clock.Instant(2), uint64(1_000_000), 0
	seen := map[uint64]bool{}
	for range 20 {
		if _, ok := r.Take(rootv1.Mandate_MANDATE_ALLOC_ID, 1); ok && r.Due() {
			r.Tick(now)
		}
		r.Tick(now)
		for _, m := range r.Messages() {
			f := extensionOf(m)
			if f == nil {
				continue
			}
			if id := m.Command.Identity; seen[id.Sequence] {
				t.Fatalf("a command that was decided is asked again: %v", id)
			}
			seen[m.Command.Identity.Sequence] = true
			if m.Command.Identity.KnownIndex < forgotten { // as state.identified does
				r.OnAnswer(m, Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{
					Reason: rootv1.Reason_REASON_OUTCOME_UNKNOWN, CurrentToken: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: forgotten + 1},
				}}}, now)
				continue
			}
			windows++
			r.OnAnswer(m, given(f, uint64(1000*windows)), now)
		}
		now = now.Add(40 * time.Millisecond)
	}
	if windows == 0 {
		t.Errorf("no window in %v, whatever the refusals say: %d ids left", time.Duration(now), r.Status(now).IDsLeft)
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
