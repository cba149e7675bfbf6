// Package recorder keeps what the planner of one coordinator saw lately.
//
// It owns a ring of segments of samples: assigned keyspaces, who may own their regions, and
// what load these have, sampled while this coordinator holds the Tenure. It promises:
//
//  1. It holds at most so many bytes of samples; the oldest segment goes first, and each
//     stands by itself. To tell what changed it keeps the last sample, of MaxRegions at most.
//  2. A sample looks at MaxRegions regions at most and takes MaxFrameBytes; what is left out
//     is counted.
//  3. It reads views and what members reported, and holds up nobody.
//  4. The format is versioned, and every segment has a checksum (file.go).
//
// It leaves to others: what the planner would do with it (package replay).
package recorder

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// MaxRegions bounds the regions of a sample.
	MaxRegions = 1 << 17
	// MaxFrameBytes bounds a sample, and with it a segment, about.
	MaxFrameBytes = 2 << 20
	// DefaultBytes is what is kept if nothing else is asked for: three quarters of an hour
	// of 10,000 regions, about.
	DefaultBytes = 8 << 20
	// DefaultEvery is between two samples if nothing else is asked for.
	DefaultEvery = 10 * time.Second
	// MinBytes is the least that is worth it.
	MinBytes = 64 << 10
	// maxReadBytes is where an answer ends.
	maxReadBytes = 1 << 20
	// segments is how many the ring has at least when it is full.
	segments = 8
)

// Config says what is recorded.
type Config struct {
	// Bytes bounds what is kept, Every is between two samples.
	Bytes int
	Every time.Duration
	// View is the newest one, Era the era that is held by it, 0: none.
	View func() *rootview.View
	Era  func() uint64
	// Takes reports whether a member may get something new.
	Takes func(id state.MemberID) bool
	Soft  *catalog.Soft
	Clock clock.Clock
}

// Validate says what could never work.
func (c *Config) Validate() error {
	switch {
	case c.Bytes < MinBytes:
		return errors.New("recorder: fewer than 65,536 bytes are worth nothing")
	case c.Every < 100*time.Millisecond:
		return errors.New("recorder: less than 100 ms between samples is too often")
	case c.View == nil, c.Era == nil, c.Takes == nil, c.Soft == nil, c.Clock == nil:
		return errors.New("recorder: view, era, takes, soft and clock are required")
	}
	return nil
}

// Recorder records. Make it with New; Run samples. Read may be called at any time.
type Recorder struct {
	cfg Config

	mu sync.Mutex
	// Guarded by mu. closed are whole segments, the first one has number first; open is the
	// one that grows behind them.
	closed    [][]byte
	first     uint64
	kept      int
	open      [][]byte // frames, encoded
	openBytes int

	// Owned by Sample: what the last frame said, of era.
	era uint64
	was sample
}

// sample is what was seen at a moment.
type sample struct {
	keyspaces map[state.KeyspaceID]*rootv1.Keyspace
	members   map[state.MemberID]*coordinatorv1.RecordedMember
	loads     map[state.RegionID]uint64
}

func newSample(regions int) sample {
	return sample{map[state.KeyspaceID]*rootv1.Keyspace{}, map[state.MemberID]*coordinatorv1.RecordedMember{}, make(map[state.RegionID]uint64, regions)}
}

// New makes a Recorder that has nothing.
func New(cfg Config) (*Recorder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Recorder{cfg: cfg, first: 1}, nil
}

// Run samples until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.Sample()
		}
	}
}

// Sample takes a sample, if the Tenure is held. Calls do not overlap.
func (r *Recorder) Sample() {
	era := r.cfg.Era()
	if era == 0 {
		r.era, r.was = 0, sample{}
		return
	}
	r.mu.Lock()
	whole := len(r.open) == 0
	r.mu.Unlock()
	if era != r.era {
		r.cut()
		whole = true
	}
	if r.era = era; whole {
		r.was = newSample(0)
	}
	f := r.look(era, whole)
	data, err := proto.Marshal(f)
	if err != nil {
		panic("recorder: a frame of our own cannot be encoded: " + err.Error())
	}
	r.mu.Lock()
	r.open, r.openBytes = append(r.open, data), r.openBytes+len(data)
	full := r.openBytes >= min(r.cfg.Bytes/segments, MaxFrameBytes/2)
	r.mu.Unlock()
	if full {
		r.cut()
	}
}

// cut ends the segment that is open.
func (r *Recorder) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) == 0 {
		return
	}
	data := seal(r.open)
	r.closed, r.kept = append(r.closed, data), r.kept+len(data)
	r.open, r.openBytes = nil, 0
	for r.kept > r.cfg.Bytes && len(r.closed) > 1 {
		r.kept -= len(r.closed[0])
		r.closed = slices.Delete(r.closed, 0, 1)
		r.first++
	}
}

// look sees what there is, and what of it is new since the last frame of the segment.
func (r *Recorder) look(era uint64, whole bool) *coordinatorv1.RecordedFrame {
	st := r.cfg.View().State
	f := &coordinatorv1.RecordedFrame{AtMillis: uint64(r.cfg.Clock.Now()) / uint64(time.Millisecond), UnixMillis: r.cfg.Clock.Wall(), Era: era, Whole: whole}
	is := newSample(len(r.was.loads))
	r.members(st, f, is)
	bytes, looked := proto.Size(f), 0
	var ids []state.KeyspaceID
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		id := state.KeyspaceID(k.GetId())
		if k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
			return true
		}
		if r.was.keyspaces[id] != k {
			one := &coordinatorv1.RecordedKeyspace{Id: k.GetId(), Name: k.GetName(), Settings: k.GetSettings()}
			if bytes += proto.Size(one) + 8; bytes > MaxFrameBytes/2 {
				f.LeftOut += uint64(st.KeyspaceRegionCount(id))
				return true
			}
			f.Keyspaces = append(f.Keyspaces, one)
		}
		is.keyspaces[id] = k
		ids = append(ids, id)
		return true
	})
	for id := range r.was.keyspaces {
		if is.keyspaces[id] == nil {
			f.GoneKeyspaces = append(f.GoneKeyspaces, uint32(id))
		}
	}
	for _, id := range ids {
		n := 0
		st.RegionsFrom(id, "", func(x *state.Region) bool {
			if looked == MaxRegions {
				return false
			}
			one := r.region(st, x)
			size := 0
			if one != nil {
				size = proto.Size(one) + 4
			}
			if bytes+size > MaxFrameBytes {
				return false
			}
			looked++
			n++
			is.loads[x.ID] = r.was.loads[x.ID]
			if one != nil {
				bytes += size
				f.Regions = append(f.Regions, one)
				is.loads[x.ID] = one.GetLoadMilli()
			}
			return true
		})
		f.LeftOut += uint64(st.KeyspaceRegionCount(id) - n)
	}
	for id := range r.was.loads {
		if _, there := is.loads[id]; !there {
			f.GoneRegions = append(f.GoneRegions, uint64(id))
		}
	}
	slices.Sort(f.GoneRegions)
	slices.Sort(f.GoneKeyspaces)
	r.was = is
	return f
}

// region is a region, if there is something new to say of it. A load that changed by less
// than a fiftieth is as before.
func (r *Recorder) region(st *state.State, x *state.Region) *coordinatorv1.RecordedRegion {
	milli := r.load(x)
	was, known := r.was.loads[x.ID]
	if known {
		if gap := max(was, milli) - min(was, milli); gap == 0 || milli > 0 && was > 0 && gap <= was/50 {
			return nil
		}
		return &coordinatorv1.RecordedRegion{Id: uint64(x.ID), LoadMilli: milli}
	}
	one := &coordinatorv1.RecordedRegion{Id: uint64(x.ID), LoadMilli: milli, KeyspaceId: uint32(x.Keyspace), StartKey: []byte(x.Start), EndKey: []byte(x.End)}
	for _, o := range x.Owners {
		if st.Acts(o) {
			one.Owners = append(one.Owners, string(o.Member))
		}
	}
	return one
}

// load is that of all owners in thousandths of a unit, and 1; 0: nobody has told.
func (r *Recorder) load(x *state.Region) uint64 {
	sum, known := 0.0, false
	for _, o := range x.Owners {
		if said, ok := r.cfg.Soft.Own(x.ID, o.Incarnation); ok {
			sum, known = sum+said.Load, true
		}
	}
	if !known {
		return 0
	}
	return uint64(min(max(sum, 0), 1e15)*1000) + 1
}

func (r *Recorder) members(st *state.State, f *coordinatorv1.RecordedFrame, is sample) {
	bytes := 0
	st.Members(func(m *rootv1.Member) bool {
		draining := m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING
		if !draining && m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
			return true
		}
		id := state.MemberID(m.GetId())
		one := &coordinatorv1.RecordedMember{
			Id: m.GetId(), Incarnation: m.GetIncarnation(), Capacity: m.GetCapacity(), Labels: m.GetLabels(), Keyspaces: m.GetKeyspaces(),
			Takes: r.cfg.Takes(id), Draining: draining,
		}
		if bytes += proto.Size(one) + 4; bytes > MaxFrameBytes/4 {
			return true
		}
		if is.members[id] = one; !proto.Equal(one, r.was.members[id]) {
			f.Members = append(f.Members, one)
		}
		return true
	})
	for id := range r.was.members {
		if is.members[id] == nil {
			f.GoneMembers = append(f.GoneMembers, string(id))
		}
	}
	slices.Sort(f.GoneMembers)
}

// Read returns segments from a position on, and where the next ones are. A segment that
// grows still is the last one, as it is.
func (r *Recorder) Read(position uint64) *coordinatorv1.ReadRecordingResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &coordinatorv1.ReadRecordingResponse{}
	at := max(position, r.first)
	if position != 0 {
		resp.Lost = at - position
	}
	end := r.first + uint64(len(r.closed))
	for ; at < end && (len(resp.Data) == 0 || len(resp.Data)+len(r.closed[at-r.first]) <= maxReadBytes); at++ {
		resp.Data = append(resp.Data, r.closed[at-r.first]...)
	}
	if resp.Next = at; at < end {
		return resp
	}
	if len(r.open) > 0 && at == end {
		if data := seal(r.open); len(resp.Data) == 0 || len(resp.Data)+len(data) <= maxReadBytes {
			resp.Data = append(resp.Data, data...)
			resp.Next = at + 1
		} else {
			return resp
		}
	}
	resp.Last = true
	return resp
}
