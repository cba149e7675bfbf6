package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Watches says what watches are open while changes are published.
type Watches struct {
	// Count is how many there are, over Connections; one in Slow (0: none) reads
	// one message a second.
	Count, Connections, Slow int
	// Routers has each watch fill the view of a router; none is slow.
	Routers bool
	// Rate is how many changes a second are published, all together; 0: as many as
	// the callers get done.
	Rate int
}

// Arrivals is what became of changes at the watches that read. Times are in
// milliseconds, from the answer to the publisher to the watch.
type Arrivals struct {
	Messages uint64  `json:"messages"`
	Bytes    uint64  `json:"bytes"`
	Samples  int     `json:"samples"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
	MaxMs    float64 `json:"max_ms"`
	// OpenSeconds is how long it took until every watch had its beginning.
	OpenSeconds float64 `json:"open_s"`
	// Cut counts watches that the coordinator ended, Opened those that were open
	// at last.
	Cut    uint64 `json:"cut"`
	Opened int64  `json:"opened"`
}

// sampled is how many of the watches that read note when each position came.
const sampled = 200

// watchesGCPercent is the percentage of garbage in a process with watches: a collection
// goes through the stacks of all readers, which callers elsewhere would not wait for.
const watchesGCPercent = 1000

// audience is the watches of one run.
type audience struct {
	ctx     context.Context // ends the watches
	stop    func()
	readers sync.WaitGroup
	conns   []*grpc.ClientConn
	clients []*client.Client // of routers
	took    time.Duration    // to open them
	// collects is the percentage of garbage that this process had before.
	collects int

	opened                      atomic.Int64
	began, cut, messages, bytes atomic.Uint64

	mu sync.Mutex
	// Guarded by mu: when positions came to the sampled watches, and when they
	// were acknowledged to publishers.
	seen  [][]arrival
	acked []arrival
}

type arrival struct {
	index uint64
	at    time.Time
}

// open opens the watches of a keyspace, and waits until each has its beginning.
func (w Watches) open(ctx context.Context, certs *mtls.Source, address, keyspace string) (*audience, error) {
	ctx, stop := context.WithCancel(ctx)
	a, begun := &audience{ctx: ctx, stop: stop, collects: debug.SetGCPercent(watchesGCPercent)}, time.Now()
	if w.Routers {
		if err := w.follow(a, certs, address, keyspace); err != nil {
			stop()
			return nil, err
		}
		return a, a.begin(w.Count, begun)
	}
	for range w.Connections {
		options := append(flow.Client(), grpc.WithTransportCredentials(certs.Client(mtls.Peer{Role: principal.Coordinator})),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(tokens{encoding.GetCodecV2(protocodec.Name)}), grpc.MaxCallRecvMsgSize(64<<20)))
		conn, err := grpc.NewClient("passthrough:///"+address, options...)
		if err != nil {
			return nil, err
		}
		a.conns = append(a.conns, conn)
	}
	for i := range w.Count {
		conn := a.conns[i%len(a.conns)]
		slow := w.Slow > 0 && i%w.Slow == w.Slow-1
		a.readers.Go(func() { a.read(conn, keyspace, slow, !slow && i%max(w.Count/sampled, 1) == 0) })
	}
	return a, a.begin(w.Count, begun)
}

// begin waits until each of so many has its beginning.
func (a *audience) begin(count int, begun time.Time) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); a.began.Load() < uint64(count); {
		if time.Now().After(limit) {
			a.stop()
			return fmt.Errorf("%d of %d watches began within a minute", a.began.Load(), count)
		}
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
	}
	a.took = time.Since(begun)
	return nil
}

// follow begins routers' views over as many clients as there are connections. A change
// has come when the view shows it.
func (w Watches) follow(a *audience, certs *mtls.Source, address, keyspace string) error {
	for range w.Connections {
		cl, err := client.New(client.Config{Endpoints: []string{address}, TLS: certs})
		if err != nil {
			return err
		}
		a.clients = append(a.clients, cl)
	}
	for i := range w.Count {
		sample, began := i%max(w.Count/sampled, 1) == 0, false
		var seen []arrival
		cache := a.clients[i%len(a.clients)].NewCache(client.CacheConfig{Keyspace: keyspace, OnChange: func(u client.Update) {
			a.messages.Add(1)
			if !began {
				began = true
				a.began.Add(1)
			}
			if index := u.At.Token.Index; sample && (len(seen) == 0 || seen[len(seen)-1].index != index) {
				seen = append(seen, arrival{index, time.Now()})
			}
		}})
		a.readers.Go(func() {
			a.opened.Add(1)
			defer a.opened.Add(-1)
			if err := cache.Run(a.ctx); err != nil {
				a.cut.Add(1)
			}
			if sample {
				a.mu.Lock()
				a.seen = append(a.seen, seen)
				a.mu.Unlock()
			}
		})
	}
	return nil
}

// read reads one watch, again from where it was when it is cut.
func (a *audience) read(conn *grpc.ClientConn, keyspace string, slow, sample bool) {
	var at token
	var seen []arrival
	began := false
	for a.ctx.Err() == nil {
		stream, err := conn.NewStream(a.ctx, &grpc.StreamDesc{ServerStreams: true}, coordinatorv1.Coordinator_WatchRegions_FullMethodName)
		if err == nil {
			req := &coordinatorv1.WatchRegionsRequest{Keyspace: keyspace}
			if at.raw != nil {
				req.After = &rootv1.RootToken{}
				err = proto.Unmarshal(at.raw, req.After)
			}
			err = errors.Join(err, stream.SendMsg(req), stream.CloseSend())
		}
		a.opened.Add(1)
		for err == nil {
			if err = stream.RecvMsg(&at); err != nil {
				break
			}
			a.messages.Add(1)
			a.bytes.Add(uint64(at.size))
			if !began && at.raw != nil {
				began = true
				a.began.Add(1)
			}
			if sample && (len(seen) == 0 || seen[len(seen)-1].index != at.index) {
				seen = append(seen, arrival{at.index, time.Now()})
			}
			if slow && began {
				pause(a.ctx, time.Second)
			}
		}
		a.opened.Add(-1)
		if a.ctx.Err() == nil {
			a.cut.Add(1)
			pause(a.ctx, 100*time.Millisecond)
		}
	}
	if sample {
		a.mu.Lock()
		a.seen = append(a.seen, seen)
		a.mu.Unlock()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// published notes that a change was acknowledged.
func (a *audience) published(index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.acked = append(a.acked, arrival{index, time.Now()})
}

// end closes the connections, once the readers are gone, and says how long
// changes that were acknowledged in [from, to) took.
func (a *audience) end(from, to time.Time) *Arrivals {
	out := &Arrivals{
		Messages: a.messages.Load(), Bytes: a.bytes.Load(), Cut: a.cut.Load(), Opened: a.opened.Load(),
		OpenSeconds: a.took.Seconds(),
	}
	a.stop()
	for _, conn := range a.conns {
		_ = conn.Close()
	}
	a.readers.Wait()
	for _, cl := range a.clients {
		_ = cl.Close()
	}
	debug.SetGCPercent(a.collects)
	var times []time.Duration
	for _, seen := range a.seen {
		for _, change := range a.acked {
			if change.at.Before(from) || !change.at.Before(to) {
				continue
			}
			i, _ := slices.BinarySearchFunc(seen, change.index, func(s arrival, index uint64) int {
				if s.index < index {
					return -1
				}
				return 1
			})
			took := time.Since(change.at) // never came
			if i < len(seen) {
				took = max(seen[i].at.Sub(change.at), 0)
			}
			times = append(times, took)
		}
	}
	if out.Samples = len(times); out.Samples > 0 {
		slices.Sort(times)
		ms := func(share float64) float64 {
			return float64(times[min(int(share*float64(len(times))), len(times)-1)].Microseconds()) / 1000
		}
		out.P50Ms, out.P99Ms, out.MaxMs = ms(0.5), ms(0.99), ms(1)
	}
	return out
}

// prepareWatches opens watches of what is published, and paces the publishers.
func (c *Config) prepareWatches(ctx context.Context, cl *client.Client) (work, func(), error) {
	op, _, err := c.preparePublish(ctx, cl, "bench-publish")
	if err != nil {
		return nil, nil, err
	}
	if c.audience, err = c.Watches.open(ctx, c.TLS, cl.Endpoints()[0], "bench-publish"); err != nil {
		return nil, nil, err
	}
	begun := time.Now()
	var turn atomic.Int64
	c.pace = func(ctx context.Context) {
		if c.Watches.Rate > 0 {
			pause(ctx, time.Until(begun.Add(time.Duration(turn.Add(1))*time.Second/time.Duration(c.Watches.Rate))))
		}
	}
	return op, c.audience.stop, nil
}

// token is where a message of a watch leads to.
type token struct {
	raw   []byte // nil: nowhere yet
	index uint64
	size  int
}

// tokens reads of messages of watches their token, and nothing else.
type tokens struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c tokens) Unmarshal(data mem.BufferSlice, v any) error {
	t, ok := v.(*token)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	t.size = buf.Len()
	for raw := buf.ReadOnlyData(); len(raw) > 0; {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		if num == 1 && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(raw[n:])
			t.raw, t.index = append(t.raw[:0], value...), indexOf(value)
		}
		raw = raw[n+m:]
	}
	return nil
}

// indexOf is the index of an encoded token.
func indexOf(raw []byte) (index uint64) {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 || typ != protowire.VarintType {
			return index
		}
		value, m := protowire.ConsumeVarint(raw[n:])
		if m < 0 {
			return index
		}
		if num == 3 {
			index = value
		}
		raw = raw[n+m:]
	}
	return index
}
