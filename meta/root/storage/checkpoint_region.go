package storage

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// mostOwners is how many owners a region has at most that is decoded here.
const mostOwners = 3

// regionRecord is a record of a region, in one piece of memory.
type regionRecord struct {
	record rootv1.Record
	kind   rootv1.Record_Region
	region rootv1.Region
	epoch  rootv1.RegionEpoch
	owner  [mostOwners]rootv1.Owner
	owners [mostOwners]*rootv1.Owner
}

// regionSlab is how many of them are made at a time.
const regionSlab = 256

// regionDecoder decodes the records that nearly all of a checkpoint is made of,
// without reflection: regions as they are written. What it does not know it leaves
// to package proto.
type regionDecoder struct {
	slab []regionRecord
	// member is the id of the last owner: the next is often the same.
	member string
}

// decode returns a record that shares its keys with b; nil: it is another one.
func (d *regionDecoder) decode(b []byte) *rootv1.Record {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num != recordRegion || typ != protowire.BytesType {
		return nil
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return nil
	}
	if len(d.slab) == 0 {
		d.slab = make([]regionRecord, regionSlab)
	}
	r := &d.slab[0]
	d.slab = d.slab[1:]
	if !d.region(r, body) {
		return nil
	}
	r.kind.Region = &r.region
	r.record.Kind = &r.kind
	return &r.record
}

// The numbers of the fields, as in types.proto.
const (
	recordRegion = 9

	regionID, regionKeyspace, regionStart, regionEnd         = 1, 2, 3, 4
	regionEpoch, regionOwner, regionFrontier, regionRevision = 5, 6, 7, 8
	epochVersion, epochConfVersion                           = 1, 2
	ownerMember, ownerPeer, ownerIncarnation, ownerRole      = 1, 2, 3, 4
)

func (d *regionDecoder) region(r *regionRecord, b []byte) bool {
	p := &r.region
	return fields(b, regionOwner, func(num protowire.Number, v uint64, data []byte) bool {
		switch num {
		case regionStart:
			p.StartKey = data
		case regionEnd:
			p.EndKey = data
		case regionFrontier:
			p.Frontier = data
		case regionEpoch:
			p.Epoch = &r.epoch
			return data != nil && epoch(&r.epoch, data)
		case regionOwner:
			n := len(p.Owners)
			if data == nil || n == mostOwners {
				return false
			}
			r.owners[n] = &r.owner[n]
			p.Owners = r.owners[: n+1 : n+1]
			return d.owner(&r.owner[n], data)
		case regionID:
			p.Id = v
			return data == nil
		case regionKeyspace:
			p.KeyspaceId = uint32(v)
			return data == nil && v <= math.MaxUint32
		case regionRevision:
			p.Revision = v
			return data == nil
		default:
			return false
		}
		return data != nil
	})
}

func epoch(e *rootv1.RegionEpoch, b []byte) bool {
	return fields(b, 0, func(num protowire.Number, v uint64, data []byte) bool {
		switch num {
		case epochVersion:
			e.Version = v
		case epochConfVersion:
			e.ConfVersion = v
		default:
			return false
		}
		return data == nil
	})
}

func (d *regionDecoder) owner(o *rootv1.Owner, b []byte) bool {
	return fields(b, 0, func(num protowire.Number, v uint64, data []byte) bool {
		switch num {
		case ownerMember:
			if string(data) != d.member {
				d.member = string(data)
			}
			o.MemberId = d.member
			return data != nil && utf8.ValidString(d.member)
		case ownerPeer:
			o.PeerId = v
		case ownerIncarnation:
			o.Incarnation = v
		case ownerRole:
			o.Role = rootv1.OwnerRole(v)
			return data == nil && v <= math.MaxInt32
		default:
			return false
		}
		return data == nil
	})
}

// fields hands out the fields of a message, data for bytes and v for numbers. It
// reports false when one does not fit, stands out of order, empty, or twice and is
// not the one that repeats.
func fields(b []byte, repeats protowire.Number, field func(num protowire.Number, v uint64, data []byte) bool) bool {
	for last := protowire.Number(0); len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num < last || num == last && num != repeats {
			return false
		}
		last, b = num, b[n:]
		var v uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			if data, n = protowire.ConsumeBytes(b); n > 0 && len(data) == 0 {
				return false
			}
		default:
			return false
		}
		if n < 0 || !field(num, v, data) {
			return false
		}
		b = b[n:]
	}
	return true
}
