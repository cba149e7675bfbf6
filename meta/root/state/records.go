package state

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Records calls fn for each record, in an order that only the State decides:
// kind by kind as in rootv1.Record, each by its key. A record is fn's to read,
// not to change. It stops at fn's first error and returns it.
func (s *State) Records(fn func(*rootv1.Record) error) error {
	return s.records(emitter{fn: fn, region: func(r *Region) error {
		return fn(&rootv1.Record{Kind: &rootv1.Record_Region{Region: r.Proto()}})
	}})
}

// EncodedRecords is Records in the wire format, sooner: regions are not made
// into messages. The bytes are fn's until it returns.
func (s *State) EncodedRecords(fn func([]byte) error) error {
	var room []byte
	return s.records(emitter{
		fn: func(r *rootv1.Record) (err error) {
			if room, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(room[:0], r); err != nil {
				return err
			}
			return fn(room)
		},
		region: func(r *Region) error {
			room = appendRegionRecord(room[:0], r)
			return fn(room)
		},
	})
}

func (s *State) records(e emitter) error {
	if s.cluster != nil {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Cluster{Cluster: s.cluster}})
	}
	e.emit(&rootv1.Record{Kind: &rootv1.Record_Allocators{Allocators: s.alloc.proto()}})
	e.emit(&rootv1.Record{Kind: &rootv1.Record_Counters{Counters: s.counters.proto()}})
	if s.tenure != nil {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Tenure{Tenure: s.tenure}})
	}
	for _, h := range s.handovers {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Handover{Handover: h}})
	}
	s.coordinators.Scan(func(_ CoordinatorID, c *rootv1.Coordinator) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Coordinator{Coordinator: c}})
	})
	s.members.Scan(func(_ MemberID, m *rootv1.Member) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Member{Member: m}})
	})
	s.keyspaces.Scan(func(_ KeyspaceID, k *keyspace) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Keyspace{Keyspace: k.record}})
	})
	s.regions.Scan(func(r *Region) bool {
		return e.emitRegion(r)
	})
	s.Transitions(func(p *rootv1.Transition) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Transition{Transition: p}})
	})
	for _, k := range s.pinKeys {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_PinKey{PinKey: k}})
	}
	s.rememberedRecords(func(p *rootv1.RememberedCommands) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_RememberedCommands{RememberedCommands: p}})
	})
	s.removedRegions.Scan(func(r *removedRegion) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_RemovedRegion{RemovedRegion: r.proto()}})
	})
	if s.settings != nil {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_ClusterSettings{ClusterSettings: s.settings}})
	}
	s.Grants("", "", func(g *rootv1.Grant) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Grant{Grant: g}})
	})
	for _, k := range s.tokenKeys {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_TokenKey{TokenKey: k}})
	}
	for _, r := range s.revoked {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_RevokedToken{RevokedToken: r}})
	}
	for _, k := range s.deleted {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_DeletedKeyspace{DeletedKeyspace: k}})
	}
	return e.err
}

// emitter calls fn, or region for a region, until one fails.
type emitter struct {
	fn     func(*rootv1.Record) error
	region func(*Region) error
	err    error
}

func (e *emitter) emit(r *rootv1.Record) bool {
	if e.err == nil {
		e.err = e.fn(r)
	}
	return e.err == nil
}

func (e *emitter) emitRegion(r *Region) bool {
	if e.err == nil {
		e.err = e.region(r)
	}
	return e.err == nil
}

// Wire types: protobuf's, in the low bits of a key.
const (
	wireVarint = 0
	wireBytes  = 2
)

// appendRegionRecord appends the region's Record in the wire format: what
// proto.Marshal makes of it.
func appendRegionRecord(b []byte, r *Region) []byte {
	return appendNested(b, tagRegion, func(b []byte) []byte {
		b = appendWireUint(b, 1, uint64(r.ID))
		b = appendWireUint(b, 2, uint64(r.Keyspace))
		b = appendWireString(b, 3, r.Start)
		b = appendWireString(b, 4, r.End)
		b = appendNested(b, 5, func(b []byte) []byte {
			b = appendWireUint(b, 1, r.Epoch.Version)
			return appendWireUint(b, 2, r.Epoch.ConfVersion)
		})
		for _, o := range r.Owners {
			b = appendNested(b, 6, func(b []byte) []byte {
				b = appendWireString(b, 1, string(o.Member))
				b = appendWireUint(b, 2, o.Peer)
				b = appendWireUint(b, 3, o.Incarnation)
				return appendWireUint(b, 4, uint64(o.Role))
			})
		}
		b = appendWireString(b, 7, r.Frontier)
		b = appendWireUint(b, 8, r.Revision)
		if f := r.Former; f != nil {
			b = appendNested(b, 9, func(b []byte) []byte {
				b = appendWireString(b, 1, string(f.Member))
				b = appendWireUint(b, 2, f.Incarnation)
				return appendWireUint(b, 3, f.Revision)
			})
		}
		return b
	})
}

func appendWireUint(b []byte, number byte, v uint64) []byte {
	return appendUintField(b, number<<3|wireVarint, v)
}

func appendWireString(b []byte, number byte, v string) []byte {
	return appendStringField(b, number<<3|wireBytes, v)
}

// appendNested appends a message that fill appends. Room for a length of one
// byte is left in front of it, and more made when it is longer.
func appendNested(b []byte, number byte, fill func([]byte) []byte) []byte {
	b = append(b, number<<3|wireBytes, 0)
	at := len(b)
	b = fill(b)
	size := len(b) - at
	if size < 0x80 {
		b[at-1] = byte(size)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	b = append(b, length[1:n]...)
	copy(b[at-1+n:], b[at:at+size])
	copy(b[at-1:], length[:n])
	return b
}
