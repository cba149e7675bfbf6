package server

import (
	"fmt"
	"sync"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
)

// cachedBatches is how many encoded batches are kept: the newest ones, which
// readers at the head of the log share.
const cachedBatches = 16

// batch is committed entries [first, last] as TailResponse.entries, encoded.
type batch struct {
	first uint64
	once  sync.Once // guards the encoding

	// Set by once. last is first-1 when there was no entry.
	last uint64
	data []byte
	err  error
}

// batchCache encodes entries once for all readers that want the same first one.
// Its zero value is ready.
type batchCache struct {
	// bare leaves secrets out.
	bare bool

	mu   sync.Mutex // guards what follows
	ring [cachedBatches]*batch
	turn int
}

// get returns a batch that begins at first, from the log when nobody asked for
// it before.
func (c *batchCache) get(log Log, first, commit, maxBytes uint64) (*batch, error) {
	b := c.at(first)
	b.once.Do(func() { b.encode(log, commit, maxBytes, c.bare) })
	if b.err != nil || b.last < b.first {
		c.forget(b)
	}
	return b, b.err
}

func (c *batchCache) at(first uint64) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.ring {
		if b != nil && b.first == first {
			return b
		}
	}
	b := &batch{first: first}
	c.ring[c.turn%cachedBatches] = b
	c.turn++
	return b
}

func (c *batchCache) forget(b *batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ring {
		if c.ring[i] == b {
			c.ring[i] = nil
		}
	}
}

func (b *batch) encode(log Log, commit, maxBytes uint64, bare bool) {
	entries, err := log.Committed(b.first, commit+1, maxBytes)
	b.last, b.err = b.first-1, err
	if err != nil || len(entries) == 0 {
		return
	}
	size := 0
	for _, e := range entries {
		size += len(e.GetData()) + 40
	}
	data := make([]byte, 0, size)
	for _, e := range entries {
		_, payload, err := storage.Payload(e)
		if err != nil {
			b.err = fmt.Errorf("entry %d: %w", e.GetIndex(), err)
			return
		}
		if bare {
			payload, _ = state.StripSecrets(payload)
		}
		data = appendEntry(data, e, payload)
	}
	b.data, b.last = data, entries[len(entries)-1].GetIndex()
}

// appendEntry appends one TailResponse.entries element.
func appendEntry(b []byte, e *raftpb.Entry, payload []byte) []byte {
	n := 0
	if e.GetTerm() != 0 {
		n += 1 + protowire.SizeVarint(e.GetTerm())
	}
	n += 1 + protowire.SizeVarint(e.GetIndex())
	if len(payload) > 0 {
		n += 1 + protowire.SizeBytes(len(payload))
	}
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = appendVarint(b, 1, e.GetTerm())
	b = appendVarint(b, 2, e.GetIndex())
	if len(payload) > 0 {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, payload)
	}
	return b
}
