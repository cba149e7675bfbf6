package server

import (
	"sync"

	"github.com/nokv/nokv/internal/gate"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is the ordinary protobuf codec, except that it sends messages that are
// encoded already (*packet, *watchMessage) as they are, lets raw requests (decoder) read
// themselves, and has the gate count what was not sent yet. What is on the wire is the same.
type codec struct{ ordinary encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// decoder is a request that reads its own encoding. It may keep the buffer,
// and then frees it.
type decoder interface {
	decode(buf mem.Buffer) error
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	v, to := gate.Open(v)
	data, err := c.marshal(v)
	if err != nil {
		return to.Count(nil), err
	}
	if m, ok := v.(*watchMessage); ok && m.shared {
		return data, nil // the bytes are there once, however many are sent them
	}
	return to.Count(data), nil
}

func (c codec) marshal(v any) (mem.BufferSlice, error) {
	if p, ok := v.(*packet); ok {
		return mem.BufferSlice{p.release()}, nil
	}
	if m, ok := v.(*watchMessage); ok {
		return m.buffers(), nil
	}
	if m, ok := v.(*memberMessage); ok {
		return mem.BufferSlice{m.packet.releaseTo(m.stream)}, nil
	}
	return c.ordinary.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if d, ok := v.(decoder); ok {
		return d.decode(data.MaterializeToBuffer(mem.DefaultBufferPool()))
	}
	return c.ordinary.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (c codec) Name() string { return proto.Name }

// packet is a reply in its wire encoding, in a pooled buffer. It is sent once.
type packet struct {
	data []byte
	home *[]byte
}

// packetBytes is the size of a fresh packet buffer: above what gRPC considers
// too small to pool, enough for a reply about one region.
const packetBytes = 2048

// maxPooledBytes is the largest buffer that is kept for later.
const maxPooledBytes = 1 << 20

var (
	packetPool = sync.Pool{New: func() any { return new(packet) }}
	bufferPool = &packetBuffers{pool: sync.Pool{New: func() any {
		b := make([]byte, packetBytes)
		return &b
	}}}
)

// newPacket returns an empty packet to append to.
func newPacket() *packet {
	p := packetPool.Get().(*packet)
	p.home = bufferPool.pool.Get().(*[]byte)
	p.data = (*p.home)[:0]
	return p
}

// partPool has the buffers of long packets.
var partPool = sync.Pool{New: func() any {
	b := make([]byte, 0, partBytes)
	return &b
}}

// enlarge has the packet's bytes in a buffer for a part of a snapshot.
func (p *packet) enlarge() {
	if cap(p.data) >= snapshotPartBytes {
		return
	}
	large := partPool.Get().(*[]byte)
	data := append((*large)[:0], p.data...)
	*p.home = p.data
	bufferPool.Put(p.home)
	p.home, p.data = large, data
}

// release gives the bytes to the transport, which returns them to the pool
// when they are written.
func (p *packet) release() mem.Buffer { return p.releaseTo(bufferPool) }

// releaseTo is release to a pool that passes the bytes on to bufferPool.
func (p *packet) releaseTo(pool mem.BufferPool) mem.Buffer {
	home := p.home
	*home = p.data
	p.data, p.home = nil, nil
	packetPool.Put(p)
	return mem.NewBuffer(home, pool)
}

// packetBuffers is a mem.BufferPool for packets.
type packetBuffers struct{ pool sync.Pool }

// Get implements mem.BufferPool.
func (b *packetBuffers) Get(length int) *[]byte {
	buf := b.pool.Get().(*[]byte)
	if cap(*buf) < length {
		*buf = make([]byte, length)
	}
	*buf = (*buf)[:length]
	return buf
}

// Put implements mem.BufferPool.
func (b *packetBuffers) Put(buf *[]byte) {
	if cap(*buf) >= packetBytes && cap(*buf) <= maxPooledBytes {
		b.pool.Put(buf)
	}
}
