package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A frame is one Append. It starts at a sector, so that a crash that spoils
// the sectors of one frame cannot reach the one before.
//
//	 0 u32 length of the payload
//	 4 u32 kind
//	 8 u64 number, one higher than the frame before; equal when it repeats it
//	16 u64 salt of the segment's use
//	24 u32 CRC32C of the payload
//	28 u32 CRC32C of the bytes before: a frame is recognised without the chain
//	32 u32 chain: CRC32C over the chain of the frame before and the bytes above
//	36 payload, then zeros up to the next sector
const (
	sectorBytes      = 512
	frameHeaderBytes = 36
	frameKindBatch   = 1
	// maxPayloadBytes is the largest payload of a frame.
	maxPayloadBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc(0, b) }

func crc(c uint32, b []byte) uint32 { return crc32.Update(c, castagnoli, b) }

func chainOf(prev uint32, header []byte) uint32 {
	return crc(checksum(binary.LittleEndian.AppendUint32(nil, prev)), header)
}

// frame is one frame as read.
type frame struct {
	kind    uint32
	number  uint64
	chain   uint32
	header  []byte
	payload []byte
	// end is the offset behind the frame in its segment.
	end int64
}

// follows says whether the frame's chain continues from prev.
func (f frame) follows(prev uint32) bool { return chainOf(prev, f.header) == f.chain }

// frameBytes returns the room a payload takes in a segment.
func frameBytes(payload int) int64 {
	return roundUp(int64(frameHeaderBytes+payload), sectorBytes)
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// sealFrame fills in the header of a frame whose payload begins at
// frameHeaderBytes of b, pads it and returns it with its chain.
func sealFrame(b []byte, salt, number uint64, prev uint32) ([]byte, uint32) {
	payload := b[frameHeaderBytes:]
	binary.LittleEndian.PutUint32(b[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[4:], frameKindBatch)
	binary.LittleEndian.PutUint64(b[8:], number)
	binary.LittleEndian.PutUint64(b[16:], salt)
	binary.LittleEndian.PutUint32(b[24:], checksum(payload))
	binary.LittleEndian.PutUint32(b[28:], checksum(b[:28]))
	chain := chainOf(prev, b[:32])
	binary.LittleEndian.PutUint32(b[32:], chain)
	return append(b, zeros[:frameBytes(len(payload))-int64(len(b))]...), chain
}

// parseFrame reads the frame at off; false when there is none that is whole
// in itself and of this use of the segment. The payload is part of buf.
func parseFrame(buf []byte, off int64, salt uint64) (frame, bool) {
	if off+frameHeaderBytes > int64(len(buf)) {
		return frame{}, false
	}
	h := buf[off : off+frameHeaderBytes]
	if binary.LittleEndian.Uint64(h[16:]) != salt || checksum(h[:28]) != binary.LittleEndian.Uint32(h[28:]) {
		return frame{}, false
	}
	length := int64(binary.LittleEndian.Uint32(h))
	if off+frameHeaderBytes+length > int64(len(buf)) {
		return frame{}, false
	}
	payload := buf[off+frameHeaderBytes : off+frameHeaderBytes+length : off+frameHeaderBytes+length]
	if checksum(payload) != binary.LittleEndian.Uint32(h[24:]) {
		return frame{}, false
	}
	return frame{
		kind:    binary.LittleEndian.Uint32(h[4:]),
		number:  binary.LittleEndian.Uint64(h[8:]),
		chain:   binary.LittleEndian.Uint32(h[32:]),
		header:  h[:32],
		payload: payload,
		end:     off + frameBytes(int(length)),
	}, true
}

// link ties the first frame of a segment to what came before it.
type link struct {
	// index and term of the entry before the frame.
	index, term uint64
	// chain of the frame before.
	chain uint32
	// reset: the log is empty behind index, whatever came before.
	reset bool
}

// batch is the payload of a frame.
type batch struct {
	link    *link
	hard    *raftpb.HardState
	entries []*raftpb.Entry
}

// beginning is what the log begins with when the batch is its first. Only
// frame 1 has no link then: nothing is before it.
func (b batch) beginning() link {
	if b.link == nil {
		return link{}
	}
	return *b.link
}

const (
	batchHasLink = 1 << iota
	batchHasHard
	batchReset
)

func appendBatch(b []byte, x batch) []byte {
	var flags byte
	if x.link != nil {
		flags |= batchHasLink
		if x.link.reset {
			flags |= batchReset
		}
	}
	if x.hard != nil {
		flags |= batchHasHard
	}
	b = append(b, flags)
	if x.link != nil {
		b = binary.AppendUvarint(b, x.link.index)
		b = binary.AppendUvarint(b, x.link.term)
		b = binary.LittleEndian.AppendUint32(b, x.link.chain)
	}
	if x.hard != nil {
		b = binary.AppendUvarint(b, x.hard.GetTerm())
		b = binary.AppendUvarint(b, x.hard.GetVote())
		b = binary.AppendUvarint(b, x.hard.GetCommit())
	}
	b = binary.AppendUvarint(b, uint64(len(x.entries)))
	if len(x.entries) > 0 {
		b = binary.AppendUvarint(b, x.entries[0].GetIndex())
	}
	for _, e := range x.entries {
		b = binary.AppendUvarint(b, e.GetTerm())
		b = binary.AppendUvarint(b, uint64(e.GetType()))
		b = binary.AppendUvarint(b, uint64(len(e.GetData())))
		b = append(b, e.GetData()...)
	}
	return b
}

// slab holds an entry and what its pointers point at, so that a batch takes
// one allocation.
type slab struct {
	entry       raftpb.Entry
	term, index uint64
	kind        raftpb.EntryType
}

// decodeBatch reads a payload. Entry data are parts of b.
func decodeBatch(b []byte) (batch, error) {
	d := decoder{b: b}
	var x batch
	flags := d.byte()
	if flags&batchHasLink != 0 {
		x.link = &link{index: d.uvarint(), term: d.uvarint(), chain: d.uint32(), reset: flags&batchReset != 0}
	}
	if flags&batchHasHard != 0 {
		x.hard = hardState(d.uvarint(), d.uvarint(), d.uvarint())
	}
	count := d.uvarint()
	if count > uint64(len(b)) {
		return batch{}, fmt.Errorf("%d entries in %d bytes", count, len(b))
	}
	if count > 0 {
		x.entries = d.entries(count)
	}
	if d.bad || len(d.b) > 0 || flags >= batchReset<<1 {
		return batch{}, fmt.Errorf("payload of %d bytes is not a batch", len(b))
	}
	return x, nil
}

func (d *decoder) entries(count uint64) []*raftpb.Entry {
	slabs := make([]slab, count)
	entries := make([]*raftpb.Entry, count)
	first := d.uvarint()
	for i := range slabs {
		s := &slabs[i]
		s.index, s.term, s.kind = first+uint64(i), d.uvarint(), raftpb.EntryType(d.uvarint())
		s.entry.Index, s.entry.Term = &s.index, &s.term
		if s.kind != raftpb.EntryNormal {
			s.entry.Type = &s.kind
		}
		if n := d.uvarint(); n > 0 {
			s.entry.Data = d.bytes(n)
		}
		entries[i] = &s.entry
	}
	return entries
}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
}

// decoder takes values off the front of b; bad once anything was missing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if b := d.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

// zeros are for padding and filling.
var zeros [1 << 20]byte

// Payload is the serialized rootv1.Entry of a log entry. In an entry that
// changes who votes it rides inside raft's own change, which is returned as well;
// nil for all others.
func Payload(e *raftpb.Entry) (change *raftpb.ConfChangeV2, data []byte, err error) {
	switch e.GetType() {
	case raftpb.EntryNormal:
		return nil, e.GetData(), nil
	case raftpb.EntryConfChangeV2:
		change = &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), change); err != nil {
			return nil, nil, fmt.Errorf("decode a membership change: %w", err)
		}
		return change, change.GetContext(), nil
	}
	return nil, nil, fmt.Errorf("raft entry type %v", e.GetType())
}
