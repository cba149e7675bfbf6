package server_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
	"google.golang.org/grpc"
)

// A load that is no number, infinite or negative is said to be none, of a region as of a
// member, and what was told before stays.
func TestLoadsThatAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := hosting(t, func(c *server.Config) { c.Soft = soft })
		defer w.end(t)
		m := w.hosted(t, "m1")
		m.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}, Load: &coordinatorv1.MemberLoad{Load: 3, Capacity: 4}})
		m.hear()
		for _, load := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -math.SmallestNonzeroFloat64} {
			r := reported(1, phaseServing)
			r.Load = load
			for _, f := range []*coordinatorv1.MemberFrame{
				{Regions: []*coordinatorv1.RegionReport{r}},
				{Load: &coordinatorv1.MemberLoad{Load: load, Capacity: 1}},
				{Load: &coordinatorv1.MemberLoad{Load: 1, Capacity: load}},
			} {
				m.say(f)
				if a := m.hear(); len(a.GetRefusals()) != 1 || !a.GetConfirmed() || a.GetRefusals()[0].GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
					t.Errorf("to %v: %v", f, a)
				}
			}
			if got, _ := soft.Own(1, 1); got.Load != 2 || w.server.Load("m1", 1).GetLoad() != 3 || w.server.Load("m1", 1).GetCapacity() != 4 {
				t.Errorf("behind %v the region has %+v, the member %v", load, got, w.server.Load("m1", 1))
			}
		}
		m.say(&coordinatorv1.MemberFrame{Load: &coordinatorv1.MemberLoad{Load: math.MaxFloat64}})
		if a := m.hear(); len(a.GetRefusals()) != 0 {
			t.Errorf("the largest load and a capacity of 0: %v", a)
		}
	})
}

// A report that is refused for a number, or for what is too long, says all the same that the member serves the
// region; what it is refused for is not kept.
func TestReportsThatAreRefusedAreNoSilence(t *testing.T) {
	for name, spoil := range map[string]func(*coordinatorv1.RegionReport){
		"load": func(r *coordinatorv1.RegionReport) { r.Load = math.NaN() },
		"frontier": func(r *coordinatorv1.RegionReport) {
			r.Frontier, r.SetFrontier = make([]byte, state.MaxFrontierBytes+1), true
		},
		"transition": func(r *coordinatorv1.RegionReport) { r.TransitionId = strings.Repeat("x", state.MaxIDBytes+1) },
		"median":     func(r *coordinatorv1.RegionReport) { r.MedianKey = make([]byte, state.MaxKeyBytes+1) },
		"many keys":  func(r *coordinatorv1.RegionReport) { r.HotKeys = make([]*coordinatorv1.HotKey, catalog.MaxHotKeys+1) },
		"long key": func(r *coordinatorv1.RegionReport) {
			r.HotKeys = []*coordinatorv1.HotKey{{Key: make([]byte, state.MaxKeyBytes+1)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				soft, heard := catalog.NewSoft(catalog.SoftConfig{}), &listener{}
				w := hosting(t, func(c *server.Config) { c.Soft, c.Members = soft, heard })
				defer w.end(t)
				m := w.hosted(t, "m1")
				for _, phase := range []coordinatorv1.RegionPhase{coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING, phaseServing} {
					r := reported(1, phase)
					spoil(r)
					m.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{r}})
					if a := m.hear(); len(a.GetRefusals()) != 1 || a.GetRefusals()[0].GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
						t.Errorf("it is told %v", a)
					}
					got, ok := soft.Own(1, 1)
					if !ok || got.Phase != phase || got.Epoch != (state.Epoch{Version: 1, ConfVersion: 1}) || got.Keys != 3 || got.FrontierSet || got.Frontier != "" || got.More != nil || !catalog.IsLoad(got.Load) {
						t.Errorf("kept is %v %+v", ok, got)
					}
				}
				if turns := heard.turns(); turns != "m1 1, m1 1" {
					t.Errorf("turned are %q", turns)
				}
			})
		})
	}
}

// A report for which there is no room is lost until one of that region is kept, or none is made any more, or all
// is said anew.
func TestReportsForWhichThereIsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft, heard := catalog.NewSoft(catalog.SoftConfig{MaxReportBytes: 64 << 10}), &listener{}
		w := hosting(t, func(c *server.Config) { c.Soft, c.Members = soft, heard })
		defer w.end(t)
		m := w.hosted(t, "m1")
		large := reported(1, phaseServing)
		large.Frontier = make([]byte, 2<<10)
		loses := func(f *coordinatorv1.MemberFrame, want bool) {
			t.Helper()
			m.say(f)
			for m.hear().GetSequence() != m.sequence {
			}
			heard.mu.Lock()
			defer heard.mu.Unlock()
			if heard.lost != want {
				t.Errorf("behind %v something is lost: %v, want %v", f, heard.lost, want)
			}
		}
		for name, again := range map[string]*coordinatorv1.MemberFrame{
			"kept": {Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}}, "gone": {Gone: []uint64{1}}, "complete": {Complete: true},
		} {
			t.Log(name)
			loses(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{large}}, true)
			loses(&coordinatorv1.MemberFrame{Load: &coordinatorv1.MemberLoad{Load: 1}}, true)
			loses(again, false)
		}
	})
}

// An epoch that is over, or was never rooted, is one that a report may be about: it says
// where the member is, and is no reason to believe that it serves the region as it is.
func TestReportsOfOtherEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := hosting(t, func(c *server.Config) { c.Soft = soft })
		defer w.end(t)
		m := w.hosted(t, "m1")
		for _, epoch := range []state.Epoch{{Version: 0, ConfVersion: 1}, {Version: 9, ConfVersion: 9}, {Version: math.MaxUint64, ConfVersion: math.MaxUint64}} {
			r := reported(1, phaseServing)
			r.Epoch = epoch.Proto()
			m.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{r}})
			if a := m.hear(); !a.GetConfirmed() {
				t.Errorf("%s: %v", epoch, a)
			}
			if got, ok := soft.Own(1, 1); ok && got.Epoch != epoch {
				t.Errorf("%s is kept as %+v", epoch, got)
			}
			if at := w.region(1); !strings.Contains(at, "1.1 m1") {
				t.Errorf("the region is %q", at)
			}
		}
	})
}

// An id that registers another address under its start nonce is the same process: its
// stream goes on, and whoever takes a region from it is told where it is now.
func TestAnIDWithAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m1, m2 := w.hosted(t, "m1"), w.hosted(t, "m2")
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
		}}})
		m1.hear()
		if m2.hear(); m2.has[1].GetMove().GetPeerAddress() != "m1:1000" {
			t.Fatalf("the next owner is shown %v", m2.has[1])
		}
		elsewhere := join("m1")
		elsewhere.GetMemberJoined().Member.Address = "elsewhere:7"
		w.must(t, elsewhere)
		if m2.hear(); m2.has[1].GetMove().GetPeerAddress() != "elsewhere:7" {
			t.Errorf("the next owner is shown %v", m2.has[1])
		}
		m1.hear()
		m1.say(&coordinatorv1.MemberFrame{})
		for a := m1.hear(); a.GetSequence() != m1.sequence; a = m1.hear() {
			continue
		}
		if w.incarnation("m1") != 1 {
			t.Errorf("it is incarnation %d", w.incarnation("m1"))
		}
	})
}

// A member that floods frames has as many refusals and sets in memory as one that does
// not: what it says is taken before it may say more, and answered at once.
func TestOneThatFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m, flood := w.hosted(t, "m1"), w.hosted(t, "m2")
		const frames, each = 2000, 50
		bad := &coordinatorv1.MemberFrame{}
		for range each {
			bad.Regions = append(bad.Regions, reported(1, phaseServing))
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			for range frames {
				flood.say(&coordinatorv1.MemberFrame{Regions: bad.Regions})
			}
		})
		answers, refusals := 0, 0
		for at := uint64(0); at < frames+1; {
			a := flood.hear()
			at = a.GetSequence()
			answers++
			if n := len(a.GetRefusals()); n > 64 {
				t.Fatalf("%d refusals in an answer", n)
			}
			refusals += len(a.GetRefusals())
		}
		sending.Wait()
		if answers > frames || refusals == 0 {
			t.Errorf("%d answers with %d refusals to %d frames", answers, refusals, frames)
		}
		m.say(&coordinatorv1.MemberFrame{})
		at := time.Now()
		if a := m.hear(); !a.GetConfirmed() || time.Since(at) > 0 {
			t.Errorf("another one is answered %v after %v", a, time.Since(at))
		}
	})
}

var connecting = size.Int("connecting", 2500, 10_000, "how many members connect at once")

// Thousands of members connect at once to a coordinator that has places for a fifth: those
// that are let in are all served, the others told at once when to try again, and memory is
// bounded; when places are free again, others get them. Connections share the places alike, so
// that some may stay free.
func TestThousandsConnectAtOnce(t *testing.T) {
	const each = 500 // on a connection, which has buffers of its own
	members := *connecting
	places := members / 5
	w := hostingMany(t, members, 0, func(c *server.Config) { c.Limits.MaxMemberStreams = int64(places) })
	defer w.end(t)
	before := heapInUse()
	ctx := within(t)
	var served, refusedOnes, wrong atomic.Int64
	connect := func(from, to int) (end func()) {
		var all sync.WaitGroup
		streams, stop := context.WithCancel(ctx)
		for conn := from; conn < to; conn += each {
			cc := w.dial(t, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawFrames{})))
			t.Cleanup(func() { cc.Close() })
			all.Go(func() {
				for i := conn; i < min(conn+each, to); i++ {
					id := fmt.Sprint("m", i)
					switch err := tryRaw(streams, cc, id, w.incarnation(state.MemberID(id))); {
					case err == nil:
						served.Add(1)
					case reason.Of(err) == rootv1.Reason_REASON_OVERLOADED && reason.From(err).GetRetryAfterMillis() > 0:
						refusedOnes.Add(1)
					default:
						wrong.Add(1)
						t.Errorf("%s: %v", id, err)
					}
				}
			})
		}
		all.Wait()
		return stop
	}
	begun := time.Now()
	end := connect(0, members)
	took := time.Since(begun)
	grown := heapInUse() - before
	if n := served.Load(); n > int64(places) || n < int64(places*8/10) || refusedOnes.Load() != int64(members)-n || int64(w.server.MemberStreams()) != n {
		t.Errorf("%d are served, %d refused, %d streams are open", served.Load(), refusedOnes.Load(), w.server.MemberStreams())
	}
	if most := int64(400<<20) * int64(places) / 10_000; grown > 2*most { // both ends of each are in this process
		t.Errorf("%d MiB for %d streams, %d at most", grown>>20, places, 2*most>>20)
	}
	testreport.Linef(t, "members: %d connect at once in %s, %d are served with %d MiB on both sides, the others refused", members, took.Round(time.Millisecond), served.Load(), grown>>20)
	end()
	for w.server.MemberStreams() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	served.Store(0)
	defer connect(members-each/4, members)()
	if served.Load() != each/4 {
		t.Errorf("%d of %d are served when places are free", served.Load(), each/4)
	}
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
