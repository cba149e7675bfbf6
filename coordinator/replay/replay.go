// Package replay runs the planner over what another one saw.
//
// It owns a small cluster in virtual time: the real state machine, the real detector and
// planner of package assigner, and members that do what they are shown at once. A recording
// says who comes and goes, which regions there are, and what load each has; where they are is
// the planner's. It promises:
//
//  1. The same recording and settings give the same outcome.
//  2. It has no clock, no goroutine and no network.
//
// What it leaves out: how long moves take, suspicion and silence, takeovers, behind which a new
// holder evens nothing out at first, and cuts of ranges, which happen as they were recorded. So a
// planner that is replayed may make more moves than the one that was recorded.
package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxGap is how much time passes at most between two samples.
	maxGap = 10 * time.Minute
	// beat is how often members are heard.
	beat = 5 * time.Second
)

// Config says what is replayed.
type Config struct {
	// Settings are laid over those that were recorded, of the keyspace that is named; ""
	// for all. Nil: they are as recorded.
	Settings *rootv1.KeyspaceSettings
	Keyspace string
}

// Outcome is how the planner did.
type Outcome struct {
	// Took is how long the recording is, in Frames samples of so many Eras. LeftOut is the
	// most regions that had no room in one.
	Took    time.Duration
	Frames  int
	Eras    int
	LeftOut uint64
	// Keyspaces by name.
	Keyspaces []*Keyspace
	// Refused is what rounds did not do, by reason.
	Refused map[string]uint64
}

// Keyspace is how a keyspace was.
type Keyspace struct {
	Name string
	// ByLoad: loads were told, so they are compared; if not, numbers of regions.
	ByLoad  bool
	Regions int
	// At and Permille are what the fullest member had for its capacity, of 1,000 of the
	// mean, over time.
	At       []time.Duration
	Permille []float64
	// Changes counts what was begun or granted, by operation and reason. LoadMoved is load that
	// was moved to even out, LoadMean what there was on average.
	Changes             map[Change]uint64
	LoadMoved, LoadMean float64
}

// Change is a kind of change, and why.
type Change struct {
	Operation string
	Reason    rootv1.OperationReason
}

// Moves is how many moves there were.
func (k *Keyspace) Moves() (n uint64) {
	for c, times := range k.Changes {
		if c.Operation == move {
			n += times
		}
	}
	return n
}

// Quantile is the imbalance that so many of 1,000 samples are not above, of 1,000.
func (k *Keyspace) Quantile(permille int) float64 {
	if len(k.Permille) == 0 {
		return 0
	}
	all := slices.Sorted(slices.Values(k.Permille))
	return all[min(len(all)*permille/1000, len(all)-1)]
}

// ErrEmpty: there is nothing in the recording.
var ErrEmpty = errors.New("there is nothing in the recording: no coordinator held the Tenure while it was made")

// Replay is one under way.
type Replay struct {
	cfg   Config
	world *world
	out   Outcome
	byID  map[uint32]*Keyspace
	// at is the last frame's moment, passed how much time went by since the first.
	at, passed time.Duration
	era        uint64
	sums       map[string]float64
}

// New begins a replay.
func New(cfg Config) (*Replay, error) {
	w, err := newWorld()
	if err != nil {
		return nil, err
	}
	return &Replay{cfg: cfg, world: w, byID: map[uint32]*Keyspace{}, sums: map[string]float64{}}, nil
}

// Segment goes on by a segment of a recording.
func (p *Replay) Segment(s *coordinatorv1.RecordedSegment) error {
	for i, f := range s.GetFrames() {
		if err := p.frame(f); err != nil {
			return fmt.Errorf("sample %d, frame %d of its segment: %w", p.out.Frames, i, err)
		}
	}
	return nil
}

func (p *Replay) frame(f *coordinatorv1.RecordedFrame) error {
	at := time.Duration(min(f.GetAtMillis(), 1<<52)) * time.Millisecond
	if p.out.Frames > 0 {
		gap := min(max(at-p.at, 0), maxGap)
		if err := p.world.pass(gap); err != nil {
			return err
		}
		p.passed += gap
	}
	if f.GetEra() != p.era {
		p.era = f.GetEra()
		p.out.Eras++
	}
	p.at = at
	p.out.Frames++
	p.out.LeftOut = max(p.out.LeftOut, f.GetLeftOut())
	if err := p.see(f); err != nil {
		return err
	}
	if err := p.world.settle(); err != nil {
		return err
	}
	p.measure()
	return nil
}

// see makes the world as a frame says.
func (p *Replay) see(f *coordinatorv1.RecordedFrame) error {
	w := p.world
	for _, k := range f.GetKeyspaces() {
		if err := p.keyspace(k); err != nil {
			return err
		}
	}
	gone, left := f.GetGoneMembers(), f.GetGoneRegions()
	if f.GetWhole() {
		gone, left = w.others(f)
	}
	for _, m := range f.GetMembers() {
		if err := w.member(m); err != nil {
			return err
		}
	}
	for _, id := range gone {
		if err := w.fails(id); err != nil {
			return err
		}
	}
	for _, id := range f.GetGoneKeyspaces() {
		delete(p.byID, id)
	}
	return w.reshape(left, f.GetRegions())
}

// keyspace makes a keyspace, or gives it other settings.
func (p *Replay) keyspace(k *coordinatorv1.RecordedKeyspace) error {
	s := k.GetSettings()
	if p.cfg.Settings != nil && (p.cfg.Keyspace == "" || p.cfg.Keyspace == k.GetName()) {
		layout := s.GetLayout()
		s = state.MergeSettings(s, p.cfg.Settings)
		s.Layout = layout
	}
	if p.byID[k.GetId()] == nil {
		x := &Keyspace{Name: k.GetName(), Changes: map[Change]uint64{}}
		p.byID[k.GetId()] = x
		p.out.Keyspaces = append(p.out.Keyspaces, x)
	}
	return p.world.keyspace(k.GetId(), k.GetName(), still(s))
}

// still are settings for a world in which everybody is heard, and moves take no time.
func still(s *rootv1.KeyspaceSettings) *rootv1.KeyspaceSettings {
	s = state.MergeSettings(s, nil)
	hour := uint64(time.Hour.Milliseconds())
	s.Liveness = &rootv1.Liveness{IntervalMillis: uint64(2 * beat.Milliseconds()), SuspectAfterMillis: 24 * hour, DeadAfterMillis: 24 * hour}
	s.Ownership = &rootv1.Ownership{MinOwners: s.GetOwnership().GetMinOwners(), MaxOwners: s.GetOwnership().GetMaxOwners(), Fence: rootv1.Fence_FENCE_EPOCH}
	s.Cadence = nil
	if s.GetPolicy().GetRebalance() != nil {
		s.Policy.Rebalance.Reshape = false
	}
	return s
}

// measure notes how even members are.
func (p *Replay) measure() {
	for id, k := range p.byID {
		x := p.world.level(id)
		k.Regions = x.regions
		if x.load > 0 && !k.ByLoad {
			k.ByLoad, k.At, k.Permille = true, nil, nil // until now nobody had told
		}
		k.LoadMean += x.load
		permille := x.byCount
		if k.ByLoad {
			permille = x.byLoad
		}
		k.At, k.Permille = append(k.At, p.passed), append(k.Permille, permille)
	}
}

// Outcome ends the replay.
func (p *Replay) Outcome() (*Outcome, error) {
	if p.out.Frames == 0 {
		return nil, ErrEmpty
	}
	p.out.Took = p.passed
	for id, k := range p.byID {
		k.LoadMean /= float64(max(len(k.At), 1))
		maps.Copy(k.Changes, p.world.changes[id])
		k.LoadMoved = p.world.moved[id]
	}
	p.out.Refused = p.world.refused()
	slices.SortFunc(p.out.Keyspaces, func(a, b *Keyspace) int { return cmp.Compare(a.Name, b.Name) })
	return &p.out, nil
}
