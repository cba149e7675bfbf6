package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Restore makes the State at a position from its records, in the order of
// Records. next returns io.EOF behind the last one. Records that no State has
// are an error; the State has the Hash of the one that Records came from. It
// keeps the messages.
func Restore(at Token, next func() (*rootv1.Record, error)) (*State, error) {
	r := NewRestoring()
	for n := 0; ; n++ {
		m, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		p := &Part{}
		if err == nil {
			err = p.add(m)
		}
		if err == nil {
			err = r.Add(p)
		}
		if err != nil {
			return nil, fmt.Errorf("restore record %d: %w", n, err)
		}
	}
	return r.finish(at)
}

// Restoring is a State in the making.
type Restoring struct {
	builder builder
	records uint64
}

// NewRestoring begins with nothing.
func NewRestoring() *Restoring {
	return &Restoring{builder: builder{turn: turn{State: New(), out: new(Applied)}, owners: map[MemberID]*owner{}, alone: map[life]*owner{}, shared: map[life]*owner{}}}
}

// Records is how many were taken.
func (r *Restoring) Records() uint64 { return r.records }

// Add takes the next records, in the order of Records. It keeps the part.
// Behind an error there is nothing to go on with.
func (r *Restoring) Add(p *Part) error {
	r.records += uint64(len(p.before) + len(p.regions) + len(p.after))
	for _, m := range p.before {
		if err := r.builder.add(m); err != nil {
			return err
		}
	}
	if err := r.builder.addRegions(p); err != nil {
		return err
	}
	for _, m := range p.after {
		if err := r.builder.add(m); err != nil {
			return err
		}
	}
	return nil
}

// Finish returns the State at a position; records that no State has, or whose hash
// is another, are an error.
func (r *Restoring) Finish(at Token, hash uint64) (*State, error) {
	st, err := r.finish(at)
	if err == nil && st.Hash() != hash {
		return nil, fmt.Errorf("restore %s: the records give state hash %016x, they came with %016x", at, st.Hash(), hash)
	}
	return st, err
}

func (r *Restoring) finish(at Token) (*State, error) {
	if err := r.builder.finish(at); err != nil {
		return nil, fmt.Errorf("restore %s: %w", at, err)
	}
	return r.builder.State, nil
}

// builder fills an empty State.
type builder struct {
	turn
	last tag
	// prev is the last region, in the keyspace in; its end may still be shared
	// with the next.
	prev *Region
	in   *keyspace
	// all are the regions so far, by key, as they came.
	all [][]*Region
	// owners are the members that own any of them, with what they own; lastOwner
	// is the one found last. alone and shared are incarnations: see lives.
	owners        map[MemberID]*owner
	lastOwner     *owner
	alone, shared map[life]*owner
	loose         []RegionID
	// remembering is the number of the next remembered command.
	remembering uint64
	lastRemoved RegionID
}

// owner is a member, or an incarnation of one, and what it owns so far.
type owner struct {
	id      MemberID
	regions []RegionID
	counts  []keyspaceCount
	acts    bool // of an incarnation
}

type tag = uint64

// add takes a record; kinds come in the order of their tags.
func (b *builder) add(r *rootv1.Record) error {
	kind := recordTag(r)
	once := kind <= tagTenure || kind == tagClusterSettings
	if kind == 0 || kind < b.last || kind == b.last && once {
		return outOfPlace(r)
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
	case *rootv1.Record_Transition:
		return b.transition(k.Transition)
	case *rootv1.Record_PinKey:
		return b.key(forPins, k.PinKey)
	case *rootv1.Record_RememberedCommands:
		return b.rememberedCommands(k.RememberedCommands)
	case *rootv1.Record_RemovedRegion:
		return b.removedRegion(k.RemovedRegion)
	case *rootv1.Record_ClusterSettings:
		b.setSettings(k.ClusterSettings)
	case *rootv1.Record_Grant:
		return b.grant(k.Grant)
	case *rootv1.Record_TokenKey:
		return b.key(forTokens, k.TokenKey)
	case *rootv1.Record_RevokedToken:
		return b.revokedToken(k.RevokedToken)
	case *rootv1.Record_DeletedKeyspace:
		return b.deletedKeyspace(k.DeletedKeyspace)
	}
	return nil
}

func outOfPlace(r *rootv1.Record) error {
	return fmt.Errorf("a record of kind %T is not in place here", r.GetKind())
}

func knownRecord(r *rootv1.Record) error {
	if k, ok := r.GetKind().(*rootv1.Record_Region); ok {
		return cmp.Or(knownFields(r), knownRegion(k.Region))
	}
	if level := r.GetCluster().GetFeatureLevel(); level > SupportedLevel() {
		return fmt.Errorf("%T is of feature level %d, this process understands feature level %d: take a newer version", r.GetKind(), level, SupportedLevel())
	}
	if err := knownMessage(r.ProtoReflect()); err != nil {
		return fmt.Errorf("%w: this process understands feature level %d, take a newer version", err, SupportedLevel())
	}
	return nil
}

// recordTag is the number of the record's field in rootv1.Record; 0: none.
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

// addRegions appends regions: they come in the order of their keys.
func (b *builder) addRegions(p *Part) error {
	if len(p.regions) == 0 {
		return nil
	}
	if b.last > tagRegion {
		return fmt.Errorf("region %d is not in place here", p.regions[0].ID)
	}
	b.last = tagRegion
	if b.prev != nil {
		p.regions[0].follow(b.prev)
	}
	for _, r := range p.regions {
		if err := b.region(r); err != nil {
			return err
		}
	}
	b.all = append(b.all, p.regions)
	b.sum += p.sum
	return nil
}

func (b *builder) region(r *Region) error {
	if b.prev == nil || b.prev.Keyspace != r.Keyspace {
		b.in, _ = b.keyspaces.Get(r.Keyspace)
	}
	if b.in == nil || r.ID == 0 {
		return fmt.Errorf("region %d belongs to keyspace %d, which is not there", r.ID, r.Keyspace)
	}
	if r.End != "" && r.End <= r.Start {
		return fmt.Errorf("region %d has the range [%q, %q)", r.ID, r.Start, r.End)
	}
	if err := b.behind(r); err != nil {
		return err
	}
	b.prev = r
	return b.own(r)
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
	if b.in.assigned() {
		b.place(r)
	}
	return nil
}

// place is State.place for many regions, which are indexed at the end.
func (b *builder) place(r *Region) {
	lives, acts := b.alone, false
	if len(r.Owners) > 1 {
		lives = b.shared
	}
	for _, o := range r.Owners {
		l := life(o.Incarnation)
		if l == 0 && len(r.Owners) > 1 {
			continue
		}
		if lives[l] == nil {
			lives[l] = &owner{acts: b.Acts(o)}
		}
		lives[l].add(r)
		acts = acts || lives[l].acts
	}
	if acts {
		return
	}
	b.in.orphans++
	b.lives.orphans++
	if len(r.Owners) == 1 {
		b.lives.ended.Set(life(r.Owners[0].Incarnation), struct{}{})
	} else {
		b.loose = append(b.loose, r.ID)
	}
}

// owner finds a member that owns a region; nil: there is none.
func (b *builder) owner(id MemberID) *owner {
	if o := b.lastOwner; o != nil && o.id == id {
		return o
	}
	o := b.owners[id]
	if m := b.Member(id); o == nil && m != nil {
		o = &owner{id: MemberID(m.GetId())}
		b.owners[o.id] = o
	}
	b.lastOwner = o
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

func (o *owner) holding() *holding {
	h := newHolding(nil)
	h.load(o.regions, o.counts)
	return h
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
	all := slices.Concat(b.all...)
	b.all = nil
	b.regions = cow.LoadIndex((*Region).startKey, all)
	slices.SortFunc(all, func(x, y *Region) int { return cmp.Compare(x.ID, y.ID) })
	for i, r := range all {
		if i > 0 && all[i-1].ID == r.ID {
			return fmt.Errorf("region %d is there twice", r.ID)
		}
	}
	b.regionIDs = cow.LoadIndex((*Region).idKey, all)
	for id, o := range b.owners {
		b.owned.Set(id, o.holding())
	}
	for l, o := range b.alone {
		b.lives.alone.Set(l, o.holding())
	}
	for l, o := range b.shared {
		b.lives.shared.Set(l, o.holding())
	}
	slices.Sort(b.loose)
	b.lives.loose = cow.LoadIndex(idKey, b.loose)
	b.owners, b.alone, b.shared, b.loose = nil, nil, nil, nil
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
