package budget_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const mib = 1 << 20

// receiving is a holder of 8 MiB.
func receiving() (*budget.Budget, *budget.Holder) {
	b := budget.New(64 * mib)
	return b, b.Holder(budget.Receiving)
}

// fill takes until it is refused, or has more than any limit of these tests, and returns how
// much it got.
func fill(a *budget.Account) int {
	n := 0
	for ; n < 1<<30 && a.Take(1<<10) == nil; n += 1 << 10 {
	}
	return n
}

// One caller gets half of a share, one more half of what is left, and who comes
// then still finds as much as the others could have more.
func TestSharesAreFair(t *testing.T) {
	b, h := receiving()
	first, second, third := h.Account("a"), h.Account("b"), h.Account("c")
	got := []int{fill(first), fill(second), fill(third)}
	for i, want := range []int{4 * mib, 2 * mib, mib} {
		if diff := got[i] - want; diff < -128<<10 || diff > 0 {
			t.Errorf("caller %d got %d bytes, want about %d", i, got[i], want)
		}
	}
	if !h.Full() {
		t.Error("7/8 are taken and the holder is not full")
	}
	err := first.Take(mib)
	refused, ok := errors.AsType[*reason.Error](err)
	if !ok || reason.Of(err) != rootv1.Reason_REASON_OVERLOADED || refused.Detail.GetRetryAfterMillis() == 0 {
		t.Errorf("refusal: %v", err)
	}
	first.Give(got[0])
	if second.Take(mib) != nil {
		t.Error("what one gave back another does not get")
	}
	second.Give(mib + got[1])
	third.Give(got[2])
	for _, a := range []*budget.Account{first, second, third} {
		a.Close()
	}
	if v := b.Vars().Holders["receiving"]; v.Granted != 0 || v.Used != 0 || v.Accounts != 0 || v.Refused == 0 || v.Peak > 8*mib {
		t.Errorf("behind all: %+v", v)
	}
}

// Callers that overlap leave nothing behind, whatever the order of their calls.
func TestOverlappingCallersGiveAllBack(t *testing.T) {
	b, h := receiving()
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for n := range 2000 {
				a := h.Account(string(rune('a' + i%3)))
				size := (n*7919 + i) % (512 << 10)
				if a.Take(size) == nil {
					a.Close()
					a.Give(size)
				} else {
					a.Close()
				}
			}
		})
	}
	work.Wait()
	if v := b.Vars().Holders["receiving"]; v.Granted != 0 || v.Used != 0 || v.Accounts != 0 || v.Peak > 8*mib {
		t.Errorf("behind all: %+v", v)
	}
}

// What is given back twice is our own mistake, and is not survived.
func TestGivingTooMuchPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, h := receiving()
	h.Account("a").Give(1)
}

// Without a budget nothing is bounded.
func TestNil(t *testing.T) {
	var b *budget.Budget
	a := b.Holder(budget.Replies).Account("a")
	if err := a.Take(1 << 40); err != nil || b.Holder(budget.Replies).Full() {
		t.Error(err)
	}
	a.Give(1 << 40)
	a.Close()
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]budget.Size{"512MiB": 512 * mib, "1GiB": 1 << 30, "0B": 0, "1025B": 1025, "2TiB": 2 << 40} {
		var s budget.Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want || s.String() != text {
			t.Errorf("%s is %d (%s), %v", text, s, s, err)
		}
	}
	for _, text := range []string{"", "5", "MiB", "-1MiB", "1.5GiB", "1 GiB", "99999999TiB", "1mb"} {
		var s budget.Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as %s", text, s)
		}
	}
}

func BenchmarkTakeGive(b *testing.B) {
	_, h := receiving()
	b.RunParallel(func(pb *testing.PB) {
		a := h.Account("a")
		for pb.Next() {
			if a.Take(300) == nil {
				a.Give(300)
			}
		}
	})
}

// Many callers that hold little do not fill a share that they are a fortieth of: what
// is kept ready for them is a part of it.
func TestManySmallHoldersDoNotFillAShare(t *testing.T) {
	for name, count := range map[string]func(*budget.Account) error{
		"hold": func(a *budget.Account) error { a.Hold(2 << 10); return nil },
		"take": func(a *budget.Account) error { return a.Take(2 << 10) },
	} {
		b, h := receiving()
		for i := range 100 {
			a := h.Account(strconv.Itoa(i))
			if !a.Fits() {
				t.Errorf("%s: caller %d has nothing, and is refused 2 KiB: %+v", name, i, b.Vars().Holders["receiving"])
				break
			}
			if err := count(a); err != nil || h.Full() {
				t.Errorf("%s: caller %d of 2 KiB fills the share, or is refused: %v, %+v", name, i, err, b.Vars().Holders["receiving"])
				break
			}
		}
	}
}

// However many callers hold large answers that they asked Spares for, in pieces of a
// twelfth of the share, everybody else's fit beside them.
func TestWhoAsksSparesLeavesRoom(t *testing.T) {
	for _, callers := range []int{1, 3, 20, 200} {
		h := budget.New(128 << 20).Holder(budget.Replies)
		var all []*budget.Account
		for i := range callers {
			all = append(all, h.Account(strconv.Itoa(i)))
		}
		for more := true; more; {
			more = false
			for _, a := range all {
				if a.Spares() {
					a.Hold(2 << 20)
					more = true
				}
			}
		}
		if callers >= 20 && !h.Pressed() {
			t.Errorf("%d callers: not pressed", callers)
		}
		if newcomer := h.Account("newcomer"); h.Full() || !newcomer.Fits() {
			t.Errorf("%d callers: a newcomer is refused", callers)
		}
	}
}
