package server

import (
	"container/list"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
)

// latestBytes is about the most that the last changes of a scope take in memory.
const latestBytes = 1 << 20

// latest are the changes of a scope in (since, ...], without those that another one
// of the same region followed: what lies behind a position is together what a watch
// misses there. Guarded by fanout.mu.
type latest struct {
	since    state.Token
	changes  list.List // of *lastChange, oldest first
	byRegion map[state.RegionID]*list.Element
	bytes    int
	made     []*frame // that were made for the last position, at most maxMade
}

// maxMade is at how many positions those of a crowd who stand there share a message.
const maxMade = 8

// lastChange is a change in its encoding.
type lastChange struct {
	region state.RegionID // 0: it is of something else
	at     state.Token    // where it was read
	data   []byte
}

// gather adds a change that was read in (from, to] to the last ones of a crowd.
func (s *scope) gather(c *state.Change, from, to state.Token, encoded []byte) {
	if !isCrowd(s) {
		s.latest = nil // or it would miss this one
		return
	}
	if s.latest == nil {
		s.latest = &latest{since: from, byRegion: map[state.RegionID]*list.Element{}}
	}
	s.latest.add(c, to, encoded)
}

func (l *latest) add(c *state.Change, at state.Token, encoded []byte) {
	change := &lastChange{at: at, data: slices.Clone(encoded)}
	if c.Kind == state.ChangeRegion {
		change.region = c.Region.ID
		if before := l.byRegion[change.region]; before != nil {
			l.remove(before)
		}
	}
	element := l.changes.PushBack(change)
	if change.region != 0 {
		l.byRegion[change.region] = element
	}
	for l.bytes += change.bytes(); l.bytes > latestBytes; {
		l.since = l.remove(l.changes.Front()).at
	}
}

func (l *latest) remove(e *list.Element) *lastChange {
	change := l.changes.Remove(e).(*lastChange)
	delete(l.byRegion, change.region)
	l.bytes -= change.bytes()
	return change
}

// bytes is about what the change takes in memory.
func (c *lastChange) bytes() int { return len(c.data) + 256 }

// instead is what a watch is given instead of a frame, the first of several, up to a
// position: one message, which all share who stand there in a round. It is the frame
// itself when that message would be too long, or not all of it is known, or nobody else
// may stand there: what is shared is little, the rest counts for whom it is made.
func (l *latest) instead(first *frame, to state.Token, round bool) *frame {
	if len(l.made) > 0 && l.made[0].to != to {
		clear(l.made)
		l.made = l.made[:0]
	}
	for _, k := range l.made {
		if k.from == first.from {
			return k
		}
	}
	if first.from.Compare(l.since) < 0 || round && len(l.made) == maxMade {
		return first
	}
	size, begin := 0, (*list.Element)(nil)
	for e := l.changes.Back(); e != nil && e.Value.(*lastChange).at.Compare(first.from) > 0; e = e.Prev() {
		size, begin = size+len(e.Value.(*lastChange).data), e
	}
	if size > watchPartBytes {
		return first
	}
	all := make([]byte, 0, size)
	for e := begin; e != nil; e = e.Next() {
		all = append(all, e.Value.(*lastChange).data...)
	}
	k := &frame{from: first.from, to: to, parts: [][]byte{all}, bytes: size, own: !round}
	if round {
		l.made = append(l.made, k)
	}
	return k
}
