package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/shownsum"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// HeartbeatConfig says how many members report, and what.
type HeartbeatConfig struct {
	// NoKV is the binary that the cluster is made of, Dir the folder for its data.
	NoKV, Dir string
	// Members, Regions that each has, and how many of them share a connection.
	Members, Regions, PerConnection int
	// Interval between two frames of a member; 0: it sends the next one as soon as it is
	// answered, with a report of each of its regions.
	Interval time.Duration
	// Changed is the share of regions that a frame says something new of. With an
	// interval frames report nothing else.
	Changed float64
	// Duration is measured. Kill ends the coordinator of the streams with kill -9 then.
	Duration time.Duration
	Kill     bool
}

// Validate says what is wrong with c.
func (c *HeartbeatConfig) Validate() error {
	switch {
	case c.Members < 1 || c.Members > 20_000:
		return fmt.Errorf("members %d: want 1 to 20,000", c.Members)
	case c.Regions < 1 || c.Regions > 100_000 || c.Members*c.Regions > 2_000_000:
		return fmt.Errorf("regions %d: want 1 to 100,000 a member, 2,000,000 together", c.Regions)
	case c.PerConnection < 1 || c.PerConnection > 10_000:
		return fmt.Errorf("per-connection %d: want 1 to 10,000 members", c.PerConnection)
	case c.Interval < 0:
		return fmt.Errorf("interval %s: want 0 or more", c.Interval)
	case !(c.Changed >= 0 && c.Changed <= 1):
		return fmt.Errorf("changed %v: want 0 to 1", c.Changed)
	case c.Duration < leastSteady:
		return fmt.Errorf("duration %s: want %s or more", c.Duration, leastSteady)
	}
	return nil
}

// HeartbeatReport is what `nokv bench heartbeat -o json` prints. The field names stay.
type HeartbeatReport struct {
	Members int `json:"members"`
	Regions int `json:"regions"`
	// Frames and Reports are a second; Answers are the times until frames were answered.
	Frames  float64   `json:"frames_per_s"`
	Reports float64   `json:"reports_per_s"`
	Answers Quantiles `json:"answers"`
	// Refused counts reports that the coordinator did not take.
	Refused uint64 `json:"refused"`
	// Cores is how much of one core the coordinator used.
	Cores float64 `json:"cores"`
	// Resident memory of the coordinator in MiB before the streams, with them, and with a
	// report of each region; and what a stream takes of it, in bytes. RegionBytes are of the
	// heap, by what is alive behind a collection: what a report adds. With its descriptor and
	// all that is known of it beside that a region takes RegionAllBytes.
	BeforeMiB      float64 `json:"before_mib"`
	StreamsMiB     float64 `json:"streams_mib"`
	ReportsMiB     float64 `json:"reports_mib"`
	StreamBytes    float64 `json:"bytes_a_stream"`
	RegionBytes    float64 `json:"bytes_a_region"`
	RegionAllBytes float64 `json:"bytes_a_region_in_all"`
	OpenMs         float64 `json:"open_ms"`
	// BackMs is from the kill until every member has a stream to the other coordinator and
	// its complete report was answered there; Routes are lookups before it and meanwhile.
	BackMs float64   `json:"back_ms,omitempty"`
	Routes *Compared `json:"routes,omitempty"`
}

// HeartbeatExperiment is members that are streams, and a cluster that hears them.
type HeartbeatExperiment struct {
	*cluster
	c       HeartbeatConfig
	clients []*client.Client
	members []*beating
	zero    time.Time
	frames  atomic.Uint64
	reports atomic.Uint64
	refused atomic.Uint64
	answers record
}

// beating is one member.
type beating struct {
	x           *HeartbeatExperiment
	client      *client.Client
	id          string
	incarnation uint64
	regions     []ownedID
	stream      grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]
	cancel      context.CancelFunc
	sequence    uint64
	turn        uint64
	// taking is what came of a set, whose last part has not come while inside; shown is the last that did.
	taking, shown *coordinatorv1.ShownState
	inside        bool
}

type ownedID struct {
	id    rooted.RegionID
	epoch rooted.Epoch
}

// OpenHeartbeat starts the processes. The owner ends them with Close.
func OpenHeartbeat(c HeartbeatConfig) (*HeartbeatExperiment, error) {
	x := &HeartbeatExperiment{c: c, zero: time.Now()}
	var err error
	if x.cluster, err = newCluster(c.Dir, c.NoKV, 2, time.Second, false); err != nil {
		return nil, err
	}
	for range (c.Members + c.PerConnection - 1) / c.PerConnection {
		cl, err := client.New(client.Config{Endpoints: x.CoordinatorAddrs, DefaultTimeout: recoverBound})
		if err != nil {
			x.Close()
			return nil, err
		}
		x.clients = append(x.clients, cl)
	}
	return x, nil
}

// Close ends every process, at once.
func (x *HeartbeatExperiment) Close() {
	for _, cl := range x.clients {
		_ = cl.Close()
	}
	x.close()
}

// openAtOnce is how many members do something at the same time that is not measured.
const openAtOnce = 64

// each does something for every member, many at a time.
func (x *HeartbeatExperiment) each(do func(i int) error) error {
	var doing sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, openAtOnce)
	for k := range openAtOnce {
		doing.Go(func() {
			for i := next.Add(1) - 1; i < int64(x.c.Members) && errs[k] == nil; i = next.Add(1) - 1 {
				errs[k] = do(int(i))
			}
		})
	}
	doing.Wait()
	return errors.Join(errs...)
}

// Run makes the members, and measures.
func (x *HeartbeatExperiment) Run(ctx context.Context) (*HeartbeatReport, error) {
	before, err := x.waitHealthy(ctx)
	if err != nil {
		return nil, fmt.Errorf("the cluster did not become healthy: %w", err)
	}
	var live [4]int64 // bytes: at first, with regions, with streams, with reports
	if live[0], err = x.liveHeap(ctx, before.holder); err != nil {
		return nil, err
	}
	if err := x.populate(ctx); err != nil {
		return nil, err
	}
	out := &HeartbeatReport{Members: x.c.Members, Regions: x.c.Members * x.c.Regions}
	hearer, mib := x.processes[before.holder], func(n int64) float64 { return float64(n) / (1 << 20) }
	address := x.CoordinatorAddrs[before.holder-x.Roots()]
	base := usageOf(hearer).resident
	if live[1], err = x.liveHeap(ctx, before.holder); err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := x.each(func(i int) error { return x.members[i].keepOpening(ctx, address) }); err != nil {
		return nil, err
	}
	out.OpenMs = ms(time.Since(begun))
	open := usageOf(hearer).resident
	if live[2], err = x.liveHeap(ctx, before.holder); err != nil {
		return nil, err
	}
	if err := x.each(func(i int) error { return x.members[i].say(x.c.Regions, false) }); err != nil {
		return nil, err
	}
	reported := usageOf(hearer).resident
	if live[3], err = x.liveHeap(ctx, before.holder); err != nil {
		return nil, err
	}
	out.BeforeMiB, out.StreamsMiB, out.ReportsMiB = mib(base), mib(open), mib(reported)
	out.StreamBytes = float64(open-base) / float64(x.c.Members)
	out.RegionBytes = float64(live[3]-live[2]) / float64(out.Regions)
	out.RegionAllBytes = out.RegionBytes + float64(live[1]-live[0])/float64(out.Regions)

	routes, asking := &record{}, x.lookUp(ctx)
	defer asking.stop(routes)
	frames, reports, used, from := x.frames.Load(), x.reports.Load(), usageOf(hearer).processor, time.Since(x.zero)
	if err := x.beat(ctx); err != nil {
		return nil, err
	}
	lasted := (time.Since(x.zero) - from).Seconds()
	out.Frames, out.Reports = float64(x.frames.Load()-frames)/lasted, float64(x.reports.Load()-reports)/lasted
	out.Cores, out.Refused = (usageOf(hearer).processor-used).Seconds()/lasted, x.refused.Load()
	times, _, _, _ := took(x.answers.between(from, time.Since(x.zero)))
	out.Answers = showQuantiles(times)
	if !x.c.Kill {
		return out, nil
	}
	at := time.Since(x.zero)
	hearer.Kill()
	other := x.CoordinatorAddrs[1-(before.holder-x.Roots())]
	if err := x.each(func(i int) error { return x.members[i].reopen(ctx, other) }); err != nil {
		return nil, err
	}
	back := time.Since(x.zero)
	out.BackMs = ms(back - at)
	asking.stop(routes)
	out.Routes, _ = compare(routes.between(from, at), routes.between(at, back))
	return out, nil
}

// populate registers the members, with regions.
func (x *HeartbeatExperiment) populate(ctx context.Context) error {
	settings, _ := state.Preset("games")
	// Nobody is failed for what this process is too slow for.
	settings.Liveness.SuspectAfterMillis, settings.Liveness.DeadAfterMillis = 60_000, 600_000
	settings.Liveness.ClosedStream = rootv1.ClosedStream_CLOSED_STREAM_SUSPECT
	made, err := x.admin.CreateKeyspaceOf(ctx, hostedKeyspace, settings)
	if err != nil {
		return err
	}
	x.members = make([]*beating, x.c.Members)
	if err := x.each(func(i int) error {
		b := &beating{x: x, client: x.clients[i/x.c.PerConnection], id: fmt.Sprintf("m%05d", i+1)}
		x.members[i] = b
		m, err := x.clients[0].RegisterMember(ctx, &rootv1.Member{Id: b.id, Address: "127.0.0.1:1", StartNonce: uint64(i) + 1})
		b.incarnation = m.GetIncarnation()
		return err
	}); err != nil {
		return err
	}
	n := x.c.Members * x.c.Regions
	if err := x.publish(ctx, made.GetKeyspace().GetId(), true, n, func(i int) rooted.MemberID { return rooted.MemberID(x.members[i%x.c.Members].id) }); err != nil {
		return err
	}
	if err := until(ctx, func() error { return x.knowRegions(ctx, uint64(n)) }); err != nil {
		return err
	}
	byID := make(map[rooted.MemberID]*beating, len(x.members))
	for _, b := range x.members {
		byID[rooted.MemberID(b.id)] = b
	}
	for b, err := range x.admin.WatchRegions(ctx, client.Position{}, client.In(hostedKeyspace)) {
		if err != nil {
			return err
		}
		for _, c := range b.Changes {
			if owners := c.Region.GetOwners(); len(owners) == 1 {
				m := byID[rooted.MemberID(owners[0].GetMemberId())]
				m.regions = append(m.regions, ownedID{rooted.RegionID(c.Region.GetId()), rooted.EpochFromProto(c.Region.GetEpoch())})
				n--
			}
		}
		if n <= 0 {
			return nil
		}
	}
	return ctx.Err()
}

// open opens a member's stream.
func (b *beating) open(ctx context.Context, address string) (err error) {
	ctx, b.cancel = context.WithCancel(ctx)
	if b.stream, err = b.client.MemberStream(ctx, "", address); err != nil {
		return err
	}
	b.sequence, b.shown, b.inside = 0, nil, false
	return b.exchange(&coordinatorv1.MemberFrame{Hello: &coordinatorv1.MemberHello{MemberId: b.id, Incarnation: b.incarnation}})
}

// keepOpening opens it as often as it takes: many that open at once wait for each other.
func (b *beating) keepOpening(ctx context.Context, address string) error {
	return until(ctx, func() error {
		err := b.open(ctx, address)
		if err != nil {
			b.cancel()
		}
		return err
	})
}

// reopen opens it again, elsewhere, with a complete report.
func (b *beating) reopen(ctx context.Context, address string) error {
	b.cancel()
	if err := b.keepOpening(ctx, address); err != nil {
		return err
	}
	return b.say(len(b.regions), false)
}

// frameRegions bounds the reports of a frame.
const frameRegions = 1000

// say reports so many regions, as they are or changed, in as many frames as it takes.
func (b *beating) say(regions int, changed bool) error {
	b.turn++
	for at := 0; ; at += frameRegions {
		f := &coordinatorv1.MemberFrame{}
		for i := at; i < min(at+frameRegions, regions); i++ {
			r := b.regions[(i+int(b.turn))%len(b.regions)]
			p := &coordinatorv1.RegionReport{RegionId: uint64(r.id), Epoch: r.epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING, Load: 1}
			if changed && float64(i) < b.x.c.Changed*float64(regions) || changed && b.x.c.Interval > 0 {
				p.Epoch.ConfVersion += b.turn % 2
				p.Load += float64(b.turn)
			}
			f.Regions = append(f.Regions, p)
		}
		if err := b.exchange(f); err != nil {
			return err
		}
		if at+frameRegions >= regions {
			return nil
		}
	}
}

// exchange sends a frame and takes its answer.
func (b *beating) exchange(f *coordinatorv1.MemberFrame) error {
	b.sequence++
	f.Sequence, f.Shown = b.sequence, b.shown
	x := b.x
	at := time.Since(x.zero)
	if err := b.stream.Send(f); err != nil {
		_, err = b.stream.Recv() // it tells why
		return err
	}
	for {
		a, err := b.stream.Recv()
		if err != nil {
			return err
		}
		x.refused.Add(uint64(len(a.GetRefusals())))
		if set := a.GetSet(); set != nil {
			b.take(set)
		}
		if a.GetSequence() >= b.sequence {
			break
		}
	}
	x.frames.Add(1)
	x.reports.Add(uint64(len(f.GetRegions())))
	if rand.IntN(16) == 0 {
		x.answers.add(request{at: at, took: time.Since(x.zero) - at})
	}
	return nil
}

// take takes a part of a set: who takes none is not confirmed. Of one that is not complete only the token is
// taken; if that is of other regions than before, a complete one follows.
func (b *beating) take(set *coordinatorv1.ShownSet) {
	if set.GetComplete() && !b.inside {
		b.taking = &coordinatorv1.ShownState{}
	}
	b.inside = set.GetPartial()
	if set.GetComplete() {
		b.taking.Count += uint64(len(set.GetRegions()))
		for _, r := range set.GetRegions() {
			b.taking.Checksum ^= shownsum.Of(r)
		}
	}
	if !b.inside {
		b.taking.Token = set.GetToken()
		b.shown = b.taking
	}
}

// beat has every member send frames for the measured time.
func (x *HeartbeatExperiment) beat(ctx context.Context) error {
	var beating sync.WaitGroup
	var mu sync.Mutex
	var failed error
	over := time.Now().Add(x.c.Duration)
	for i, b := range x.members {
		beating.Go(func() {
			err := wait(ctx, x.c.Interval*time.Duration(i)/time.Duration(len(x.members)))
			for err == nil && time.Now().Before(over) {
				at := time.Now()
				n := x.c.Regions
				if x.c.Interval > 0 {
					n = int(x.c.Changed * float64(x.c.Regions))
				}
				if err = b.say(n, x.c.Changed > 0); err == nil && x.c.Interval > 0 {
					err = wait(ctx, time.Until(at.Add(x.c.Interval)))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	beating.Wait()
	return failed
}

// lookups is a caller that asks for routes, 1,000 a second.
type lookups struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	all     record
}

func (l *lookups) stop(into *record) {
	l.cancel()
	l.running.Wait()
	into.all = slices.Clone(l.all.all)
}

func (x *HeartbeatExperiment) lookUp(ctx context.Context) *lookups {
	l := &lookups{}
	ctx, l.cancel = context.WithCancel(ctx)
	if !x.c.Kill {
		return l
	}
	in := client.In(hostedKeyspace)
	l.running.Go(func() {
		for wait(ctx, time.Millisecond) == nil {
			at := time.Since(x.zero)
			_, err := x.admin.GetRegionByKey(ctx, hostedKey(rand.IntN(x.c.Members*x.c.Regions)), in)
			if ctx.Err() == nil {
				l.all.add(request{at: at, took: time.Since(x.zero) - at, err: err})
			}
		}
	})
	return l
}
