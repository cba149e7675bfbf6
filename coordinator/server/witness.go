package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// unavailable is why nothing holds while no root peer with a quorum is heard.
const unavailable = "no root peer with a quorum answers this coordinator: what holds now is not known"

// Witness implements coordinatorv1.CoordinatorServer. It judges the view that
// the request asks for; what this process holds itself plays no part.
func (s *Server) Witness(ctx context.Context, req *coordinatorv1.WitnessRequest) (*coordinatorv1.WitnessResponse, error) {
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	disclosure := v.disclosure()
	truth := s.truth(v.view, v.now)
	if err := s.invariants.walk(ctx, v.state, v.now, truth.Placed); err != nil {
		return nil, err
	}
	for i := range truth.Placed.Found {
		a := &truth.Placed.Found[i]
		if a.Region != 0 && v.mayReadOf(ctx, v.keyspaceOf(a.Region)) != nil {
			a.Region, a.Numbers = 0, "it is about a region that the caller may not read"
		}
	}
	report := witness.Judge(truth)
	resp := &coordinatorv1.WitnessResponse{
		Cluster: truth.Cluster, Tenure: truth.Tenure, Handovers: truth.Handovers, Allocators: truth.Allocators,
		ForgottenEras: report.Forgotten, HandoverOpenMillis: openMillis(truth.OpenFor), Disclosure: disclosure,
		Placed: placedProto(truth.Placed),
	}
	for _, f := range report.Findings {
		resp.Guarantees = append(resp.Guarantees, &coordinatorv1.GuaranteeFinding{
			Guarantee: guaranteeProto(f.Guarantee), Verdict: coordinatorv1.Verdict(f.Verdict), Numbers: f.Numbers,
		})
	}
	for _, a := range report.Anomalies {
		anomaly := &coordinatorv1.WitnessAnomaly{
			Kind: string(a.Kind), Guarantee: guaranteeProto(a.Guarantee), Era: a.Era, Note: a.Note, Numbers: a.Numbers, RegionId: uint64(a.Region),
		}
		if a.At.Index != 0 {
			anomaly.Token = a.At.Proto()
		}
		resp.Anomalies = append(resp.Anomalies, anomaly)
	}
	return resp, nil
}

// truth is what a view knows. Behind the root it does not know whether a
// handover is still open.
func (s *Server) truth(view *rootview.View, now clock.Instant) witness.Truth {
	truth := witness.Of(view.State)
	s.invariants.found(truth.Placed)
	open := s.handover.look(view.State, now)
	switch view.Mode(now) {
	case coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY:
		truth.OpenFor = open
	case coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE:
		truth.Unknown = unavailable
	}
	return truth
}

// guaranteeProto: the wire counts from 1.
func guaranteeProto(g witness.Guarantee) coordinatorv1.Guarantee {
	return coordinatorv1.Guarantee(g) + coordinatorv1.Guarantee_GUARANTEE_PRIMACY
}

// openMillis is never 0 for what was seen open.
func openMillis(open time.Duration) uint64 {
	if open == 0 {
		return 0
	}
	return uint64(max(open.Milliseconds(), 1))
}

// Guarantees are the verdicts on the newest view, by the guarantee's name in
// lower case, for /debug/vars.
func (s *Server) Guarantees() map[string]string {
	verdicts := make(map[string]string)
	for _, f := range witness.Judge(s.truth(s.view(), s.cfg.Clock.Now())).Findings {
		verdicts[strings.ToLower(f.Guarantee.String())] = f.Verdict.String()
	}
	return verdicts
}

// openHandover remembers since when the current handover is seen open. The
// root keeps no times.
type openHandover struct {
	mu    sync.Mutex // guards what follows
	era   uint64
	since clock.Instant
}

// look is how long the handover of the active era has been seen open; 0: it is
// closed. What was open before this process looked counts from the first look.
func (o *openHandover) look(st *state.State, now clock.Instant) time.Duration {
	handovers := st.Handovers()
	if len(handovers) == 0 {
		return 0
	}
	h := handovers[len(handovers)-1]
	if h.GetStage() >= rootv1.HandoverStage_HANDOVER_STAGE_CLOSED || st.ActiveEra() != state.Era(h.GetEra()) {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if h.GetEra() > o.era {
		o.era, o.since = h.GetEra(), now
	}
	return max(now.Sub(o.since), time.Nanosecond)
}
