// Package gate watches what goes over the connections of a gRPC server, above TLS
// and below gRPC, and closes those that make it hold or do what no call asks for.
//
// It owns the connections between the handshake and Close. It promises:
//
//  1. What has come of messages that are not complete, or that their call has not read,
//     is taken from the budget, as gRPC keeps it: by buffers, not by bytes. A connection whose share has no room
//     is closed; when the whole is nearly full, those that hold most are. One whose
//     caller holds little, a call or two, is not, however short memory is.
//  2. A message that does not come within MessageTimeout, and a second more for each
//     64 KiB of it that came, closes the connection, unless it is the server that
//     does not take it; headers and other frames have HeaderTimeout.
//  3. Frames that bring no call forward are few: a connection has credits for them,
//     and earns more by messages.
//  4. A connection that takes nothing is closed: a write after WriteTimeout, one whose
//     window stays shut after UnreadTimeout. A call of one request that does not come ends after RequestTimeout. A call that takes nothing closes it only
//     when replies press on their share; otherwise its own server cuts it.
//  5. Connections whose calls come by the dozen, or whose frames are work and bring no
//     call, are read by turns: what others ask waits behind one's turn, not behind all.
//  6. The connections of a caller whose calls are nearly all refused for want of room are
//     read slowly, the more so the longer, also one behind the other; those of one whose
//     calls are served are not.
//  7. A closed connection is told why (GOAWAY with ENHANCE_YOUR_CALM) when that can be
//     said between two frames and is taken at once, counted, and logged at most once a
//     second. Neither the clock nor a listener that needs a place waits for it. After
//     a flood, or too much that came, it is not read for a while before.
//  8. It neither panics nor stops at any bytes, and costs a call a few comparisons
//     and no allocation.
//
// How many connections there are is for package listen; what is done with messages
// that were read, for the server.
package gate

import (
	"cmp"
	"context"
	"maps"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/tap"
)

// Times that a connection has.
const (
	MessageTimeout = 30 * time.Second
	HeaderTimeout  = 5 * time.Second
	WriteTimeout   = 10 * time.Second
	// UnreadTimeout is above the time after which servers cut a stream that is not
	// read, which says more than a closed connection.
	UnreadTimeout = 15 * time.Second

	// slowestBytes is how many bytes of a message a second are slow, not stuck.
	slowestBytes = 64 << 10
	// lookEvery is the time between looks at all connections, and how exact times are.
	lookEvery = 250 * time.Millisecond
	// unreadWhenFull is UnreadTimeout when replies press on their share.
	unreadWhenFull = time.Second
	logEvery       = time.Second
)

// Config configures a Gate.
type Config struct {
	// Budget is that of the process; nil: no bound in bytes.
	Budget *budget.Budget
	// MaxStreams is the most calls that the server takes on a connection.
	MaxStreams uint32
	// Changes says whether a method changes something: its reply is never replaced by
	// a refusal. Required.
	Changes func(method string) bool
	// Logger hears of connections that were closed. Required.
	Logger hclog.Logger
}

// Gate is that of one server. Make it with New; without Run no time passes for it.
type Gate struct {
	cfg                Config
	receiving, replies *budget.Holder
	start              time.Time
	now                atomic.Int64 // nanoseconds since start, and 1; moved by Run
	counts             [reasons]atomic.Uint64
	refused, silent    atomic.Uint64
	passed             atomic.Uint64       // connections so far
	oneRequest         map[string]struct{} // names of calls, not written to any more
	unheard            atomic.Int32        // GOAWAY that were not taken, since the last look
	floods             floods
	refusing           refusing
	turns              sync.Mutex // held by a crowded connection whose turn it is

	mu    sync.Mutex // guards what follows
	conns map[*Conn]struct{}

	// Used by Run alone: the most that was in use since memory was given back, and for how
	// many looks there has been less.
	peak  int64
	quiet int

	logMu      sync.Mutex // guards what follows
	logged     int64      // when
	suppressed int        // since then
}

// New makes a gate that no connection has passed.
func New(cfg Config) *Gate {
	g := &Gate{
		cfg: cfg, receiving: cfg.Budget.Holder(budget.Receiving), replies: cfg.Budget.Holder(budget.Replies),
		start: time.Now(), conns: map[*Conn]struct{}{},
	}
	g.now.Store(1)
	return g
}

// Connections is how many a listener may admit, most at most: when each has a caller
// that holds little, there is room for others.
func Connections(b *budget.Budget, most int) int {
	return int(b.Holder(budget.Receiving).Places(int64(most), littleBytes*3/2))
}

// place is a connection's at the listener, which closes those without a call to make
// room for others.
type place interface {
	// SetBusy says whether a call is open.
	SetBusy(busy bool)
	// OnEvict says how to end the connection.
	OnEvict(end func())
}

// Credentials wraps those of the server, or none for one that speaks plain text.
func (g *Gate) Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &passage{TransportCredentials: inner, gate: g}
}

// passage is the credentials of a server with a gate.
type passage struct {
	credentials.TransportCredentials // nil: plain text
	gate                             *Gate
}

// ServerHandshake implements credentials.TransportCredentials.
func (p *passage) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info := raw, credentials.AuthInfo(nil)
	if in, ok := raw.(*Inside); ok {
		if in.As.Known() {
			info = principal.Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Principal: in.As}
		}
		return p.gate.pass(raw, conn, info), info, nil
	}
	if p.TransportCredentials != nil {
		var err error
		if conn, info, err = p.TransportCredentials.ServerHandshake(raw); err != nil {
			return nil, nil, err
		}
	}
	return p.gate.pass(raw, conn, info), info, nil
}

// Inside is a connection that this process has with itself, for a caller whom it knows
// from elsewhere: it is counted and judged as one of that caller's, and there is no
// handshake. Nobody else can make one.
type Inside struct {
	net.Conn
	As   principal.Principal // the zero value: nobody in particular
	From net.Addr
}

// RemoteAddr is where the caller is.
func (i *Inside) RemoteAddr() net.Addr { return i.From }

// Info implements credentials.TransportCredentials.
func (p *passage) Info() credentials.ProtocolInfo {
	if p.TransportCredentials != nil {
		return p.TransportCredentials.Info()
	}
	return credentials.ProtocolInfo{SecurityProtocol: "plain"}
}

// Clone implements credentials.TransportCredentials.
func (p *passage) Clone() credentials.TransportCredentials {
	return &passage{p.TransportCredentials, p.gate}
}

// pass takes a connection in that has shaken hands.
func (g *Gate) pass(raw, conn net.Conn, info credentials.AuthInfo) *Conn {
	at, _ := raw.(place)
	key, origin := caller(raw.RemoteAddr(), info)
	c := newConn(g, raw, conn, at, key, origin)
	g.mu.Lock()
	g.conns[c] = struct{}{}
	g.mu.Unlock()
	if at != nil {
		at.OnEvict(c.Evict)
	}
	return c
}

// caller is whose account a connection counts for, and where it comes from: its
// principal, or its address. On one machine all have one address, and each
// connection its own account.
func caller(remote net.Addr, info credentials.AuthInfo) (account, origin string) {
	if known, ok := info.(principal.Info); ok && known.Principal.Known() {
		return known.Principal.Actor(), known.Principal.Actor()
	}
	host, _, err := net.SplitHostPort(remote.String())
	if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsLoopback() {
		return remote.String(), host
	}
	return host, host
}

// turn waits until it is a crowded connection's turn: one of them is read at a time,
// and only behind everything that was ready to run. Whatever they are to others,
// together they are as one connection.
func (g *Gate) turn() {
	g.turns.Lock()
	runtime.Gosched()
	g.turns.Unlock()
}

func (g *Gate) forget(c *Conn) {
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
}

// maxStreams is how many calls of a connection may be open as its client sees
// them: those that the server is done with stay open until the answer is written.
func (g *Gate) maxStreams() int { return 2*int(g.cfg.MaxStreams) + 1024 }

// healthPrefix is that of calls that are never refused for want of memory: who
// asks must be able to tell a full server from a dead one.
const healthPrefix = "/grpc.health."

// Tap is a tap.ServerInHandle: it refuses new calls while the budget is nearly
// used up, before anything is made for them, and ends those whose request does not come. Those of the cluster's own processes it
// does not refuse.
func (g *Gate) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	short := g.receiving
	if !short.Full() {
		if short = g.replies; !short.Full() {
			return g.await(ctx, info.FullMethodName), nil
		}
	}
	role := principal.FromContext(ctx).Role
	if role == principal.Root || role == principal.Coordinator || strings.HasPrefix(info.FullMethodName, healthPrefix) {
		return g.await(ctx, info.FullMethodName), nil
	}
	g.refused.Add(1)
	err := short.Refusal(streamBytes)
	if c := Of(ctx); c != nil {
		c.refused.note(err)
	}
	return ctx, err
}

// Run looks at the connections until ctx ends.
func (g *Gate) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.look()
		}
	}
}

// look ends the connections that were given all the time there is, and makes room.
func (g *Gate) look() {
	now := int64(time.Since(g.start)) + 1
	g.now.Store(now)
	g.unheard.Store(0)
	g.mu.Lock()
	conns := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	full, calls := g.replies.Pressed(), 0
	for _, c := range conns {
		calls += c.judge(now, full)
	}
	g.collect(len(conns), calls)
	if g.receiving.Full() {
		if g.receiving.Trim(); g.receiving.Full() {
			g.makeRoom(conns)
		}
	}
}

// Memory of a load that is over is given back when connections, calls and the budget's use
// have stayed collectAfter below a quarter of what they were: a server at rest makes no
// garbage that would have it collected, and the runtime keeps for long what was freed.
const (
	collectAfter = 10 * time.Second
	collectBytes = 16 << 20 // that it was at least
	// connectionBytes and callBytes are about what a connection takes by itself, and a
	// call that is open.
	connectionBytes = 64 << 10
	callBytes       = 16 << 10
)

func (g *Gate) collect(conns, calls int) {
	switch used := g.cfg.Budget.Granted() + int64(conns)*connectionBytes + int64(calls)*callBytes; {
	case used > g.peak/4:
		g.peak, g.quiet = max(g.peak, used), 0
	case g.peak < collectBytes:
	default:
		if g.quiet++; g.quiet >= int(collectAfter/lookEvery) {
			g.peak, g.quiet = used, 0
			debug.FreeOSMemory()
		}
	}
}

// makeRoom ends the connections whose caller holds most, until what the others hold
// is not too much. What ended ones still hold comes free, whoever else is ended.
func (g *Gate) makeRoom(conns []*Conn) {
	type holding struct {
		c      *Conn
		bytes  int
		caller int // bytes of this one and its caller's smaller ones
	}
	var all []holding
	for _, c := range conns {
		c.mu.Lock()
		if c.taken > 0 && c.ended == nil {
			all = append(all, holding{c: c, bytes: c.taken})
		}
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b holding) int { return cmp.Compare(a.bytes, b.bytes) })
	var sum int64
	callers := map[*budget.Account]int{}
	for i, h := range all {
		sum += int64(h.bytes)
		callers[h.c.account] += h.bytes
		all[i].caller = callers[h.c.account]
	}
	slices.SortFunc(all, func(a, b holding) int { return cmp.Compare(b.caller, a.caller) })
	excess := g.receiving.Excess(sum)
	for _, h := range all {
		if excess < 0 || h.caller <= littleBytes {
			return
		}
		excess -= int64(h.bytes)
		h.c.mu.Lock()
		h.c.end(memory, "memory for what comes is short, and it holds most")
		v := h.c.ended
		h.c.mu.Unlock()
		h.c.finish(v)
	}
}

// judge ends a connection that has had its time, and says how many calls are open on it;
// full: replies press on their share.
func (c *Conn) judge(now int64, full bool) (calls int) {
	writeTimeout, unreadTimeout := WriteTimeout, UnreadTimeout
	if full {
		writeTimeout, unreadTimeout = unreadWhenFull, unreadWhenFull
	}
	c.mu.Lock()
	past := func(since int64, limit time.Duration) bool { return since != 0 && now-since > int64(limit) }
	switch {
	case c.ended != nil:
		if v := c.ended; past(c.endedAt, 2*lookEvery) { // Nobody reads it.
			c.mu.Unlock()
			c.tell(v)
			c.drop()
			return 0
		}
	case past(c.since, HeaderTimeout):
		c.end(slowHeaders, "the headers or another frame did not come in time")
	case past(c.writeSince.Load(), writeTimeout), past(c.unreadSince, unreadTimeout):
		c.end(unread, "it does not read what it asked for")
	default:
		for _, s := range c.streams {
			if s.unfinished() && s.receive > 0 && past(s.since, MessageTimeout+time.Duration(s.bytes/slowestBytes)*time.Second) {
				c.end(slowMessage, "a message did not come in time")
				break
			}
			if full && past(s.unreadSince, unreadTimeout) {
				c.end(unread, "it does not read what it asked for")
				break
			}
		}
	}
	v, calls := c.ended, len(c.streams)
	c.mu.Unlock()
	if v != nil {
		c.finish(v)
	}
	return calls
}

// finish says why and wakes who reads, who then closes.
func (c *Conn) finish(v *verdict) {
	c.tell(v)
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
}

// closing counts and logs a connection that ends.
func (g *Gate) closing(c *Conn, v *verdict) {
	g.counts[v.why].Add(1)
	if v.why == room {
		return
	}
	now := g.now.Load()
	g.logMu.Lock()
	if g.logged != 0 && now-g.logged < int64(logEvery) {
		g.suppressed++
		g.logMu.Unlock()
		return
	}
	others := g.suppressed
	g.logged, g.suppressed = now, 0
	g.logMu.Unlock()
	g.cfg.Logger.Warn("closed a connection", "remote", c.RemoteAddr(), "reason", reasonNames[v.why], "err", v.text, "others", others)
}

// Vars is a gate as /debug/vars shows it.
type Vars struct {
	// Connections by state: busy have a call open, idle none.
	Busy int `json:"busy"`
	Idle int `json:"idle"`
	// Streams are the calls that are open.
	Streams int `json:"streams"`
	// RefusedStreams were new when memory was short.
	RefusedStreams uint64 `json:"refused_streams"`
	// SilentStreams were ended because their request did not come.
	SilentStreams uint64 `json:"silent_streams"`
	// Closed counts connections that the gate closed, by reason.
	Closed map[string]uint64 `json:"closed"`
	// Listener has the connections that were accepted, also those that shake hands.
	Listener listen.Vars `json:"listener"`
}

// Vars returns what it holds and did, and its listener; nil: there is none yet.
func (g *Gate) Vars(lis *listen.Listener) Vars {
	out := Vars{RefusedStreams: g.refused.Load(), SilentStreams: g.silent.Load(), Closed: map[string]uint64{}}
	if lis != nil {
		out.Listener = lis.Vars()
	}
	for why := memory; why < reasons; why++ {
		out.Closed[reasonNames[why]] = g.counts[why].Load()
	}
	g.mu.Lock()
	conns := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		n := len(c.streams)
		c.mu.Unlock()
		out.Streams += n
		if n > 0 {
			out.Busy++
		} else {
			out.Idle++
		}
	}
	return out
}
