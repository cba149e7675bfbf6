package server_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func move() *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1}, From: &rootv1.Owner{MemberId: "a"}, To: &rootv1.Owner{MemberId: "b"},
	}}}}}
}

// Who does not understand more is named, and nothing of the next level enters the
// log before.
func TestFeatureLevelWaitsForEverybody(t *testing.T) {
	t.Cleanup(state.Trial("move_planned"))
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		before := len(r.log)
		raise := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{To: 2}}}}}
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{move(), raise}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []rootv1.Reason{rootv1.Reason_REASON_FEATURE_LEVEL, rootv1.Reason_REASON_INVALID_REQUEST} {
			if got := resp.Results[i].GetError().GetReason(); got != want {
				t.Errorf("command %d: %v, want %v", i, got, want)
			}
		}
		if len(r.log) != before {
			t.Error("what is above the feature level is in the log")
		}
		told, err := s.root().RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{ClusterId: cluster, To: 2})
		if err != nil || told.GetFeatureLevel() != 1 || told.GetCommonLevel() != 0 {
			t.Fatalf("%v, %v", told, err)
		}
		if !slices.ContainsFunc(told.Below, func(p *rootv1.FeatureSupport) bool { return p.GetProcess() == "root peer" && p.GetId() == "3" }) {
			t.Errorf("the peer that is not heard from is not named: %v", told.Below)
		}
		if _, err := s.root().RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{ClusterId: cluster, To: 9}); reason.Of(err) != rootv1.Reason_REASON_TOO_OLD {
			t.Errorf("above what the leader understands: %v", err)
		}
	})
}

// levels are peers that all are connected, with what each understands.
type levels struct {
	fakePeers
	of map[uint64]*atomic.Uint32
}

func newLevels(of ...uint32) levels {
	l := levels{of: map[uint64]*atomic.Uint32{}}
	for i, level := range of {
		l.of[uint64(i+1)] = new(atomic.Uint32)
		l.of[uint64(i+1)].Store(level)
	}
	return l
}

func (l levels) FeatureLevel(id uint64) uint32 { return l.of[id].Load() }

// When everybody is level the operator raises it: then, and not before, what is
// new is taken, and who reads with less is refused by name.
func TestFeatureLevelIsRaised(t *testing.T) {
	t.Cleanup(state.Trial("move_planned"))
	synctest.Test(t, func(t *testing.T) {
		r, peers := newFakeReplica(t), newLevels(2, 2, 1)
		s := serve(t, r, func(cfg *server.Config) { cfg.Peers = peers })
		ctx, cancel := within(time.Minute)
		defer cancel()
		raise := func(to uint32, dryRun bool) *rootv1.RaiseFeatureLevelResponse {
			t.Helper()
			resp, err := s.root().RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{ClusterId: cluster, To: to, DryRun: dryRun})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		if got := raise(0, false); got.GetFeatureLevel() != 1 || got.GetCommonLevel() != 1 || len(got.GetBelow()) != 1 || got.GetBelow()[0].GetId() != "3" {
			t.Errorf("with peer 3 below: %v", got)
		}
		peers.of[3].Store(2)
		before := len(r.log)
		if got := raise(0, true); got.GetFeatureLevel() != 1 || got.GetCommonLevel() != 2 || len(got.GetBelow()) != 0 || len(r.log) != before {
			t.Errorf("dry run: %v, %d entries", got, len(r.log)-before)
		}
		if got := raise(2, false); got.GetFeatureLevel() != 2 || r.View().State.FeatureLevel() != 2 || got.GetToken().GetIndex() != r.View().Applied {
			t.Errorf("raised: %v", got)
		}
		before = len(r.log)
		if got := raise(2, false); got.GetFeatureLevel() != 2 || len(r.log) != before {
			t.Errorf("raised again: %v, %d entries", got, len(r.log)-before)
		}
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{move()}})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Results[0].GetError().GetReason(); got == rootv1.Reason_REASON_FEATURE_LEVEL {
			t.Errorf("what is of the level is refused: %v", got)
		}
		tail, err := s.root().Tail(ctx, &rootv1.TailRequest{ReaderId: "c9", FeatureLevel: 1})
		if err == nil {
			_, err = tail.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_TOO_OLD || !strings.Contains(err.Error(), "reader c9 understands feature level 1") {
			t.Errorf("a reader of level 1: %v", err)
		}
	})
}

// Nobody asks: it is raised when everybody has been level for RaiseAfter without a
// break, by the leader alone.
func TestFeatureLevelRaisesItself(t *testing.T) {
	t.Cleanup(state.Trial("move_planned"))
	synctest.Test(t, func(t *testing.T) {
		r, peers := newFakeReplica(t), newLevels(2, 2, 1)
		const after = 10 * time.Second
		serve(t, r, func(cfg *server.Config) { cfg.Peers, cfg.RaiseAfter = peers, after })
		level := func() uint32 {
			synctest.Wait()
			return r.View().State.FeatureLevel()
		}
		for _, step := range []struct {
			what   string
			change func()
			during time.Duration
			want   uint32
		}{
			{"one is below", func() {}, 3 * after, 1},
			{"all are level, not for long", func() { peers.of[3].Store(2) }, after * 8 / 10, 1},
			{"one went back down", func() { peers.of[3].Store(1) }, after * 3 / 10, 1},
			{"all are level again, not for long", func() { peers.of[3].Store(2) }, after * 8 / 10, 1},
			{"it does not lead", func() { r.lead(2) }, 3 * after, 1},
			{"it leads again", func() { r.lead(1) }, after * 15 / 10, 2},
		} {
			step.change()
			time.Sleep(step.during)
			if got := level(); got != step.want {
				t.Errorf("%s: feature level %d, want %d", step.what, got, step.want)
			}
		}
	})
}

// A peer that does not lead does not judge by its own, older feature level: a
// rejection is final, and the command may have been applied by the leader before.
func TestFollowersDoNotJudgeFeatureLevels(t *testing.T) {
	t.Cleanup(state.Trial("move_planned"))
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t) // has not applied the raise yet
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		r.lead(2)
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{move()}})
		if reason.Of(err) != rootv1.Reason_REASON_NOT_LEADER {
			t.Errorf("a follower that lags answers %v (err %v), want %v", resp.GetResults(), err, rootv1.Reason_REASON_NOT_LEADER)
		}
	})
}

// A leader does not judge by what it had applied before others raised the level
// either: it looks whether it still leads, and has everything, before it rejects.
func TestOldLeadersDoNotJudgeFeatureLevels(t *testing.T) {
	t.Cleanup(state.Trial("move_planned"))
	raise := &rootv1.Event{Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: 1, To: 2}}}
	for _, c := range []struct {
		name   string
		finds  func(*fakeReplica)
		err    rootv1.Reason
		reject rootv1.Reason
	}{
		{name: "no quorum", finds: func(r *fakeReplica) {
			r.readErr = reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no quorum answered")
		}, err: rootv1.Reason_REASON_ROOT_UNAVAILABLE},
		{name: "another leader", finds: func(r *fakeReplica) { r.lead(2) }, err: rootv1.Reason_REASON_NOT_LEADER},
		{name: "a raise", finds: func(r *fakeReplica) { r.apply([]*rootv1.Command{{Events: []*rootv1.Event{raise}}}) }, reject: rootv1.Reason_REASON_NOT_FOUND},
		{name: "nothing", finds: func(*fakeReplica) {}, reject: rootv1.Reason_REASON_FEATURE_LEVEL},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFakeReplica(t)
				r.reading = func() { c.finds(r) }
				s := serve(t, r, nil)
				ctx, cancel := within(time.Minute)
				defer cancel()
				resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{move()}})
				if reason.Of(err) != c.err {
					t.Fatalf("%v, want %v", err, c.err)
				}
				if c.err == 0 && resp.Results[0].GetError().GetReason() != c.reject {
					t.Errorf("rejected with %v, want %v", resp.Results[0].GetError(), c.reject)
				}
			})
		})
	}
}
