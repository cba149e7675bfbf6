package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// Part is what a run of records makes of a State: decoded, each record judged
// alone. Nothing of it is shared with what it was decoded from.
type Part struct {
	// In the order of Records: regions stand together.
	before  []*rootv1.Record
	regions []*Region
	after   []*rootv1.Record
	// sum of the hashes of regions.
	sum uint64
}

var errPacked = errors.New("records are packed in another way")

// minRegionBytes is about the size of a small region's record, for a first guess.
const minRegionBytes = 32

// DecodePart reads packed records: each with its length in front, a varint. It
// is most of the work of a restore, and may overlap with other calls of it.
func DecodePart(packed []byte) (*Part, error) {
	p := &Part{}
	var d regionDecoder
	for n := 0; len(packed) > 0; n++ {
		record, rest, ok := cutBytes(packed)
		if !ok {
			return nil, errPacked
		}
		packed = rest
		if r := d.decode(record); r != nil && len(p.after) == 0 {
			if p.regions == nil {
				p.regions = make([]*Region, 0, len(packed)/minRegionBytes+1)
			}
			p.addRegion(r)
			continue
		}
		m := &rootv1.Record{}
		if err := proto.Unmarshal(record, m); err != nil {
			return nil, fmt.Errorf("decode record %d of a part: %w", n, err)
		}
		if err := p.add(m); err != nil {
			return nil, fmt.Errorf("record %d of a part: %w", n, err)
		}
	}
	return p, nil
}

// CheckPart says what DecodePart would refuse.
func CheckPart(packed []byte) error {
	_, err := DecodePart(packed)
	return err
}

// PartOf is DecodePart for records that were decoded already; it keeps them.
func PartOf(records []*rootv1.Record) (*Part, error) {
	p := &Part{}
	for n, m := range records {
		if err := p.add(m); err != nil {
			return nil, fmt.Errorf("record %d of a part: %w", n, err)
		}
	}
	return p, nil
}

// add takes a record as a message.
func (p *Part) add(m *rootv1.Record) error {
	if err := knownRecord(m); err != nil {
		return err
	}
	k, ok := m.GetKind().(*rootv1.Record_Region)
	switch {
	case ok && len(p.after) > 0:
		return outOfPlace(m)
	case ok:
		p.addRegion(RegionFromProto(k.Region))
	case len(p.regions) > 0:
		p.after = append(p.after, m)
	default:
		p.before = append(p.before, m)
	}
	return nil
}

// addRegion completes a region. Neighbours share the key between them.
func (p *Part) addRegion(r *Region) {
	if n := len(p.regions); n > 0 {
		r.follow(p.regions[n-1])
	}
	r.sum = hashRegion(r)
	p.sum += r.sum
	p.regions = append(p.regions, r)
}

// follow makes a region and the one before it share what keys they have in common;
// its own, as in points, too.
func (r *Region) follow(before *Region) {
	together := before.Keyspace == r.Keyspace && before.End == r.Start
	if together {
		r.Start = before.End
	}
	if strings.HasPrefix(r.End, r.Start) {
		r.Start = r.End[:len(r.Start)]
	}
	if together {
		before.End = r.Start
	}
}

// regionDecoder decodes what nearly all of a State is made of without reflection:
// regions as appendRegionRecord writes them. What it does not know it leaves to
// package proto.
type regionDecoder struct {
	// member is the id of the last owner, end the last region's: the next often
	// has the same, or begins there.
	member MemberID
	end    string
	owners [8]Owner
}

// Keys of the fields of a region, an epoch and an owner.
const (
	keyRegionID       = 1<<3 | wireVarint
	keyRegionKeyspace = 2<<3 | wireVarint
	keyRegionStart    = 3<<3 | wireBytes
	keyRegionEnd      = 4<<3 | wireBytes
	keyRegionEpoch    = 5<<3 | wireBytes
	keyRegionOwner    = 6<<3 | wireBytes
	keyRegionFrontier = 7<<3 | wireBytes
	keyRegionRevision = 8<<3 | wireVarint
	keyRegionFormer   = 9<<3 | wireBytes

	keyEpochVersion     = 1<<3 | wireVarint
	keyEpochConfVersion = 2<<3 | wireVarint

	keyOwnerMember      = 1<<3 | wireBytes
	keyOwnerPeer        = 2<<3 | wireVarint
	keyOwnerIncarnation = 3<<3 | wireVarint
	keyOwnerRole        = 4<<3 | wireVarint

	keyFormerMember      = 1<<3 | wireBytes
	keyFormerIncarnation = 2<<3 | wireVarint
	keyFormerRevision    = 3<<3 | wireVarint
)

// decode returns the region of a record; nil: it is another one, or one that was
// written in another way.
func (d *regionDecoder) decode(record []byte) *Region {
	outer := wire{b: record}
	body := outer.bytes(tagRegion<<3 | wireBytes)
	if len(body) == 0 || !outer.whole() {
		return nil
	}
	w, few := wire{b: body}, Region{}
	few.ID = RegionID(w.number(keyRegionID))
	keyspace := w.number(keyRegionKeyspace)
	start, end := w.bytes(keyRegionStart), w.bytes(keyRegionEnd)
	epoch := wire{b: w.bytes(keyRegionEpoch)}
	few.Epoch.Version, few.Epoch.ConfVersion = epoch.number(keyEpochVersion), epoch.number(keyEpochConfVersion)
	n := 0
	for ; w.at(keyRegionOwner); n++ {
		if n == len(d.owners) || !d.owner(&d.owners[n], w.bytes(keyRegionOwner)) {
			return nil
		}
	}
	frontier := w.bytes(keyRegionFrontier)
	few.Revision = w.number(keyRegionRevision)
	if w.at(keyRegionFormer) {
		if few.Former = formerOwner(w.bytes(keyRegionFormer)); few.Former == nil {
			return nil
		}
	}
	if !w.whole() || !epoch.whole() || keyspace > math.MaxUint32 {
		return nil
	}
	r := newRegion(n)
	few.Owners = append(r.Owners, d.owners[:n]...)
	*r = few
	r.Keyspace, r.Frontier = KeyspaceID(keyspace), string(frontier)
	if string(start) == d.end {
		r.Start = d.end
	} else if !bytes.HasPrefix(end, start) { // else they share it: see follow
		r.Start = string(start)
	}
	r.End = string(end)
	if r.Start == "" && len(start) > 0 {
		r.Start = r.End[:len(start)]
	}
	d.end = r.End
	return r
}

func formerOwner(b []byte) *rooted.FormerOwner {
	w := wire{b: b}
	f := &rooted.FormerOwner{Member: MemberID(w.bytes(keyFormerMember)), Incarnation: w.number(keyFormerIncarnation), Revision: w.number(keyFormerRevision)}
	if !w.whole() || !utf8.ValidString(string(f.Member)) {
		return nil
	}
	return f
}

func (d *regionDecoder) owner(o *Owner, b []byte) bool {
	w := wire{b: b}
	if member := w.bytes(keyOwnerMember); string(member) != string(d.member) {
		if !utf8.Valid(member) {
			return false
		}
		d.member = MemberID(member)
	}
	*o = Owner{Member: d.member, Peer: w.number(keyOwnerPeer), Incarnation: w.number(keyOwnerIncarnation)}
	role := w.number(keyOwnerRole)
	o.Role = rootv1.OwnerRole(role)
	_, known := rootv1.OwnerRole_name[int32(o.Role)]
	return known && role <= math.MaxInt32 && w.whole()
}

// wire reads the fields of a message that stand in the order of their numbers,
// those that do not repeat once. What does not fit stays, so that it is not whole.
type wire struct{ b []byte }

func (w *wire) whole() bool { return len(w.b) == 0 }

// at says whether the next field has that key: all that are read here have one byte.
func (w *wire) at(key byte) bool { return len(w.b) > 0 && w.b[0] == key }

// number is the field with that key; 0: it is not there.
func (w *wire) number(key byte) uint64 {
	if !w.at(key) {
		return 0
	}
	v, n := binary.Uvarint(w.b[1:])
	if n <= 0 {
		return 0
	}
	w.b = w.b[1+n:]
	return v
}

// bytes is the field with that key; nil: it is not there.
func (w *wire) bytes(key byte) []byte {
	if !w.at(key) {
		return nil
	}
	data, rest, ok := cutBytes(w.b[1:])
	if !ok {
		return nil
	}
	w.b = rest
	return data
}

// cutBytes cuts what has its length in front off b.
func cutBytes(b []byte) (data, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}
