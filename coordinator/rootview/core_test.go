package rootview_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// script drives a Core by hand.
type script struct {
	*testing.T
	core *rootview.Core
	log  *rootLog
	now  clock.Instant
}

func newScript(t *testing.T) *script {
	s := &script{T: t, core: rootview.NewCore(rootview.CoreConfig{}), log: newRootLog(t), now: 1}
	s.core.OnConnected(s.now)
	return s
}

func (s *script) pass(d time.Duration) { s.now = s.now.Add(d) }

// tail hands over a message and expects an outcome; nil: taken.
func (s *script) tail(m *rootv1.TailResponse, want error) rootview.Batch {
	s.Helper()
	b, err := s.core.OnTail(m, s.now)
	if !errors.Is(err, want) || want == nil && err != nil {
		s.Fatalf("OnTail: %v, want %v", err, want)
	}
	return b
}

// is checks that the view is exactly the log at an index.
func (s *script) is(index int) {
	s.Helper()
	v := s.core.View()
	if want := s.log.states[index]; v.Token != want.Token() || v.State.Token() != want.Token() || v.State.Hash() != want.Hash() {
		s.Fatalf("view %s hash %016x, want %s hash %016x", v.Token, v.State.Hash(), want.Token(), want.Hash())
	}
}

// says checks what the view discloses.
func (s *script) says(lag uint64, mode coordinatorv1.DegradedMode, up coordinatorv1.CatchUpState, act coordinatorv1.CatchUpAction, sync coordinatorv1.SyncHealth) {
	s.Helper()
	d := s.core.View().Disclosure(s.now, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT)
	if d.GetRootLag() != lag || d.GetDegradedMode() != mode || d.GetCatchUpState() != up || d.GetCatchUpAction() != act || d.GetSyncHealth() != sync {
		s.Fatalf("disclosed %v\nwant lag %d %v %v %v %v", d, lag, mode, up, act, sync)
	}
}

const (
	healthy     = coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY
	lagging     = coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING
	unavailable = coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE

	upFresh       = coordinatorv1.CatchUpState_CATCH_UP_STATE_FRESH
	upLagging     = coordinatorv1.CatchUpState_CATCH_UP_STATE_LAGGING
	upBootstrap   = coordinatorv1.CatchUpState_CATCH_UP_STATE_BOOTSTRAP_REQUIRED
	upUnavailable = coordinatorv1.CatchUpState_CATCH_UP_STATE_UNAVAILABLE

	actNone      = coordinatorv1.CatchUpAction_CATCH_UP_ACTION_NONE
	actAdvance   = coordinatorv1.CatchUpAction_CATCH_UP_ACTION_ADVANCE
	actBootstrap = coordinatorv1.CatchUpAction_CATCH_UP_ACTION_BOOTSTRAP
	actReconnect = coordinatorv1.CatchUpAction_CATCH_UP_ACTION_RECONNECT

	streaming     = coordinatorv1.SyncHealth_SYNC_HEALTH_STREAMING
	bootstrapping = coordinatorv1.SyncHealth_SYNC_HEALTH_BOOTSTRAPPING
	disconnected  = coordinatorv1.SyncHealth_SYNC_HEALTH_DISCONNECTED
)

func TestDisclosureThroughADay(t *testing.T) {
	s := newScript(t)
	s.says(0, unavailable, upUnavailable, actReconnect, streaming)
	if got := s.core.View().Disclosure(s.now, 0).GetRootLagMillis(); got != rootview.NeverLevelMillis {
		t.Fatalf("age of a view that was never level: %d", got)
	}
	s.log.grow(4)
	s.tail(s.log.message(0, 3, 6), nil)
	s.is(3)
	s.says(3, lagging, upLagging, actAdvance, streaming)
	s.pass(50 * time.Millisecond)
	s.tail(s.log.message(3, 6, 6), nil)
	s.is(6)
	s.says(0, healthy, upFresh, actNone, streaming)
	level := s.now

	s.pass(400 * time.Millisecond)
	s.core.OnDisconnected(s.now)
	s.says(0, healthy, upFresh, actReconnect, disconnected)
	if d := s.core.View().Disclosure(s.now, 0); d.GetRootLagMillis() != 400 || d.GetClusterId() != clusterID {
		t.Fatalf("disclosed %v, want 400 ms", d)
	}
	s.pass(600 * time.Millisecond)
	s.says(0, healthy, upFresh, actReconnect, disconnected)
	s.pass(time.Millisecond)
	s.says(0, unavailable, upUnavailable, actReconnect, disconnected)
	if got := s.core.View().LevelAt; got != level {
		t.Fatalf("LevelAt %d, want %d", got, level)
	}
	s.core.OnConnected(s.now)
	s.core.OnKnown(state.Token{Incarnation: 1, Term: 1, Index: 9})
	s.says(3, unavailable, upUnavailable, actReconnect, streaming)
}

// What is done about a view that is not the root's: a root that is away is looked for anew,
// then what the log no longer has is loaded as a snapshot, then the log is applied. What would
// take the view elsewhere is refused: it stays as it was, and goes on from there.
func TestN90CatchUpActions(t *testing.T) {
	s := newScript(t)
	s.log.grow(6)
	s.tail(s.log.message(0, 3, 3), nil)
	s.says(0, healthy, upFresh, actNone, streaming)
	s.tail(s.log.message(3, 4, 8), nil)
	s.says(4, lagging, upLagging, actAdvance, streaming)
	s.core.OnBootstrapRequired(s.now)
	s.says(4, lagging, upBootstrap, actBootstrap, streaming)
	s.core.OnDisconnected(s.now)
	s.says(4, lagging, upBootstrap, actReconnect, disconnected)
	s.core.BeginSnapshot(s.now)
	s.says(4, lagging, upBootstrap, actBootstrap, bootstrapping)
	s.refuse(s.log.states[2], rootview.ErrSnapshot) // older than what is served
	s.is(4)
	s.snapshot(s.log.states[7])
	s.core.OnConnected(s.now)
	s.says(1, lagging, upLagging, actAdvance, streaming)
	other := newRootLogOf(t, 0xC2, 2)
	s.tail(other.all(2), rootview.ErrOtherCluster)
	s.is(7)
	s.tail(s.log.all(7), nil)
	s.is(8)
	s.says(0, healthy, upFresh, actNone, streaming)
}

// A view that replays the log shows a past in which nothing exists yet: it is
// not loaded until it has what was committed when the root was first heard.
func TestReplayIsNotServed(t *testing.T) {
	s := newScript(t)
	s.log.grow(20)
	for _, step := range []struct {
		from, to, commit int
		loaded           bool
	}{{0, 3, 6, false}, {3, 5, 20, false}, {5, 6, 20, true}, {6, 7, 20, true}} {
		s.tail(s.log.message(step.from, step.to, step.commit), nil)
		if got := s.core.View().Loaded(); got != step.loaded {
			t.Errorf("at %d, with 6 committed when it began: loaded %v", step.to, got)
		}
	}
}

func TestAPeerWithoutALeaderVouchesForThePastOnly(t *testing.T) {
	s := newScript(t)
	s.pass(10 * time.Second)
	s.core.OnConnected(s.now)
	m := s.log.all(0)
	m.LeaderlessMillis = 700
	s.tail(m, nil)
	s.says(0, healthy, upFresh, actNone, streaming)
	if age, _ := s.core.View().Age(s.now); age != 700*time.Millisecond {
		t.Fatalf("age %s", age)
	}
	for i := range 4 {
		s.pass(100 * time.Millisecond)
		m := s.log.all(2)
		m.LeaderlessMillis = 800 + 100*uint64(i)
		s.tail(m, nil)
	}
	s.says(0, unavailable, upUnavailable, actReconnect, streaming)
}

// A peer that knows less than the view says nothing about being level.
func TestAPeerThatIsBehindDoesNotVouch(t *testing.T) {
	s := newScript(t)
	s.log.grow(3)
	s.tail(s.log.all(0), nil)
	s.pass(300 * time.Millisecond)
	s.tail(s.log.message(3, 3, 3), nil)
	s.is(5)
	if age, _ := s.core.View().Age(s.now); age != 300*time.Millisecond {
		t.Fatalf("age %s", age)
	}
}

func TestRepetitionsAreSkippedAndGapsRefused(t *testing.T) {
	s := newScript(t)
	s.log.grow(8)
	s.tail(s.log.message(0, 4, 4), nil)
	b := s.tail(s.log.message(1, 6, 6), nil)
	s.is(6)
	if len(b.Changes) != 2 {
		t.Fatalf("%d changes of a message with two new entries", len(b.Changes))
	}
	for _, bad := range []*rootv1.TailResponse{
		s.log.message(7, 9, 9),
		{Entries: []*rootv1.TailEntry{s.log.entries[6], s.log.entries[8]}, CommitIndex: 9, ClusterId: clusterID, Incarnation: 1},
		{Entries: []*rootv1.TailEntry{s.log.entries[7], s.log.entries[6]}, CommitIndex: 9, ClusterId: clusterID, Incarnation: 1},
		{Entries: []*rootv1.TailEntry{{Index: 7, Term: 0}}, CommitIndex: 9, ClusterId: clusterID, Incarnation: 1},
		{Entries: []*rootv1.TailEntry{{}}, CommitIndex: 9, ClusterId: clusterID, Incarnation: 1},
	} {
		if b := s.tail(bad, rootview.ErrGap); !b.Empty() {
			t.Fatal("a refused message made a batch")
		}
		s.is(6)
	}
	if s.core.NeedsSnapshot() {
		t.Fatal("a gap asks for the tail again, not for a snapshot")
	}
	s.tail(s.log.all(6), nil)
	s.is(10)
}

// A root peer that has just started may know neither its state nor the commit
// index: it is of this cluster, and vouches for nothing.
func TestPeerThatHasJustStartedIsOfThisCluster(t *testing.T) {
	s := newScript(t)
	s.tail(s.log.all(0), nil)
	level := s.core.View().LevelAt
	started := s.log.message(2, 2, 0)
	started.Incarnation = 0
	s.tail(started, nil)
	s.is(2)
	if s.core.View().LevelAt != level {
		t.Fatal("a peer that knows nothing vouched for the view")
	}
}

// A root peer that has just started may have a state from before the cluster's
// identity was rooted: that is no snapshot, and no other cluster either.
func TestSnapshotWithoutIdentityIsRefused(t *testing.T) {
	early := state.New()
	if err := early.ApplyEntry(1, 1, nil, &state.Applied{}); err != nil {
		t.Fatal(err)
	}
	c := rootview.NewCore(rootview.CoreConfig{ClusterID: clusterID})
	c.OnBootstrapRequired(1)
	c.BeginSnapshot(1)
	_, done, err := c.OnSnapshotChunk(&rootv1.SnapshotChunk{Token: early.Token().Proto(), Last: true, StateHash: early.Hash()}, 2)
	if done || !errors.Is(err, rootview.ErrSnapshot) || !c.NeedsSnapshot() {
		t.Fatalf("done %v, error %v", done, err)
	}
}

func TestOtherClustersAreRefused(t *testing.T) {
	s := newScript(t)
	s.log = newRootLogOf(t, clusterID, 2)
	s.tail(s.log.all(0), nil)
	other := newRootLogOf(t, 0xC2, 2)
	other.grow(3)
	s.tail(other.all(2), rootview.ErrOtherCluster)
	s.is(2)
	old := s.log.message(2, 2, 50)
	old.Incarnation = 1
	s.tail(old, rootview.ErrOtherCluster)
	if s.core.View().Lag() != 0 {
		t.Fatal("another cluster's commit index was taken for ours")
	}
	first := rootview.NewCore(rootview.CoreConfig{ClusterID: 0xC2})
	first.OnConnected(1)
	if _, err := first.OnTail(s.log.all(0), 1); !errors.Is(err, rootview.ErrOtherCluster) {
		t.Fatalf("OnTail with a configured cluster: %v", err)
	}
}

func TestAfterSilenceAMessageDoesNotVouch(t *testing.T) {
	s := newScript(t)
	s.tail(s.log.all(0), nil)
	level := s.now
	s.log.grow(1)
	s.pass(501 * time.Millisecond)
	b := s.tail(s.log.message(2, 3, 3), rootview.ErrSilent)
	s.is(3)
	if v := s.core.View(); b.Token.Index != 3 || v.LevelAt != level || v.QuorumAt != level {
		t.Fatalf("batch %+v, level at %d, quorum at %d, want %d", b, v.LevelAt, v.QuorumAt, level)
	}
	s.core.OnConnected(s.now)
	opened := s.now
	// The first message of a stream is as old as the stream at most.
	s.pass(900 * time.Millisecond)
	s.tail(s.log.all(3), nil)
	if s.core.View().LevelAt != opened || s.core.View().QuorumAt != opened {
		t.Fatalf("level at %d, quorum at %d, want %d", s.core.View().LevelAt, s.core.View().QuorumAt, opened)
	}
}

// A message that was held up on the way, for less than what counts as silence,
// vouches for the moment it was sent.
func TestAMessageHeldUpVouchesForWhenItWasSent(t *testing.T) {
	s := newScript(t)
	told := func(sent time.Duration) {
		m := s.log.all(int(s.core.View().Token.Index))
		m.SentMicros = uint64(sent.Microseconds())
		s.tail(m, nil)
	}
	told(time.Millisecond)
	s.pass(100 * time.Millisecond)
	told(101 * time.Millisecond)
	prompt := s.now
	if got := s.core.View().LevelAt; got != prompt {
		t.Fatalf("level at %d, want %d: it took as long as the one before", got, prompt)
	}
	s.pass(450 * time.Millisecond)
	told(201 * time.Millisecond)
	if got, want := s.core.View().LevelAt, prompt.Add(100*time.Millisecond); got != want {
		t.Fatalf("level at %d, want %d, when it was sent", got, want)
	}
	// The clocks drift apart: what was the fastest an hour ago is forgotten.
	for sent := 201 * time.Millisecond; sent < time.Hour; sent += 100 * time.Millisecond {
		s.pass(100*time.Millisecond + 5*time.Microsecond)
		told(sent)
	}
	if age, _ := s.core.View().Age(s.now); age > 5*time.Millisecond {
		t.Fatalf("after an hour of drift the view is %s old", age)
	}
}

func TestRestoredClusterIsLoadedAnew(t *testing.T) {
	s := newScript(t)
	s.log.grow(20)
	s.tail(s.log.all(0), nil)
	restored := newRootLogOf(t, clusterID, 2)
	restored.grow(2)
	s.tail(restored.all(0), rootview.ErrRestored)
	s.is(22)
	s.core.OnDisconnected(s.now)
	if !s.core.NeedsSnapshot() {
		t.Fatal("no snapshot is asked for")
	}
	s.says(4, lagging, upBootstrap, actReconnect, disconnected)
	s.log = restored
	if b := s.snapshot(restored.last()); !b.Snapshot || b.Token != restored.token() {
		t.Fatalf("batch %+v", b)
	}
	s.is(4) // a lower index of a higher incarnation
}

// snapshot loads one and expects it to be taken.
func (s *script) snapshot(st *state.State) (batch rootview.Batch) {
	s.Helper()
	s.core.BeginSnapshot(s.now)
	before := s.core.View()
	all := chunks(s, st, 2)
	for i, c := range all {
		s.says(s.core.View().Lag(), s.core.View().Mode(s.now), upBootstrap, s.core.View().Action(s.now), bootstrapping)
		if v := s.core.View(); v.State != before.State {
			s.Fatal("the old view is gone before the new one is complete")
		}
		b, done, err := s.core.OnSnapshotChunk(c, s.now)
		if err != nil || done != (i == len(all)-1) {
			s.Fatalf("chunk %d of %d: done %v, %v", i, len(all), done, err)
		}
		batch = b
	}
	if s.core.NeedsSnapshot() {
		s.Fatal("a snapshot is still asked for")
	}
	return batch
}

func TestBootstrapServesTheOldViewUntilTheNewOneIsWhole(t *testing.T) {
	s := newScript(t)
	s.log.grow(6)
	s.tail(s.log.message(0, 3, 3), nil)
	s.core.OnBootstrapRequired(s.now)
	s.core.OnDisconnected(s.now)
	s.snapshot(s.log.states[6])
	s.is(6)
	s.core.OnConnected(s.now)
	s.tail(s.log.all(6), nil)
	s.is(8)
	s.says(0, healthy, upFresh, actNone, streaming)
}

func TestSnapshotsThatAreWrongLeaveNothing(t *testing.T) {
	s := newScript(t)
	s.log.grow(6)
	s.tail(s.log.message(0, 5, 5), nil)
	s.core.OnBootstrapRequired(s.now)
	spoil := map[string]func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk{
		"hash":     func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk { c[len(c)-1].StateHash++; return c },
		"count":    func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk { c[len(c)-1].RecordCount++; return c },
		"position": func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk { c[1].Token.Index++; return c },
		"chunk":    func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk { return append(c[:1], c[2:]...) },
		"record":   func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk { c[1].Records[0] = &rootv1.Record{}; return c },
		"content": func(c []*rootv1.SnapshotChunk) []*rootv1.SnapshotChunk {
			last := c[len(c)-2].Records
			last[len(last)-1].GetRegion().Frontier = []byte("x")
			return c
		},
	}
	for name, f := range spoil {
		s.core.BeginSnapshot(s.now)
		var failed error
		for _, c := range f(chunks(t, s.log.last(), 2)) {
			_, done, err := s.core.OnSnapshotChunk(c, s.now)
			if done {
				t.Fatalf("%s: taken", name)
			}
			if failed = err; err != nil {
				break
			}
		}
		if !errors.Is(failed, rootview.ErrSnapshot) {
			t.Fatalf("%s: %v", name, failed)
		}
		s.is(5)
	}
	other := newRootLogOf(t, 0xC2, 1)
	other.grow(20)
	s.refuse(other.last(), rootview.ErrOtherCluster)
	s.refuse(s.log.states[4], rootview.ErrSnapshot) // older than the view
	s.snapshot(s.log.last())
	s.is(8)
}

// refuse loads a snapshot and expects it not to be taken.
func (s *script) refuse(st *state.State, want error) {
	s.Helper()
	s.core.BeginSnapshot(s.now)
	before := s.core.View().Token
	for _, c := range chunks(s, st, 2) {
		_, done, err := s.core.OnSnapshotChunk(c, s.now)
		if done {
			s.Fatal("taken")
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, want) || s.core.View().Token != before {
			s.Fatalf("%v, want %v; view %s", err, want, s.core.View().Token)
		}
		return
	}
	s.Fatal("never refused")
}

func TestPoisonEntryHaltsTheViewInFrontOfIt(t *testing.T) {
	s := newScript(t)
	s.log.grow(2)
	m := s.log.all(0)
	unknown := []byte{0x0a, 0x03, 0xf2, 0x3f, 0x00} // a command with a field of the future
	m.Entries = append(m.Entries, &rootv1.TailEntry{Term: 1, Index: 5, Entry: unknown})
	m.CommitIndex = 5
	b := s.tail(m, rootview.ErrPoison)
	s.is(4)
	if b.Empty() || b.Token.Index != 4 || len(b.Changes) == 0 {
		t.Fatalf("what came before the entry is not in the batch: %+v", b)
	}
	s.core.OnDisconnected(s.now)
	s.says(1, lagging, upBootstrap, actReconnect, disconnected)
	s.refuse(s.log.last(), rootview.ErrSnapshot) // still in front of the entry
	s.log.grow(1)                                // what the entry did, in words that are understood
	s.snapshot(s.log.last())
	s.is(5)
	s.core.OnConnected(s.now)
	s.tail(s.log.all(5), nil)
	s.says(0, healthy, upFresh, actNone, streaming)
}

func TestIdleMessagesShareTheState(t *testing.T) {
	s := newScript(t)
	s.tail(s.log.all(0), nil)
	before := s.core.View()
	s.pass(100 * time.Millisecond)
	if b := s.tail(s.log.all(2), nil); !b.Empty() {
		t.Fatal("an idle message made a batch")
	}
	if after := s.core.View(); after == before || after.State != before.State || after.LevelAt != s.now {
		t.Fatal("an idle message renews the instant and nothing else")
	}
	if before.LevelAt == s.now {
		t.Fatal("a published view was changed")
	}
}
