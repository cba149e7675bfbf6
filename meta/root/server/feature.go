package server

import (
	"context"
	"strconv"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// RaiseFeatureLevel implements rootv1.RootServer: it roots what every process
// understands by now, or says who does not.
func (s *Server) RaiseFeatureLevel(ctx context.Context, req *rootv1.RaiseFeatureLevelRequest) (*rootv1.RaiseFeatureLevelResponse, error) {
	if err := s.checkChange(req.GetClusterId()); err != nil {
		return nil, err
	}
	v := s.cfg.Replica.View()
	if v.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
		e := reason.New(rootv1.Reason_REASON_NOT_LEADER, "root peer %d does not lead", s.cfg.NodeID)
		e.Detail.LeaderId = v.Leader
		return nil, s.withLeader(e)
	}
	rooted := v.State.FeatureLevel()
	own := max(s.cfg.Peers.FeatureLevel(s.cfg.NodeID), rooted)
	to, common := req.GetTo(), own
	var below []*rootv1.FeatureSupport
	for _, p := range s.processes(v) {
		common = min(common, p.GetFeatureLevel())
		if want := max(to, rooted); p.GetFeatureLevel() < want || to == 0 && p.GetFeatureLevel() < own {
			below = append(below, p)
		}
	}
	resp := &rootv1.RaiseFeatureLevelResponse{FeatureLevel: rooted, CommonLevel: common, Below: below, Token: v.State.Token().Proto()}
	if to > own {
		e := reason.New(rootv1.Reason_REASON_TOO_OLD, "the root leader understands feature level %d, not %d: upgrade it first", own, to)
		e.Detail.FeatureLevel = rooted
		return nil, e
	}
	if to == 0 {
		to = common
	}
	if req.GetDryRun() || to <= rooted || to > common {
		return resp, nil
	}
	raise := &rootv1.Command{Actor: principal.FromContext(ctx).Actor(), Why: why.Of(ctx), Events: []*rootv1.Event{{
		Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: rooted, To: to}},
	}}}
	results, err := s.cfg.Replica.Propose(ctx, []*rootv1.Command{raise})
	switch {
	case err != nil:
		return nil, s.withLeader(err)
	case results[0].GetError() != nil:
		return nil, &reason.Error{Detail: results[0].GetError()}
	}
	resp.FeatureLevel, resp.Token = to, results[0].GetToken()
	return resp, nil
}

// processes are all that read the log, with what they understand: root peers,
// the coordinators that are rooted, and who reads the tail of this peer.
func (s *Server) processes(v *replica.View) []*rootv1.FeatureSupport {
	var all []*rootv1.FeatureSupport
	for _, p := range s.peerStatus(v.State.Cluster(), v.Peers) {
		all = append(all, &rootv1.FeatureSupport{Process: "root peer", Id: strconv.FormatUint(p.GetNodeId(), 10), Address: p.GetAddress(), FeatureLevel: p.GetFeatureLevel()})
	}
	v.State.Coordinators(func(c *rootv1.Coordinator) bool {
		all = append(all, &rootv1.FeatureSupport{Process: "coordinator", Id: c.GetId(), Address: c.GetAddress(), FeatureLevel: state.LevelOf(c.GetFeatureLevel())})
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.readers {
		all = append(all, &rootv1.FeatureSupport{Process: "reader", Id: r.id, Address: r.remote, FeatureLevel: r.level})
	}
	return all
}

// raiseWhenLevel raises the feature level by itself once every process has
// understood more for RaiseAfter, while this peer leads.
func (s *Server) raiseWhenLevel(ctx context.Context) {
	every := time.NewTicker(max(s.cfg.RaiseAfter/5, time.Millisecond))
	defer every.Stop()
	level, since := uint32(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		case <-every.C:
		}
		try, cancel := context.WithTimeout(ctx, s.cfg.ProposeTimeout)
		resp, err := s.RaiseFeatureLevel(try, &rootv1.RaiseFeatureLevelRequest{ClusterId: s.cfg.ClusterID, DryRun: true})
		if err != nil || resp.GetCommonLevel() <= resp.GetFeatureLevel() || resp.GetCommonLevel() != level {
			level, since = resp.GetCommonLevel(), time.Now()
		} else if time.Since(since) >= s.cfg.RaiseAfter {
			if resp, err = s.RaiseFeatureLevel(try, &rootv1.RaiseFeatureLevelRequest{ClusterId: s.cfg.ClusterID, To: level}); err == nil {
				s.cfg.Logger.Info("feature level raised: every process understands it", "level", resp.GetFeatureLevel())
			}
			level = 0
		}
		cancel()
	}
}
