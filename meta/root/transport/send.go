package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// flushBytes is about where a write is cut, so that a long queue does not
// become one huge buffer.
const flushBytes = 1 << 20

// item is one thing to send: a message, a standing, or else the echo of a kindAsk.
type item struct {
	message  *raftpb.Message
	standing *standing
	echo     uint64
}

// remote is another peer as this one sends to it.
type remote struct {
	t *Transport
	// id is who it is; where it is reached now at() says.
	id   storage.Peer
	addr atomic.Pointer[string]
	// told is where the peer says itself that it is reached; elsewhere: it is tried
	// there.
	told      atomic.Pointer[string]
	elsewhere atomic.Bool
	movedTold atomic.Bool // the log has it

	guest bool // guarded by the transport's lock: the cluster record does not name it

	connected atomic.Bool
	connects  atomic.Uint64
	sent      atomic.Uint64
	dropped   atomic.Uint64
	writes    atomic.Uint64
	bytes     atomic.Uint64
	address   atomic.Pointer[string] // gRPC address
	version   atomic.Uint32          // protocol version that is spoken
	level     atomic.Uint32          // feature level that it understands

	ready chan struct{} // a level: the queue is not empty
	offer chan struct{} // a level: there is a checkpoint to send

	direct direct

	// cleared says that the peer has admitted this one's present start.
	cleared atomic.Bool

	mu       sync.Mutex // guards what follows
	queue    []item
	lossTold bool            // the replica knows that messages were lost
	snapshot *raftpb.Message // the MsgSnap to send; nil: none
	lines    map[net.Conn]*line
	rival    freshness.Start // the start that came while an earlier one was alive
	gone     bool            // nobody sends checkpoints any more
}

func newRemote(t *Transport, p storage.Peer) *remote {
	r := &remote{t: t, id: p, ready: make(chan struct{}, 1), offer: make(chan struct{}, 1), direct: newDirect(), lines: map[net.Conn]*line{}}
	r.addr.Store(&r.id.Address)
	return r
}

// at is where the peer's transport is reached: by flag or the root, or where the
// peer says itself.
func (p *remote) at() string {
	if told := p.told.Load(); told != nil && p.elsewhere.Load() {
		return *told
	}
	return *p.addr.Load()
}

// turn has the next connection go to the other address that there is, if any: the
// one that this peer was given may be wrong since the other one moved, and the one
// that the other says may be wrong from here.
func (p *remote) turn() {
	told := p.told.Load()
	if told == nil || *told == *p.addr.Load() {
		return
	}
	p.elsewhere.Store(!p.elsewhere.Load())
	if p.movedTold.CompareAndSwap(false, true) {
		p.t.log.Warn("root peer is not reached where the -peer list or the root has it, and says that it is elsewhere: correct -peer at the next start",
			"peer", p.id.NodeID, "address", *p.addr.Load(), "elsewhere", *told)
	}
}

// moved has the next connection go to another address.
func (p *remote) moved(address string) {
	if address != "" && address != *p.addr.Load() {
		p.addr.Store(&address)
		p.elsewhere.Store(false)
	}
}

// end closes the connections of a peer that is none any more.
func (p *remote) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.lines {
		conn.Close()
	}
}

func (p *remote) grpcAddress() string {
	if a := p.address.Load(); a != nil {
		return *a
	}
	return ""
}

// says notes where the peer says that its transport is reached.
func (p *remote) says(address string) {
	if told := p.told.Load(); address != "" && (told == nil || *told != address) {
		p.told.Store(&address)
	}
}

// heard notes what the peer told in a handshake.
func (p *remote) heard(address string, version uint16, level uint32) {
	if address != "" && p.grpcAddress() != address {
		p.address.Store(&address)
	}
	p.version.Store(uint32(version))
	p.level.Store(level)
}

// put queues an item. Without a connection, or when the queue is full, it is
// dropped.
func (p *remote) put(i item) {
	p.mu.Lock()
	if !p.connected.Load() || len(p.queue) >= p.t.cfg.MaxQueued {
		tell := !p.lossTold && i.message != nil && p.t.running.Load()
		p.lossTold = p.lossTold || tell
		p.mu.Unlock()
		p.dropped.Add(1)
		if tell {
			p.t.receiver.PeerUnreachable(p.id.NodeID)
		}
		return
	}
	p.queue = append(p.queue, i)
	first := len(p.queue) == 1
	p.mu.Unlock()
	if first && !p.sendDirectly(i) {
		signal(p.ready)
	}
}

// take empties the queue into batch's old room.
func (p *remote) take(room []item) []item {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch := p.queue
	p.queue = room[:0]
	p.lossTold = false
	return batch
}

func signal(level chan struct{}) {
	select {
	case level <- struct{}{}:
	default:
	}
}

// run keeps one connection to the peer.
func (p *remote) run(ctx context.Context) {
	wait, patience := p.t.cfg.MinRedial, p.t.cfg.HandshakeTimeout
	var broken brokenness
	for ctx.Err() == nil {
		conn, err := p.connect(ctx, forMessages, patience)
		if err == nil {
			wait, patience, broken = p.t.cfg.MinRedial, min(hastyConnect, p.t.cfg.HandshakeTimeout), worked
			p.pump(ctx, conn)
			continue // At once: the answer tells a dead process from a lost connection.
		}
		patience = min(2*patience, p.t.cfg.HandshakeTimeout)
		p.noteRefusal(err)
		if ctx.Err() == nil {
			broken = p.judge(broken, err)
			p.turn()
		}
		pause(ctx, wait/2+rand.N(wait/2+1))
		wait = min(2*wait, p.t.cfg.MaxRedial)
	}
}

// hastyConnect bounds the first try behind a connection that worked; each further
// one has twice the time. What reaches the port of a process while it dies may
// be dropped without a word, and TCP repeats it only after 200 ms to 1 s.
const hastyConnect = 25 * time.Millisecond

// brokenness is what the replica was told since the last connection.
type brokenness int

const (
	neverWorked brokenness = iota // or all was told
	worked                        // nothing told yet
	unreachable                   // told that messages are lost
)

// judge tells the replica what a failure behind a working connection means. A
// process that dies may close its connections before its port, so a refusal
// counts also behind other failures.
func (p *remote) judge(b brokenness, err error) brokenness {
	switch {
	case b == neverWorked:
		return neverWorked
	case errors.Is(err, syscall.ECONNREFUSED):
		p.t.log.Info("root peer is gone", "peer", p.id.NodeID, "address", p.at())
		p.t.receiver.PeerRefused(p.id.NodeID)
		return neverWorked
	case b == worked:
		p.t.receiver.PeerUnreachable(p.id.NodeID)
	}
	return unreachable
}

// noteRefusal logs a refusal. One because this peer is none any more, is too old, or
// runs on an older copy of its folder, ends it.
func (p *remote) noteRefusal(err error) {
	gone, old, stale := new(ReplacedError), new(TooOldError), new(freshness.StaleError)
	if errors.As(err, &gone) || errors.As(err, &old) || errors.As(err, &stale) {
		p.t.end(err)
		return
	}
	if why := whyRefused(err); why != "" && p.t.refusals.first(why) {
		p.t.log.Error("root peer refused", "peer", p.id.NodeID, "address", p.at(), "reason", why)
	}
}

// errHere keeps a new peer that is where the lost one was from dialing itself.
var errHere = errors.New("this peer itself is at that address")

// connect dials the peer and shakes hands.
func (p *remote) connect(ctx context.Context, why purpose, within time.Duration) (net.Conn, error) {
	h := p.t.hello(p.id, why)
	if p.at() == h.transport {
		return nil, errHere
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := p.t.cfg.Dial(ctx, p.at())
	if err != nil {
		return nil, fmt.Errorf("dial root peer %d at %s: %w", p.id.NodeID, p.at(), err)
	}
	below := conn
	stop := context.AfterFunc(ctx, func() { below.Close() })
	conn, err = secureDialed(ctx, p.t.cfg.TLS, below, p.id.NodeID, p.at())
	if err != nil {
		stop()
		below.Close()
		return nil, err
	}
	w, err := greet(conn, h, within)
	if err == nil {
		err = checkWelcome(w, h)
	}
	if old := p.t.tooOld(w.node, w.level); err == nil && old != "" {
		err = &RefusedError{Peer: w.node, Why: old}
	}
	// Behind the other one's word, which went by the ends of the log alone.
	if why := p.t.cfg.Claim.Lacks(w.before); err == nil && why != "" {
		err = &freshness.StaleError{Node: h.from, Why: fmt.Sprintf("root peer %d knows that %s", w.node, why)}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	p.heard(w.address, w.version, w.level)
	p.cleared.Store(true)
	return conn, nil
}

// pump sends the queue on conn until it breaks.
func (p *remote) pump(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p.connects.Add(1)
	p.direct.open(conn)
	p.connected.Store(true)
	if s := p.t.said.Load(); s != nil {
		p.put(item{standing: p.t.standing(*s)})
	}
	p.t.log.Info("connected to root peer", "peer", p.id.NodeID, "address", p.at())
	var listening sync.WaitGroup
	listening.Go(func() {
		p.listen(conn)
		cancel()
	})
	err := p.write(ctx, conn)
	p.connected.Store(false)
	lost := p.direct.close()
	lost = len(p.take(nil)) > 0 || lost
	cancel()
	conn.Close()
	listening.Wait()
	if ctx.Err() == nil || err != nil {
		p.t.log.Info("connection to root peer broke", "peer", p.id.NodeID, "err", err)
	}
	if lost {
		p.t.receiver.PeerUnreachable(p.id.NodeID)
	}
}

// listen reads the signs of life that come back, so that the end of the peer's
// process is seen at once and that of its machine after DeadAfter, and gives the
// word back that it is asked for.
func (p *remote) listen(conn net.Conn) {
	frames := newFrameReader(conn, 0)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(p.t.cfg.DeadAfter)); err != nil {
			return
		}
		k, payload, err := frames.next()
		switch {
		case err != nil || k != kindAlive && k != kindAsk:
			return
		case k == kindAsk && len(payload) == 8:
			p.put(item{echo: binary.BigEndian.Uint64(payload)})
		}
	}
}

func (p *remote) write(ctx context.Context, conn net.Conn) error {
	idle := time.NewTicker(p.t.cfg.AliveEvery)
	defer idle.Stop()
	var batch []item
	buf := make([]byte, 0, 64<<10)
	for {
		select {
		case <-p.ready:
		case <-idle.C:
			buf = appendFrame(buf, kindAlive, nil)
		case <-ctx.Done():
			return nil
		}
		var err error
		if batch, buf, err = p.writeQueue(conn, batch, buf); err != nil {
			return err
		}
		if buf = buf[:0]; cap(buf) > 2*flushBytes {
			buf = make([]byte, 0, 64<<10)
		}
	}
}

// writeQueue writes what buf has, after what a direct send left and before
// everything that is queued.
func (p *remote) writeQueue(conn net.Conn, batch []item, buf []byte) ([]item, []byte, error) {
	p.direct.begin()
	defer p.direct.end()
	if rest := p.direct.rest; len(rest) > 0 {
		if err := p.flush(conn, rest); err != nil {
			return batch, buf, err
		}
		p.direct.rest = nil
	}
	batch = p.take(batch)
	for _, i := range batch {
		buf = p.appendItem(buf, i)
		if len(buf) >= flushBytes {
			if err := p.flush(conn, buf); err != nil {
				return batch, buf, err
			}
			buf = buf[:0]
		}
	}
	p.sent.Add(uint64(len(batch)))
	clear(batch)
	return batch, buf, p.flush(conn, buf)
}

func (p *remote) flush(conn net.Conn, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	if err := conn.SetWriteDeadline(time.Now().Add(p.t.cfg.DeadAfter)); err != nil {
		return err
	}
	p.writes.Add(1)
	p.bytes.Add(uint64(len(buf)))
	_, err := conn.Write(buf)
	return err
}

// appendItem encodes one item behind buf. A message that is too large for a
// frame is a broken invariant of the replica's limits: it is dropped and said.
func (p *remote) appendItem(buf []byte, i item) []byte {
	start := len(buf)
	switch {
	case i.standing != nil:
		return appendFrame(buf, kindStanding, i.standing.append(nil))
	case i.message == nil:
		return endFrame(binary.BigEndian.AppendUint64(beginFrame(buf, kindEcho), i.echo), start)
	}
	buf, err := proto.MarshalOptions{}.MarshalAppend(beginFrame(buf, kindMessage), i.message)
	if err == nil && len(buf)-start-headerBytes > maxMessageBytes {
		err = fmt.Errorf("%d bytes, at most %d fit a frame", len(buf)-start-headerBytes, maxMessageBytes)
	}
	if err != nil {
		p.t.log.Error("drop message", "peer", p.id.NodeID, "type", i.message.GetType(), "err", err)
		p.t.receiver.PeerUnreachable(p.id.NodeID)
		return buf[:start]
	}
	return endFrame(buf, start)
}

// maxDirectBytes bounds the entries of a message that its sender encodes and
// writes itself. Larger ones are worth another goroutine.
const maxDirectBytes = 16 << 10

// direct lets a sender write to the connection itself as long as that takes no
// waiting: waking a goroutine for a small message costs more than the message.
// What the socket does not take at once is left to the goroutine of write.
type direct struct {
	// token is held by who writes to the connection; capacity 1.
	token chan struct{}

	// Guarded by token.
	raw  syscall.RawConn // nil: no connection, or one that cannot be written without waiting
	rest []byte          // encoded, not written: goes out before everything else
	room []item
	buf  []byte
}

func newDirect() direct { return direct{token: make(chan struct{}, 1)} }

// begin takes the token, end gives it back.
func (d *direct) begin() { d.token <- struct{}{} }
func (d *direct) end()   { <-d.token }

// open begins with a connection.
func (d *direct) open(conn net.Conn) {
	d.begin()
	defer d.end()
	d.raw, d.rest = nil, nil
	if c, ok := conn.(syscall.Conn); ok {
		d.raw, _ = c.SyscallConn()
	}
}

// close says whether something that was taken from the queue is lost.
func (d *direct) close() (lost bool) {
	d.begin()
	defer d.end()
	lost = len(d.rest) > 0
	d.raw, d.rest = nil, nil
	return lost
}

// sendDirectly writes the queue, of which i is the first, unless somebody else
// writes or it would have to wait. It reports false when there is something
// left for write.
func (p *remote) sendDirectly(i item) bool {
	d := &p.direct
	if !small(i.message) {
		return false
	}
	select {
	case d.token <- struct{}{}:
	default:
		return false
	}
	defer d.end()
	if d.raw == nil || len(d.rest) > 0 {
		return false
	}
	batch := p.take(d.room)
	buf := d.buf[:0]
	for _, i := range batch {
		buf = p.appendItem(buf, i)
	}
	p.sent.Add(uint64(len(batch)))
	clear(batch)
	d.room = batch
	n := 0
	err := d.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), buf) // An error is write's to find: it writes the rest.
		return true
	})
	if err != nil {
		n = 0
	}
	n = max(n, 0)
	p.writes.Add(1)
	p.bytes.Add(uint64(n))
	if d.buf = buf; cap(buf) > 4*maxDirectBytes {
		d.buf = nil
	}
	if n < len(buf) {
		d.rest = append([]byte(nil), buf[n:]...)
		return false
	}
	return true
}

// small says whether a message is cheap to encode; nil is something else, which is.
func small(m *raftpb.Message) bool {
	bytes := 0
	for _, e := range m.GetEntries() {
		if bytes += len(e.GetData()); bytes > maxDirectBytes {
			return false
		}
	}
	return true
}
