package liveness_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// BenchmarkFrames is a second of 100,000 members that send a frame each 200 ms, with
// the timers that come due in it.
func BenchmarkFrames(b *testing.B) {
	const members, beat = 100_000, 200 * time.Millisecond
	ids := make([]rooted.MemberID, members)
	records := make([]*rootv1.Member, members)
	for i := range ids {
		ids[i] = rooted.MemberID(fmt.Sprintf("member-%06d", i))
		records[i] = &rootv1.Member{Id: string(ids[i]), Incarnation: 1, State: active, ProbeAddress: "10.0.0.1:7000"}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := newWard(b)
	for i, id := range ids {
		w.core.SetMember(records[i], w.now)
		w.core.Opened(id, 1, liveness.StreamID(i)+1, w.now)
	}
	for w.core.Due() <= w.now {
		w.core.Turn(w.now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(records)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		w.now = w.now.Add(beat / members)
		if !w.core.Frame(ids[n%members], 1, w.now) {
			b.Fatal("the frame was not taken")
		}
		if w.core.Due() <= w.now {
			w.core.Turn(w.now)
		}
		n++
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/members, "bytes/member")
	if w.core.Counters().Suspicions > 0 {
		b.Fatal("somebody was suspected")
	}
}
