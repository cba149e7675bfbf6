package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// hostingMany is a world with members that own so many regions each.
func hostingMany(b testing.TB, members, regions int, change ...func(*server.Config)) *world {
	b.Helper()
	w := start(b, append([]func(*server.Config){func(c *server.Config) { c.Limits.MaxMemberStreams = 1 << 15 }}, change...)...)
	w.root.must(b, games())
	batch := func(n int, event func(int) *rootv1.Event) {
		var events []*rootv1.Event
		for i := range n {
			if events = append(events, event(i)); len(events) == 2000 || i == n-1 {
				w.root.must(b, events...)
				events = nil
			}
		}
	}
	batch(members, func(i int) *rootv1.Event { return join(fmt.Sprint("m", i)) })
	batch(members*regions, func(i int) *rootv1.Event { return point(fmt.Sprint(i), fmt.Sprint("m", i%members)) })
	w.catchUp(b)
	return w
}

// rawFrames sends frames that are encoded already, and reads of an answer its sequence.
type rawFrames struct{}

func (rawFrames) Name() string { return "proto" }

func (rawFrames) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawFrames) Unmarshal(data mem.BufferSlice, v any) error {
	raw := data.Materialize()
	if num, typ, n := protowire.ConsumeTag(raw); num == 1 && typ == protowire.VarintType {
		*v.(*uint64), _ = protowire.ConsumeVarint(raw[n:])
	}
	return nil
}

// rawMember is a stream that costs the client side little.
type rawMember struct {
	stream   grpc.ClientStream
	sequence uint64
}

// tryRaw opens a stream, and takes the first answer.
func tryRaw(ctx context.Context, conn *grpc.ClientConn, id string, incarnation uint64) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, coordinatorv1.Coordinator_MemberStream_FullMethodName)
	if err != nil {
		return err
	}
	data, err := proto.Marshal(&coordinatorv1.MemberFrame{Sequence: 1, Hello: &coordinatorv1.MemberHello{MemberId: id, Incarnation: incarnation}, Complete: true})
	if err != nil {
		return err
	}
	if err := stream.SendMsg(data); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var at uint64
	return stream.RecvMsg(&at)
}

func openRaw(b testing.TB, ctx context.Context, conn *grpc.ClientConn, id string, incarnation uint64) *rawMember {
	b.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, coordinatorv1.Coordinator_MemberStream_FullMethodName)
	if err != nil {
		b.Fatal(err)
	}
	m := &rawMember{stream: stream}
	data, err := proto.Marshal(&coordinatorv1.MemberFrame{Hello: &coordinatorv1.MemberHello{MemberId: id, Incarnation: incarnation}, Complete: true})
	if err != nil {
		b.Fatal(err)
	}
	m.exchange(b, data)
	return m
}

// exchange sends a frame and takes its answer.
func (m *rawMember) exchange(b testing.TB, frame []byte) {
	m.sequence++
	if err := m.stream.SendMsg(protowire.AppendVarint(protowire.AppendTag(frame[:len(frame):len(frame)], 2, protowire.VarintType), m.sequence)); err != nil {
		b.Error(err)
		return
	}
	for at := uint64(0); at < m.sequence; {
		if err := m.stream.RecvMsg(&at); err != nil {
			b.Error(err)
			return
		}
	}
}

// openMany opens a stream for every member, many on a connection.
func openMany(b testing.TB, ctx context.Context, w *world, members int) []*rawMember {
	const each = 500
	all := make([]*rawMember, members)
	for from := 0; from < members; from += each {
		conn := w.dial(b, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawFrames{})))
		b.Cleanup(func() { conn.Close() })
		for i := from; i < min(from+each, members); i++ {
			id := fmt.Sprint("m", i)
			all[i] = openRaw(b, ctx, conn, id, w.incarnation(state.MemberID(id)))
		}
	}
	return all
}

// BenchmarkRegionReports is reports of 64 members with 1,000 regions each, 1,000 in a
// frame: as before, and of another epoch each time.
func BenchmarkRegionReports(b *testing.B) {
	const members, regions = 64, 1000
	for _, changed := range []bool{false, true} {
		b.Run(map[bool]string{false: "same", true: "epochs"}[changed], func(b *testing.B) {
			w := hostingMany(b, members, regions)
			all := openMany(b, b.Context(), w, members)
			frames := make([][2][]byte, members)
			for i := range members {
				for v := range 2 {
					f := &coordinatorv1.MemberFrame{}
					for r := range regions {
						p := reported(uint64(r*members+i+1), phaseServing)
						if changed {
							p.Epoch.ConfVersion += uint64(v)
						}
						f.Regions = append(f.Regions, p)
					}
					frames[i][v], _ = proto.Marshal(f)
				}
			}
			b.ResetTimer()
			cpu := cpuTime(b)
			var next atomic.Int64
			var running sync.WaitGroup
			for i, m := range all {
				running.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						m.exchange(b, frames[i][m.sequence%2])
					}
				})
			}
			running.Wait()
			report(b, b.N*regions, "report", cpu)
		})
	}
}

// BenchmarkMemberFrames is 2,000 members that say every 200 ms that nothing changed, for
// three seconds; both sides are counted.
func BenchmarkMemberFrames(b *testing.B) {
	const members, every, lasts = 2000, 200 * time.Millisecond, 3 * time.Second
	w := hostingMany(b, members, 5)
	all := openMany(b, b.Context(), w, members)
	for b.Loop() {
		cpu, begun := processorTime(), time.Now()
		var frames atomic.Int64
		var running sync.WaitGroup
		for i, m := range all {
			running.Go(func() {
				time.Sleep(every * time.Duration(i) / members)
				for time.Since(begun) < lasts {
					at := time.Now()
					m.exchange(b, nil)
					frames.Add(1)
					time.Sleep(time.Until(at.Add(every)))
				}
			})
		}
		running.Wait()
		b.ReportMetric((processorTime()-cpu).Seconds()/time.Since(begun).Seconds(), "cores")
		b.ReportMetric(float64(frames.Load())/time.Since(begun).Seconds(), "frames/s")
		b.ReportMetric(float64((processorTime()-cpu).Nanoseconds())/float64(frames.Load()), "cpu-ns/frame")
	}
}

// BenchmarkIdleMembers is what a stream of a member that says nothing costs in memory,
// both sides in this process, and how many open at once.
func BenchmarkIdleMembers(b *testing.B) {
	const members = 10_000
	w := hostingMany(b, members, 1)
	for b.Loop() {
		before, begun := memory(), time.Now()
		ctx, cancel := context.WithCancel(b.Context())
		all := openMany(b, ctx, w, members)
		b.ReportMetric(time.Since(begun).Seconds(), "s-to-open")
		b.ReportMetric(float64(memory()-before)/members/1024, "KiB/stream")
		cancel()
		for _, m := range all {
			for n := uint64(0); m.stream.RecvMsg(&n) == nil; {
			}
		}
	}
}

// BenchmarkReport is the memory and the time of reports of 1,000,000 regions.
func BenchmarkReport(b *testing.B) {
	const regions = 1_000_000
	w := hostingMany(b, 100, regions/100)
	st, now := w.root.state, clock.Instant(1)
	report := reported(1, phaseServing)
	for b.Loop() {
		before := memory()
		soft := catalog.NewSoft(catalog.SoftConfig{})
		begun := time.Now()
		for i := range uint64(regions) {
			report.RegionId = i + 1
			report.Frontier = protowire.AppendVarint(nil, i<<20)
			m := st.Member(st.Region(state.RegionID(i + 1)).Owners[0].Member)
			if _, err := soft.Report(st, m, report, now); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(begun).Nanoseconds())/regions, "ns/report")
		b.ReportMetric(float64(memory()-before)/regions, "bytes/region")
		if _, ok := soft.Own(1, st.Region(1).Owners[0].Incarnation); !ok {
			b.Fatal("it is not kept")
		}
	}
}
