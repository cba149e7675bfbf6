package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Restore makes the State at a position from its records, in the order of
// Records. next returns io.EOF behind the last one. Records that no State has
// are an error; the State has the Hash of the one that Records came from. It
// keeps the messages.
func Restore(at Token, next func() (*rootv1.Record, error)) (*State, error) {
	b := builder{turn: turn{State: New(), out: new(Applied)}, owners: map[MemberID]*owner{}}
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

// RestoreEach is Restore from a function that calls fn for each record and
// returns its error. records is told to stop, by an error of fn, when a record
// is refused.
func RestoreEach(at Token, records func(fn func(*rootv1.Record) error) error) (*State, error) {
	var failed error
	next, stop := iter.Pull(iter.Seq[*rootv1.Record](func(yield func(*rootv1.Record) bool) {
		failed = records(func(r *rootv1.Record) error {
			if !yield(r) {
				return errRefused
			}
			return nil
		})
	}))
	defer stop()
	return Restore(at, func() (*rootv1.Record, error) {
		if r, ok := next(); ok {
			return r, nil
		}
		if failed != nil {
			return nil, failed
		}
		return nil, io.EOF
	})
}

var errRefused = errors.New("a record was refused")

// builder fills an empty State.
type builder struct {
	turn
	last tag
	// prev is the last region, in the keyspace in; its end may still be shared
	// with the next.
	prev *Region
	in   *keyspace
	// all are the regions so far, by key.
	all []*Region
	// owners are the members that own any of them, with what they own.
	owners map[MemberID]*owner
	// remembering is the number of the next remembered command.
	remembering uint64
	lastRemoved RegionID
}

// owner is a member, and what it owns so far.
type owner struct {
	id      MemberID
	regions []RegionID
	counts  []keyspaceCount
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
		b.counters = countersFromProto(k.Counters)
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
		return b.region(k.Region)
	case *rootv1.Record_Transition:
		return b.transition(k.Transition)
	case *rootv1.Record_PinKey:
		return b.pinKey(k.PinKey)
	case *rootv1.Record_RememberedCommands:
		return b.rememberedCommands(k.RememberedCommands)
	case *rootv1.Record_RemovedRegion:
		return b.removedRegion(k.RemovedRegion)
	}
	return nil
}

func knownRecord(r *rootv1.Record) error {
	if k, ok := r.GetKind().(*rootv1.Record_Region); ok {
		return cmp.Or(knownFields(r), knownRegion(k.Region))
	}
	if level := max(recordLevel(r), r.GetCluster().GetFeatureLevel()); level > supportedLevel {
		return fmt.Errorf("%T is of feature level %d, this process understands feature level %d: take a newer version", r.GetKind(), level, supportedLevel)
	}
	if err := knownMessage(r.ProtoReflect()); err != nil {
		return fmt.Errorf("%w: this process understands feature level %d, take a newer version", err, supportedLevel)
	}
	return nil
}

// recordTag is the number of the record's field in rootv1.Record; 0: none.
func recordTag(r *rootv1.Record) tag {
	if _, ok := r.GetKind().(*rootv1.Record_Region); ok {
		return tagRegion
	}
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
func (b *builder) region(p *rootv1.Region) error {
	r := regionFromProto(p, b.prev)
	if b.prev == nil || b.prev.Keyspace != r.Keyspace {
		b.in, _ = b.keyspaces.Get(r.Keyspace)
	}
	if b.in == nil || r.ID == 0 {
		return fmt.Errorf("region %d belongs to keyspace %d, which is not there", r.ID, r.Keyspace)
	}
	if uint64(r.ID) > b.counters.regionID {
		return fmt.Errorf("region %d is above the highest id that a region had, %d", r.ID, b.counters.regionID)
	}
	if r.End != "" && r.End <= r.Start {
		return fmt.Errorf("region %d has the range [%q, %q)", r.ID, r.Start, r.End)
	}
	if err := b.behind(r); err != nil {
		return err
	}
	if err := b.own(r); err != nil {
		return err
	}
	if strings.HasPrefix(r.End, r.Start) { // as in points: keep one
		r.Start = r.End[:len(r.Start)]
	}
	if p := b.prev; p != nil && p.Keyspace == r.Keyspace && p.End == r.Start {
		p.End = r.Start
	}
	r.sum = hashRegion(r)
	b.sum += r.sum
	b.all = append(b.all, r)
	b.prev = r
	return nil
}

// own checks the owners of a region and counts it.
func (b *builder) own(r *Region) error {
	for i, o := range r.Owners {
		m := b.owner(o.Member)
		if m == nil || r.ownerAt(o.Member) != i {
			return fmt.Errorf("region %d: owner %q is no member, or named twice", r.ID, o.Member)
		}
		r.Owners[i].Member = m.id
		m.add(r)
	}
	regions, owned := tally(r)
	b.in.regions += regions
	b.in.owned += owned
	return nil
}

// owner finds a member that owns a region; nil: there is none.
func (b *builder) owner(id MemberID) *owner {
	if o := b.owners[id]; o != nil {
		return o
	}
	m := b.Member(id)
	if m == nil {
		return nil
	}
	o := &owner{id: MemberID(m.GetId())}
	b.owners[o.id] = o
	return o
}

// add notes one region more, of the last keyspace or of one behind it.
func (o *owner) add(r *Region) {
	if n := len(o.counts); n == 0 || o.counts[n-1].keyspace != r.Keyspace {
		o.counts = append(o.counts, keyspaceCount{keyspace: r.Keyspace})
	}
	o.counts[len(o.counts)-1].regions++
	o.regions = append(o.regions, r.ID)
}

// behind refuses a region that does not lie behind the last one.
func (b *builder) behind(r *Region) error {
	p := b.prev
	if p == nil || p.Keyspace < r.Keyspace || p.Keyspace == r.Keyspace && p.End != "" && p.End <= r.Start {
		return nil
	}
	return fmt.Errorf("region %d is out of order, or overlaps region %d", r.ID, p.ID)
}

// finishRegions indexes the regions: by key, by id, and by who owns them.
func (b *builder) finishRegions() error {
	b.regions = cow.LoadIndex((*Region).startKey, b.all)
	slices.SortFunc(b.all, func(x, y *Region) int { return cmp.Compare(x.ID, y.ID) })
	for i, r := range b.all {
		if i > 0 && b.all[i-1].ID == r.ID {
			return fmt.Errorf("region %d is there twice", r.ID)
		}
	}
	b.regionIDs = cow.LoadIndex((*Region).idKey, b.all)
	b.all = nil
	for _, o := range b.owners {
		h := newHolding(nil)
		h.load(o.regions, o.counts)
		b.owned.Set(o.id, h)
	}
	b.owners = nil
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
	if d := checkPinKey(k.GetSecret(), k.GetDigest()); d != nil || len(k.GetDigest()) == 0 {
		return fmt.Errorf("pin key %d has no digest, or another: %s", k.GetId(), d.GetMessage())
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
	if b.remembering != b.counters.commands || b.commands.last.newest() > at.Index {
		return fmt.Errorf("%d commands were remembered by index %d, the records end at %d of index %d",
			b.counters.commands, at.Index, b.remembering, b.commands.last.newest())
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
