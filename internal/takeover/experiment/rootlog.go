package experiment

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// rootLog follows the root's log: when what was rooted, and in how many entries.
type rootLog struct {
	root  *rootclient.Client
	start time.Time

	st *state.State // owned by run

	mu sync.Mutex
	// Guarded by mu. notes are the entries that changed an owner, a move or a member,
	// now the regions of the keyspace as they are, failed why incarnations have.
	keyspace rooted.KeyspaceID
	notes    []entryNote
	now      map[rooted.RegionID]ownedRegion
	failed   map[rooted.MemberID]bool
	err      error
}

// entryNote is what an entry of the log did.
type entryNote struct {
	at time.Duration
	// granted regions got other owners, of assignments or of moves; planned, readied
	// and completed are steps of moves.
	granted, planned, readied, completed int
	failed                               []rooted.MemberID
}

// ownedRegion is a region with its one owner.
type ownedRegion struct {
	owner rooted.MemberID
	epoch rooted.Epoch
	key   string
}

func newRootLog(root *rootclient.Client, start time.Time) *rootLog {
	return &rootLog{root: root, start: start, st: state.New(), now: map[rooted.RegionID]ownedRegion{}, failed: map[rooted.MemberID]bool{}}
}

// run follows until ctx ends; a peer that is gone is replaced by another.
func (l *rootLog) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.follow(ctx)
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
	}
}

func (l *rootLog) follow(ctx context.Context) error {
	stream, err := l.root.Tail(ctx, l.st.Token())
	if err != nil {
		return err
	}
	defer stream.Close()
	var out state.Applied
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		at := time.Since(l.start)
		for _, e := range m.GetEntries() {
			out.Reset()
			if err := l.st.ApplyEntry(e.GetTerm(), e.GetIndex(), e.GetEntry(), &out); err != nil {
				return err
			}
			l.note(at, out.Changes)
		}
	}
}

func (l *rootLog) note(at time.Duration, changes []state.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := entryNote{at: at}
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeRegion:
			if c.Region.Keyspace != l.keyspace || c.Removed {
				continue
			}
			r := ownedRegion{epoch: c.Region.Epoch, key: c.Region.Start}
			if len(c.Region.Owners) > 0 {
				r.owner = c.Region.Owners[0].Member
			}
			if c.OldRegion != nil && l.now[c.Region.ID].owner != r.owner {
				n.granted++
			}
			l.now[c.Region.ID] = r
		case state.ChangeMember:
			id := rooted.MemberID(c.Member.GetId())
			if failed := c.Member.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED; failed != l.failed[id] {
				l.failed[id] = failed
				if failed {
					n.failed = append(n.failed, id)
				}
			}
		case state.ChangeTransition:
			switch t := c.Transition; {
			case c.Removed:
			case t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
				n.completed++
			case t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING && t.GetReadyAt() != nil:
				n.readied++
			case t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING:
				n.planned++
			}
		}
	}
	if n.granted+n.planned+n.readied+n.completed+len(n.failed) > 0 {
		l.notes = append(l.notes, n)
	}
}

// watch notes the regions of a keyspace from now on, whose regions are not there yet.
func (l *rootLog) watch(keyspace rooted.KeyspaceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keyspace = keyspace
}

// regions are those of the keyspace as they are, by id.
func (l *rootLog) regions() map[rooted.RegionID]ownedRegion {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[rooted.RegionID]ownedRegion, len(l.now))
	for id, r := range l.now {
		all[id] = r
	}
	return all
}

// count is how many regions there are, and how many a member owns.
func (l *rootLog) count(of rooted.MemberID) (all, owned int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.now {
		if r.owner == of {
			owned++
		}
	}
	return len(l.now), owned
}

// since are the notes from a moment on.
func (l *rootLog) since(at time.Duration) []entryNote {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.notes)
	for i > 0 && l.notes[i-1].at >= at {
		i--
	}
	return append([]entryNote(nil), l.notes[i:]...)
}

// reader is a caller with a cache of routes, and when it learned what.
type reader struct {
	client *client.Client
	cache  *client.Cache
	start  time.Time

	mu sync.Mutex
	// Guarded by mu. learned are moments at which owners changed, in order; owned says
	// how many regions each member has, as the cache shows it.
	learned []time.Duration
	owned   map[rooted.MemberID]int
	regions int
}

func newReader(endpoints []string, keyspace string, start time.Time) (*reader, error) {
	r := &reader{start: start, owned: map[rooted.MemberID]int{}}
	var err error
	if r.client, err = client.New(client.Config{Endpoints: endpoints}); err != nil {
		return nil, err
	}
	r.cache = r.client.NewCache(client.CacheConfig{Keyspace: keyspace, OnChange: r.hear})
	return r, nil
}

// run keeps the cache until ctx ends. A coordinator may not know the keyspace yet; what is
// missed is seen, because a round ends with all of it.
func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = r.cache.Run(ctx)
		_ = wait(ctx, askEvery)
	}
}

// hear is told of what the cache shows already.
func (r *reader) hear(u client.Update) {
	at := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.Whole {
		clear(r.owned)
		r.regions = 0
		for route := range r.cache.All() {
			r.regions++
			r.owned[ownerOf(route.Region)]++
		}
		r.learned = append(r.learned, at)
		return
	}
	for _, c := range u.Regions {
		if c.Old != nil {
			r.regions--
			r.owned[ownerOf(c.Old)]--
		}
		if c.New != nil {
			r.regions++
			r.owned[ownerOf(c.New)]++
		}
		if ownerOf(c.Old) != ownerOf(c.New) {
			r.learned = append(r.learned, at)
		}
	}
}

func ownerOf(r *rooted.Region) rooted.MemberID {
	if r == nil || len(r.Owners) == 0 {
		return ""
	}
	return r.Owners[0].Member
}

// count is how many regions it knows, and how many of them as a member's.
func (r *reader) count(of rooted.MemberID) (all, owned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.regions, r.owned[of]
}

// since are the moments from one on at which it learned something.
func (r *reader) since(at time.Duration) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.learned)
	for i > 0 && r.learned[i-1] >= at {
		i--
	}
	return append([]time.Duration(nil), r.learned[i:]...)
}
