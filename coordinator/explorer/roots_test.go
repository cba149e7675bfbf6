package explorer

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// roots is the table of rooted states. Each is a real state.State; a world
// holds its index. Steps from one to another are real commands, applied once
// and remembered.
type roots struct {
	mandate rootv1.Mandate
	all     []*rooted
	// byContent finds a state by its records without their positions in the
	// log, which no command reads.
	byContent map[string]uint16
	steps     map[command]outcome
	restored  map[uint16]uint16
	// broken is what was found wrong with any of them.
	broken error
}

// rooted is a state, and what is asked of it often.
type rooted struct {
	state       *state.State
	era, holder uint8
	retired     bool
	fence       uint8
	stage       rootv1.HandoverStage
	incarnation uint8
	// given is how many ids the root gave itself, inherited what the era started
	// above.
	given, inherited uint8
	// skipped is how many eras a restore has skipped: they are not counted here.
	skipped uint64
}

// command is a command to the root, in few bytes.
type command struct {
	from    uint16
	kind    kind
	a, b, c uint8
	flag    bool
}

type kind uint8

const (
	claimTenure kind = iota
	extendFence
	retireTenure
	advanceHandover
	publishRegion
)

// outcome is what became of it.
type outcome struct {
	to      uint16
	result  rootv1.Outcome
	reason  rootv1.Reason
	refence uint8
	// from and upTo are the window that was given.
	from, upTo uint8
}

func newRoots(m rootv1.Mandate) *roots {
	r := &roots{mandate: m, byContent: map[string]uint16{}, steps: map[command]outcome{}, restored: map[uint16]uint16{}}
	s := state.New()
	out := apply(s, &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{
			ClusterId: 1, Incarnation: 1, FeatureLevel: state.FeatureLevel,
			Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "root:1"}},
		},
	}}})
	if out.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		panic(fmt.Sprintf("bootstrap: %v", out.Reject))
	}
	r.intern(s)
	return r
}

// apply applies one command of events to s.
func apply(s *state.State, events ...*rootv1.Event) state.Result {
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
	if err != nil {
		panic(err)
	}
	var out state.Applied
	if err := s.ApplyEntry(1, s.Token().Index+1, data, &out); err != nil {
		panic(err)
	}
	return out.Results[0]
}

func (r *roots) at(i uint16) *rooted { return r.all[i] }

// do applies a command to a state.
func (r *roots) do(c command) outcome {
	if o, known := r.steps[c]; known {
		return o
	}
	before := r.all[c.from]
	s := before.state.Fork()
	result := apply(s, r.events(before, c)...)
	o := outcome{to: c.from, result: result.Outcome}
	switch result.Outcome {
	case rootv1.Outcome_OUTCOME_APPLIED:
		o.to = r.intern(s)
		if n := len(result.Events); n > 0 {
			w := result.Events[n-1].Window
			o.from, o.upTo = uint8(w.GetFrom()), uint8(w.GetTo())
		}
		r.check(before, r.all[o.to], c)
	case rootv1.Outcome_OUTCOME_REJECTED:
		o.reason, o.refence = result.Reject.GetReason(), uint8(result.Reject.GetFence())
		fallthrough
	default:
		if s.Hash() != before.state.Hash() {
			r.wrong("%v was %v and changed the hash", c, result.Outcome)
		}
	}
	r.steps[c] = o
	return o
}

func (r *roots) wrong(format string, args ...any) {
	if r.broken == nil {
		r.broken = fmt.Errorf(format, args...)
	}
}

// events are the events of a command on a state.
func (r *roots) events(x *rooted, c command) []*rootv1.Event {
	era := func(small uint8) uint64 { return uint64(small) + x.skipped }
	switch c.kind {
	case claimTenure:
		all := []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c", HolderIncarnation: uint64(c.a), HolderAddress: "c:1", ExpectedEra: era(c.b),
			PredecessorExpired: c.flag, Mandates: []rootv1.Mandate{r.mandate}, RetireDigest: digestOf(secretOf(c.a)),
		}}}}
		if c.c > 0 { // the first window, as replica's firstWindows has it
			all = append(all, &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
				Mandate: r.mandate, Era: era(c.b + 1), Size: uint64(c.c),
			}}})
		}
		return all
	case extendFence:
		return []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: r.mandate, Era: era(c.a), Floor: uint64(c.b), Size: uint64(c.c - c.b),
		}}}}
	case retireTenure:
		return []*rootv1.Event{{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
			Era: era(c.a), HolderId: "c", HolderIncarnation: uint64(c.b), Consumed: r.frontiers(c.c), RetireSecret: secretOf(c.b),
		}}}}
	case advanceHandover:
		var events []*rootv1.Event
		for s := rootv1.HandoverStage(c.b) + 1; s <= rootv1.HandoverStage(c.c); s++ {
			events = append(events, &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{
				HandoverAdvanced: &rootv1.HandoverAdvanced{Era: era(c.a), Stage: s, HolderId: "c", HolderIncarnation: uint64(x.holder)},
			}})
		}
		return events
	default:
		key := func(n uint8) []byte { return []byte{'k', n} }
		return []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: uint32(state.DefaultKeyspace), StartKey: key(c.a), EndKey: key(c.a + 1),
		}}}}}
	}
}

// secretOf is what a process retires its era with: who knows no more than its name
// does not.
func secretOf(process uint8) []byte { return bytes.Repeat([]byte{process}, state.RetireSecretBytes) }

func digestOf(secret []byte) []byte {
	d := sha256.Sum256(secret)
	return d[:]
}

func (r *roots) frontiers(v uint8) *rootv1.Frontiers {
	if r.mandate == rootv1.Mandate_MANDATE_TSO {
		return &rootv1.Frontiers{Tso: uint64(v)}
	}
	return &rootv1.Frontiers{AllocId: uint64(v)}
}

func (r *roots) frontier(f *rootv1.Frontiers) uint8 {
	if r.mandate == rootv1.Mandate_MANDATE_TSO {
		return uint8(f.GetTso())
	}
	return uint8(f.GetAllocId())
}

// records are the records of a state, as a checkpoint has them.
func records(s *state.State) (all []*rootv1.Record) {
	_ = s.Records(func(r *rootv1.Record) error {
		all = append(all, proto.CloneOf(r))
		return nil
	})
	return all
}

// reader gives records one by one.
func reader(all []*rootv1.Record) func() (*rootv1.Record, error) {
	return func() (*rootv1.Record, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		first := all[0]
		all = all[1:]
		return first, nil
	}
}

// intern finds the index of a state, new or not.
func (r *roots) intern(s *state.State) uint16 {
	all := records(s)
	key := r.content(all)
	if i, known := r.byContent[key]; known {
		return i
	}
	if again, err := state.Restore(s.Token(), reader(records(s))); err != nil || again.Hash() != s.Hash() {
		r.wrong("a state is not restored from its records: %v", err)
	}
	i := uint16(len(r.all))
	if int(i) != len(r.all) || i == ^uint16(0) {
		panic("explorer: too many rooted states")
	}
	r.all = append(r.all, r.summary(s))
	r.byContent[key] = i
	r.refuses(r.all[i])
	return i
}

// refuses asks a state for what no state may do: an era whose predecessor is
// another one or still active, and acts of an era or a holder that is not there.
func (r *roots) refuses(x *rooted) {
	never := []command{
		{kind: claimTenure, a: 99, b: x.era + 1, flag: true},
		{kind: extendFence, a: x.era + 1, b: x.fence, c: x.fence + 1},
		{kind: advanceHandover, a: x.era + 1, b: 1, c: 2},
		{kind: retireTenure, a: x.era, b: 99, c: x.fence},
	}
	if x.era > 0 {
		never = append(never,
			command{kind: claimTenure, a: 99, b: x.era - 1, flag: true},
			command{kind: extendFence, a: x.era - 1, b: x.fence, c: x.fence + 1})
	}
	if x.era > 0 && !x.retired {
		never = append(never, command{kind: claimTenure, a: 99, b: x.era})
	}
	if x.retired {
		never = append(never, command{kind: extendFence, a: x.era, b: x.fence, c: x.fence + 1})
	}
	if x.era > 0 {
		for what, e := range r.forged(x) {
			if o := apply(x.state.Fork(), e); o.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
				r.wrong("era %d, retired %v, fence %d: %s was not refused but %v", x.era, x.retired, x.fence, what, o.Outcome)
			}
		}
	}
	for _, c := range never {
		if o := apply(x.state.Fork(), r.events(x, c)...); o.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
			r.wrong("era %d, retired %v, fence %d: %v was not refused but %v", x.era, x.retired, x.fence, c, o.Outcome)
		}
	}
}

// forged are acts in the holder's name by who knows that name and no more, and one
// that asks an era to end that is not the current one.
func (r *roots) forged(x *rooted) map[string]*rootv1.Event {
	era := uint64(x.era) + x.skipped
	retire := r.events(x, command{kind: retireTenure, a: x.era, b: x.holder, c: x.fence})[0]
	retire.GetTenureRetired().RetireSecret = secretOf(99)
	advance := r.events(x, command{kind: advanceHandover, a: x.era, b: 1, c: 2})[0]
	advance.GetHandoverAdvanced().HolderIncarnation = 99
	return map[string]*rootv1.Event{
		"a forged retirement": retire, "a forged advance": advance,
		"an end of the next era": {Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: era + 1}}},
	}
}

func (r *roots) summary(s *state.State) *rooted {
	t := s.Tenure()
	x := &rooted{
		state: s, holder: uint8(t.GetHolderIncarnation()), retired: t.GetRetired(), inherited: r.frontier(t.GetInherited()),
		incarnation: uint8(s.Cluster().GetIncarnation()), given: uint8(s.RegionCount()),
	}
	if s.Cluster().GetRestored() != nil {
		x.skipped = state.RenewEras
	}
	x.era = uint8(t.GetEra() - x.skipped)
	_ = s.Records(func(rec *rootv1.Record) error {
		if a := rec.GetAllocators(); a != nil {
			x.fence = r.frontier(&rootv1.Frontiers{AllocId: a.IdFence, Tso: a.TsoFence})
		}
		return nil
	})
	if h := s.Handovers(); len(h) > 0 {
		x.stage = h[len(h)-1].Stage
	}
	return x
}

// content is what tells states apart: their records without positions in the
// log and what is derived from them, and without handovers that are not current.
func (r *roots) content(all []*rootv1.Record) string {
	var b strings.Builder
	var current *rootv1.Record
	for _, rec := range all {
		switch k := rec.GetKind().(type) {
		case *rootv1.Record_Tenure:
			k.Tenure.IssuedAt = nil
		case *rootv1.Record_Handover:
			h := k.Handover
			h.OpenedAt, h.ConfirmedAt, h.ClosedAt = nil, nil, nil
			if h.Legacy != nil {
				h.Legacy.EndedAt, h.Legacy.Digest, h.Legacy.HolderIncarnation = nil, 0, 0
			}
			current = rec
			continue
		case *rootv1.Record_Region:
			k.Region.Revision = 0
		}
		add(&b, rec)
	}
	if current != nil {
		add(&b, current)
	}
	return b.String()
}

func add(b *strings.Builder, m proto.Message) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(b, "%d:%s", len(data), data)
}

// check judges a step between rooted states by the records alone.
func (r *roots) check(before, after *rooted, c command) {
	h := after.state.Handovers()
	if after.era == 0 {
		return
	}
	last, t := h[len(h)-1], after.state.Tenure()
	inherited := r.frontier(t.Inherited)
	switch {
	case last.Era != t.Era || last.PredecessorEra != t.Era-1 || (last.Legacy == nil) != (t.Era == 1 || t.Era == state.RenewEras):
		r.wrong("%v: the handover of era %d does not tie it to its predecessor: %v", c, t.Era, last)
	case r.frontier(last.Legacy.GetConsumed()) > inherited:
		r.wrong("%v: era %d inherits less than its predecessor consumed: %v", c, t.Era, last)
	case after.fence < inherited:
		r.wrong("%v: fence %d below what era %d inherited", c, after.fence, t.Era)
	case after.era == before.era && !after.retired && after.fence < before.fence:
		r.wrong("%v: the fence fell from %d to %d and nobody retired", c, before.fence, after.fence)
	case after.era < before.era || after.era > before.era+1:
		r.wrong("%v: era %d behind era %d", c, after.era, before.era)
	case after.era == before.era && after.stage < before.stage:
		r.wrong("%v: the handover went back to %v", c, after.stage)
	}
}

// renew makes of a backup what a restore makes of it: fences jump over the hole,
// eras too, and nobody holds the Tenure. The eras skipped are not counted.
func (r *roots) renew(backup uint16, gap uint8) uint16 {
	if to, known := r.restored[backup]; known {
		return to
	}
	old := r.all[backup]
	s, err := old.state.Fork().Renew(state.Renewal{
		ClusterID: 2, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 2, TransportAddress: "root:1"}},
		UnixMillis: 1, IDGap: uint64(gap), TSOFence: uint64(old.fence + gap),
	})
	if err != nil {
		panic(err)
	}
	to := r.intern(s)
	r.restored[backup] = to
	return to
}

// copy is a backup put in the root's place as it is, but for its fences and the
// holder: what a restore must not be.
func (r *roots) copy(backup uint16, gap uint8) uint16 {
	if to, known := r.restored[backup]; known {
		return to
	}
	all := records(r.all[backup].state)
	for _, rec := range all {
		switch k := rec.GetKind().(type) {
		case *rootv1.Record_Allocators:
			k.Allocators.IdFence += uint64(gap)
			k.Allocators.TsoFence += uint64(gap)
		case *rootv1.Record_Tenure:
			k.Tenure.Retired = true
		}
	}
	s, err := state.Restore(r.all[backup].state.Token(), reader(all))
	if err != nil {
		panic(err)
	}
	to := r.intern(s)
	r.restored[backup] = to
	return to
}

// runsTable numbers idalloc.Runs, so that a world holds one in a byte.
type runsTable struct {
	all   []idalloc.Runs
	index map[idalloc.Runs]uint8
}

func newRunsTable() *runsTable { return &runsTable{index: map[idalloc.Runs]uint8{}} }

// number is the number of r, from 1.
func (t *runsTable) number(r idalloc.Runs) uint8 {
	if n, known := t.index[r]; known {
		return n
	}
	if len(t.all) == 255 {
		panic("explorer: too many different runs")
	}
	t.all = append(t.all, r)
	t.index[r] = uint8(len(t.all))
	return uint8(len(t.all))
}

func (t *runsTable) get(n uint8) idalloc.Runs { return t.all[n-1] }

// free has a bit for each value that runs n may still hand out.
func (t *runsTable) free(n uint8) (bits uint16) {
	r := t.get(n)
	for {
		v, ok := r.Take(0, 1)
		if !ok {
			return bits
		}
		bits |= 1 << v
	}
}
