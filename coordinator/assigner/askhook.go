package assigner

import (
	"context"
	"errors"
	"sync"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// restingHooks are those that nobody waits for. Its methods may overlap.
type restingHooks struct {
	mu sync.Mutex
	of map[state.KeyspaceID]*coordinatorv1.RestingHook // guarded by mu; not changed any more
}

// set notes why a hook rests; nil: it does not.
func (r *restingHooks) set(id state.KeyspaceID, x *coordinatorv1.RestingHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x == nil {
		delete(r.of, id)
		return
	}
	if r.of == nil {
		r.of = map[state.KeyspaceID]*coordinatorv1.RestingHook{}
	}
	r.of[id] = x
}

func (r *restingHooks) why(id state.KeyspaceID) hook.Why {
	r.mu.Lock()
	defer r.mu.Unlock()
	return hook.Why(r.of[id].GetWhy())
}

// RestingHooks are the hooks that nobody waits for, by keyspace, while the Tenure is held.
func (a *Assigner) RestingHooks() (all []*coordinatorv1.RestingHook) {
	r := &a.raw.shows.resting
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range sortedKeys(r.of) {
		all = append(all, r.of[id])
	}
	return all
}

func (r *restingHooks) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.of)
}

// ErrNoHook: the strategy of a keyspace is no hook.
var ErrNoHook = errors.New("no hook places regions of this keyspace")

// AskHook asks the hook of a keyspace about regions that are not there yet, within ctx and as
// long as the hook has time: who is named is a proposal. It asks nobody, and fails at once,
// while nobody waits for that hook, or as many are asked as may be. It may be called at any time
// from any goroutine.
func (a *Assigner) AskHook(ctx context.Context, k *rootv1.Keyspace, regions []hook.Region, candidates []propose.Candidate) (map[state.RegionID]state.MemberID, error) {
	h := hookOf(k)
	if h == nil || a.cfg.Hooks == nil || a.cfg.Strategies[k.GetName()] != nil {
		return nil, ErrNoHook
	}
	if why := a.raw.shows.resting.why(h.id); why != "" {
		return nil, &hook.Error{Why: why, Err: errors.New("it did not answer lately")}
	}
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	default:
		return nil, &hook.Error{Why: hook.Busy, Err: errors.New("too many hooks are asked")}
	}
	place := h.placement(0)
	place.Regions, place.Candidates = regions, members(candidates)
	return a.askHook(ctx, &HookCall{URL: h.url, Within: h.timeout, Place: place})
}
