package chaos

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// evidence is what a run left behind. Times are since the run began, by one
// clock. Methods that add may be called by all callers at once.
type evidence struct {
	mu sync.Mutex // guards everything while the run lasts

	// calls are ids and timestamps as they were asked for, with the answers.
	calls   []history.Call
	writes  []*write
	reads   []*read
	watches map[string][]*batch
	// typed are changes by typed calls, copies what followers of watches had, routes
	// what a cache gave.
	typed  []*change
	copies []copied
	routes []shown
	// acked are positions that were acknowledged to somebody.
	acked []ack

	// log is what the root peers committed, from index 1 on.
	log []entry
	// disagreed says that two peers committed different entries, or that a tail had a gap.
	disagreed error
	// peers are the root peers as they were when all was at rest; asked is when they
	// began to be asked. Idle coordinators change little, and that little may come behind it.
	peers []peerEnd
	asked time.Duration
	// failed are processes whose storage was made to fail.
	failed []failStop
	// violations are broken promises that processes counted themselves.
	violations []error

	// staleness is how old a bounded answer may be beyond its bound.
	staleness time.Duration
}

// entry is one committed entry of the log.
type entry struct {
	term uint64
	data []byte
}

// write is one change, with all the tries that it took. Its tag is in the
// region's frontier and in nothing else.
type write struct {
	client, key, tag string
	// conf is the epoch, as a number: of a removal the expected one; 0: any.
	conf uint64
	// removes: it is a removal, of the identity; absent says that there was nothing
	// to remove.
	removes, absent bool
	id              identityOf
	// called is when the first try was sent, lastTry the last one; returned when
	// the answer was there, history.Never when it did not come.
	called, lastTry, returned time.Duration
	tries                     int
	// outcome is the answer, unspecified when there was none.
	outcome rootv1.Outcome
	// repetition: an earlier try was judged, and the token is of the answer.
	repetition bool
	reason     rootv1.Reason
	token      state.Token
}

// kindOfRead is how fresh an answer was asked for.
type kindOfRead int

const (
	strong kindOfRead = iota
	bounded
	session
	bestEffort
	kindsOfRead
)

func (k kindOfRead) String() string {
	return [...]string{"strong", "bounded", "session", "best effort"}[k]
}

// read is one answered read of one key.
type read struct {
	client, node, key string
	kind              kindOfRead
	called, returned  time.Duration
	// required, maxLag and maxAge are what was asked for.
	required state.Token
	maxLag   uint64
	maxAge   time.Duration
	// token, lag and region are the answer; nil: there is no region.
	token  state.Token
	lag    uint64
	region *state.Region
}

// batch is one message of a watch.
type batch struct {
	to                                   state.Token
	snapshot, snapshotBegin, snapshotEnd bool
	regions                              []regionChange
}

// regionChange is a region that came, changed or went.
type regionChange struct {
	*state.Region
	removed bool
}

// ack says that somebody had been told of a position.
type ack struct {
	at    time.Duration
	index uint64
}

// peerEnd is a root peer at rest.
type peerEnd struct {
	name          string
	applied, hash uint64
	handover      *rootv1.Handover // the newest, as it says
}

// failStop is a process whose storage failed.
type failStop struct {
	name, fault string
	// lived is how long it was there after the first failure.
	lived time.Duration
	// code is its exit status; said whether its log names the failure.
	code int
	said bool
}

func (e *evidence) call(c history.Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, c)
}

func (e *evidence) wrote(w *write) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writes = append(e.writes, w)
	if w.token.Index != 0 {
		e.acked = append(e.acked, ack{w.returned, w.token.Index})
	}
}

func (e *evidence) answered(r *read) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads = append(e.reads, r)
	e.acked = append(e.acked, ack{r.returned, r.token.Index})
}

func (e *evidence) watched(client string, b *batch, at time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watches == nil {
		e.watches = make(map[string][]*batch)
	}
	e.watches[client] = append(e.watches[client], b)
	if !b.snapshot {
		e.acked = append(e.acked, ack{at, b.to.Index})
	}
}

// committed adds an entry that a peer says is committed.
func (e *evidence) committed(peer string, index, term uint64, data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch n := uint64(len(e.log)); {
	case index == n+1:
		e.log = append(e.log, entry{term, slices.Clone(data)})
	case index > n+1 || index == 0:
		e.dispute("%s sent entry %d, the log is known up to %d", peer, index, n)
	case e.log[index-1].term != term || !slices.Equal(e.log[index-1].data, data):
		e.dispute("%s has another entry of term %d at index %d than another peer, of term %d", peer, term, index, e.log[index-1].term)
	}
}

// skip moves a position to the last entry that a log from first on lacks, if it
// is known already.
func (e *evidence) skip(at *rootv1.RootToken, first uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last := first - 1; first > 0 && last > at.GetIndex() && last <= uint64(len(e.log)) {
		at.Index, at.Term = last, e.log[last-1].term
	}
}

// dispute notes the first disagreement. The evidence is locked.
func (e *evidence) dispute(format string, args ...any) {
	if e.disagreed == nil {
		e.disagreed = fmt.Errorf(format, args...)
	}
}

// settle sorts what was told: each position counts from when it was first told.
func (e *evidence) settle() {
	slices.SortFunc(e.acked, func(a, b ack) int { return int(a.at - b.at) })
	highest := uint64(0)
	kept := e.acked[:0]
	for _, a := range e.acked {
		if a.index > highest {
			highest = a.index
			kept = append(kept, a)
		}
	}
	e.acked = kept
}

// ackedBefore is the newest position that somebody had been told of before at.
func (e *evidence) ackedBefore(at time.Duration) uint64 {
	n := sort.Search(len(e.acked), func(i int) bool { return e.acked[i].at >= at })
	if n == 0 {
		return 0
	}
	return e.acked[n-1].index
}
