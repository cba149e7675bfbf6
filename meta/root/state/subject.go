package state

import (
	"encoding/binary"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// subject is a digest of what a command asks for, as its sender named it: of its
// condition and of every field of its events, so that what differs in any of them
// is another command. It leaves out what is filled in anew whenever the command is
// sent on: see named. It is part of the format.
func subject(c *rootv1.Command) uint32 {
	h := numbers(uint64(len(c.GetEvents())), c.GetRequireEra())
	for _, x := range c.GetRequireKeyspaces() {
		h = numbers(h, uint64(x.GetKeyspaceId()), x.GetVersion())
	}
	for _, e := range c.GetEvents() {
		switch k := e.GetKind().(type) {
		case *rootv1.Event_RegionPublished:
			h = aboutPublished(h, k.RegionPublished)
		case *rootv1.Event_RegionsAssigned:
			h = aboutAssignments(h, k.RegionsAssigned.GetAssignments())
		default:
			var room [512]byte
			h = text(h, appendEvent(room[:0], named(e)))
		}
	}
	return uint32(h^h>>32) & digestMask
}

// named is an event without what others than its sender fill in: a coordinator
// the settings of a new keyspace from a preset, the layout of a known one, a
// secret and which key of tokens it follows, the root leader its word on an expired era.
func named(e *rootv1.Event) *rootv1.Event {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_KeyspaceCreated:
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: k.KeyspaceCreated.GetName()}}}
	case *rootv1.Event_KeyspaceUpdated:
		bare := proto.CloneOf(k.KeyspaceUpdated)
		if bare.Settings != nil {
			bare.Settings.Layout = nil
		}
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: bare}}
	case *rootv1.Event_PinKeyRotated:
		return &rootv1.Event{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{ExpectedId: k.PinKeyRotated.GetExpectedId()}}}
	case *rootv1.Event_TokenKeyRotated:
		return &rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: &rootv1.TokenKeyRotated{}}}
	case *rootv1.Event_TenureClaimed:
		bare := proto.CloneOf(k.TenureClaimed)
		bare.PredecessorExpired = false
		return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: bare}}
	default:
		return e
	}
}

// Numbers in rootv1.Event of the kinds of the hot path, which are added without
// their descriptors. No canonical encoding is as long.
const (
	aboutKindPublished = 1<<32 | 14
	aboutKindAssigned  = 1<<32 | 16
)

func aboutPublished(h uint64, p *rootv1.RegionPublished) uint64 {
	r := p.GetRegion()
	h = aboutEpoch(aboutEpoch(numbers(h, aboutKindPublished, r.GetId(), uint64(r.GetKeyspaceId()), r.GetRevision()), r.GetEpoch()), p.GetExpectedEpoch())
	h = aboutOwners(text(text(text(h, r.GetStartKey()), r.GetEndKey()), r.GetFrontier()), r.GetOwners())
	if f := r.GetFormer(); f != nil { // without it, the digest is that of builds of lower levels
		h = text(numbers(h, f.GetIncarnation(), f.GetRevision()), f.GetMemberId())
	}
	return h
}

func aboutAssignments(h uint64, all []*rootv1.Assignment) uint64 {
	h = numbers(h, aboutKindAssigned, uint64(len(all)))
	for _, a := range all {
		h = text(aboutEpoch(numbers(h, a.GetRegionId(), uint64(a.GetReason())), a.GetExpectedEpoch()), a.GetFrontier())
		set := uint64(0)
		if a.GetSetFrontier() {
			set = 1
		}
		if a.GetAcknowledged() {
			set |= 2
		}
		if a.GetAtOnce() {
			set |= 4
		}
		h = aboutOwners(numbers(h, set), a.GetOwners())
	}
	return h
}

func aboutOwners(h uint64, all []*rootv1.Owner) uint64 {
	h = numbers(h, uint64(len(all)))
	for _, o := range all {
		h = text(numbers(h, o.GetPeerId(), o.GetIncarnation(), uint64(o.GetRole())), o.GetMemberId())
	}
	return h
}

// aboutEpoch tells none from {0, 0}, which may mean something else.
func aboutEpoch(h uint64, e *rootv1.RegionEpoch) uint64 {
	if e == nil {
		return numbers(h, 0)
	}
	return numbers(h, 1, e.GetVersion(), e.GetConfVersion())
}

// numbers adds numbers to a digest.
func numbers(h uint64, all ...uint64) uint64 {
	for _, n := range all {
		h = mix(h^n^0xa0761d6478bd642f, 0xe7037ed1a0b428db)
	}
	return h
}

// text adds a string and its length to a digest, eight bytes at a time.
func text[T string | []byte](h uint64, s T) uint64 {
	h = numbers(h, uint64(len(s)))
	for len(s) >= 8 {
		h, s = numbers(h, binary.LittleEndian.Uint64([]byte(s[:8]))), s[8:]
	}
	if len(s) > 0 {
		var last [8]byte
		copy(last[:], s)
		h = numbers(h, binary.LittleEndian.Uint64(last[:]))
	}
	return h
}
