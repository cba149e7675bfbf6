package client

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Regions of one chunk: at most, and as a snapshot fills them.
const (
	chunkMost = 128
	chunkFill = 96
)

// table is a keyspace's regions in key order, in chunks. Immutable once it is
// a Cache's table: a change copies the chunks it touches and the top.
type table struct {
	top      column // first key of each chunk
	chunks   []*chunk
	count    int
	members  memberTable
	keyspace rooted.KeyspaceID
	slots    *rootv1.Layout // layout whose route key is not the key itself; else nil
	at       Position
	complete bool // a snapshot has been taken in
}

// chunk is a run of regions. Immutable once its edit is done.
type chunk struct {
	starts  column
	regions []*rooted.Region
	// meets has bit i set where region i reaches to the start of region i+1:
	// a key in between needs no look at the end.
	meets [(chunkMost + 63) / 64]uint64
	by    *edit // that made it; it may change it until done
}

// find returns the region that holds a route key; nil: none here does.
func (t *table) find(routeKey string) *rooted.Region {
	i := t.top.floor(routeKey)
	if i < 0 {
		return nil
	}
	c := t.chunks[i]
	j := c.starts.floor(routeKey)
	r := c.regions[j]
	if c.meets[j/64]&(1<<(j%64)) == 0 && r.End != "" && routeKey >= r.End {
		return nil
	}
	return r
}

func (t *table) describe(k *rootv1.Keyspace) {
	t.keyspace, t.slots = rooted.KeyspaceID(k.GetId()), nil
	if l := k.GetSettings().GetLayout(); l.GetSlots() != nil {
		t.slots = l
	}
}

// memberTable is the members that a cache knows. Immutable once its table is a
// Cache's: a change shares all of it but the path to the member.
type memberTable struct {
	byID cow.Map[rooted.MemberID, Member]
	made bool
}

func (t memberTable) get(id rooted.MemberID) (Member, bool) {
	if !t.made {
		return Member{}, false
	}
	return t.byID.Get(id)
}

// with returns the table with changes made.
func (t memberTable) with(changes []memberChange) memberTable {
	if len(changes) == 0 {
		return t
	}
	next := memberTable{made: true}
	if t.made {
		next.byID = t.byID.Branch()
	} else {
		next.byID = cow.New[rooted.MemberID, Member]()
	}
	for _, c := range changes {
		if c.removed {
			next.byID.Delete(c.member.ID)
		} else {
			next.byID.Set(c.member.ID, c.member)
		}
	}
	return next
}

// fill takes in the regions of a snapshot.
func (t *table) fill(regions []*rooted.Region) {
	byStart := func(a, b *rooted.Region) int { return cmp.Compare(a.Start, b.Start) }
	if !slices.IsSortedFunc(regions, byStart) {
		slices.SortFunc(regions, byStart)
	}
	e := &edit{}
	for part := range slices.Chunk(regions, chunkFill) {
		e.chunks = append(e.chunks, &chunk{regions: slices.Clone(part), by: e})
	}
	next := e.done(t)
	t.top, t.chunks, t.count = next.top, next.chunks, next.count
}

// edit is a change of a table in the making.
type edit struct {
	chunks  []*chunk
	touched bool
}

func (t *table) edit() *edit { return &edit{chunks: t.chunks} }

// done makes the changed table.
func (e *edit) done(t *table) *table {
	next := *t
	if !e.touched && t.chunks != nil {
		return &next
	}
	next.chunks, next.count = e.chunks, 0
	firsts := make([]string, len(e.chunks))
	for i, c := range e.chunks {
		if c.by == e {
			c.index()
			c.by = nil
		}
		firsts[i] = c.regions[0].Start
		next.count += len(c.regions)
	}
	next.top = newColumn(firsts)
	return &next
}

func (c *chunk) index() {
	starts := make([]string, len(c.regions))
	for j, r := range c.regions {
		starts[j] = r.Start
		if j > 0 && c.regions[j-1].End == r.Start {
			c.meets[(j-1)/64] |= 1 << ((j - 1) % 64)
		}
	}
	c.starts = newColumn(starts)
}

// own makes the chunks this edit's, and chunk i too.
func (e *edit) own(i int) *chunk {
	if !e.touched {
		e.chunks, e.touched = slices.Clone(e.chunks), true
	}
	c := e.chunks[i]
	if c.by != e {
		c = &chunk{regions: append(make([]*rooted.Region, 0, len(c.regions)+1), c.regions...), by: e}
		e.chunks[i] = c
	}
	return c
}

// seek returns the chunk that start is or would be in, its place there, and
// whether it is there.
func (e *edit) seek(start string) (i, j int, there bool) {
	i = max(sort.Search(len(e.chunks), func(i int) bool { return e.chunks[i].regions[0].Start > start })-1, 0)
	if len(e.chunks) == 0 {
		return 0, 0, false
	}
	j, there = slices.BinarySearchFunc(e.chunks[i].regions, start, func(r *rooted.Region, s string) int { return cmp.Compare(r.Start, s) })
	return i, j, there
}

// overlaps returns the regions that have keys in common with r.
func (e *edit) overlaps(r *rooted.Region) []*rooted.Region {
	var out []*rooted.Region
	i, j, there := e.seek(r.Start)
	if !there && j > 0 {
		if before := e.chunks[i].regions[j-1]; before.End == "" || before.End > r.Start {
			out = append(out, before)
		}
	}
	for ; i < len(e.chunks); i, j = i+1, 0 {
		for _, o := range e.chunks[i].regions[j:] {
			if r.End != "" && o.Start >= r.End {
				return out
			}
			out = append(out, o)
		}
	}
	return out
}

func (e *edit) replace(r *rooted.Region) {
	if i, j, there := e.seek(r.Start); there {
		e.own(i).regions[j] = r
	}
}

func (e *edit) insert(r *rooted.Region) {
	if len(e.chunks) == 0 {
		e.chunks, e.touched = []*chunk{{regions: []*rooted.Region{r}, by: e}}, true
		return
	}
	i, j, _ := e.seek(r.Start)
	c := e.own(i)
	c.regions = slices.Insert(c.regions, j, r)
	if n := len(c.regions); n > chunkMost {
		right := &chunk{regions: slices.Clone(c.regions[n/2:]), by: e}
		c.regions = slices.Clip(c.regions[:n/2])
		e.chunks = slices.Insert(e.chunks, i+1, right)
	}
}

func (e *edit) remove(r *rooted.Region) {
	i, j, there := e.seek(r.Start)
	if !there || e.chunks[i].regions[j].ID != r.ID {
		return
	}
	c := e.own(i)
	c.regions = slices.Delete(c.regions, j, j+1)
	if len(c.regions) == 0 {
		e.chunks = slices.Delete(e.chunks, i, i+1)
	}
}

// column is sorted keys, laid out for search: the part that all of them share
// is compared once, the eight bytes behind it as a number, and whole keys only
// where these are equal. Immutable.
type column struct {
	shared string
	heads  []uint64
	keys   []string
}

func newColumn(keys []string) column {
	c := column{keys: keys, heads: make([]uint64, len(keys))}
	if len(keys) > 0 {
		c.shared = cow.SharedPrefix(keys[0], keys[len(keys)-1])
	}
	for i, k := range keys {
		c.heads[i] = cow.Head(k[len(c.shared):])
	}
	return c
}

// floor is the position of the last key that is not above key; -1: all are.
func (c *column) floor(key string) int {
	if n := len(c.shared); n > 0 {
		if len(key) < n || key[:n] != c.shared {
			if key < c.shared {
				return -1
			}
			return len(c.keys) - 1
		}
		key = key[n:]
	}
	h := cow.Head(key)
	lo := sort.Search(len(c.heads), func(i int) bool { return c.heads[i] > h })
	// Heads before lo are not above h; among those equal to it, whole keys decide.
	if lo == 0 || c.heads[lo-1] != h {
		return lo - 1
	}
	skip := len(c.shared)
	if c.keys[lo-1][skip:] <= key {
		return lo - 1
	}
	from := sort.Search(lo, func(i int) bool { return c.heads[i] >= h })
	n := sort.Search(lo-from, func(i int) bool { return c.keys[from+i][skip:] > key })
	return from + n - 1
}
