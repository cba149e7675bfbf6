package tenure

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// interrupted is a clock at whose reading something happens.
type interrupted struct {
	clock.Manual
	during func()
}

func (c *interrupted) Now() clock.Instant {
	c.during()
	return c.Manual.Now()
}

// Whoever stops between the clock and the grant sees an era that ended there
// as ended.
func TestEraEndsWhileItIsChecked(t *testing.T) {
	held := &grant{era: 7}
	c := &interrupted{Manual: clock.Manual{Elapsed: 10}, during: func() {}}
	g := Guard{clock: c}
	held.until.Store(20)
	if !g.good(held) {
		t.Fatal("a confirmed era is refused")
	}
	c.during = func() { held.until.Store(0) }
	if g.good(held) {
		t.Error("an era that ended after the clock was read is served")
	}
}

// Once an era has ended nothing more comes out of its windows, for whoever was
// on the way to them, so that the frontiers that are told stay true.
func TestWindowsOfAnEndedEraAreClosed(t *testing.T) {
	h, err := New(Config{
		ID: "a", Incarnation: 1, Address: "a:1", TTL: time.Second, IDStart: 1, TSOStart: 1,
		Root: unreachable{}, Views: unreachable{}, Clock: &clock.Manual{Elapsed: 1, WallMillis: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	tenure := &rootv1.Tenure{
		Era: 1, HolderId: "a", HolderIncarnation: 1, TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}, Inherited: &rootv1.Frontiers{},
	}
	h.input(func(c *Core, now clock.Instant) { c.OnView(Authority{Tenure: tenure}, now) })
	term := h.current.Load()
	if term == nil {
		t.Fatal("the era was not begun")
	}
	for _, a := range []*allocator{term.ids, term.tso} {
		if err := a.extended(0, 1<<40); err != nil {
			t.Fatal(err)
		}
		if _, err := a.reserve(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	consumed := term.frontiers()
	h.input(func(c *Core, now clock.Instant) { c.OnEraOver(1, now) })
	for _, a := range []*allocator{term.ids, term.tso} {
		if v, err := a.reserve(t.Context(), 1); err == nil {
			t.Errorf("%s: %d was taken after the era had ended", a.mandate, v)
		}
	}
	if got := term.frontiers(); got.String() != consumed.String() {
		t.Errorf("consumed %v, and when the era ended %v", got, consumed)
	}
}

// unreachable is a root that nobody calls: the Holder is not run.
type unreachable struct {
	Root
	Views
}
