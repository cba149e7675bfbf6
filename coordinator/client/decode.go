package client

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that wireCodec falls back on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// encoder is a message in its wire encoding, which nobody changes any more.
type encoder interface{ encoded() []byte }

// decoder is a reply that reads its own encoding. It may not keep the bytes.
type decoder interface{ decode(data []byte) error }

// wireCodec is gRPC's own, but for messages that encode or decode themselves.
type wireCodec struct{ encoding.CodecV2 }

var ownCodec = wireCodec{encoding.GetCodecV2("proto")}

// Marshal implements encoding.CodecV2.
func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(encoder); ok {
		return mem.BufferSlice{mem.SliceBuffer(m.encoded())}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *keysReply:
		m.raw = data.Materialize()
		return m.index()
	case decoder:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return m.decode(buf.ReadOnlyData())
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
}

// streamOf is a streaming call of the service.
type streamOf[Q, R any] func(coordinatorv1.CoordinatorClient, context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Q, R], error)

// wired opens a stream of the service whose messages are Q and R on the wire.
func wired[Q, R, P, S any](call streamOf[P, S]) func(context.Context, *endpoint) (grpc.BidiStreamingClient[Q, R], error) {
	return func(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[Q, R], error) {
		s, err := call(e.rpc, ctx, grpc.ForceCodecV2(ownCodec))
		if err != nil {
			return nil, err
		}
		return &grpc.GenericClientStream[Q, R]{ClientStream: s}, nil
	}
}

// keysRequest is a GetRegionsByKeysRequest.
type keysRequest struct {
	raw  []byte
	keys int
	id   uint64
	// waits: its answer may have to wait for the root.
	waits bool
}

func (r *keysRequest) encoded() []byte { return r.raw }

// appendKey appends a key to a request in the making.
func appendKey(b, key []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), key)
}

// keysMessage completes a request: keys are what appendKey made.
func keysMessage(raw []byte, keys int, keyspace string, read *coordinatorv1.ReadOptions, id uint64, wait time.Duration) (*keysRequest, error) {
	if keyspace != "" {
		raw = protowire.AppendString(protowire.AppendTag(raw, 2, protowire.BytesType), keyspace)
	}
	if read != nil {
		options, err := proto.Marshal(read)
		if err != nil {
			return nil, err
		}
		raw = protowire.AppendBytes(protowire.AppendTag(raw, 3, protowire.BytesType), options)
	}
	if id != 0 {
		raw = protowire.AppendVarint(protowire.AppendTag(raw, 4, protowire.VarintType), id)
	}
	if millis := wait.Milliseconds(); millis > 0 {
		raw = protowire.AppendVarint(protowire.AppendTag(raw, 5, protowire.VarintType), uint64(millis))
	}
	waits := read.GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG || read.GetRequiredRootToken() != nil || read.GetRequiredDescriptorRevision() != 0
	return &keysRequest{raw: raw, keys: keys, id: id, waits: waits}, nil
}

// keysReply is a GetRegionsByKeysResponse whose regions are decoded by the
// callers who asked, not by the goroutine that reads for all, and straight into
// routes: a reply of 128 regions costs a dozen allocations instead of 1,400.
// Field numbers are those of coordinator.proto and types.proto.
type keysReply struct {
	raw        []byte   // never written again; what follows points into it
	regions    [][]byte // Region messages
	positions  []uint32 // of the regions of the keys, plus one
	owners     [][]byte // OwnerAddress messages
	leaders    []uint32 // of the regions' leaders in owners, plus one; empty: unknown
	disclosure *coordinatorv1.Disclosure
	refusal    *rootv1.ErrorDetail
	id         uint64
	partial    bool

	once    sync.Once
	members directory // by directory
}

// regionRoom is how many bytes of a reply there are for each region, at least, in most.
const regionRoom = 64

// index finds the parts of the reply.
func (r *keysReply) index() error {
	r.regions = make([][]byte, 0, len(r.raw)/regionRoom+1)
	return fields(r.raw, func(n protowire.Number, v uint64, b []byte) (err error) {
		switch n {
		case 1:
			r.regions = append(r.regions, b)
		case 2:
			r.positions, err = appendPositions(r.positions, v, b)
		case 3:
			r.owners = append(r.owners, b)
		case 4:
			r.disclosure = &coordinatorv1.Disclosure{}
			err = proto.Unmarshal(b, r.disclosure)
		case 5:
			r.refusal = &rootv1.ErrorDetail{}
			err = proto.Unmarshal(b, r.refusal)
		case 6:
			r.id = v
		case 7:
			r.partial = v != 0
		case 8:
			r.leaders, err = appendPositions(r.leaders, v, b)
		}
		return err
	})
}

// appendPositions reads a repeated number, packed or not.
func appendPositions(to []uint32, v uint64, b []byte) ([]uint32, error) {
	if b == nil {
		return append(to, uint32(v)), nil
	}
	if to == nil {
		to = make([]uint32, 0, len(b))
	}
	for len(b) > 0 {
		v, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		to, b = append(to, uint32(v)), b[size:]
	}
	return to, nil
}

// check says what is wrong with positions that are behind the end.
func (r *keysReply) check() error {
	for _, n := range r.positions {
		if int(n) > len(r.regions) {
			return fmt.Errorf("%w: region %d of %d", errMisfit, n, len(r.regions))
		}
	}
	for _, n := range r.leaders {
		if int(n) > len(r.owners) {
			return fmt.Errorf("%w: owner %d of %d", errMisfit, n, len(r.owners))
		}
	}
	return nil
}

// GetDisclosure lets Client.accept judge the reply.
func (r *keysReply) GetDisclosure() *coordinatorv1.Disclosure { return r.disclosure }

// appendRoutes decodes the reply: a route for each of its keys. They share
// memory with each other.
func (r *keysReply) appendRoutes(to []Route) ([]Route, error) {
	regions := make([]rooted.Region, len(r.regions))
	owners := make([]rooted.Owner, 0, len(r.regions)) // one each; grows where there are more
	members := make(directory, len(r.owners))
	for i, b := range r.regions {
		if err := decodeRegion(&regions[i], b, &owners); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnfit, err)
		}
	}
	for _, b := range r.owners {
		if err := decodeMember(members, b); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnfit, err)
		}
	}
	at := rooted.TokenFromProto(r.disclosure.GetServedRootToken())
	for _, n := range r.positions {
		route := Route{At: at, from: r.disclosure}
		if n > 0 {
			route.Region, route.members, route.leader = &regions[n-1], members, r.leaderOf(n)
		}
		to = append(to, route)
	}
	return to, nil
}

// route decodes the route of one key, of which the reply may have many: it shares
// no memory with the others but the addresses of the owners, if they are few.
func (r *keysReply) route(key int) (Route, error) {
	route := Route{At: rooted.TokenFromProto(r.disclosure.GetServedRootToken()), from: r.disclosure}
	n := r.positions[key]
	if n == 0 {
		return route, nil
	}
	r.once.Do(r.decodeMembers)
	region := &rooted.Region{}
	owners := make([]rooted.Owner, 0, 3)
	if err := decodeRegion(region, bytes.Clone(r.regions[n-1]), &owners); err != nil {
		return Route{}, fmt.Errorf("%w: %w", errUnfit, err)
	}
	route.Region, route.members, route.leader = region, r.members, rooted.MemberID(strings.Clone(string(r.leaderOf(n))))
	if len(r.members) > sharedMembers {
		route.members = make(directory, len(owners))
		for _, o := range owners {
			if m, ok := r.members[o.Member]; ok {
				route.members[o.Member] = m
			}
		}
	}
	return route, nil
}

// sharedMembers is how many addresses a route of one key may keep in memory.
const sharedMembers = 8

func (r *keysReply) decodeMembers() {
	r.members = make(directory, len(r.owners))
	for _, b := range r.owners {
		_ = decodeMember(r.members, bytes.Clone(b)) // what cannot be read is not known
	}
}

// leaderOf is the leader of the region at a position, plus one.
func (r *keysReply) leaderOf(n uint32) rooted.MemberID {
	if int(n) > len(r.leaders) || r.leaders[n-1] == 0 {
		return ""
	}
	m, _ := ownerOf(r.owners[r.leaders[n-1]-1])
	return m.ID
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
		case 9:
			r.Former = &rooted.FormerOwner{}
			if err := decodeFormer(r.Former, part); err != nil {
				return err
			}
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

func decodeFormer(f *rooted.FormerOwner, b []byte) error {
	for len(b) > 0 {
		n, v, part, size := field(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		switch n {
		case 1:
			f.Member = rooted.MemberID(text(part))
		case 2:
			f.Incarnation = v
		case 3:
			f.Revision = v
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
	m, err := ownerOf(b)
	d[m.ID] = m
	return err
}

func ownerOf(b []byte) (m Member, err error) {
	err = fields(b, func(n protowire.Number, v uint64, b []byte) error {
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
	return m, err
}

// text is b as a string, without a copy: b is part of a reply that nobody writes again.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// fields calls f for each field of a message: with the value of a number, or
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
// when it is malformed. What is neither of these has the number 0.
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
	case protowire.Fixed64Type:
		v, rest = protowire.ConsumeFixed64(b[size:])
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
