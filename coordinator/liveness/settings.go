package liveness

import (
	"cmp"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Settings say how patient a Core is, and how much it does at once.
type Settings struct {
	// DriftPermille is how much faster than a member's the clock here is assumed never
	// to run: a fence runs out after ttl*(1+DriftPermille/1000). Default 10.
	DriftPermille uint64
	// Round is the time in which at most VerdictsPerRound verdicts without proof are
	// passed. Default 1 s and 256.
	Round            time.Duration
	VerdictsPerRound int
	// AskTime is how long other coordinators have to say whom they hear. For a verdict without
	// proof, one that has not answered by then hears nobody. Default 200 ms.
	AskTime time.Duration
	// ProbeGap is the time between a refused connection and the second attempt.
	// Default 20 ms.
	ProbeGap time.Duration
}

func (s Settings) withDefaults() Settings {
	s.DriftPermille = cmp.Or(s.DriftPermille, 10)
	s.Round = cmp.Or(s.Round, time.Second)
	s.VerdictsPerRound = cmp.Or(s.VerdictsPerRound, 256)
	s.AskTime = cmp.Or(s.AskTime, 200*time.Millisecond)
	s.ProbeGap = cmp.Or(s.ProbeGap, 20*time.Millisecond)
	return s
}

// stretched is a member's ttl by the clock here, at the most.
func (s *Settings) stretched(ttl time.Duration) time.Duration {
	return ttl + time.Duration(uint64(ttl/1000)*s.DriftPermille)
}

// Bounds of a member's time between two frames.
const (
	LeastInterval = state.LeastIntervalMillis * time.Millisecond
	MostInterval  = state.MostIntervalMillis * time.Millisecond
)

// FenceTTL is how long an owner of the keyspace's regions may act without being
// confirmed: 0 where the fence is the epoch, and where regions are shared or reported.
func FenceTTL(s *rootv1.KeyspaceSettings) time.Duration {
	o := s.GetOwnership()
	if s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || o.GetMaxOwners() > 1 || o.GetFence() != rootv1.Fence_FENCE_TTL {
		return 0
	}
	return millis(o.GetTtlMillis())
}

// Fence is how long an owner of a keyspace's regions may act without being confirmed.
type Fence struct {
	// TTL by the settings, see FenceTTL. Former is the longest that earlier settings had,
	// and may be what owners were told; 0: not longer than TTL.
	TTL, Former time.Duration
}

// FenceOf is the fence of a keyspace as rooted.
func FenceOf(k *rootv1.Keyspace) Fence {
	return Fence{TTL: FenceTTL(k.GetSettings()), Former: millis(k.GetFormerTtlMillis())}
}

// millis is a duration of a setting, which is bounded by state.MaxMillis.
func millis(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }

// terms are how members are watched, and damped.
type terms struct {
	suspect, dead     time.Duration
	closedDead, probe bool

	flapFailures           int
	flapWindow, noMoveBack time.Duration
}

// termsOf reads a keyspace's settings.
func termsOf(s *rootv1.KeyspaceSettings) terms {
	l, g := state.LivenessOf(s), state.GuardsOf(s)
	return terms{
		suspect:      millis(l.GetSuspectAfterMillis()),
		dead:         millis(l.GetDeadAfterMillis()),
		closedDead:   l.GetClosedStream() == rootv1.ClosedStream_CLOSED_STREAM_DEAD,
		probe:        l.GetProbe(),
		flapFailures: int(min(g.GetFlapFailures(), maxFailures)),
		flapWindow:   millis(g.GetFlapWindowMillis()),
		noMoveBack:   millis(g.GetNoMoveBackMillis()),
	}
}

// strictest is what holds for a member of several keyspaces: the least patience of
// each, and the longest damping.
func (t terms) strictest(o terms) terms {
	return terms{
		suspect: min(t.suspect, o.suspect), dead: min(t.dead, o.dead),
		closedDead: t.closedDead || o.closedDead, probe: t.probe || o.probe,
		flapFailures: min(t.flapFailures, o.flapFailures), flapWindow: max(t.flapWindow, o.flapWindow), noMoveBack: max(t.noMoveBack, o.noMoveBack),
	}
}
