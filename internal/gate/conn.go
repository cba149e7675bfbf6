package gate

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/budget"
)

// reason says why a connection was closed.
type reason uint8

const (
	memory reason = iota + 1
	slowMessage
	slowHeaders
	flood
	malformed
	unread
	tooManyStreams
	room
	reasons
)

var reasonNames = [reasons]string{
	memory: "memory", slowMessage: "slow_message", slowHeaders: "slow_headers", flood: "flood",
	malformed: "malformed", unread: "unread", tooManyStreams: "streams", room: "room",
}

// verdict is why a connection ends.
type verdict struct {
	why  reason
	text string
	told sync.Once // counted, logged, and the client has heard of it if it could
}

func (v *verdict) Error() string { return "the gate closed the connection: " + v.text }

// Conn is a connection that is watched.
type Conn struct {
	net.Conn
	raw     net.Conn // below TLS, or the same
	gate    *Gate
	account *budget.Account
	place   place // nil: nobody makes room
	remote  *addr
	number  uint64
	// origin is where floods of its kind come from: see floods.
	origin  string
	unsent  unsent
	crowded bool // the last Read brought much to do; used by Read alone
	calls   int  // that the last Read brought; written by Read alone
	refused *refusals

	// writing is held across a Write, and by Hold.
	writing    sync.Mutex
	writeSince atomic.Int64 // when the Write under way began; 0: none

	mu       sync.Mutex // guards what follows
	in, out  walker
	inbound  inbound
	outbound outbound
	streams  map[uint32]*stream
	spare    []*stream // for later streams
	newest   uint32
	work     int // brought by the last Read: calls, and credits that were spent
	held     int // bytes of messages that are not complete, or not read
	taken    int // of them from the account
	credits  int
	refilled int64
	// since is when the frame or header block under way began; 0: none is.
	since         int64
	receiveWindow int64 // of a new stream
	sendWindow    int64 // of a new stream
	send          int64 // of the connection
	unreadSince   int64 // when send was used up; 0: it is not
	ended         *verdict
	endedAt       int64
	closed        bool
}

// crowd is how much work one Read brings for others to have their turn first, and
// for the next one to bring no more than crowdedBytes: what has one call to ask, and
// the process's own work, wait behind few of the calls that come by the thousand.
const (
	crowd        = 16
	crowdedBytes = 2 << 10
)

// maxSpare is how many streams of a connection are kept for later.
const maxSpare = 32

func newConn(g *Gate, raw, inner net.Conn, p place, key, origin string) *Conn {
	c := &Conn{
		Conn: inner, raw: raw, refused: g.refusing.open(key, g.now.Load()), number: g.passed.Add(1), origin: origin, gate: g, place: p, account: g.receiving.Account(key), streams: map[uint32]*stream{},
		credits: g.floods.credits(origin, g.now.Load()), refilled: g.now.Load(), receiveWindow: firstWindow, sendWindow: firstWindow, send: firstWindow,
	}
	c.remote, c.unsent.account = &addr{inner.RemoteAddr(), c}, g.replies.Account(key)
	c.in.preface, c.inbound.c, c.outbound.c = prefaceBytes, c, c
	return c
}

// Read implements net.Conn. What breaks a rule ends the connection before gRPC sees it.
func (c *Conn) Read(p []byte) (int, error) {
	if c.refused.slow() {
		time.Sleep(c.refused.pause(c.calls))
		p = p[:min(len(p), slowBytes)]
	}
	if c.crowded {
		c.gate.turn()
		p = p[:min(len(p), crowdedBytes)]
	}
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.work, c.calls = 0, 0
	if n > 0 && c.ended == nil {
		c.inbound.crossed = false
		if !c.in.walk(p[:n], &c.inbound) {
			c.end(malformed, "what it sent is not HTTP/2")
		}
		c.settle()
		if c.in.between() && !c.inbound.block || c.in.inside && c.in.frame.kind == frameData && !c.inbound.block {
			c.since = 0
		} else if c.inbound.crossed || c.since == 0 {
			c.since = c.gate.now.Load()
		}
	}
	ended := c.ended
	c.crowded = c.work >= crowd
	c.mu.Unlock()
	if ended == nil {
		return n, err
	}
	c.tell(ended)
	if err == nil && !ended.why.rests() {
		c.linger()
	}
	return 0, ended
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	c.out.walk(p, &c.outbound) // What gRPC writes is HTTP/2.
	c.settle()
	c.mu.Unlock()
	c.writeSince.Store(c.gate.now.Load())
	n, err := c.Conn.Write(p)
	c.writeSince.Store(0)
	return n, err
}

// Hold has what gRPC writes wait for Release, so that many messages leave in few writes;
// false: it does not, because there is a write under way. What is done in between waits
// for nobody.
func (c *Conn) Hold() bool { return c != nil && c.writing.TryLock() }

// Release ends Hold.
func (c *Conn) Release() { c.writing.Unlock() }

// Number tells the connections of a gate apart; 0: it is nil.
func (c *Conn) Number() uint64 {
	if c == nil {
		return 0
	}
	return c.number
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.gate.forget(c)
	c.unsent.close()
	c.mu.Lock()
	first, ended := !c.closed, c.ended
	if first {
		c.closed = true
		c.account.Give(c.taken)
		c.account.Close()
		c.gate.refusing.close(c.refused, c.gate.now.Load())
		c.taken = 0
	}
	c.mu.Unlock()
	if ended == nil || !ended.why.rests() {
		return c.Conn.Close()
	}
	if first {
		c.setBusy(false)
		time.AfterFunc(restFor, func() { _ = c.raw.Close() })
	}
	return nil
}

// restFor is how long a connection that was ended for a flood, or for all that it sent,
// stays as it is, without being read: its client has read why, or can send no more and
// come again so much later.
const restFor = 500 * time.Millisecond

func (r reason) rests() bool { return r == flood || r == memory }

// open begins a stream. c.mu is held.
func (c *Conn) open(id uint32) *stream {
	if s := c.streams[id]; s != nil {
		return s
	}
	var s *stream
	if n := len(c.spare); n > 0 {
		s, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		s = new(stream)
	}
	*s = stream{receive: c.receiveWindow, send: c.sendWindow}
	if s.send <= 0 {
		s.unreadSince = c.gate.now.Load()
	}
	c.streams[id] = s
	c.work++
	c.calls++
	c.newest = max(c.newest, id)
	switch n := len(c.streams); {
	case n == 1:
		c.setBusy(true)
	case n > c.gate.maxStreams():
		c.end(tooManyStreams, fmt.Sprintf("%d calls are open on it and their answers are not read", n))
	}
	return s
}

// close ends a stream. c.mu is held.
func (c *Conn) close(id uint32) {
	s := c.streams[id]
	if s == nil {
		return
	}
	c.held -= s.cost
	if !s.complete {
		c.spend(costOfCall + s.headers/costOfHeaders)
	}
	delete(c.streams, id)
	if c.inbound.stream == s {
		c.inbound.stream = nil
	}
	if len(c.spare) < maxSpare {
		c.spare = append(c.spare, s)
	}
	if len(c.streams) == 0 {
		c.setBusy(false)
	}
}

// setBusy tells who makes room for newcomers.
func (c *Conn) setBusy(busy bool) {
	if c.place != nil {
		c.place.SetBusy(busy)
	}
}

// charge brings what is held for a stream up to date. c.mu is held.
func (c *Conn) charge(s *stream) {
	cost := streamBytes
	if !s.complete {
		cost += streamBytes
	}
	if s.unfinished() {
		cost += s.sum
	}
	cost += s.unreadBytes(c.receiveWindow)
	c.held += cost - s.cost
	s.cost = cost
}

// read notes that a call has read a message, not its first.
func (c *Conn) read(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil && s.unread > 0 {
		s.read()
		c.charge(s)
		c.settle()
	}
}

// settle takes from the account what is held more, and gives back what is held
// less. c.mu is held.
func (c *Conn) settle() {
	more := c.held - c.taken
	switch {
	case more == 0 || c.closed:
		return
	case more < 0:
		c.account.Give(-more)
	case c.account.Used()+int64(more) <= littleBytes:
		c.account.Hold(more)
	default:
		if err := c.account.Take(more); err != nil {
			c.end(memory, fmt.Sprintf("%d bytes of messages on it that did not end or were not read: %v", c.held, err))
			return
		}
	}
	c.taken = c.held
}

// spend takes credits, and ends a connection that has none. c.mu is held.
func (c *Conn) spend(n int) {
	c.work += n
	if c.credits -= n; c.credits >= 0 {
		return
	}
	now := c.gate.now.Load()
	c.credits += int(min(maxCredits, (now-c.refilled)*creditsASec/int64(time.Second)))
	c.refilled = now
	if c.credits < 0 {
		c.end(flood, "it sends frames that belong to no call")
		c.gate.floods.note(c.origin, now)
	}
}

func (c *Conn) earn() { c.credits = min(c.credits+earned, maxCredits) }

// sent counts what was sent on a stream. c.mu is held.
func (c *Conn) sent(id uint32, n int64) {
	now := c.gate.now.Load()
	if c.send -= n; c.send <= 0 && c.unreadSince == 0 {
		c.unreadSince = now
	}
	if s := c.streams[id]; s != nil {
		if s.send -= n; s.send <= 0 && s.unreadSince == 0 {
			s.unreadSince = now
		}
	}
}

// readAgain is how many bytes the client must be ready to take, for it to count
// as one that reads: who lets a byte through at a time does not.
const readAgain = 4 << 10

// mayBeSent counts what the client is ready to take more. c.mu is held.
func (c *Conn) mayBeSent(id uint32, n int64) {
	if id == 0 {
		if c.send += n; c.send >= readAgain {
			c.unreadSince = 0
		}
	} else if s := c.streams[id]; s != nil {
		if s.send += n; s.send >= readAgain {
			s.unreadSince = 0
		}
	}
}

// windowIs changes what may be sent to streams by SETTINGS. c.mu is held.
func (c *Conn) windowIs(n int64) {
	n = min(n, math.MaxInt32)
	for id, s := range c.streams {
		if c.mayBeSent(id, n-c.sendWindow); s.send <= 0 && s.unreadSince == 0 {
			s.unreadSince = c.gate.now.Load()
		}
	}
	c.sendWindow = n
}

// mayCome counts what the client may send more. c.mu is held.
func (c *Conn) mayCome(id uint32, n int64) {
	if s := c.streams[id]; s != nil {
		if s.receive <= 0 {
			s.since = c.gate.now.Load()
		}
		s.receive += n
	}
}

// end is the verdict on a connection; the first one counts. c.mu is held.
func (c *Conn) end(why reason, text string) {
	if c.ended == nil {
		c.ended, c.endedAt = &verdict{why: why, text: text}, c.gate.now.Load()
	}
}

// tell counts and logs the end, and lets the client know.
func (c *Conn) tell(v *verdict) {
	v.told.Do(func() {
		c.gate.closing(c, v)
		c.goAway(v)
	})
}

// Codes of GOAWAY.
const (
	codeNone = 0x0
	codeCalm = 0xb // ENHANCE_YOUR_CALM
)

// goAwayWithin bounds the write of a GOAWAY. When maxUnheard between two looks took
// none in that time the others are not told: nothing waits for those who do not listen.
const (
	goAwayWithin = 10 * time.Millisecond
	maxUnheard   = 10
)

// goAway tells the client why, if that can be said between two frames.
func (c *Conn) goAway(v *verdict) {
	if !c.writing.TryLock() {
		return // A write is stuck.
	}
	defer c.writing.Unlock()
	c.mu.Lock()
	between, newest := c.out.between() && !c.outbound.block, c.newest
	c.mu.Unlock()
	if !between {
		return
	}
	code := uint32(codeCalm)
	if v.why == room {
		code = codeNone
	}
	text := v.text[:min(len(v.text), 1024)]
	b := []byte{0, byte((8 + len(text)) >> 8), byte(8 + len(text)), frameGoAway, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, newest)
	b = binary.BigEndian.AppendUint32(b, code)
	if c.gate.unheard.Load() >= maxUnheard {
		return
	}
	_ = c.raw.SetWriteDeadline(time.Now().Add(goAwayWithin))
	if _, err := c.Conn.Write(append(b, text...)); err != nil {
		c.gate.unheard.Add(1) // It finds the connection closed.
	}
}

// Bounds of linger.
const (
	lingerFor   = 100 * time.Millisecond
	lingerBytes = 256 << 10
)

// linger reads what is under way, because a connection that is closed with bytes
// unread takes back what was sent: the client would not hear why.
func (c *Conn) linger() {
	_ = c.Conn.SetReadDeadline(time.Now().Add(lingerFor))
	buf := make([]byte, 4<<10)
	for left := lingerBytes; left > 0; {
		n, err := c.Conn.Read(buf)
		if err != nil {
			return
		}
		left -= n
	}
}

// Evict ends a connection to make room for another one. It does not wait.
func (c *Conn) Evict() {
	c.mu.Lock()
	c.end(room, "nothing was asked on it for longest, and its place is needed")
	v := c.ended
	c.mu.Unlock()
	c.tell(v)
	c.drop()
}

// drop closes at once: TLS waits for seconds to tell the other side that it closes.
func (c *Conn) drop() {
	_ = c.raw.Close()
	_ = c.Close()
}
