package places

import (
	"net"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
)

// One caller gets half of the places, the next one half of what is left, whoever
// they are; refusals ask for longer and longer pauses; what is left is free again.
func TestPlacesAreShared(t *testing.T) {
	greedy := Caller{principal: principal.Principal{Cluster: "c", Role: principal.Client, Name: "greedy"}}
	callers := []Caller{greedy, {connection: &net.TCPAddr{Port: 1}}, {connection: &net.TCPAddr{Port: 1}}}
	p := New("calls", 64)
	taken := map[Caller]int{}
	for i, want := range []int{32, 16, 8} {
		for p.Enter(callers[i]) == nil {
			taken[callers[i]]++
		}
		if got := taken[callers[i]]; got != want {
			t.Errorf("caller %d got %d places, want %d", i, got, want)
		}
	}
	first := reason.From(p.Enter(greedy)).GetRetryAfterMillis()
	for range 100 {
		_ = p.Enter(greedy)
	}
	if later := reason.From(p.Enter(greedy)).GetRetryAfterMillis(); first == 0 || later <= first || later > maxRetryAfterMillis {
		t.Errorf("pauses of %d ms and, 100 refusals later, of %d ms", first, later)
	}
	fresh := Caller{connection: &net.TCPAddr{Port: 2}}
	if err := p.Enter(fresh); err != nil {
		t.Fatal(err)
	}
	taken[fresh]++
	if later := reason.From(p.Enter(greedy)).GetRetryAfterMillis(); later <= first {
		t.Errorf("another one got a place, and the greedy one is to pause for %d ms", later)
	}
	for c, n := range taken {
		for range n {
			p.Leave(c)
		}
	}
	if p.taken != 0 || len(p.of) != 0 || p.Enter(greedy) != nil {
		t.Errorf("when all left %d are taken by %d callers", p.taken, len(p.of))
	}
}

func BenchmarkPlaces(b *testing.B) {
	p, c := New("calls", 64), Caller{connection: &net.TCPAddr{Port: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if p.Enter(c) == nil {
			p.Leave(c)
		}
	}
}
