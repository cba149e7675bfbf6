package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/nokv/nokv/internal/cow"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// Mirror is an exact copy of what the root has of one keyspace, or of all, at
// one position, which a watch takes forward batch by batch. Saved and loaded it
// survives its process: it goes on where it was, and nothing is missed.
//
// Its methods may be called by any number of goroutines while Run runs.
type Mirror struct {
	c        *Client
	cfg      MirrorConfig
	arriving changeset // Run's alone

	mu sync.Mutex
	// Guarded by mu.
	at        Position
	byID      map[rooted.RegionID]*rooted.Region
	regions   cow.Index[*rooted.Region] // in the order of All
	keyspaces map[rooted.KeyspaceID]*rootv1.Keyspace
	members   map[rooted.MemberID]*rootv1.Member
}

// MirrorConfig says what a Mirror copies.
type MirrorConfig struct {
	// Keyspace is its name. Empty: all.
	Keyspace string
	// Members too.
	Members bool
	// MaxRegions bounds the copy: Run ends with an error when there are more.
	// Default 16,777,216.
	MaxRegions int
	// Read is how fresh the watch must be, such as Bounded. Default: whatever
	// coordinators have.
	Read []ReadOption
	// OnChange, if set, hears of every batch after the copy shows it, in order and
	// signs of life among them, on the goroutine of Run, which goes on when it
	// returns.
	OnChange func(Update)
}

// NewMirror makes a Mirror that is empty until Load or Run fills it.
func (c *Client) NewMirror(cfg MirrorConfig) *Mirror {
	if cfg.MaxRegions <= 0 {
		cfg.MaxRegions = 1 << 24
	}
	m := &Mirror{c: c, cfg: cfg}
	m.clear()
	return m
}

func (m *Mirror) clear() {
	m.byID = map[rooted.RegionID]*rooted.Region{}
	m.regions = cow.NewIndex(placeOf)
	m.keyspaces = map[rooted.KeyspaceID]*rootv1.Keyspace{}
	m.members = map[rooted.MemberID]*rootv1.Member{}
}

// placeOf is where a region stands in All.
func placeOf(r *rooted.Region) cow.Key { return cow.Key{Group: uint64(r.Keyspace), Text: r.Start} }

// Run keeps the copy current until ctx ends, which is no error. It returns the
// errors of WatchRegions, and ErrMirrorFull before it takes in what is too much.
// After ErrClusterMismatch what was loaded is of no more use: begin without it.
// The copy stays as it was and may be run again, by one caller at a time.
func (m *Mirror) Run(ctx context.Context) error {
	opts := slices.Clone(m.cfg.Read)
	if m.cfg.Keyspace != "" {
		opts = append(opts, In(m.cfg.Keyspace))
	}
	if m.cfg.Members {
		opts = append(opts, WithMembers())
	}
	at, _ := m.At()
	for b, err := range m.c.WatchRegions(ctx, at, opts...) {
		if err != nil {
			return ended(ctx, err)
		}
		whole := m.arriving.take(b, m.cfg.MaxRegions, math.MaxInt)
		if whole == nil {
			continue
		}
		update, err := m.apply(whole)
		if err != nil {
			return err
		}
		if m.cfg.OnChange != nil {
			m.cfg.OnChange(update)
		}
	}
	return nil
}

// ErrMirrorFull says that there are more regions than MirrorConfig.MaxRegions.
var ErrMirrorFull = errors.New("mirror is full")

// At returns the position of the copy; false before it has one.
func (m *Mirror) At() (Position, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at, !m.at.IsZero()
}

// All yields the regions by keyspace and key, as they are at one position.
func (m *Mirror) All() iter.Seq[*rooted.Region] {
	return func(yield func(*rooted.Region) bool) {
		m.mu.Lock()
		regions := m.regions.Fork()
		m.mu.Unlock()
		regions.Scan(yield)
	}
}

// Region finds a region by its id; nil: there is none.
func (m *Mirror) Region(id rooted.RegionID) *rooted.Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

// Keyspaces returns the keyspaces in the order of their ids.
func (m *Mirror) Keyspaces() []*rootv1.Keyspace {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sorted(m.keyspaces)
}

// Members returns the members in the order of their ids; none without
// MirrorConfig.Members.
func (m *Mirror) Members() []*rootv1.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sorted(m.members)
}

// apply takes in a whole batch.
func (m *Mirror) apply(n *changeset) (Update, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after := m.after(n); after > m.cfg.MaxRegions {
		return Update{}, fmt.Errorf("%w: there are %d regions, MaxRegions is %d", ErrMirrorFull, after, m.cfg.MaxRegions)
	}
	update := Update{At: n.at, Whole: n.snapshot}
	if n.snapshot {
		m.clear()
	}
	for _, c := range n.keyspaces {
		put(m.keyspaces, rooted.KeyspaceID(c.keyspace.GetId()), c.keyspace, c.removed)
	}
	for _, c := range n.members {
		put(m.members, c.member.ID, c.record, c.removed)
	}
	for _, c := range n.regions {
		old := m.byID[c.region.ID]
		m.remove(old)
		if !c.removed {
			m.byID[c.region.ID] = c.region
			m.regions.Set(c.region)
		}
		if !n.snapshot {
			update.Regions = append(update.Regions, RegionUpdate{Old: old, New: m.byID[c.region.ID]})
		}
	}
	m.at = n.at
	return update, nil
}

// after is how many regions there are after a batch.
func (m *Mirror) after(n *changeset) int {
	if n.snapshot {
		return len(n.regions) + n.skipped
	}
	count := len(m.byID)
	there := map[rooted.RegionID]bool{}
	for _, c := range n.regions {
		id := c.region.ID
		was, ok := there[id]
		if !ok {
			was = m.byID[id] != nil
		}
		if there[id] = !c.removed; was {
			count--
		}
		if !c.removed {
			count++
		}
	}
	return count
}

// remove takes a region out; another one may stand in its place already.
func (m *Mirror) remove(r *rooted.Region) {
	if r == nil {
		return
	}
	delete(m.byID, r.ID)
	if there, ok := m.regions.Get(placeOf(r)); ok && there.ID == r.ID {
		m.regions.Delete(placeOf(r))
	}
}

func put[K comparable, V any](records map[K]V, key K, record V, removed bool) {
	if removed {
		delete(records, key)
	} else {
		records[key] = record
	}
}

// A saved copy: a line, a WatchRegionsRequest that says of what it is, the parts
// of a snapshot as a coordinator sends them, each with its length before it, and
// a checksum of all.
const (
	savedHeader    = "nokv mirror 1\n"
	savedPartBytes = 256 << 10 // about where a part ends
	loadPartBytes  = 4 << 20   // that Load takes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrSaved says that what Load got is not, or no longer, what Save wrote.
var ErrSaved = errors.New("saved mirror cannot be used")

// Save writes the copy and its position. What is written is of one position,
// whatever Run does meanwhile. Whoever writes a file writes another one and
// renames it.
func (m *Mirror) Save(w io.Writer) error {
	m.mu.Lock()
	at, regions, keyspaces, members := m.at, m.regions.Fork(), sorted(m.keyspaces), sorted(m.members)
	m.mu.Unlock()
	if at.IsZero() {
		return errors.New("save mirror: it has nothing yet: wait for its first position")
	}
	buffered := bufio.NewWriter(w)
	s := &saving{sum: crc32.New(castagnoli)}
	s.w = io.MultiWriter(buffered, s.sum)
	_, s.err = io.WriteString(s.w, savedHeader)
	s.message(&coordinatorv1.WatchRegionsRequest{Keyspace: m.cfg.Keyspace, Members: m.cfg.Members, After: at.Token.Proto()})
	for _, k := range keyspaces {
		s.part.Keyspaces = append(s.part.Keyspaces, &coordinatorv1.KeyspaceChange{Keyspace: k})
		s.added(k)
	}
	for _, member := range members {
		s.part.Members = append(s.part.Members, &coordinatorv1.MemberChange{Member: member})
		s.added(member)
	}
	regions.Scan(func(r *rooted.Region) bool {
		record := r.Proto()
		s.part.Changes = append(s.part.Changes, &coordinatorv1.RegionChange{Region: record})
		s.added(record)
		return s.err == nil
	})
	s.part.Snapshot, s.part.Token = true, at.Token.Proto()
	s.part.Disclosure = &coordinatorv1.Disclosure{ClusterId: at.Cluster}
	s.message(&s.part)
	if s.err == nil {
		_, s.err = buffered.Write(s.sum.Sum(nil))
	}
	if s.err == nil {
		s.err = buffered.Flush()
	}
	if s.err != nil {
		return fmt.Errorf("save mirror: %w", s.err)
	}
	return nil
}

// saving is a Save under way; err is the first that there was.
type saving struct {
	w     io.Writer
	sum   hash.Hash32
	part  coordinatorv1.WatchRegionsResponse
	bytes int // of the part
	err   error
}

// added counts a record of the part, and writes the part when it is full.
func (s *saving) added(record proto.Message) {
	if s.bytes += proto.Size(record); s.bytes < savedPartBytes {
		return
	}
	s.part.Snapshot, s.part.Partial = true, true
	s.message(&s.part)
	s.part.Reset()
	s.bytes = 0
}

func (s *saving) message(p proto.Message) {
	if s.err == nil {
		_, s.err = protodelim.MarshalTo(s.w, p)
	}
}

// Load makes the copy what Save wrote, for Run to go on from. It is called
// before Run. After an error, which is an ErrSaved when the bytes are the
// reason, the Mirror is as it was.
func (m *Mirror) Load(r io.Reader) error {
	in := &summing{r: bufio.NewReader(r), sum: crc32.New(castagnoli)}
	n, err := m.loadFrom(in)
	if err != nil {
		return fmt.Errorf("load mirror: %w", err)
	}
	if _, err := m.apply(n); err != nil {
		return fmt.Errorf("load mirror: %w", err)
	}
	return nil
}

func (m *Mirror) loadFrom(in *summing) (*changeset, error) {
	header := make([]byte, len(savedHeader))
	if _, err := io.ReadFull(in, header); err != nil || string(header) != savedHeader {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrSaved)
	}
	options := protodelim.UnmarshalOptions{MaxSize: loadPartBytes}
	var of coordinatorv1.WatchRegionsRequest
	if err := options.UnmarshalFrom(in, &of); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSaved, err)
	}
	if of.GetKeyspace() != m.cfg.Keyspace || of.GetMembers() != m.cfg.Members {
		return nil, fmt.Errorf("%w: it is of keyspace %q (members: %t), this mirror of %q (%t)",
			ErrSaved, of.GetKeyspace(), of.GetMembers(), m.cfg.Keyspace, m.cfg.Members)
	}
	var gathered changeset
	for first := true; ; first = false {
		part := &coordinatorv1.WatchRegionsResponse{}
		if err := options.UnmarshalFrom(in, part); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSaved, err)
		}
		b := Batch{WatchRegionsResponse: part, First: first, Last: !part.GetPartial(), cluster: part.GetDisclosure().GetClusterId()}
		if whole := gathered.take(b, m.cfg.MaxRegions, math.MaxInt); whole != nil {
			return whole, in.check()
		}
	}
}

// summing reads and sums up what was read.
type summing struct {
	r   *bufio.Reader
	sum hash.Hash32
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	return n, err
}

// ReadByte implements io.ByteReader.
func (s *summing) ReadByte() (byte, error) {
	b, err := s.r.ReadByte()
	if err == nil {
		s.sum.Write([]byte{b})
	}
	return b, err
}

// check reads the checksum, behind which there is nothing.
func (s *summing) check() error {
	want := s.sum.Sum(nil)
	got, err := io.ReadAll(io.LimitReader(s.r, int64(len(want)+1)))
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("%w: checksum %x, want %x", ErrSaved, got, want)
	}
	return nil
}

// sorted are the values of a map in the order of its keys.
func sorted[K ~string | ~uint32, V any](records map[K]V) []V {
	out := make([]V, 0, len(records))
	for _, k := range slices.Sorted(maps.Keys(records)) {
		out = append(out, records[k])
	}
	return out
}
