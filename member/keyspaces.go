package member

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// stillAbsent is the most time between two warnings of one keyspace, half of it the least.
const stillAbsent = 30 * time.Second

// awaitKeyspaces warns of keyspaces that the member names and gets nothing of, each at once and
// again within stillAbsent, until it has been seen to be there: a name that nobody has, by
// mistake or because it is not made yet, is waited for, and would be in silence.
// The function that it returns ends it.
func (m *Member) awaitKeyspaces(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	for _, name := range m.cfg.Keyspaces {
		waiting.Go(func() { m.awaitKeyspace(ctx, name) })
	}
	return func() {
		cancel()
		waiting.Wait()
	}
}

func (m *Member) awaitKeyspace(ctx context.Context, name string) {
	for {
		there, err := m.cfg.Client.GetKeyspace(ctx, name, client.Strong())
		pause := registerPauses
		switch {
		case m.told(name), ctx.Err() != nil:
			return
		case errors.Is(err, client.ErrNotFound):
			m.log.Warn("waits for a keyspace that is not there, or that it may not read: create it with nokv keyspace create, or correct the name", "keyspace", name)
			pause = stillAbsent
		case err == nil && there.GetKeyspace().GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED:
			m.log.Warn("waits for regions of a keyspace whose members report them, so that it is given none: change it with nokv keyspace update --placement assigned, or name another one", "keyspace", name)
			pause = stillAbsent
		case err == nil || !passes(err):
			return
		}
		if rest(ctx, pause) != nil {
			return
		}
	}
}

// told says whether coordinators have told anything of a keyspace, whatever the member may read.
func (m *Member) told(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keyspaces[name]
}

// toldLocked notes which of the member's keyspaces terms tell of. The caller holds m.mu.
func (m *Member) toldLocked(t *coordinatorv1.MemberTerms) {
	for _, k := range t.GetKeyspaces() {
		if slices.Contains(m.cfg.Keyspaces, k.GetName()) {
			m.keyspaces[k.GetName()] = true
		}
	}
}
