package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The hash of a State is the sum, modulo 2^64, of the hashes of its records,
// so that it does not depend on order and a change costs only the records it
// touches. A record's hash is the first 8 bytes, little-endian, of the SHA-256
// of the record's canonical encoding: SHA-256 because the sum of a weak hash
// cancels out for related records, and because processors have instructions
// for it. The token is not part of the hash. Remembered commands are no records
// of this kind: each adds a hash of its own, hashRemembered.
//
// The canonical encoding is our own, since protobuf promises none:
//
//	record   = uvarint(number of the record's field in rootv1.Record) message
//	message  = { field } 0          fields that are set, by rising number
//	field    = uvarint(number) value
//	value    = uvarint              numbers, enums; booleans as 1
//	         | uvarint(length) ...  strings, bytes
//	         | message
//	list     = uvarint(length) { value }
//	map      = uvarint(length) { key value }, keys rising
//
// Changing any of this stops a cluster that runs two versions.

// Tags of records: their field numbers in rootv1.Record.
const (
	tagCluster     = 1
	tagAllocators  = 2
	tagCounters    = 3
	tagTenure      = 4
	tagHandover    = 5
	tagCoordinator = 6
	tagMember      = 7
	tagKeyspace    = 8
	tagRegion      = 9
	tagTransition  = 10
	tagPinKey      = 11
	tagRemembered  = 12
	tagRemoved     = 13

	tagClusterSettings = 14
	tagGrant           = 15
	tagTokenKey        = 16
	tagRevokedToken    = 17
	tagDeleted         = 18
)

// Hash is the State's hash: equal for equal States, in constant time.
func (s *State) Hash() uint64 {
	sum := s.sum + hashRecord(tagAllocators, s.alloc.proto()) + hashRecord(tagCounters, s.counters.proto())
	if s.cluster != nil {
		sum += hashRecord(tagCluster, s.cluster)
	}
	if s.tenure != nil {
		sum += hashRecord(tagTenure, s.tenure)
	}
	return sum
}

// hashRecord is the hash of a record, by definition; regions, transitions and removed
// regions have ways of their own to the same.
func hashRecord(tag uint64, m proto.Message) uint64 {
	var room [512]byte
	return hashBytes(appendMessage(binary.AppendUvarint(room[:0], tag), m.ProtoReflect()))
}

// hashRegion equals hashRecord of the region's Proto.
func hashRegion(r *Region) uint64 {
	var room [512]byte
	return hashBytes(appendRegion(binary.AppendUvarint(room[:0], tagRegion), r))
}

func hashBytes(b []byte) uint64 {
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:8])
}

// appendMessage appends the canonical encoding of a message.
func appendMessage(b []byte, m protoreflect.Message) []byte {
	for _, fd := range fieldsSet(m) {
		b = binary.AppendUvarint(b, uint64(fd.Number()))
		v := m.Get(fd)
		switch {
		case fd.IsMap():
			b = appendMap(b, fd, v.Map())
		case fd.IsList():
			list := v.List()
			b = binary.AppendUvarint(b, uint64(list.Len()))
			for i := range list.Len() {
				b = appendValue(b, fd, list.Get(i))
			}
		default:
			b = appendValue(b, fd, v)
		}
	}
	return append(b, 0)
}

// fieldsSet are the fields of m that are set, by rising number.
func fieldsSet(m protoreflect.Message) []protoreflect.FieldDescriptor {
	all := m.Descriptor().Fields()
	set := make([]protoreflect.FieldDescriptor, 0, all.Len())
	for i := range all.Len() {
		if fd := all.Get(i); m.Has(fd) {
			set = append(set, fd)
		}
	}
	slices.SortFunc(set, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	return set
}

// appendMap appends a map by rising key; our maps have string keys.
func appendMap(b []byte, fd protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	keys := make([]string, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendString(b, k)
		b = appendValue(b, fd.MapValue(), m.Get(protoreflect.ValueOfString(k).MapKey()))
	}
	return b
}

func appendValue(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.BytesKind:
		return appendString(b, v.Bytes())
	case protoreflect.BoolKind:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case protoreflect.EnumKind:
		return binary.AppendUvarint(b, uint64(v.Enum()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return binary.AppendUvarint(b, v.Uint())
	default:
		panic("state: hash: no canonical encoding for field " + string(fd.FullName()))
	}
}

// appendRegion is appendMessage of the region's Proto, without the message.
func appendRegion(b []byte, r *Region) []byte {
	b = appendUintField(b, 1, uint64(r.ID))
	b = appendUintField(b, 2, uint64(r.Keyspace))
	b = appendStringField(b, 3, r.Start)
	b = appendStringField(b, 4, r.End)
	b = append(b, 5)
	b = appendUintField(b, 1, r.Epoch.Version)
	b = appendUintField(b, 2, r.Epoch.ConfVersion)
	b = append(b, 0)
	if len(r.Owners) > 0 {
		b = append(b, 6)
		b = binary.AppendUvarint(b, uint64(len(r.Owners)))
		for _, o := range r.Owners {
			b = appendStringField(b, 1, string(o.Member))
			b = appendUintField(b, 2, o.Peer)
			b = appendUintField(b, 3, o.Incarnation)
			b = appendUintField(b, 4, uint64(o.Role))
			b = append(b, 0)
		}
	}
	b = appendStringField(b, 7, r.Frontier)
	b = appendUintField(b, 8, r.Revision)
	if f := r.Former; f != nil {
		b = append(b, 9)
		b = appendStringField(b, 1, string(f.Member))
		b = appendUintField(b, 2, f.Incarnation)
		b = appendUintField(b, 3, f.Revision)
		b = append(b, 0)
	}
	return append(b, 0)
}

func appendUintField(b []byte, number byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, number), v)
}

func appendStringField[T string | []byte](b []byte, number byte, v T) []byte {
	if len(v) == 0 {
		return b
	}
	return appendString(append(b, number), v)
}

func appendString[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// lineage is a Legacy's digest: the hash of the record and of its
// predecessor's digest, so that the last one vouches for the whole chain.
func lineage(l *rootv1.Legacy, previous uint64) uint64 {
	var room [256]byte
	b := binary.BigEndian.AppendUint64(room[:0], previous)
	bare := proto.CloneOf(l)
	bare.Digest = 0
	return hashBytes(appendMessage(b, bare.ProtoReflect()))
}
