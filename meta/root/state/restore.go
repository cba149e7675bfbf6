package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Restore makes the State at a position from its records, in the order of
// Records. next returns io.EOF behind the last one. Records that no State has
// are an error; the State has the Hash of the one that Records came from. It
// keeps the messages.
func Restore(at Token, next func() (*rootv1.Record, error)) (*State, error) {
	b := builder{turn: turn{State: New(), out: new(Applied)}}
	for n := 0; ; n++ {
		r, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.add(r)
		}
		if err != nil {
			return nil, fmt.Errorf("restore record %d: %w", n, err)
		}
	}
	if err := b.finish(at); err != nil {
		return nil, fmt.Errorf("restore %s: %w", at, err)
	}
	return b.State, nil
}

// builder fills an empty State.
type builder struct {
	turn
	last tag
	// prev is the last region; its end may still be shared with the next.
	prev *Region
	ids  []*Region
}

type tag = uint64

// add takes a record; kinds come in the order of their tags.
func (b *builder) add(r *rootv1.Record) error {
	if err := knownRecord(r); err != nil {
		return err
	}
	kind := recordTag(r)
	if kind == 0 || kind < b.last || kind == b.last && kind <= tagTenure {
		return fmt.Errorf("a record of kind %T is not in place here", r.GetKind())
	}
	b.last = kind
	switch k := r.GetKind().(type) {
	case *rootv1.Record_Cluster:
		b.cluster = k.Cluster
	case *rootv1.Record_Allocators:
		b.alloc = allocatorsFromProto(k.Allocators)
	case *rootv1.Record_Counters:
		b.counters = counters{keyspace: k.Counters.GetKeyspaceId(), memberIncarnation: k.Counters.GetMemberIncarnation()}
	case *rootv1.Record_Tenure:
		b.tenure = k.Tenure
	case *rootv1.Record_Handover:
		return b.handover(k.Handover)
	case *rootv1.Record_Coordinator:
		return b.coordinator(k.Coordinator)
	case *rootv1.Record_Member:
		return b.member(k.Member)
	case *rootv1.Record_Keyspace:
		return b.keyspace(k.Keyspace)
	case *rootv1.Record_Region:
		return b.region(RegionFromProto(k.Region))
	case *rootv1.Record_Transition:
		return b.transition(k.Transition)
	case *rootv1.Record_PinKey:
		return b.pinKey(k.PinKey)
	}
	return nil
}

func knownRecord(r *rootv1.Record) error {
	if k, ok := r.GetKind().(*rootv1.Record_Region); ok {
		return cmp.Or(knownFields(r), knownRegion(k.Region))
	}
	return knownMessage(r.ProtoReflect())
}

func recordTag(r *rootv1.Record) tag {
	m := r.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	if fd == nil {
		return 0
	}
	return tag(fd.Number())
}

func (b *builder) handover(h *rootv1.Handover) error {
	if n := len(b.handovers); n > 0 && b.handovers[n-1].GetEra() >= h.GetEra() || h.GetEra() > uint64(b.era()) {
		return fmt.Errorf("handover of era %d is out of order", h.GetEra())
	}
	b.pushHandover(h)
	return nil
}

func (b *builder) coordinator(c *rootv1.Coordinator) error {
	if c.GetId() == "" || b.Coordinator(CoordinatorID(c.GetId())) != nil {
		return fmt.Errorf("coordinator %q is there twice, or has no id", c.GetId())
	}
	b.addCoordinator(c)
	return nil
}

func (b *builder) member(m *rootv1.Member) error {
	if m.GetId() == "" || b.Member(MemberID(m.GetId())) != nil {
		return fmt.Errorf("member %q is there twice, or has no id", m.GetId())
	}
	if m.GetIncarnation() > b.counters.memberIncarnation {
		return fmt.Errorf("member %q has incarnation %d, the last one given is %d", m.GetId(), m.GetIncarnation(), b.counters.memberIncarnation)
	}
	b.setMember(nil, m)
	return nil
}

func (b *builder) keyspace(k *rootv1.Keyspace) error {
	_, there := b.keyspaces.Get(KeyspaceID(k.GetId()))
	_, named := b.keyspaceNames.Get(k.GetName())
	if there || named || k.GetId() == 0 || k.GetId() > b.counters.keyspace {
		return fmt.Errorf("keyspace %d %q is there twice, or was never given", k.GetId(), k.GetName())
	}
	if d := checkSettings(k.GetSettings()); d != nil {
		return fmt.Errorf("keyspace %d: %s", k.GetId(), d.GetMessage())
	}
	b.setKeyspace(&keyspace{record: k})
	return nil
}

// region appends a region: they come in the order of their keys.
func (b *builder) region(r *Region) error {
	if _, ok := b.keyspaces.Get(r.Keyspace); !ok || r.ID == 0 {
		return fmt.Errorf("region %d belongs to keyspace %d, which is not there", r.ID, r.Keyspace)
	}
	if r.End != "" && r.End <= r.Start {
		return fmt.Errorf("region %d has the range [%q, %q)", r.ID, r.Start, r.End)
	}
	if err := b.behind(r); err != nil {
		return err
	}
	for i, o := range r.Owners {
		m := b.Member(o.Member)
		if m == nil || r.ownerAt(o.Member) != i {
			return fmt.Errorf("region %d: owner %q is no member, or named twice", r.ID, o.Member)
		}
		r.Owners[i].Member = MemberID(m.GetId())
	}
	if strings.HasPrefix(r.End, r.Start) { // as in points: keep one
		r.Start = r.End[:len(r.Start)]
	}
	if p := b.prev; p != nil && p.Keyspace == r.Keyspace && p.End == r.Start {
		p.End = r.Start
	}
	r.sum = hashRegion(r)
	b.sum += r.sum
	b.regions.Set(r)
	b.ids = append(b.ids, r)
	b.count(nil, r)
	b.prev = r
	return nil
}

// behind refuses a region that does not lie behind the last one.
func (b *builder) behind(r *Region) error {
	p := b.prev
	if p == nil || p.Keyspace < r.Keyspace || p.Keyspace == r.Keyspace && p.End != "" && p.End <= r.Start {
		return nil
	}
	return fmt.Errorf("region %d is out of order, or overlaps region %d", r.ID, p.ID)
}

// finishRegions indexes the regions by id, in order, so that nodes are full.
func (b *builder) finishRegions() error {
	slices.SortFunc(b.ids, func(x, y *Region) int { return cmp.Compare(x.ID, y.ID) })
	for i, r := range b.ids {
		if i > 0 && b.ids[i-1].ID == r.ID {
			return fmt.Errorf("region %d is there twice", r.ID)
		}
		b.regionIDs.Set(r)
	}
	b.ids = nil
	return nil
}

func (b *builder) transition(p *rootv1.Transition) error {
	if p.GetId() == "" || b.Transition(p.GetId()) != nil {
		return fmt.Errorf("transition %q is there twice, or has no id", p.GetId())
	}
	if p.GetStatus() == pendingStatus {
		for _, id := range parts(p) {
			if other := b.PendingTransition(id); other != nil {
				return fmt.Errorf("transitions %q and %q are pending for region %d", p.GetId(), other.GetId(), id)
			}
		}
	}
	b.setTransition(nil, p)
	return nil
}

func (b *builder) pinKey(k *rootv1.PinKey) error {
	if n := len(b.pinKeys); n > 0 && b.pinKeys[n-1].GetId() >= k.GetId() {
		return fmt.Errorf("pin key %d is out of order", k.GetId())
	}
	b.pushPinKey(k)
	return nil
}

// finish completes the State and judges what concerns several records.
func (b *builder) finish(at Token) error {
	if err := b.finishRegions(); err != nil {
		return err
	}
	if b.alloc.id.value > MaxID || b.alloc.tso.value > math.MaxInt64 {
		return fmt.Errorf("the fences %d and %d are out of bounds", b.alloc.id.value, b.alloc.tso.value)
	}
	if b.tenure != nil && (len(b.handovers) == 0 || b.handovers[len(b.handovers)-1].GetEra() != b.tenure.GetEra()) {
		return fmt.Errorf("the handover of era %d is missing", b.tenure.GetEra())
	}
	if i := b.cluster.GetIncarnation(); i != at.Incarnation {
		return fmt.Errorf("the records are of incarnation %d", i)
	}
	var err error
	b.Transitions(func(p *rootv1.Transition) bool {
		if p.GetStatus() == pendingStatus && (b.Region(RegionID(p.GetRegionId())) == nil ||
			p.GetKind() == kindMerge && b.Region(RegionID(p.GetRightRegionId())) == nil) {
			err = fmt.Errorf("transition %q is pending for a region that is not there", p.GetId())
		}
		return err == nil
	})
	b.token = at
	return err
}
