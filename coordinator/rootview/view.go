// Package rootview keeps a view of the metadata root: the root's own state
// machine, fed by the root's tail, in a process that has no truth of its own.
//
// It owns the view, what is known of its age, and the changes of the recent
// past. It promises:
//
//  1. a published View is never changed, and its State is the log replayed at
//     exactly its Token;
//  2. within a process the published Token never goes back, except to a higher
//     incarnation of the cluster;
//  3. entries are applied in order and without a gap, a message as a whole;
//     what the log no longer has is loaded from a verified snapshot, and until
//     that is complete the old View is served and says so;
//  4. a request gets the freshness it asked for or a refusal, never less;
//  5. a strong read rests on a read index that was asked for after the request
//     had come;
//  6. a watcher sees every change once and in order, or is told to start from
//     a snapshot.
//
// Core is the whole protocol without goroutine or clock of its own; Follower
// is the shell that drives it. Looking things up in a View is package catalog.
package rootview

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// View is a position in the root's log with the state at it, and what was known
// of the root when the View was published. It is never changed; anybody may
// read it, for as long as they like.
type View struct {
	// State at Token. Only what its package allows for a State that nobody
	// applies to: reads, Assess, Records.
	State *state.State
	// Token is the position of State; index 0: it is empty. See Loaded.
	Token state.Token
	// Known is the newest position heard of from any root peer; never below
	// Token. Its term is 0 when it is ahead of Token: only the index is known.
	Known state.Token
	// LevelAt is the last instant at which State had all that a root peer with a
	// leader knew to be committed. 0: never. Of the time a message travels only
	// what is longer than for others of its stream is counted; and a peer that was
	// cut off from its leader finds out after an election timeout.
	LevelAt clock.Instant
	// QuorumAt is the last instant at which a root peer that was heard had a
	// leader with a quorum. 0: never.
	QuorumAt clock.Instant
	// Sync says how the tail was doing.
	Sync coordinatorv1.SyncHealth
	// NeedsSnapshot is set while the next entry cannot be had from the log, or
	// cannot be applied.
	NeedsSnapshot bool
	// Era is the newest era at Token; 0 when there was never one.
	Era state.Era
	// ClusterID of the root that is followed; 0 until one answered.
	ClusterID uint64

	unavailableAfter time.Duration
	whole            bool
	token, known     *rootv1.RootToken
}

// Loaded says whether the views of this process have reached what was committed
// when it first heard the root. Before, they show a past in which much of what
// exists does not exist yet.
func (v *View) Loaded() bool { return v.whole }

// Lag is the number of log entries between the View and the newest position
// known.
func (v *View) Lag() uint64 {
	if v.Known.Incarnation != v.Token.Incarnation {
		return v.Known.Index
	}
	return v.Known.Index - v.Token.Index
}

// Age is the time since the View was known to be level with the root. ok is
// false when it never was.
func (v *View) Age(now clock.Instant) (age time.Duration, ok bool) {
	if v.LevelAt == 0 {
		return 0, false
	}
	return max(now.Sub(v.LevelAt), 0), true
}

// Mode is ROOT_UNAVAILABLE when no root peer that has a leader was heard for
// longer than CoreConfig.UnavailableAfter; otherwise ROOT_LAGGING when the View
// is behind Known or waits for a snapshot; otherwise HEALTHY.
func (v *View) Mode(now clock.Instant) coordinatorv1.DegradedMode {
	switch {
	case v.QuorumAt == 0 || now.Sub(v.QuorumAt) > v.unavailableAfter:
		return coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE
	case v.NeedsSnapshot || v.Lag() > 0 || !v.Loaded():
		return coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING
	default:
		return coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY
	}
}

// CatchUp is BOOTSTRAP_REQUIRED while a snapshot is needed, whatever else is
// wrong; otherwise UNAVAILABLE, LAGGING or FRESH with Mode.
func (v *View) CatchUp(now clock.Instant) coordinatorv1.CatchUpState {
	if v.NeedsSnapshot {
		return coordinatorv1.CatchUpState_CATCH_UP_STATE_BOOTSTRAP_REQUIRED
	}
	switch v.Mode(now) {
	case coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE:
		return coordinatorv1.CatchUpState_CATCH_UP_STATE_UNAVAILABLE
	case coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING:
		return coordinatorv1.CatchUpState_CATCH_UP_STATE_LAGGING
	default:
		return coordinatorv1.CatchUpState_CATCH_UP_STATE_FRESH
	}
}

// Action is what is being done: a lost root is looked for, then a missing
// snapshot is loaded, then the tail is applied.
func (v *View) Action(now clock.Instant) coordinatorv1.CatchUpAction {
	mode := v.Mode(now)
	switch {
	case v.Sync == coordinatorv1.SyncHealth_SYNC_HEALTH_DISCONNECTED,
		mode == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE:
		return coordinatorv1.CatchUpAction_CATCH_UP_ACTION_RECONNECT
	case v.NeedsSnapshot:
		return coordinatorv1.CatchUpAction_CATCH_UP_ACTION_BOOTSTRAP
	case mode == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING:
		return coordinatorv1.CatchUpAction_CATCH_UP_ACTION_ADVANCE
	default:
		return coordinatorv1.CatchUpAction_CATCH_UP_ACTION_NONE
	}
}

// Disclosure says what an answer from this View, given by right of class, is
// worth. The caller adds served_by_leader and coordinator_id. What it shares
// with other answers is never to be changed.
func (v *View) Disclosure(now clock.Instant, class coordinatorv1.ServingClass) *coordinatorv1.Disclosure {
	d := &coordinatorv1.Disclosure{
		ServedRootToken:  v.token,
		CurrentRootToken: v.known,
		RootLag:          v.Lag(),
		ServedFreshness:  servedFreshness(class),
		DegradedMode:     v.Mode(now),
		CatchUpState:     v.CatchUp(now),
		CatchUpAction:    v.Action(now),
		ServingClass:     class,
		SyncHealth:       v.Sync,
		Era:              uint64(v.Era),
		ClusterId:        v.ClusterID,
	}
	if age, ok := v.Age(now); ok {
		d.RootLagMillis = uint64(age.Milliseconds())
	} else {
		d.RootLagMillis = NeverLevelMillis
	}
	return d
}

// NeverLevelMillis is the root_lag_millis of a View that was never level with
// the root: the largest number that a JSON reader keeps exact.
const NeverLevelMillis = 1<<53 - 1

func servedFreshness(class coordinatorv1.ServingClass) coordinatorv1.Freshness {
	switch class {
	case coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE:
		return coordinatorv1.Freshness_FRESHNESS_STRONG
	case coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED:
		return coordinatorv1.Freshness_FRESHNESS_BOUNDED
	default:
		return coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT
	}
}
