package rootview_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"pgregory.net/rapid"
)

// Freshness and Tail: whatever comes from the root, in whatever pieces, with
// whatever faults, a view is the log replayed at exactly its token, positions
// never go back, and a watcher who applies the batches has what the view has.
func TestAnyHistoryGivesTheLogAtTheToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"commit":     m.commit,
			"message":    m.message,
			"repetition": m.repetition,
			"gap":        m.gap,
			"reconnect":  m.reconnect,
			"compact":    m.compact,
			"pass":       m.pass,
			"known":      m.known,
			"":           m.check,
		})
	})
}

type model struct {
	log       *rootLog
	core      *rootview.Core
	now       clock.Instant
	oldest    uint64 // oldest index that the peer still has
	connected bool
	heard     clock.Instant // last message, or the start of the stream
	first     bool          // no message of the stream yet

	reached state.Token
	watched map[state.RegionID]uint64 // what a watcher has, by revision
	old     []*rootview.View
	nextID  uint64
}

func newModel(t *rapid.T) *model {
	m := &model{log: newRootLog(t), core: rootview.NewCore(rootview.CoreConfig{}), now: 1, oldest: 1, watched: map[state.RegionID]uint64{}}
	m.reconnect(t)
	return m
}

func (m *model) commit(t *rapid.T) {
	m.log.t = t
	var events []*rootv1.Event
	for range rapid.IntRange(0, 4).Draw(t, "events") {
		id := uint64(rapid.IntRange(1, 12).Draw(t, "region"))
		if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			events = append(events, tombstone(id))
			continue
		}
		start, end := slot(int(id))
		m.nextID++
		events = append(events, region(id, start, end, m.nextID))
	}
	if len(events) == 0 {
		m.log.term++
		m.log.append(nil)
		return
	}
	m.log.t = tolerant{t} // a tombstone of nothing is rejected: that is an entry too
	m.log.commit(events...)
}

type tolerant struct{ *rapid.T }

func (tolerant) Fatalf(string, ...any) {}

func (m *model) at() int { return int(m.core.View().Token.Index) }

// take hands a message over and keeps the watcher up to date.
func (m *model) take(t *rapid.T, resp *rootv1.TailResponse, want error) {
	level := m.core.View().LevelAt
	if want == nil && !m.first && m.now.Sub(m.heard) > 500*time.Millisecond {
		want = rootview.ErrSilent
	}
	b, err := m.core.OnTail(resp, m.now)
	if want == nil && err != nil || !errors.Is(err, want) {
		t.Fatalf("OnTail: %v, want %v", err, want)
	}
	m.watch(t, b)
	if err != nil {
		if m.core.View().LevelAt != level {
			t.Fatalf("a message that ended in %v vouched for the present", err)
		}
		m.connected = false
		m.core.OnDisconnected(m.now)
		return
	}
	m.heard, m.first = m.now, false
}

func (m *model) message(t *rapid.T) {
	if !m.connected {
		return
	}
	if uint64(m.at())+1 < m.oldest {
		m.core.OnBootstrapRequired(m.now)
		m.core.OnDisconnected(m.now)
		m.connected = false
		return
	}
	to := rapid.IntRange(m.at(), len(m.log.entries)).Draw(t, "to")
	commit := rapid.IntRange(to, len(m.log.entries)).Draw(t, "commit")
	m.take(t, m.log.message(m.at(), to, commit), nil)
}

func (m *model) repetition(t *rapid.T) {
	if !m.connected || m.at() == 0 {
		return
	}
	from := rapid.IntRange(0, m.at()-1).Draw(t, "from")
	to := rapid.IntRange(from, len(m.log.entries)).Draw(t, "to")
	m.take(t, m.log.message(from, to, len(m.log.entries)), nil)
}

func (m *model) gap(t *rapid.T) {
	if !m.connected || m.at()+2 > len(m.log.entries) {
		return
	}
	from := rapid.IntRange(m.at()+1, len(m.log.entries)-1).Draw(t, "from")
	m.take(t, m.log.message(from, len(m.log.entries), len(m.log.entries)), rootview.ErrGap)
}

func (m *model) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "ms")) * time.Millisecond)
}

// known is a read index: it may tell of more than any tail has.
func (m *model) known(t *rapid.T) {
	m.core.OnKnown(m.log.states[rapid.IntRange(0, len(m.log.entries)).Draw(t, "index")].Token())
}

func (m *model) compact(t *rapid.T) {
	m.oldest = uint64(rapid.IntRange(int(m.oldest), len(m.log.entries)+1).Draw(t, "oldest"))
}

// reconnect opens a tail, or loads a snapshot that may break off or be wrong.
func (m *model) reconnect(t *rapid.T) {
	m.core.OnDisconnected(m.now)
	m.connected = false
	if !m.core.NeedsSnapshot() {
		m.core.OnConnected(m.now)
		m.connected, m.heard, m.first = true, m.now, true
		return
	}
	at := rapid.IntRange(max(int(m.oldest)-1, 2), len(m.log.entries)).Draw(t, "snapshot")
	all := chunks(t, m.log.states[at], rapid.IntRange(1, 5).Draw(t, "records"))
	fault := rapid.SampledFrom([]string{"", "", "break", "hash", "drop"}).Draw(t, "fault")
	if fault == "drop" && len(all) < 3 {
		fault = "hash"
	}
	switch fault {
	case "break":
		all = all[:rapid.IntRange(0, len(all)-1).Draw(t, "chunks")]
	case "hash":
		all[len(all)-1].StateHash++
	case "drop":
		all = append(all[:1:1], all[2:]...)
	}
	m.core.BeginSnapshot(m.now)
	for _, c := range all {
		b, done, err := m.core.OnSnapshotChunk(c, m.now)
		if done && (fault != "" || at < m.at()) {
			t.Fatalf("a snapshot with fault %q of %d was taken", fault, at)
		}
		m.watch(t, b)
		if err != nil {
			break
		}
	}
	m.core.OnDisconnected(m.now)
}

// watch is a watcher: batches applied one after the other.
func (m *model) watch(t *rapid.T, b rootview.Batch) {
	if b.Empty() {
		return
	}
	if b.Token != m.core.View().Token {
		t.Fatalf("batch leads to %s, the view is at %s", b.Token, m.core.View().Token)
	}
	if b.Snapshot {
		m.watched = revisions(m.core.View().State)
		return
	}
	for _, c := range b.Changes {
		if c.Kind != state.ChangeRegion {
			continue
		}
		if c.Removed {
			delete(m.watched, c.Region.ID)
		} else {
			m.watched[c.Region.ID] = c.Region.Revision
		}
	}
}

func revisions(st *state.State) map[state.RegionID]uint64 {
	out := map[state.RegionID]uint64{}
	st.RegionsFrom(1, "", func(r *state.Region) bool {
		out[r.ID] = r.Revision
		return true
	})
	return out
}

func (m *model) check(t *rapid.T) {
	v := m.core.View()
	if v.Token.Compare(m.reached) < 0 {
		t.Fatalf("the view went back from %s to %s", m.reached, v.Token)
	}
	m.reached = v.Token
	if v.Known.Compare(v.Token) < 0 || v.LevelAt > v.QuorumAt || v.QuorumAt > m.now {
		t.Fatalf("known %s at %s, level %d, quorum %d, now %d", v.Known, v.Token, v.LevelAt, v.QuorumAt, m.now)
	}
	if err := m.equalsLog(v); err != nil {
		t.Fatal(err)
	}
	if want := revisions(v.State); !maps.Equal(m.watched, want) {
		t.Fatalf("a watcher has %v, the view %v", m.watched, want)
	}
	m.old = append(m.old, v)
	if i := len(m.old) / 2; m.equalsLog(m.old[i]) != nil {
		t.Fatalf("an old view was changed: %v", m.equalsLog(m.old[i]))
	}
}

func (m *model) equalsLog(v *rootview.View) error {
	want := m.log.states[v.Token.Index]
	if v.Token != want.Token() || v.State.Token() != want.Token() || v.State.Hash() != want.Hash() {
		return fmt.Errorf("view at %s has hash %016x, the log %016x", v.Token, v.State.Hash(), want.Hash())
	}
	if have := revisions(v.State); !maps.Equal(have, revisions(want)) {
		return fmt.Errorf("view at %s has regions %v, the log %v", v.Token, have, revisions(want))
	}
	return nil
}
