package gate

import (
	"runtime"
	"testing"
)

// What many calls took is given back when they are over, though none of them counts for
// much in the budget.
func TestMemoryOfManyCallsIsGivenBack(t *testing.T) {
	g, _ := trial(1 << 30)
	raw := &still{}
	c := newConn(g, raw, raw, nil, "a", "origin")
	g.conns[c] = struct{}{}
	const calls = 1200
	for id := range uint32(calls) {
		c.mu.Lock()
		c.open(2*id + 1)
		c.mu.Unlock()
	}
	g.look()
	for id := range uint32(calls) {
		c.mu.Lock()
		c.close(2*id + 1)
		c.mu.Unlock()
	}
	forced := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	before := forced()
	for range collectAfter/lookEvery - 1 {
		g.look()
	}
	early := forced()
	g.look()
	if after := forced(); early != before || after == early {
		t.Errorf("memory was given back %d times before its time and %d then", early-before, after-early)
	}
}
