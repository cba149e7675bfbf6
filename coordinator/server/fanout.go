package server

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Sizes of what watches share.
const (
	// watchPartBytes is about where a part of a batch ends, snapshotPartBytes one of
	// a snapshot, of which each watch has its own.
	watchPartBytes    = 256 << 10
	snapshotPartBytes = 32 << 10
	// frameBytes is about the most, in memory, that the changes of one frame take.
	frameBytes = 1 << 20
	// maxFrames and maxFramesBytes bound the frames kept for watches that are a
	// little behind; those further behind read the changes themselves.
	maxFrames      = 1 << 14
	maxFramesBytes = 32 << 20
	// crowd is how many watches of a scope get what gathered since they were given
	// something last in one message, and of each region only the last change: that is
	// all they need to be where it ends.
	crowd = 256
	// crowdRound is the shortest time between the beginnings of two rounds of a crowd. While
	// no more than crowdFew changes gather from one to the next it is crowdRest for each of
	// its watches, if that is less: then changes wait the less, the less a round costs.
	crowdRound = 100 * time.Millisecond
	crowdFew   = 4
	crowdRest  = 25 * time.Microsecond
	// maxForeign is how many keyspaces of one name a scope remembers before it
	// looks which of them can still be read about.
	maxForeign = 64
)

// fanout encodes every change once for all watches. One goroutine, in run, reads
// the changes and makes frames of them; another, in deliver, visits the watches and
// gives them what there is. Neither waits for a watch.
type fanout struct {
	views Views

	// news: there are watches to be visited; rested: some were, and the pause behind
	// that is over.
	news, rested chan struct{}

	mu sync.Mutex
	// Guarded by mu. at is how far frames reach; moved is closed when it moves.
	at     state.Token
	moved  chan struct{}
	jumps  uint64 // how often the view took a leap
	scopes map[scopeKey]*scope
	// byKeyspace has the scopes of one keyspace, all those without a name and
	// those with members.
	byKeyspace   map[state.KeyspaceID][]*scope
	all, members []*scope
	// kept are the frames of all scopes, oldest first, and their bytes.
	kept  []*frame
	bytes int
	// fresh are scopes with frames that were not given to all their watches yet, looks
	// those whose watches are only looked at, resting crowds whose round begins later, at
	// soonest: each scope is in one of them, and may be left over at an earlier place.
	fresh, looks, resting []*scope
	soonest               time.Time
	looking               bool // a look had its turn last
	// roomy are watches that were full, or are new, and are to be visited.
	roomy []*watch
	// given is the watch that is being given something; passed is told when it no
	// longer is.
	given  *watch
	passed sync.Cond

	// said is what watches were told last that they are worth.
	said, saidBounded atomic.Pointer[said]

	// Owned by deliver. spent is the cost of what was given since pause was asked last,
	// due when it says that the next turn is; until is soonest as next left it, zero for that
	// nobody waits for a round.
	spent      time.Duration
	due, until time.Time
	// gathering is the connection on which what is given waits to leave together.
	gathering *gate.Conn
}

// scopeKey is what a watch asks for.
type scopeKey struct {
	keyspace string // empty: all
	members  bool
}

// scope is what several watches have in common. Guarded by fanout.mu.
type scope struct {
	key     scopeKey
	watches int
	// ids are the keyspaces that have or had the name, as far as anybody can
	// still read about them.
	ids []state.KeyspaceID
	// frames from since on, oldest first. Between two of them nothing concerned
	// the scope.
	frames []*frame
	since  state.Token
	// level are the watches that frames are given to, from the last to the first:
	// those from place on have been in this round, which begins at begin. again: behind
	// it another follows.
	level []*watch
	mixed bool // those of a connection do not stand together
	place int
	begin time.Time
	// gathered is how many changes came since then, or since the one that is to follow was
	// given its time.
	gathered int
	queue    *[]*scope // that of fanout that it is in; nil: none
	again    bool
	// latest are the last changes; nil: it is no crowd.
	latest *latest
}

// frame is what concerns a scope of the changes in (from, to]: parts, each the
// changes of one message in its wire encoding. Nobody changes a frame.
type frame struct {
	scope    *scope
	from, to state.Token
	parts    [][]byte
	bytes    int
	// own: it was made for one watch.
	own bool
}

func newFanout(views Views) *fanout {
	f := &fanout{
		views: views, scopes: map[scopeKey]*scope{}, byKeyspace: map[state.KeyspaceID][]*scope{}, moved: make(chan struct{}),
		news: make(chan struct{}, 1), rested: make(chan struct{}, 1),
	}
	f.passed.L = &f.mu
	return f
}

// run makes frames until the context ends. While some watches are given what there
// is, and in the pause behind that, changes gather.
func (f *fanout) run(ctx context.Context) {
	reader := f.views.Subscribe(f.jump())
	for {
		batches, err := reader.NextAll(ctx, frameBytes)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // the view took a leap
			reader = f.views.Subscribe(f.jump())
			continue
		}
		if !f.publish(batches) {
			continue
		}
		signal(f.news)
		select {
		case <-f.rested:
		case <-ctx.Done():
			return
		}
	}
}

// jump begins again at the newest view: what changed on the way is not known.
func (f *fanout) jump() state.Token {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.views.View().Token
	f.kept, f.bytes = nil, 0
	f.jumps++
	for _, s := range f.scopes {
		s.frames, s.since, s.latest = nil, f.at, nil
		f.identify(s)
		f.refreshLocked(s, &f.fresh) // whose watches fall out of it
	}
	f.alarmLocked()
	signal(f.news)
	return f.at
}

// alarmLocked tells watches that wait for frames to come where they are.
func (f *fanout) alarmLocked() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// enter joins, or makes, the scope of a watch, unless the watch is over.
func (f *fanout) enter(w *watch, key scopeKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.left {
		return false
	}
	s := f.scopes[key]
	if s == nil {
		s = &scope{key: key, since: f.at}
		f.scopes[key] = s
		if key.members {
			f.members = append(f.members, s)
		}
		if key.keyspace == "" {
			f.all = append(f.all, s)
		}
		f.identify(s)
	}
	s.watches++
	w.scope = s
	return true
}

// leave forgets a scope with its last watch.
func (f *fanout) leave(s *scope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.watches--; s.watches > 0 {
		return
	}
	delete(f.scopes, s.key)
	f.disown(s)
	other := func(o *scope) bool { return o == s }
	f.all, f.members = slices.DeleteFunc(f.all, other), slices.DeleteFunc(f.members, other)
	if s.queue != nil {
		*s.queue = slices.DeleteFunc(*s.queue, other)
		s.queue = nil
	}
	f.kept = slices.DeleteFunc(f.kept, func(k *frame) bool { return k.scope == s })
	for _, k := range s.frames {
		f.bytes -= k.bytes
	}
}

// identify finds out which keyspaces a scope is about.
func (f *fanout) identify(s *scope) {
	if s.key.keyspace == "" {
		return
	}
	f.disown(s)
	for _, id := range f.views.KeyspacesNamed(s.key.keyspace) {
		f.own(s, id)
	}
}

func (f *fanout) own(s *scope, id state.KeyspaceID) {
	if !slices.Contains(s.ids, id) {
		s.ids = append(s.ids, id)
		f.byKeyspace[id] = append(f.byKeyspace[id], s)
	}
}

func (f *fanout) disown(s *scope) {
	for _, id := range s.ids {
		f.byKeyspace[id] = slices.DeleteFunc(f.byKeyspace[id], func(o *scope) bool { return o == s })
		if len(f.byKeyspace[id]) == 0 {
			delete(f.byKeyspace, id)
		}
	}
	s.ids = nil
}

// learn notes new keyspaces of the names that are watched, before anything of
// theirs is looked at.
func (f *fanout) learn(batches []rootview.Batch) {
	for i := range batches {
		for j := range batches[i].Changes {
			c := &batches[i].Changes[j]
			if c.Kind != state.ChangeKeyspace {
				continue
			}
			for _, members := range []bool{false, true} {
				if s := f.scopes[scopeKey{c.Keyspace.GetName(), members}]; s != nil {
					if len(s.ids) > maxForeign {
						f.identify(s)
					}
					f.own(s, state.KeyspaceID(c.Keyspace.GetId()))
				}
			}
		}
	}
}

// publish makes frames of batches, each change encoded once. It says whether there
// is one that somebody is to be given.
func (f *fanout) publish(batches []rootview.Batch) (waited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to := f.at, batches[len(batches)-1].Token
	f.at = to
	defer f.alarmLocked()
	if len(f.scopes) == 0 {
		return false
	}
	f.learn(batches)
	making := map[*scope]*frame{}
	var change []byte
	for i := range batches {
		for j := range batches[i].Changes {
			c := &batches[i].Changes[j]
			if c.Acknowledges() {
				continue // it is found where it was
			}
			change = change[:0]
			f.concerned(c, func(s *scope) {
				if len(change) == 0 || c.Kind == state.ChangeMember { // which is not the same to all
					change = s.appendChange(change[:0], c)
				}
				k := making[s]
				if k == nil {
					k = &frame{scope: s, from: from, to: to}
					making[s] = k
				}
				k.add(change)
				s.gathered++
				s.gather(c, from, to, change)
			})
		}
	}
	for s, k := range making {
		s.frames = append(s.frames, k)
		f.kept = append(f.kept, k)
		f.bytes += k.bytes
		f.refreshLocked(s, &f.fresh)
	}
	f.trim()
	return len(f.fresh)+len(f.looks)+len(f.resting) > 0
}

// refreshLocked has a round of a scope begin in a queue, or another follow.
func (f *fanout) refreshLocked(s *scope, queue *[]*scope) {
	if s.queue != nil && (s.queue != &f.looks || queue == s.queue) {
		s.again = true
		return
	}
	s.place = len(s.level)
	now := time.Now()
	next := s.begin.Add(s.rest())
	if s.gathered = 0; next.Before(now) {
		s.begin = now
	} else {
		s.begin = next
		if s.begin.After(now) {
			queue = &f.resting
			f.soonLocked(s.begin)
		}
	}
	if s.place > 0 {
		s.queue = queue
		*queue = append(*queue, s)
	}
	if s.mixed && isCrowd(s) {
		s.group()
	}
}

// rest is the shortest time between the beginnings of two rounds.
func (s *scope) rest() time.Duration {
	switch {
	case !isCrowd(s):
		return 0
	case s.gathered > crowdFew:
		return crowdRound
	}
	return min(time.Duration(len(s.level))*crowdRest, crowdRound)
}

// group has the watches of a connection stand together, for fanout.gather.
func (s *scope) group() {
	slices.SortStableFunc(s.level, func(a, b *watch) int { return cmp.Compare(a.connection.Number(), b.connection.Number()) })
	for i, w := range s.level {
		w.place = i
	}
	s.mixed = false
}

func isCrowd(s *scope) bool { return len(s.level) >= crowd }

// concerned calls fn for the scopes that a change belongs to.
func (f *fanout) concerned(c *state.Change, fn func(*scope)) {
	each := func(scopes []*scope) {
		for _, s := range scopes {
			fn(s)
		}
	}
	switch c.Kind {
	case state.ChangeRegion:
		each(f.all)
		each(f.byKeyspace[c.Region.Keyspace])
	case state.ChangeKeyspace:
		each(f.all)
		each(f.byKeyspace[state.KeyspaceID(c.Keyspace.GetId())])
	case state.ChangeMember:
		each(f.members)
	}
}

// trim drops the oldest frames above the bounds.
func (f *fanout) trim() {
	n := 0
	for n < len(f.kept)-1 && (len(f.kept)-n > maxFrames || f.bytes > maxFramesBytes) {
		k := f.kept[n]
		k.scope.frames, k.scope.since = k.scope.frames[1:], k.to
		f.bytes -= k.bytes
		f.kept[n] = nil
		n++
	}
	f.kept = f.kept[n:]
}

// step is what a watch at a position does next.
type step struct {
	frame *frame // to be sent, or
	// to read the changes itself, up to until, or
	behind bool
	until  state.Token
	ahead  <-chan struct{} // to wait until frames are made of what it has, or
	at     state.Token     // nothing: up to here there is nothing for it
}

// nextLocked says how a watch goes on from a position.
func (f *fanout) nextLocked(s *scope, at state.Token) step {
	if at.Compare(f.at) > 0 {
		return step{ahead: f.moved}
	}
	if at.Compare(s.since) < 0 {
		return step{behind: true, until: s.since}
	}
	i := sort.Search(len(s.frames), func(i int) bool { return s.frames[i].to.Compare(at) > 0 })
	if i == len(s.frames) {
		return step{at: f.at}
	}
	if k := s.frames[i]; k.from.Compare(at) < 0 {
		return step{behind: true, until: k.to} // from the middle of a frame
	}
	return step{frame: s.frames[i]}
}

// frameOf makes a frame of batches for one watch.
func (f *fanout) frameOf(s *scope, from state.Token, batches []rootview.Batch) *frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.learn(batches)
	k := &frame{scope: s, from: from, to: batches[len(batches)-1].Token}
	var change []byte
	for i := range batches {
		for j := range batches[i].Changes {
			if c := &batches[i].Changes[j]; s.wants(c) {
				change = s.appendChange(change[:0], c)
				k.add(change)
			}
		}
	}
	return k
}

// wants says whether a change belongs to a scope.
func (s *scope) wants(c *state.Change) bool {
	switch c.Kind {
	case state.ChangeRegion:
		return s.key.keyspace == "" || slices.Contains(s.ids, c.Region.Keyspace)
	case state.ChangeKeyspace:
		return s.key.keyspace == "" || c.Keyspace.GetName() == s.key.keyspace
	case state.ChangeMember:
		return s.key.members
	default:
		return false
	}
}

// member is a member as those see it who watch one keyspace: which others it takes they may not
// be allowed to know.
func (s *scope) member(m *rootv1.Member) *rootv1.Member {
	if s.key.keyspace == "" {
		return m
	}
	return concealed(m, func(keyspace string) bool { return keyspace == s.key.keyspace })
}

// add appends an encoded change.
func (k *frame) add(change []byte) {
	last := len(k.parts) - 1
	if last < 0 || len(k.parts[last])+len(change) > watchPartBytes {
		k.parts = append(k.parts, nil)
		last++
	}
	k.parts[last] = append(k.parts[last], change...)
	k.bytes += len(change)
}

// Fields of WatchRegionsResponse, RegionChange, KeyspaceChange and MemberChange.
const (
	watchToken, watchSnapshot, watchPartial               protowire.Number = 1, 2, 3
	watchChanges, watchKeyspaces, watchMembers, watchSays protowire.Number = 4, 5, 6, 7
	watchSent                                             protowire.Number = 8
	changeRecord, changeRemoved                           protowire.Number = 1, 2
)

// appendChange appends a change as an element of its list.
func (s *scope) appendChange(b []byte, c *state.Change) []byte {
	switch c.Kind {
	case state.ChangeRegion:
		return appendRegionChange(b, c.Region, c.Removed)
	case state.ChangeKeyspace:
		return appendRecordChange(b, watchKeyspaces, withoutSecrets(c.Keyspace), c.Removed)
	default:
		return appendRecordChange(b, watchMembers, s.member(c.Member), c.Removed)
	}
}

func appendRegionChange(b []byte, r *state.Region, removed bool) []byte {
	b, at := open(b, watchChanges)
	b = appendRegion(b, changeRecord, r)
	b = appendBool(b, changeRemoved, removed)
	return shut(b, at)
}

// appendRecordChange appends a change of a record that is a message itself. What
// is rooted has been decoded before, so that encoding it cannot fail.
func appendRecordChange(b []byte, num protowire.Number, record proto.Message, removed bool) []byte {
	b, at := open(b, num)
	b, inner := open(b, changeRecord)
	out, err := proto.MarshalOptions{}.MarshalAppend(b, record)
	if err != nil {
		panic("server: a rooted record cannot be encoded: " + err.Error())
	}
	b = shut(out, inner)
	b = appendBool(b, changeRemoved, removed)
	return shut(b, at)
}
