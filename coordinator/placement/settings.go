package placement

import (
	"cmp"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settings are those of an assigned keyspace, with their defaults.
type settings struct {
	id        state.KeyspaceID
	name      string
	ttl       time.Duration
	maxOwners int
	// prepareMax and deadline of its moves, and how many of them at a time.
	prepareMax, deadline time.Duration
	inFlight             int
	// perMember is how many regions a member may have; 0: any number.
	perMember uint64
	// byTouch: a region without owners waits for whoever asks for its key.
	byTouch bool
}

// keyspace returns the settings of an assigned keyspace, nil of others.
func (p *planner) keyspace(id state.KeyspaceID) *settings {
	k, ok := p.keyspaces[id]
	if !ok {
		if record := p.State.Keyspace(id); assigned(record) {
			k = settingsOf(record)
		}
		p.keyspaces[id] = k
	}
	return k
}

func assigned(k *rootv1.Keyspace) bool {
	return k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED
}

func settingsOf(record *rootv1.Keyspace) *settings {
	s := record.GetSettings()
	m := s.GetMoves()
	return &settings{
		id: state.KeyspaceID(record.GetId()), name: record.GetName(), ttl: liveness.FenceTTL(s),
		maxOwners:  int(cmp.Or(s.GetOwnership().GetMaxOwners(), 1)),
		prepareMax: time.Duration(cmp.Or(m.GetPrepareMaxMillis(), 10_000)) * time.Millisecond,
		deadline:   time.Duration(cmp.Or(m.GetDeadlineMillis(), 60_000)) * time.Millisecond,
		inFlight:   int(min(cmp.Or(m.GetInFlight(), 16), maxInFlight)),
		perMember:  s.GetLimits().GetMaxRegionsPerMember(),
		byTouch:    s.GetLayout().GetPoints() != nil,
	}
}

// maxInFlight bounds the moves under way from one member, and to one.
const maxInFlight = 4096

func (k *settings) shared() bool { return k.maxOwners > 1 }
