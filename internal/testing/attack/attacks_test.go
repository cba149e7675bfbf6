package attack

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// attacks are what the attacking process can do.
var attacks = map[string]func(*attacker){
	"nobody":               (*attacker).nobody,
	"unfinished-messages":  func(a *attacker) { a.unfinished("/nokv.coordinator.v1.Coordinator/PublishRootEvents", 4<<20) },
	"unfinished-proposals": func(a *attacker) { a.unfinished("/nokv.root.v1.Root/Propose", 1<<20) },
	"far-tokens":           (*attacker).farTokens,
	"idle-connections":     (*attacker).idle,
	"http-connections":     (*attacker).idle,
	"reconnects":           (*attacker).reconnects,
	"slow-headers":         (*attacker).slowHeaders,
	"empty-data":           (*attacker).emptyData,
	"pings":                (*attacker).pings,
	"settings":             (*attacker).settings,
	"rapid-reset":          (*attacker).rapidReset,
	"header-repetition":    (*attacker).headerRepetition,
	"garbage":              (*attacker).garbage,
	"replies-not-read":     (*attacker).notRead,
	"watches":              (*attacker).watches,
	"slow-http":            (*attacker).slowHTTP,
	"oversized":            (*attacker).oversized,
}

// perConnection is how many streams go on one connection.
const perConnection = 100

// unfinished begins messages that lack their last byte.
func (a *attacker) unfinished(method string, size int) {
	body := message(make([]byte, size))
	body = body[:len(body)-1]
	var all sync.WaitGroup
	for n := 0; n < a.Size; n += perConnection {
		all.Go(func() {
			for !a.over() {
				w := a.speak(true)
				if w == nil {
					return
				}
				var streams sync.WaitGroup
				for range min(perConnection, a.Size-n) {
					id, err := w.call(method)
					if err != nil {
						break
					}
					streams.Go(func() {
						if w.send(id, body) == nil {
							a.did("unfinished messages", 1)
						}
					})
				}
				streams.Wait()
				w.mu.Lock()
				for !w.ended && !a.over() {
					w.mu.Unlock()
					a.pause(100 * time.Millisecond)
					w.mu.Lock()
				}
				w.mu.Unlock()
				_ = w.Close()
				a.pause(200 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

func (a *attacker) grpc() *grpc.ClientConn {
	named := clusterid.Caller(func() uint64 { return a.Cluster })
	conn, err := grpc.NewClient(a.Target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(named.Unary), grpc.WithChainStreamInterceptor(named.Stream))
	if err != nil {
		panic(err)
	}
	return conn
}

// farTokens asks for what will not be there for long, with long deadlines.
func (a *attacker) farTokens() {
	ctx, cancel := context.WithTimeout(context.Background(), 1000*time.Hour)
	defer cancel()
	go func() { <-a.done; cancel() }()
	var all sync.WaitGroup
	conns := make([]coordinatorv1.CoordinatorClient, 8)
	for i := range conns {
		conns[i] = coordinatorv1.NewCoordinatorClient(a.grpc())
	}
	for i := range a.Size {
		all.Go(func() {
			for !a.over() {
				a.did("questions", 1)
				_, err := conns[i%len(conns)].GetRegion(ctx, &coordinatorv1.GetRegionRequest{RegionId: 1, Read: &coordinatorv1.ReadOptions{
					RequiredRootToken: &rootv1.RootToken{Incarnation: a.Incarnation, Term: a.Term, Index: a.Index + 1_000_000},
				}})
				a.did("answered "+status.Code(err).String(), 1)
				a.pause(50 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

// idle holds connections that say nothing.
func (a *attacker) idle() {
	for range a.Size {
		c := a.dial()
		if c == nil {
			return
		}
		go func() {
			if _, err := c.Read(make([]byte, 1)); err != nil && !a.over() {
				a.did("cut connections", 1)
			}
		}()
	}
}

// reconnects opens connections, asks one thing on each and leaves.
func (a *attacker) reconnects() {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for n := 0; n < a.Size/8 && !a.over(); n++ {
				conn := a.grpc()
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				_, err := coordinatorv1.NewCoordinatorClient(conn).Status(ctx, &coordinatorv1.StatusRequest{Brief: true})
				cancel()
				a.did("answered "+status.Code(err).String(), 1)
				_ = conn.Close()
			}
		})
	}
	all.Wait()
}

// slowHeaders begins header blocks and goes on with a byte a second.
func (a *attacker) slowHeaders() {
	var all sync.WaitGroup
	for range a.Size {
		all.Go(func() {
			for !a.over() {
				w := a.speak(true)
				if w == nil {
					return
				}
				// A header block of 100 bytes, of which little comes.
				if _, err := w.Conn.Write([]byte{0, 0, 100, 1, 4, 0, 0, 0, 1}); err != nil {
					return
				}
				a.did("slow headers", 1)
				for a.pause(time.Second) {
					if _, err := w.Conn.Write([]byte{0x80}); err != nil {
						break
					}
				}
				_ = w.Close()
			}
		})
	}
	all.Wait()
}

// flood repeats on connections of their own, until they are cut and again.
func (a *attacker) flood(connections int, begin func(*wire) error, again func(*wire) error) {
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for !a.over() {
				w := a.speak(true)
				if w == nil {
					return
				}
				err := begin(w)
				for err == nil && !a.over() {
					w.mu.Lock()
					err = again(w)
					w.mu.Unlock()
					a.did("frames", 1)
				}
				_ = w.Close()
				a.pause(50 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

func nothing(*wire) error { return nil }

func (a *attacker) emptyData() {
	a.flood(a.Size, func(w *wire) error {
		_, err := w.call("/nokv.coordinator.v1.Coordinator/RouteStream")
		return err
	}, func(w *wire) error { return w.WriteData(1, false, nil) })
}

func (a *attacker) pings() {
	a.flood(a.Size, nothing, func(w *wire) error { return w.WritePing(false, [8]byte{1}) })
}

func (a *attacker) settings() {
	a.flood(a.Size, nothing, func(w *wire) error {
		return w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	})
}

// nobody is a flood that reaches no member: what others see of it is that the attacker
// has its processes on their machine.
func (a *attacker) nobody() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	a.Target = lis.Addr().String()
	a.settings()
}

func (a *attacker) rapidReset() {
	a.flood(a.Size, nothing, func(w *wire) error {
		w.mu.Unlock()
		id, err := w.call("/nokv.coordinator.v1.Coordinator/Status")
		w.mu.Lock()
		if err != nil {
			return err
		}
		delete(w.windows, id)
		return w.WriteRSTStream(id, http2.ErrCodeCancel)
	})
}

// headerRepetition names one long header again and again, a byte each time.
func (a *attacker) headerRepetition() {
	long := make([]byte, 3500)
	for i := range long {
		long[i] = 'a'
	}
	a.flood(a.Size, func(w *wire) error {
		_, err := w.call("/nokv.coordinator.v1.Coordinator/Status", hpack.HeaderField{Name: "x-long", Value: string(long)})
		return err
	}, func(w *wire) error {
		block := make([]byte, 16<<10)
		for i := range block {
			block[i] = 0x80 | 62 // the newest entry of the table
		}
		id := w.next
		w.next += 2
		return w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
	})
}

// garbage is what is no HTTP/2, no gRPC and no protobuf.
func (a *attacker) garbage() {
	for n := 0; !a.over(); n++ {
		switch n % 3 {
		case 0:
			c := a.dial()
			if c == nil {
				return
			}
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\nhost: x\r\n\r\n\x00\xff\xfe garbage"))
			_ = c.Close()
		case 1:
			w := a.speak(true)
			if w == nil {
				return
			}
			w.mu.Lock()
			_ = w.WriteRawFrame(0x7f, 0xff, 3, []byte{1, 2, 3})
			_ = w.WriteRawFrame(http2.FrameHeaders, 0x4, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff})
			w.mu.Unlock()
			a.pause(5 * time.Millisecond)
			_ = w.Close()
		case 2:
			w := a.speak(true)
			if w == nil {
				return
			}
			for _, body := range [][]byte{{0xff, 0xff}, {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, nil} {
				if id, err := w.call("/nokv.coordinator.v1.Coordinator/PublishRootEvents"); err == nil {
					_ = w.send(id, message(body))
				}
				if id, err := w.call("/nokv.coordinator.v1.Coordinator/RouteStream"); err == nil {
					_ = w.send(id, message(body))
				}
			}
			a.pause(5 * time.Millisecond)
			_ = w.Close()
		}
		a.did("pieces of garbage", 1)
	}
}

// scanAll is a ScanRegionsRequest with a limit of 1,024.
var scanAll = []byte{0x20, 0x80, 0x08}

// notRead asks for long answers and takes none.
func (a *attacker) notRead() {
	var held []*wire
	for n := 0; n < a.Size && !a.over(); n += perConnection {
		w := a.speak(false)
		if w == nil {
			return
		}
		held = append(held, w)
		for range perConnection {
			id, err := w.call("/nokv.coordinator.v1.Coordinator/ScanRegions")
			if err != nil {
				break
			}
			w.mu.Lock()
			w.windows[id], w.common = 1<<20, 1<<20
			w.mu.Unlock()
			if w.send(id, message(scanAll)) == nil && w.end(id) == nil {
				a.did("questions", 1)
			}
		}
	}
	<-a.done
	for _, w := range held {
		_ = w.Close()
	}
}

// watches follows everything on many streams; one in ten is not read.
func (a *attacker) watches() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-a.done; cancel() }()
	var all sync.WaitGroup
	conns := make([]coordinatorv1.CoordinatorClient, 16)
	for i := range conns {
		conns[i] = coordinatorv1.NewCoordinatorClient(a.grpc())
	}
	for i := range a.Size {
		all.Go(func() {
			for !a.over() {
				stream, err := conns[i%len(conns)].WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default"})
				if err != nil {
					a.pause(100 * time.Millisecond)
					continue
				}
				a.did("watches", 1)
				if i%10 == 0 {
					<-a.done
					return
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if !a.over() {
					a.did("watches ended "+status.Code(err).String(), 1)
				}
				a.pause(100 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

// oversized announces messages and headers that nobody takes.
func (a *attacker) oversized() {
	for !a.over() {
		w := a.speak(true)
		if w == nil {
			return
		}
		for range 20 {
			id, err := w.call("/nokv.coordinator.v1.Coordinator/PublishRootEvents")
			if err != nil || w.send(id, append([]byte{0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 64<<10)...)) != nil {
				break
			}
			a.did("announced 4 GiB", 1)
			if _, err := w.call("/nokv.coordinator.v1.Coordinator/Status", hpack.HeaderField{Name: "x-bomb", Value: strings.Repeat("b", 15<<10)}, hpack.HeaderField{Name: "x-bomb2", Value: strings.Repeat("c", 15<<10)}); err != nil {
				break
			}
			a.did("header bombs", 1)
		}
		a.pause(20 * time.Millisecond)
		_ = w.Close()
	}
}

// slowHTTP sends requests to the HTTP port a byte a second.
func (a *attacker) slowHTTP() {
	for range a.Size {
		c := a.dial()
		if c == nil {
			return
		}
		go func() {
			_, _ = io.WriteString(c, "GET /debug/vars HTTP/1.1\r\nhost: x\r\n")
			for a.pause(time.Second) {
				if _, err := io.WriteString(c, "x"); err != nil {
					a.did("cut connections", 1)
					return
				}
			}
		}()
	}
}
