package gate_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/internal/testing/proctest"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const mib = 1 << 20

// codec is the ordinary one, and has the gate count.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	v, to := gate.Open(v)
	data, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	return to.Count(data), nil
}

// world is a server behind a gate. Unary answers with as many bytes as it is
// asked for, Chat with each message as it came.
type world struct {
	gate   *gate.Gate
	budget *budget.Budget
	lis    *listen.Listener
	addr   string
}

type service interface{}

const (
	unary = "/t.T/Unary"
	chat  = "/t.T/Chat"
	deaf  = "/t.T/Deaf"
)

func serve(t testing.TB, total budget.Size) *world {
	t.Helper()
	w := &world{budget: budget.New(total)}
	w.gate = gate.New(gate.Config{
		Budget: w.budget, MaxStreams: 4096, Changes: func(string) bool { return false }, Logger: hclog.NewNullLogger(),
	})
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.lis, w.addr = listen.Limit(inner, 200), inner.Addr().String()
	server := grpc.NewServer(append(flow.Server(),
		grpc.Creds(w.gate.Credentials(nil)), grpc.InTapHandle(w.gate.Tap), grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.ChainUnaryInterceptor(w.gate.Unary), grpc.ChainStreamInterceptor(w.gate.Stream),
		grpc.MaxConcurrentStreams(4096), grpc.MaxHeaderListSize(16<<10), grpc.MaxRecvMsgSize(5*mib))...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "t.T", HandlerType: (*service)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			req := new(wrapperspb.BytesValue)
			if err := dec(req); err != nil {
				return nil, err
			}
			return intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: unary}, func(context.Context, any) (any, error) {
				if string(req.GetValue()) == "large" {
					return wrapperspb.Bytes(make([]byte, 3*mib)), nil
				}
				return req, nil
			})
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Chat", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				req := new(wrapperspb.BytesValue)
				if err := stream.RecvMsg(req); err != nil {
					return err
				}
				if err := stream.SendMsg(req); err != nil {
					return err
				}
			}
		}}, {StreamName: "Deaf", ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			<-stream.Context().Done() // reads nothing
			return nil
		}}},
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = server.Serve(w.lis) })
	work.Go(func() { w.gate.Run(ctx) })
	t.Cleanup(func() {
		w.lis.CloseAll()
		server.Stop()
		cancel()
		work.Wait()
	})
	return w
}

// dial is an honest client.
func (w *world) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(w.addr, append(flow.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call is an honest call.
func call(conn *grpc.ClientConn, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	return conn.Invoke(ctx, unary, wrapperspb.Bytes([]byte(value)), new(wrapperspb.BytesValue), grpc.MaxCallRecvMsgSize(8*mib))
}

// attacker speaks HTTP/2 as it likes.
type attacker struct {
	net.Conn
	*http2.Framer

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	windows map[uint32]int64 // what may be sent
	reset   map[uint32]bool  // streams that the server ended
	goAway  string           // what the server said at the end
	ended   bool
}

// attack connects. The attacker reads frames, unless deaf.
func (w *world) attack(t testing.TB, deaf bool) *attacker {
	t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	a := newAttacker(conn)
	var work sync.WaitGroup
	if !deaf {
		work.Go(a.listen)
	}
	t.Cleanup(func() {
		conn.Close()
		work.Wait()
	})
	return a
}

func newAttacker(conn net.Conn) *attacker {
	a := &attacker{Conn: conn, Framer: http2.NewFramer(conn, conn), windows: map[uint32]int64{0: 65535}, reset: map[uint32]bool{}}
	a.changed = sync.NewCond(&a.mu)
	a.AllowIllegalWrites = true
	return a
}

func (a *attacker) greet(settings ...http2.Setting) {
	_, _ = io.WriteString(a.Conn, http2.ClientPreface)
	_ = a.WriteSettings(settings...)
}

func (a *attacker) listen() {
	for {
		f, err := a.ReadFrame()
		a.mu.Lock()
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			a.windows[f.StreamID] += int64(f.Increment)
		case *http2.RSTStreamFrame:
			a.reset[f.StreamID] = true
		case *http2.GoAwayFrame:
			a.goAway = f.ErrCode.String() + ": " + string(f.DebugData())
		}
		a.ended = err != nil
		a.changed.Broadcast()
		a.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// end waits until the server has closed the connection, and returns why.
func (a *attacker) end() string {
	_ = a.SetReadDeadline(time.Now().Add(proctest.Patience)) // Whoever is not closed by then never is.
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.ended {
		a.changed.Wait()
	}
	return a.goAway
}

// headers are those of a call.
func headers(method string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return b.Bytes()
}

func (a *attacker) open(stream uint32, method string) error {
	a.mu.Lock()
	a.windows[stream] = 65535
	a.mu.Unlock()
	return a.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers(method), EndHeaders: true})
}

// data sends within the windows, as long as the server wants it; an error: the
// connection has ended.
func (a *attacker) data(stream uint32, p []byte) error {
	for len(p) > 0 {
		a.mu.Lock()
		for !a.ended && !a.reset[stream] && min(a.windows[0], a.windows[stream]) <= 0 {
			a.changed.Wait()
		}
		n := min(int64(len(p)), 16<<10, a.windows[0], a.windows[stream])
		if a.reset[stream] {
			a.mu.Unlock()
			return nil
		}
		ended := a.ended
		a.windows[0] -= n
		a.windows[stream] -= n
		a.mu.Unlock()
		if ended {
			return io.ErrClosedPipe
		}
		if err := a.WriteData(stream, false, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// live is how many bytes the heap has that are in use.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Messages of 4 MiB that lack one byte hold what the budget has for them, from one
// connection and from many, while others are served.
func TestUnfinishedMessagesAreBounded(t *testing.T) {
	const total = 256 * mib // 32 MiB for what comes
	w := serve(t, total)
	honest := w.dial(t)
	if err := call(honest, "x"); err != nil {
		t.Fatal(err)
	}
	before := live()
	message := append([]byte{0, 0, 64, 0, 0}, make([]byte, 4*mib-1)...)
	for _, connections := range []int{1, 16} {
		var work sync.WaitGroup
		for range connections {
			a := w.attack(t, false)
			work.Go(func() {
				a.greet()
				for i := range uint32(512 / connections) {
					if a.open(2*i+1, unary) != nil || a.data(2*i+1, message) != nil {
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { work.Wait(); close(done) }()
		calls, refused := 0, 0
		for attacked, begun := true, time.Now(); attacked; calls++ {
			if time.Since(begun) > proctest.Patience {
				t.Fatalf("the attack goes on: heap +%d MiB, %+v", (live()-before)/mib, w.gate.Vars(nil))
			}
			select {
			case <-done:
				attacked = false
			default:
			}
			if err := call(honest, "x"); err != nil && !strings.Contains(err.Error(), "memory for receiving") {
				t.Fatalf("call %d beside %d attackers: %v", calls, connections, err)
			} else if err != nil {
				refused++
			}
		}
		v := w.budget.Vars().Holders["receiving"]
		t.Logf("%d connections: %d calls beside them, %d refused, heap +%d MiB, peak %d MiB of %d", connections, calls, refused, (live()-before)/mib, v.Peak/mib, v.Limit/mib)
		if v.Peak > v.Limit {
			t.Errorf("%d bytes of %d", v.Peak, v.Limit)
		}
	}
	if closed := w.gate.Vars(nil).Closed["memory"]; closed < 3 {
		t.Errorf("%d connections were closed for memory", closed)
	}
	if grown := live() - before; grown > total/2 {
		t.Errorf("the heap grew by %d MiB", grown/mib)
	}
}

// Replies that nobody reads hold what the budget has for them.
func TestUnreadRepliesAreBounded(t *testing.T) {
	w := serve(t, 256*mib) // 32 MiB for replies
	honest := w.dial(t)
	if err := call(honest, "x"); err != nil {
		t.Fatal(err)
	}
	large := append([]byte{0, 0, 0, 0, 7, 10, 5}, "large"...)
	for range 8 {
		a := w.attack(t, false)
		a.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i := range uint32(100) {
			if a.open(2*i+1, unary) != nil || a.WriteData(2*i+1, true, large) != nil {
				break
			}
		}
	}
	for begun := time.Now(); w.gate.Vars(nil).Closed["unread"] == 0; {
		if time.Since(begun) > proctest.Patience {
			t.Fatalf("no connection was closed: %+v, %+v", w.gate.Vars(nil), w.budget.Vars())
		}
		if err := call(honest, "x"); err != nil && !strings.Contains(err.Error(), "memory for replies") {
			t.Fatal(err)
		}
	}
	v := w.budget.Vars().Holders["replies"]
	t.Logf("peak %d MiB of %d, %+v", v.Peak/mib, v.Limit/mib, w.gate.Vars(nil))
	if v.Peak > 2*v.Limit { // What is marshaled at the same time is above.
		t.Errorf("%d bytes of %d", v.Peak, v.Limit)
	}
}

// Floods of frames that belong to no call end the connection early, and it is told why.
func TestFloods(t *testing.T) {
	bomb := headers(unary)
	for len(bomb) < 16<<10 {
		bomb = append(bomb, 0x80|62) // the newest entry of the table again
	}
	for name, send := range map[string]func(a *attacker, i uint32) error{
		"empty DATA": func(a *attacker, i uint32) error {
			if i == 0 {
				return a.open(1, chat)
			}
			return a.WriteData(1, false, nil)
		},
		"DATA of no stream": func(a *attacker, _ uint32) error { return a.WriteData(99, false, []byte("x")) },
		"DATA of one byte": func(a *attacker, i uint32) error {
			if i == 0 {
				return errors.Join(a.open(1, chat), a.data(1, []byte{0, 0, 1, 0, 0}))
			}
			return a.data(1, []byte("x"))
		},
		"SETTINGS":      func(a *attacker, _ uint32) error { return a.WriteSettings() },
		"SETTINGS acks": func(a *attacker, _ uint32) error { return a.WriteSettingsAck() },
		"WINDOW_UPDATE": func(a *attacker, _ uint32) error { return a.WriteWindowUpdate(0, 1) },
		"PRIORITY":      func(a *attacker, _ uint32) error { return a.WritePriority(1, http2.PriorityParam{}) },
		"unknown":       func(a *attacker, _ uint32) error { return a.WriteRawFrame(0x77, 0, 0, nil) },
		"rapid reset": func(a *attacker, i uint32) error {
			return errors.Join(a.open(2*i+1, unary), a.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		},
		"CONTINUATION": func(a *attacker, i uint32) error {
			if i == 0 {
				return a.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(unary)})
			}
			return a.WriteContinuation(1, false, nil)
		},
		"HPACK": func(a *attacker, i uint32) error {
			err := a.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: bomb, EndHeaders: true})
			return errors.Join(err, a.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each ends with a gate that is closed slowly, for its caller to hear why
			w := serve(t, 256*mib)
			a := w.attack(t, false)
			a.greet()
			for i := range uint32(100_000) {
				if send(a, i) != nil {
					break
				}
			}
			if why := a.end(); why != "" && !strings.Contains(why, "ENHANCE_YOUR_CALM: it sends frames that belong to no call") {
				t.Errorf("the end: %q", why)
			}
			if w.gate.Vars(nil).Closed["flood"] != 1 {
				t.Errorf("it is not counted: %+v", w.gate.Vars(nil))
			}
		})
	}
}

// What honest clients do in bulk closes nothing: calls and cancellations by the
// thousand on one connection, long messages, streams of many small ones.
func TestHonestLoadIsNoAttack(t *testing.T) {
	w := serve(t, 512*mib)
	conn := w.dial(t)
	var work sync.WaitGroup
	for range 2000 {
		work.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			work.Go(cancel)
			_ = conn.Invoke(ctx, unary, wrapperspb.Bytes(make([]byte, 3000)), new(wrapperspb.BytesValue))
			cancel()
		})
	}
	for range 3 {
		work.Go(func() {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, chat)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 3000 {
				in, out := wrapperspb.Bytes(make([]byte, i%900)), new(wrapperspb.BytesValue)
				if err := errors.Join(stream.SendMsg(in), stream.RecvMsg(out)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 {
		work.Go(func() {
			if err := call(conn, strings.Repeat("x", 4*mib)); err != nil {
				t.Error(err)
			}
			if err := call(conn, "large"); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for why, n := range w.gate.Vars(nil).Closed {
		if n != 0 {
			t.Errorf("%d connections were closed: %s", n, why)
		}
	}
}

// A hundred more connections than the listener takes, all of them silent, do not
// keep a caller out; nor do they end a call.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	w := serve(t, 256*mib)
	first := w.dial(t)
	stream, err := first.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, chat)
	if err != nil {
		t.Fatal(err)
	}
	exchange := func() error {
		return errors.Join(stream.SendMsg(wrapperspb.Bytes(nil)), stream.RecvMsg(new(wrapperspb.BytesValue)))
	}
	if err := exchange(); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		a := w.attack(t, true)
		a.greet()
	}
	if err := call(w.dial(t), "x"); err != nil {
		t.Errorf("a newcomer: %v", err)
	}
	if err := exchange(); err != nil {
		t.Errorf("a call that was open: %v", err)
	}
	if v := w.lis.Vars(); v.Open > v.Limit || v.Evicted == 0 || v.Refused != 0 {
		t.Errorf("%+v", v)
	}
}

// pair is a watched connection in a bubble of virtual time, behind the handshake.
func pair(t *testing.T) (a *attacker, server net.Conn, g *gate.Gate) {
	g = gate.New(gate.Config{Budget: budget.New(64 * mib), MaxStreams: 100, Logger: hclog.NewNullLogger()})
	ours, theirs := net.Pipe()
	server, _, err := g.Credentials(nil).ServerHandshake(ours)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { g.Run(ctx) })
	work.Go(func() { // gRPC's reader
		_, _ = io.Copy(io.Discard, server)
		server.Close()
	})
	a = newAttacker(theirs)
	work.Go(a.listen)
	t.Cleanup(func() {
		cancel()
		theirs.Close()
		work.Wait()
	})
	return a, server, g
}

// What does not come in time ends the connection: headers that come byte by byte, a message
// that never ends; not one that the server does not take.
func TestWhatIsSlowEnds(t *testing.T) {
	for name, c := range map[string]struct {
		send        func(a *attacker)
		why, says   string
		least, most time.Duration
	}{
		"nothing": {func(*attacker) {}, "", "", 0, 0},
		"header of a frame": {
			func(a *attacker) { _, _ = a.Conn.Write([]byte{0, 0, 9, 1}) }, "slow_headers", "did not come in time", gate.HeaderTimeout, gate.HeaderTimeout + time.Second,
		},
		"headers byte by byte": {func(a *attacker) {
			block := headers(unary)
			_, _ = a.Conn.Write([]byte{0, 0, byte(len(block)), 1, 4, 0, 0, 0, 1})
			for _, b := range block {
				time.Sleep(time.Second)
				if _, err := a.Conn.Write([]byte{b}); err != nil {
					return
				}
			}
		}, "slow_headers", "did not come in time", gate.HeaderTimeout, gate.HeaderTimeout + time.Second},
		"headers frame by frame": {func(a *attacker) {
			block := headers(unary)
			_ = a.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
			for _, b := range block {
				time.Sleep(time.Second)
				if a.WriteContinuation(1, false, []byte{b}) != nil {
					return
				}
			}
		}, "slow_headers", "did not come in time", gate.HeaderTimeout, gate.HeaderTimeout + time.Second},
		"message": {func(a *attacker) {
			_ = a.open(1, unary)
			_ = a.data(1, []byte{0, 0, 0, 1, 0, 1, 2, 3})
		}, "slow_message", "a message did not come in time", gate.MessageTimeout, gate.MessageTimeout + time.Second},
		"message that comes slowly": {func(a *attacker) {
			_ = a.open(1, unary)
			_ = a.data(1, []byte{0, 0, 0, 0, 60})
			for range 60 {
				time.Sleep(gate.MessageTimeout / 70)
				if a.WriteData(1, false, []byte("x")) != nil {
					return
				}
			}
		}, "", "", 0, 0},
		"message that the server does not take": {func(a *attacker) {
			_ = a.open(1, unary)
			_ = a.data(1, append([]byte{0, 0, 64, 0, 0}, make([]byte, 65530)...))
		}, "", "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _, g := pair(t)
				begun := time.Now()
				a.greet()
				var sending sync.WaitGroup
				sending.Go(func() { c.send(a) })
				if c.why == "" {
					time.Sleep(10 * gate.MessageTimeout)
					for why, n := range g.Vars(nil).Closed {
						if n != 0 {
							t.Errorf("it was closed: %s", why)
						}
					}
					a.Conn.Close()
					sending.Wait()
					return
				}
				said := a.end()
				if took := time.Since(begun); took < c.least || took > c.most {
					t.Errorf("it ended after %v", took)
				}
				if g.Vars(nil).Closed[c.why] != 1 || !strings.Contains(said, c.says) {
					t.Errorf("it ended with %q, %+v", said, g.Vars(nil))
				}
				a.Conn.Close()
				sending.Wait()
			})
		})
	}
}

// A connection that takes no byte of what is written is closed.
func TestWriteThatIsStuckEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(gate.Config{MaxStreams: 100, Logger: hclog.NewNullLogger()})
		ours, theirs := net.Pipe()
		defer theirs.Close()
		server, _, err := g.Credentials(nil).ServerHandshake(ours)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.Run(ctx)
		time.Sleep(time.Minute)
		defer time.AfterFunc(3*gate.WriteTimeout, func() { _ = theirs.Close() }).Stop() // or it would wait for ever
		begun := time.Now()
		if _, err := server.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}); err == nil {
			t.Error("nobody reads and it was written")
		}
		if took := time.Since(begun); took < gate.WriteTimeout || took > gate.WriteTimeout+2*time.Second {
			t.Errorf("it ended after %v", took)
		}
		if g.Vars(nil).Closed["unread"] != 1 {
			t.Errorf("%+v", g.Vars(nil))
		}
	})
}

// While memory is short new calls are told so, except for who asks about health.
func TestNewCallsAreRefusedWhenMemoryIsShort(t *testing.T) {
	w := serve(t, 64*mib)
	var taken []*budget.Account
	for _, name := range []string{"a", "b", "c", "d"} {
		a := w.budget.Holder(budget.Receiving).Account(name)
		for a.Take(64<<10) == nil {
		}
		taken = append(taken, a)
	}
	conn := w.dial(t)
	err := call(conn, "x")
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "memory for receiving") {
		t.Errorf("a new call: %v", err)
	}
	if err := conn.Invoke(t.Context(), "/grpc.health.v1.Health/Check", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)); status.Code(err) != codes.Unimplemented {
		t.Errorf("a health check: %v", err)
	}
	for _, a := range taken {
		a.Give(int(a.Used()))
	}
	if err := call(conn, "x"); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
