package server

import (
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fields calls f for every field of an encoded message. f gets what follows
// the tag and returns how many bytes of it the value takes, negative when it is
// malformed.
func fields(data []byte, f func(num protowire.Number, typ protowire.Type, value []byte) (int, error)) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		n, err := f(num, typ, data)
		if err != nil {
			return err
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
	}
	return nil
}

// shortNumber is the highest field number whose tag takes one byte. Small
// values of such fields are most of a reply, and are written as they are.
const shortNumber = 15

// appendUint appends a varint field; proto3 leaves zeros out.
func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	if v < 0x80 && num <= shortNumber {
		return append(b, byte(num)<<3|byte(protowire.VarintType), byte(v))
	}
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	return appendUint(b, num, protowire.EncodeBool(v))
}

func appendFixed64(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, v)
}

func appendString[T ~string | ~[]byte](b []byte, num protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	if len(v) < 0x80 && num <= shortNumber {
		b = append(b, byte(num)<<3|byte(protowire.BytesType), byte(len(v)))
		return append(b, v...)
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

// open begins an embedded message whose length is not known yet. Its length
// gets one byte, as it does for most; shut moves the content when that is too few.
func open(b []byte, num protowire.Number) (out []byte, at int) {
	if num <= shortNumber {
		return append(b, byte(num)<<3|byte(protowire.BytesType), 0), len(b) + 2
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return append(b, 0), len(b) + 1
}

// shut ends the embedded message that began at at.
func shut(b []byte, at int) []byte {
	size := len(b) - at
	if size < 0x80 {
		b[at-1] = byte(size)
		return b
	}
	extra := protowire.SizeVarint(uint64(size)) - 1
	for range extra {
		b = append(b, 0)
	}
	copy(b[at+extra:], b[at:at+size])
	protowire.AppendVarint(b[:at-1], uint64(size))
	return b
}

// Field numbers of the messages that are encoded by hand; TestWireIsProto
// compares with the generated code.

// appendRegion appends a Region field.
func appendRegion(b []byte, num protowire.Number, r *state.Region) []byte {
	b, at := open(b, num)
	b = appendUint(b, 1, uint64(r.ID))
	b = appendUint(b, 2, uint64(r.Keyspace))
	b = appendString(b, 3, r.Start)
	b = appendString(b, 4, r.End)
	b, epoch := open(b, 5)
	b = appendUint(b, 1, r.Epoch.Version)
	b = appendUint(b, 2, r.Epoch.ConfVersion)
	b = shut(b, epoch)
	for i := range r.Owners {
		o := &r.Owners[i]
		var owner int
		b, owner = open(b, 6)
		b = appendString(b, 1, o.Member)
		b = appendUint(b, 2, o.Peer)
		b = appendUint(b, 3, o.Incarnation)
		b = appendUint(b, 4, uint64(o.Role))
		b = shut(b, owner)
	}
	b = appendString(b, 7, r.Frontier)
	b = appendUint(b, 8, r.Revision)
	if f := r.Former; f != nil {
		var former int
		b, former = open(b, 9)
		b = appendString(b, 1, f.Member)
		b = appendUint(b, 2, f.Incarnation)
		b = appendUint(b, 3, f.Revision)
		b = shut(b, former)
	}
	return shut(b, at)
}

// appendToken appends a RootToken field.
func appendToken(b []byte, num protowire.Number, t state.Token) []byte {
	b, at := open(b, num)
	b = appendUint(b, 1, t.Incarnation)
	b = appendUint(b, 2, t.Term)
	b = appendUint(b, 3, t.Index)
	return shut(b, at)
}

// appendOwner appends an OwnerAddress field; m is nil for a member that the
// root does not know.
func appendOwner(b []byte, num protowire.Number, id state.MemberID, m *rootv1.Member) []byte {
	b, at := open(b, num)
	b = appendString(b, 1, id)
	b = appendString(b, 2, m.GetAddress())
	b = appendUint(b, 3, uint64(m.GetState()))
	b = appendUint(b, 4, m.GetIncarnation())
	return shut(b, at)
}

// appendDisclosure appends a Disclosure field.
func appendDisclosure(b []byte, num protowire.Number, d *coordinatorv1.Disclosure) []byte {
	b, at := open(b, num)
	b = appendProtoToken(b, 1, d.GetServedRootToken())
	b = appendProtoToken(b, 2, d.GetCurrentRootToken())
	b = appendUint(b, 3, d.GetRootLag())
	b = appendUint(b, 4, d.GetRootLagMillis())
	b = appendUint(b, 5, uint64(d.GetServedFreshness()))
	b = appendBool(b, 6, d.GetServedByLeader())
	b = appendUint(b, 7, uint64(d.GetDegradedMode()))
	b = appendUint(b, 8, uint64(d.GetCatchUpState()))
	b = appendUint(b, 9, uint64(d.GetCatchUpAction()))
	b = appendUint(b, 10, uint64(d.GetServingClass()))
	b = appendUint(b, 11, uint64(d.GetSyncHealth()))
	b = appendUint(b, 12, d.GetEra())
	b = appendString(b, 13, d.GetCoordinatorId())
	b = appendFixed64(b, 14, d.GetClusterId())
	return shut(b, at)
}

func appendProtoToken(b []byte, num protowire.Number, t *rootv1.RootToken) []byte {
	if t == nil {
		return b
	}
	return appendToken(b, num, state.TokenFromProto(t))
}

// appendDetail appends an ErrorDetail field. One that cannot be encoded, which
// is one that quotes bytes that are not text, shrinks to its reason.
func appendDetail(b []byte, num protowire.Number, d *rootv1.ErrorDetail) []byte {
	b, at := open(b, num)
	out, err := proto.MarshalOptions{}.MarshalAppend(b, d)
	if err != nil {
		out = appendUint(b, 1, uint64(d.GetReason()))
	}
	return shut(out, at)
}
