package client

import (
	"fmt"
	"unsafe"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that routeCodec falls back on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// keysReply is a GetRegionsByKeysResponse whose regions are decoded by the
// caller who asked, not by the goroutine that reads for all, and straight into
// routes: a reply of 128 regions costs a dozen allocations instead of 1,400.
// Field numbers are those of coordinator.proto and types.proto.
type keysReply struct {
	raw        []byte // never written again; strings of the routes point into it
	regions    int
	disclosure *coordinatorv1.Disclosure
	refusal    *rootv1.ErrorDetail
}

// routeCodec is gRPC's own, but for keysReply.
type routeCodec struct{ encoding.CodecV2 }

func newRouteCodec() routeCodec { return routeCodec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c routeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	reply, ok := v.(*keysReply)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	reply.raw = data.Materialize()
	return reply.scan()
}

// scan decodes what is judged before the caller gets the reply, and counts the rest.
func (r *keysReply) scan() error {
	return fields(r.raw, func(n protowire.Number, _ uint64, b []byte) error {
		switch n {
		case 1:
			r.regions++
		case 4:
			r.disclosure = &coordinatorv1.Disclosure{}
			return proto.Unmarshal(b, r.disclosure)
		case 5:
			r.refusal = &rootv1.ErrorDetail{}
			return proto.Unmarshal(b, r.refusal)
		}
		return nil
	})
}

// GetDisclosure lets Client.accept judge the reply.
func (r *keysReply) GetDisclosure() *coordinatorv1.Disclosure { return r.disclosure }

// routes decodes the reply: a route for each key.
func (r *keysReply) routes(keys int) ([]Route, error) {
	regions := make([]rooted.Region, 0, r.regions)
	owners := make([]rooted.Owner, 0, r.regions) // one each; grows where there are more
	positions := make([]uint32, 0, keys)
	members := directory{}
	err := fields(r.raw, func(n protowire.Number, v uint64, b []byte) error {
		switch {
		case n == 1:
			regions = regions[:len(regions)+1]
			return decodeRegion(&regions[len(regions)-1], b, &owners)
		case n == 2 && b == nil:
			positions = append(positions, uint32(v))
		case n == 2:
			for len(b) > 0 {
				v, size := protowire.ConsumeVarint(b)
				if size < 0 {
					return protowire.ParseError(size)
				}
				positions, b = append(positions, uint32(v)), b[size:]
			}
		case n == 3:
			return decodeMember(members, b)
		}
		return nil
	})
	if err == nil && len(positions) != keys {
		err = fmt.Errorf("%d positions for %d keys", len(positions), keys)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, err)
	}
	at := rooted.TokenFromProto(r.disclosure.GetServedRootToken())
	out := make([]Route, keys)
	for i, n := range positions {
		if int(n) > len(regions) {
			return nil, fmt.Errorf("%w: region %d of %d", errUnfit, n, len(regions))
		}
		out[i] = Route{At: at, from: r.disclosure}
		if n > 0 {
			out[i].Region, out[i].members = &regions[n-1], members
		}
	}
	return out, nil
}

// decodeRegion reads a Region whose owners go behind those of others. It and
// decodeOwner take the fields one by one, without fields: they are most of a reply.
func decodeRegion(r *rooted.Region, b []byte, owners *[]rooted.Owner) error {
	first := len(*owners)
	for len(b) > 0 {
		n, v, part, size := field(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		switch n {
		case 1:
			r.ID = rooted.RegionID(v)
		case 2:
			r.Keyspace = rooted.KeyspaceID(v)
		case 3:
			r.Start = text(part)
		case 4:
			r.End = text(part)
		case 5:
			if err := decodeEpoch(&r.Epoch, part); err != nil {
				return err
			}
		case 6:
			*owners = append(*owners, rooted.Owner{})
			if err := decodeOwner(&(*owners)[len(*owners)-1], part); err != nil {
				return err
			}
		case 7:
			r.Frontier = text(part)
		case 8:
			r.Revision = v
		}
	}
	if end := len(*owners); end > first {
		r.Owners = (*owners)[first:end:end]
	}
	return nil
}

func decodeEpoch(e *rooted.Epoch, b []byte) error {
	for len(b) > 0 {
		n, v, _, size := field(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		switch n {
		case 1:
			e.Version = v
		case 2:
			e.ConfVersion = v
		}
	}
	return nil
}

func decodeOwner(o *rooted.Owner, b []byte) error {
	for len(b) > 0 {
		n, v, part, size := field(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		switch n {
		case 1:
			o.Member = rooted.MemberID(text(part))
		case 2:
			o.Peer = v
		case 3:
			o.Incarnation = v
		case 4:
			o.Role = rootv1.OwnerRole(v)
		}
	}
	return nil
}

func decodeMember(d directory, b []byte) error {
	var m Member
	err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			m.ID = rooted.MemberID(text(b))
		case 2:
			m.Address = text(b)
		case 3:
			m.State = rootv1.MemberState(v)
		case 4:
			m.Incarnation = v
		}
		return nil
	})
	d[m.ID] = m
	return err
}

// text is b as a string, without a copy: b is part of a reply that nobody writes again.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// fields calls f for each field of a message: with the number of a varint, or
// with the bytes, not nil, of a string or message.
func fields(b []byte, f func(n protowire.Number, v uint64, b []byte) error) error {
	for len(b) > 0 {
		n, v, part, size := field(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := f(n, v, part); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// field reads the first field of b and says how many bytes it takes, below 0
// when it is malformed. What is neither a varint nor bytes has the number 0.
func field(b []byte) (n protowire.Number, v uint64, part []byte, size int) {
	if len(b) >= 2 && b[0] < 0x80 && b[0] >= 8 && b[1] < 0x80 { // most are small
		switch kind := protowire.Type(b[0] & 7); {
		case kind == protowire.VarintType:
			return protowire.Number(b[0] >> 3), uint64(b[1]), nil, 2
		case kind == protowire.BytesType && len(b) >= 2+int(b[1]):
			return protowire.Number(b[0] >> 3), 0, b[2 : 2+b[1]], 2 + int(b[1])
		}
	}
	n, kind, size := protowire.ConsumeTag(b)
	if size < 0 {
		return 0, 0, nil, size
	}
	var rest int
	switch kind {
	case protowire.VarintType:
		v, rest = protowire.ConsumeVarint(b[size:])
	case protowire.BytesType:
		part, rest = protowire.ConsumeBytes(b[size:])
	default:
		n, rest = 0, protowire.ConsumeFieldValue(n, kind, b[size:])
	}
	if rest < 0 {
		return 0, 0, nil, rest
	}
	return n, v, part, size + rest
}
