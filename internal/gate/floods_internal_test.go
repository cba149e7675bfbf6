package gate

import (
	"fmt"
	"testing"
	"time"
)

// Each flood from a place halves what the next connection from there begins with,
// until it has been quiet; other places are not held to that, and there is no end to
// places.
func TestFloodsAreRemembered(t *testing.T) {
	var f floods
	now := int64(1)
	want := firstCredits
	for range 30 {
		if got := f.credits("a", now); got != want {
			t.Fatalf("%d credits, want %d", got, want)
		}
		f.note("a", now)
		want = max(want/2, leastCredits)
		now += int64(time.Second)
	}
	if got := f.credits("b", now); got != firstCredits {
		t.Errorf("another place begins with %d", got)
	}
	now += int64(rememberFlood)
	if got := f.credits("a", now); got != firstCredits || len(f.seen) != 0 {
		t.Errorf("after a quiet time: %d, %d places", got, len(f.seen))
	}
	for i := range 10 * maxOrigins {
		f.note(fmt.Sprint(i), now)
	}
	if len(f.seen) > maxOrigins {
		t.Errorf("%d places are remembered", len(f.seen))
	}
}
