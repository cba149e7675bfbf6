package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/server"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	catchingUp = rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP
	settling   = rootv1.ReplaceStage_REPLACE_STAGE_SETTLING
	done       = rootv1.ReplaceStage_REPLACE_STAGE_DONE
	cancelled  = rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED
)

// replacing is a leader that nodes have knocked at, and a caller who replaces.
type replacing struct {
	*served
	r *fakeReplica
}

func startReplacing(t *testing.T, knocked ...uint64) *replacing {
	r := newFakeReplica(t)
	peers := fakePeers{}
	for _, id := range knocked {
		peers[id] = true
	}
	return &replacing{serve(t, r, func(c *server.Config) { c.Peers = peers }), r}
}

func (p *replacing) call(req *rootv1.ReplacePeerRequest) (*rootv1.ReplacePeerResponse, error) {
	ctx, cancel := within(time.Minute)
	defer cancel()
	return p.root().ReplacePeer(ctx, req)
}

// want makes a call that must get to a stage with so many steps more.
func (p *replacing) want(req *rootv1.ReplacePeerRequest, stage rootv1.ReplaceStage, steps int) *rootv1.ReplacePeerResponse {
	p.t.Helper()
	before := p.r.reshaped
	resp, err := p.call(req)
	if err != nil || resp.GetStage() != stage || p.r.reshaped-before != steps {
		p.t.Fatalf("%v: %v, %v after %d steps; want %v after %d", req, resp, err, p.r.reshaped-before, stage, steps)
	}
	return resp
}

func replace(lost, with uint64) *rootv1.ReplacePeerRequest {
	return &rootv1.ReplacePeerRequest{ClusterId: cluster, Lost: lost, With: with}
}

// settle ends the joint change, as a leader does by itself.
func (p *replacing) settle(node uint64) {
	p.t.Helper()
	e := &rootv1.Event{Kind: &rootv1.Event_RootPeersSettled{RootPeersSettled: &rootv1.RootPeersSettled{NodeId: node}}}
	if got := p.r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}}); got[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		p.t.Fatalf("settle: %v", got[0])
	}
}

// lags makes the replica refuse promotion.
func lags(by uint64) func(*rootv1.Event) error {
	return func(e *rootv1.Event) error {
		if e.GetRootPeerPromoted() == nil {
			return nil
		}
		err := reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "wait until it has caught up")
		err.Detail.RootLag = by
		return err
	}
}

func (p *replacing) status() *rootv1.StatusResponse {
	p.t.Helper()
	ctx, cancel := within(time.Minute)
	defer cancel()
	st, err := p.root().Status(ctx, &rootv1.StatusRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

// wantRoles compares the peers' roles, in order of node id, with the letters
// v(oter), l(earner), j(oining) and o(ut).
func (p *replacing) wantRoles(want string) {
	p.t.Helper()
	got := ""
	for _, s := range p.status().GetPeers() {
		got += string("vljo"[s.GetRole()])
		if replaces := s.GetReplaces(); (replaces != 0) != (got[len(got)-1] == 'l' || got[len(got)-1] == 'j') {
			p.t.Errorf("%v replaces %d", s, replaces)
		}
	}
	if got != want {
		p.t.Errorf("roles %s, want %s", got, want)
	}
}

// Each call takes the step that is next; a call that finds nothing to do tells
// what is true.
func TestReplacementGoesStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4)
		req := replace(3, 4)
		p.wantRoles("vvv")
		added := p.want(req, catchingUp, 1)
		if n := added.GetPeer(); n.GetNodeId() != 4 || n.GetIncarnation() != 14 || n.GetTransportAddress() != "d:2" || n.GetReplaces() != 3 || added.GetToken().GetIndex() != 2 {
			t.Errorf("added %v", added)
		}
		p.wantRoles("vvvl")
		p.r.with(func() { p.r.judge = lags(1) })
		if resp := p.want(req, catchingUp, 1); resp.GetMatch() != 1 || resp.GetCommit() != 2 {
			t.Errorf("catching up: %v", resp)
		}
		p.r.with(func() { p.r.judge = lags(1 << 60) })
		if resp := p.want(req, catchingUp, 1); resp.GetMatch() != 0 {
			t.Errorf("with nothing: %v", resp)
		}
		p.r.with(func() { p.r.judge = nil })
		p.want(req, settling, 1)
		p.wantRoles("vvoj")
		p.want(req, settling, 0)
		p.settle(4)
		for range 2 {
			// A step that finds it done: its entry is behind the end, and others have it.
			if resp := p.want(req, done, 1); resp.GetPeer().GetNodeId() != 4 || resp.GetToken().GetIndex() <= 4 {
				t.Errorf("done: %v", resp)
			}
		}
		p.wantRoles("vvv")
		if gone := p.status().GetReplaced(); len(gone) != 1 || gone[0].GetNodeId() != 3 || gone[0].GetIncarnation() != 13 {
			t.Errorf("replaced: %v", gone)
		}
	})
}

// A step without an answer is found out by asking again.
func TestReplacementAfterAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4)
		for _, stage := range []rootv1.ReplaceStage{catchingUp, settling} {
			p.r.with(func() {
				p.r.judge = func(e *rootv1.Event) error {
					p.r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}})
					return reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "leadership was lost")
				}
			})
			if _, err := p.call(replace(3, 4)); reason.Of(err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
				t.Fatalf("to %v: %v", stage, err)
			}
			p.r.with(func() { p.r.judge = lags(1) })
			if resp, err := p.call(replace(3, 4)); err != nil || resp.GetStage() != stage {
				t.Errorf("asked again: %v, %v, want %v", resp, err, stage)
			}
		}
	})
}

func TestReplacementIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4, 5)
		cancel := &rootv1.ReplacePeerRequest{ClusterId: cluster, With: 4, Cancel: true}
		p.refuse("nobody to give up", cancel, rootv1.Reason_REASON_NOT_FOUND, "there are 1 2 3")
		p.want(replace(3, 4), catchingUp, 1)
		for steps := range 2 {
			if resp := p.want(cancel, cancelled, 1-steps); resp.GetPeer().GetNodeId() != 4 {
				t.Errorf("cancelled: %v", resp)
			}
		}
		p.wantRoles("vvv")
		p.refuse("a number that is used up", replace(3, 4), rootv1.Reason_REASON_ALREADY_EXISTS, "given up", "never used")
		p.want(replace(3, 5), catchingUp, 1)
		p.want(replace(3, 5), settling, 1)
		cancel.With = 5
		p.refuse("in the joint change", cancel, rootv1.Reason_REASON_ALREADY_EXISTS, "votes")
		p.settle(5)
		p.refuse("a voter", cancel, rootv1.Reason_REASON_ALREADY_EXISTS, "votes")
		cancel.With = 3
		p.refuse("the lost one", cancel, rootv1.Reason_REASON_NOT_FOUND, "root peer 5 has its place")
	})
}

// refuse makes a call that must be refused, with words, and change nothing.
func (p *replacing) refuse(what string, req *rootv1.ReplacePeerRequest, want rootv1.Reason, words ...string) *rootv1.ErrorDetail {
	p.t.Helper()
	before := p.r.View()
	resp, err := p.call(req)
	if reason.Of(err) != want {
		p.t.Errorf("%s: %v, %v, want %v", what, resp, err, want)
		return nil
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			p.t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
	if after := p.r.View(); after.Commit != before.Commit || after.State.Hash() != before.State.Hash() {
		p.t.Errorf("%s: the log went from %d to %d", what, before.Commit, after.Commit)
	}
	return reason.From(err)
}

func TestReplacementRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 1, 2, 4, 5)
		invalid, exists, missing := rootv1.Reason_REASON_INVALID_REQUEST, rootv1.Reason_REASON_ALREADY_EXISTS, rootv1.Reason_REASON_NOT_FOUND
		p.refuse("nothing", &rootv1.ReplacePeerRequest{ClusterId: cluster}, invalid, "new root peer is missing")
		p.refuse("no new one", replace(3, 0), invalid, "new root peer is missing")
		p.refuse("no lost one", replace(0, 4), invalid, "lost root peer is missing")
		p.refuse("by itself", replace(3, 3), invalid, "replace itself")
		p.refuse("huge", replace(3, ^uint64(0)), invalid, "at most")
		p.refuse("huge", replace(^uint64(0), 4), invalid, "at most")
		p.refuse("cancel and lost", &rootv1.ReplacePeerRequest{ClusterId: cluster, Lost: 3, With: 4, Cancel: true}, invalid, "alone")
		p.refuse("cancel by force", &rootv1.ReplacePeerRequest{ClusterId: cluster, With: 4, Cancel: true, Force: true}, invalid, "alone")
		p.refuse("cancel a voter", &rootv1.ReplacePeerRequest{ClusterId: cluster, With: 2, Cancel: true}, exists, "votes")
		p.refuse("another cluster", &rootv1.ReplacePeerRequest{ClusterId: 5, Lost: 3, With: 4}, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		p.refuse("by a voter", replace(3, 2), exists, "root peer 2 votes already", "never used")
		p.refuse("nobody", replace(9, 4), missing, "there is no root peer 9", "there are 1 2 3")
		if d := p.refuse("not knocked", replace(3, 6), missing, "root peer 6 has not knocked", "-join"); d.GetRetryAfterMillis() == 0 {
			t.Errorf("not knocked: %v does not say that it may come", d)
		}
		alive := reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "root peer 3 is alive: stop it first")
		p.r.with(func() { p.r.judge = func(*rootv1.Event) error { return alive } })
		if d := p.refuse("alive", replace(3, 4), rootv1.Reason_REASON_UNHEALTHY_MEMBER, "alive"); d.GetRetryAfterMillis() == 0 {
			t.Errorf("alive: %v does not say that it may pass", d)
		}
		p.r.with(func() { p.r.judge = nil })

		p.want(replace(3, 4), catchingUp, 1)
		p.refuse("for another one", replace(2, 4), exists, "root peer 4 is to replace root peer 3, not 2")
		p.refuse("a second one", replace(2, 5), exists, "root peer 3 is being replaced by root peer 4", "cancel")
		p.want(replace(3, 4), settling, 1)
		p.refuse("a second one", replace(2, 5), exists, "root peer 3 is being replaced by root peer 4")
		p.settle(4)
		p.refuse("again", replace(3, 5), missing, "root peer 3 is no root peer any more: root peer 4 has its place")
		p.refuse("by the lost one", replace(2, 3), exists, "root peer 3 was replaced")
		p.refuse("for another one", replace(2, 4), exists, "root peer 4 votes already")
	})
}

// What Apply rejects although the server did not is passed on.
func TestReplacementRejectedByTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4)
		p.r.with(func() {
			p.r.judge = func(e *rootv1.Event) error {
				e.GetRootPeerAdded().Peer.Incarnation = 11 // Another peer's workdir.
				return nil
			}
		})
		_, err := p.call(replace(3, 4))
		if reason.Of(err) != rootv1.Reason_REASON_ALREADY_EXISTS || p.r.reshaped != 1 {
			t.Errorf("%v after %d steps", err, p.r.reshaped)
		}
		p.wantRoles("vvv")
	})
}

// Only a leader that a quorum follows answers; anybody else says who leads.
func TestReplacementAsksTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4)
		p.r.lead(2)
		if d := p.refuse("a follower", replace(3, 4), rootv1.Reason_REASON_NOT_LEADER); d.GetLeaderId() != 2 || d.GetLeaderAddress() != "b:1" {
			t.Errorf("the follower says %v", d)
		}
		p.r.lead(0)
		p.refuse("without a leader", replace(3, 4), rootv1.Reason_REASON_NOT_LEADER)
		p.r.lead(1)
		p.r.with(func() { p.r.readErr = reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no quorum answered") })
		p.refuse("without a quorum", replace(3, 4), rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		if p.r.reshaped != 0 {
			t.Errorf("%d steps", p.r.reshaped)
		}
		p.r.with(func() { p.r.readErr = nil })
		if _, err := p.root().ReplacePeer(t.Context(), replace(3, 4)); reason.Of(err) != rootv1.Reason_REASON_DEADLINE_REQUIRED {
			t.Errorf("without a deadline: %v", err)
		}
	})
}

// A peer that does not vote does not notice when it is left behind: it serves no
// reader, and a reader that it has is sent away the moment that it is replaced.
func TestOnlyVotersServeReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startReplacing(t, 4)
		step := func(e *rootv1.Event) {
			t.Helper()
			if got := p.r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}}); got[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
				t.Fatalf("%v: %v", e, got[0])
			}
		}
		joiner := &replacing{serve(t, p.r, func(c *server.Config) { c.NodeID = 4 }), p.r}
		ctx, cancel := within(time.Minute)
		defer cancel()
		refused := func(who *replacing, words string) {
			t.Helper()
			tail, err := who.root().Tail(ctx, &rootv1.TailRequest{})
			if err == nil {
				_, err = tail.Recv()
			}
			snapshot, serr := who.root().Snapshot(ctx, &rootv1.SnapshotRequest{})
			if serr == nil {
				_, serr = snapshot.Recv()
			}
			for _, err := range []error{err, serr} {
				if reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || !strings.Contains(err.Error(), words) {
					t.Errorf("refused with %v, want %q", err, words)
				}
			}
		}
		refused(joiner, "does not vote yet")
		step(&rootv1.Event{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
			Peer: &rootv1.RootPeer{NodeId: 4, Incarnation: 14, TransportAddress: "d:2"}, Replaces: 1,
		}}})
		refused(joiner, "does not vote yet")
		tail, err := p.root().Tail(ctx, &rootv1.TailRequest{})
		if err != nil {
			t.Fatal(err)
		}
		step(&rootv1.Event{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: 4}}})
		for _, who := range []*replacing{p, joiner} { // Both vote, for the moment.
			snapshot, err := who.root().Snapshot(ctx, &rootv1.SnapshotRequest{})
			if err == nil {
				_, err = snapshot.Recv()
			}
			if err != nil {
				t.Errorf("in the joint change: %v", err)
			}
		}
		p.settle(4)
		for err == nil {
			_, err = tail.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || !strings.Contains(err.Error(), "root peer 4 has its place") {
			t.Errorf("the tail of the replaced peer ended with %v", err)
		}
		refused(p, "root peer 4 has its place")
	})
}
