package storage

import (
	"encoding/binary"
	"fmt"
	"math"

	"go.etcd.io/raft/v3/raftpb"
)

// position is a place between two frames of the log.
type position struct {
	// Sequence of the segment and Offset in it, in bytes.
	Sequence uint64
	Offset   int64
	// Number of the next frame; Chain of the one before.
	Number uint64
	Chain  uint32
}

// replay reads a log from its segments. It decides what is a torn tail and
// what is damage; it changes nothing.
//
// Only the last frame of a log can be in doubt after a crash, because each is
// synced before the next is written. So a bad frame with a whole one behind it
// is damage, unless the whole one is the same frame again: a start after a
// crash repeats the last frame, since it cannot know whether it ever reached
// the disk (rule 4 of the package).
type replay struct {
	segments []*replaySegment
	// mark must be met on the way; nil: nothing is known to be durable.
	mark *mark
	// complain is told about damage; nil: the first is returned.
	complain func(*DamageError)

	// The log as read so far. baseTerm is 0 when base is not: an append went
	// back behind the oldest segment, and what that replaced is committed and
	// in the checkpoint by now, or the segment before would be here.
	base, baseTerm uint64
	entries        []*raftpb.Entry
	hard           *raftpb.HardState
	frames         int

	// at is behind the last frame, in segments[seg].
	at      position
	seg     int
	markMet bool
	// The last frame, to be repeated: what was before it, and what it held.
	before      position
	beforeIndex uint64
	beforeTerm  uint64
	last        batch
}

// replaySegment is a segment as read.
type replaySegment struct {
	segmentHeader
	path string
	load func() ([]byte, error)
	buf  []byte
	// last is the highest index in it.
	last uint64
}

func (r *replay) run() error {
	if len(r.segments) == 0 {
		return nil
	}
	r.at = position{Sequence: r.segments[0].sequence, Offset: sectorBytes, Number: 1}
	r.before = r.at
	r.meetMark()
	for {
		f, seg, off, err := r.next()
		if err != nil {
			return err
		}
		if f == nil {
			return r.finish()
		}
		if err := r.take(*f, seg, off); err != nil {
			return err
		}
	}
}

// next finds the next frame that is whole in itself, however far away.
func (r *replay) next() (*frame, int, int64, error) {
	off := r.at.Offset
	for seg := r.seg; seg < len(r.segments); seg++ {
		s := r.segments[seg]
		if s.buf == nil {
			buf, err := s.load()
			if err != nil {
				return nil, 0, 0, err
			}
			s.buf = buf
		}
		for ; off < int64(len(s.buf)); off += sectorBytes {
			if f, ok := parseFrame(s.buf, off, s.salt); ok {
				return &f, seg, off, nil
			}
		}
		off = sectorBytes
	}
	return nil, 0, 0, nil
}

// take adds a frame to the log when it is the next one or repeats the last.
func (r *replay) take(f frame, seg int, off int64) error {
	b, err := decodeBatch(f.payload)
	if f.kind != frameKindBatch {
		err = fmt.Errorf("kind %d is unknown: a newer release wrote it", f.kind)
	}
	if err != nil {
		return r.damage(seg, off, fmt.Sprintf("frame %d: %v", f.number, err), func() { r.adopt(f, seg) })
	}
	if what, itself := r.fits(f, b, seg, off); what != "" {
		badSeg, badOff := seg, off
		if !itself {
			badSeg, badOff = r.suspect(seg, off)
		}
		return r.damage(badSeg, badOff, what, func() { r.adopt(f, seg); r.apply(b, seg, true) })
	}
	first := r.frames == 0
	if first || f.number == r.at.Number {
		r.before = r.at
		r.beforeIndex, r.beforeTerm = r.lastIndex()
	}
	if first {
		begin := b.beginning()
		r.before.Number, r.before.Chain = f.number, begin.chain
		r.base, r.baseTerm = begin.index, begin.term
		r.beforeIndex, r.beforeTerm = r.base, r.baseTerm
	}
	r.last = b
	r.adopt(f, seg)
	if what := r.apply(b, seg, false); what != "" {
		return r.damage(seg, off, fmt.Sprintf("frame %d: %s", f.number, what), func() { r.apply(b, seg, true) })
	}
	if !r.meetMark() {
		return r.damage(seg, off, fmt.Sprintf("frame %d is not the one that was acknowledged here: another copy of the log", f.number), nil)
	}
	return nil
}

// fits says what speaks against a frame being next (empty: nothing), and
// whether that is the frame itself or what should be before it.
func (r *replay) fits(f frame, b batch, seg int, off int64) (what string, itself bool) {
	if r.frames == 0 {
		if b.link == nil && f.number != 1 || !f.follows(b.beginning().chain) {
			return fmt.Sprintf("the first frame of the log is damaged or missing; frame %d follows in %s at offset %d", f.number, r.segments[seg].path, off), f.number == 1
		}
		return "", false
	}
	prev := r.at.Chain
	switch f.number {
	case r.at.Number:
	case r.at.Number - 1:
		prev = r.before.Chain
	default:
		return fmt.Sprintf("frame %d is damaged or missing; frame %d follows in %s at offset %d", r.at.Number, f.number, r.segments[seg].path, off), false
	}
	if !f.follows(prev) || seg != r.seg && (b.link == nil || b.link.chain != prev) {
		return fmt.Sprintf("frame %d does not continue the log", f.number), true
	}
	return "", false
}

func (r *replay) adopt(f frame, seg int) {
	for i := r.seg; i < seg; i++ {
		r.segments[i].buf = nil
	}
	r.frames++
	r.seg = seg
	r.at = position{Sequence: r.segments[seg].sequence, Offset: f.end, Number: f.number + 1, Chain: f.chain}
}

// apply puts a batch into the log in memory; with force whatever comes.
func (r *replay) apply(b batch, seg int, force bool) string {
	if b.link != nil && b.link.reset {
		r.base, r.baseTerm, r.entries = b.link.index, b.link.term, nil
	}
	if b.hard != nil {
		r.hard = b.hard
	}
	if len(b.entries) == 0 {
		return ""
	}
	first, end := b.entries[0].GetIndex(), r.base+uint64(len(r.entries))+1
	if first > end && !force {
		return fmt.Sprintf("entry %d does not continue the log of [%d, %d)", first, r.base+1, end)
	}
	if first <= r.base || first > end {
		r.base, r.baseTerm, r.entries = first-1, 0, nil
	}
	r.entries = append(r.entries[:first-r.base-1], b.entries...)
	s := r.segments[seg]
	s.last = max(s.last, first+uint64(len(b.entries))-1)
	return ""
}

func (r *replay) lastIndex() (index, term uint64) {
	if n := len(r.entries); n > 0 {
		return r.base + uint64(n), r.entries[n-1].GetTerm()
	}
	return r.base, r.baseTerm
}

// meetMark notes that the mark is reached; false: it differs.
func (r *replay) meetMark() bool {
	if r.mark == nil || r.markMet || r.at.Sequence != r.mark.At.Sequence || r.at.Offset != r.mark.At.Offset {
		return true
	}
	r.markMet = r.at == r.mark.At
	return r.markMet
}

// suspect guesses where before a place the next frame was: where its salt or
// its number still is.
func (r *replay) suspect(seg int, off int64) (int, int64) {
	at := r.at.Offset
	for i := r.seg; i <= seg; i++ {
		s := r.segments[i]
		if i == seg && at >= off {
			break
		}
		if at+frameHeaderBytes <= int64(len(s.buf)) &&
			(binary.LittleEndian.Uint64(s.buf[at+16:]) == s.salt || binary.LittleEndian.Uint64(s.buf[at+8:]) == r.at.Number) {
			return i, at
		}
		at = sectorBytes
	}
	return r.seg, r.at.Offset
}

// finish judges the end of the log.
func (r *replay) finish() error {
	if r.mark != nil && !r.markMet {
		seg, off := r.suspect(len(r.segments)-1, math.MaxInt64)
		what := fmt.Sprintf("the log ends before frame %d, and was acknowledged up to frame %d, index %d", r.at.Number, r.mark.At.Number-1, r.mark.LastIndex)
		if err := r.damage(seg, off, what, nil); err != nil {
			return err
		}
	}
	if r.base > 0 && r.baseTerm == 0 && len(r.entries) > 0 {
		r.base, r.baseTerm, r.entries = r.base+1, r.entries[0].GetTerm(), r.entries[1:]
	}
	last, _ := r.lastIndex()
	if commit := r.hard.GetCommit(); commit > last {
		return r.damage(r.seg, r.at.Offset, fmt.Sprintf("the log ends at index %d, and index %d was committed", last, commit), nil)
	}
	return nil
}

// reaches insists that nothing is missing between a checkpoint file, of index 0 when
// there is none, and the log.
func (r *replay) reaches(file string, index uint64) error {
	if r.base <= index {
		return nil
	}
	return &DamageError{File: file, What: fmt.Sprintf("the log begins behind index %d, and no checkpoint reaches it", r.base), Do: doFile}
}

// torn says whether an append was cut short behind the end. It may miss one
// of which nothing is left.
func (r *replay) torn() bool {
	if len(r.segments) == 0 {
		return false
	}
	s := r.segments[r.seg]
	for off := r.at.Offset; off+frameHeaderBytes <= int64(len(s.buf)); off += sectorBytes {
		if binary.LittleEndian.Uint64(s.buf[off+16:]) == s.salt {
			return true
		}
	}
	return false
}

// damage ends the replay, or complains, goes over the damage and goes on.
func (r *replay) damage(seg int, off int64, what string, over func()) error {
	err := &DamageError{File: r.segments[seg].path, Offset: off, What: what, Do: doReplace}
	if r.complain == nil {
		return err
	}
	r.complain(err)
	if over != nil {
		over()
	}
	return nil
}
