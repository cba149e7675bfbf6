package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What comes and goes: regions that are removed and made again under the same id,
// a keyspace that is deleted and made again under its name, members and what they
// are assigned. Every change has an identity, is sent again under it when there is
// no answer, and is looked for in the log by it.

// identityOf is a command's identity as it is in the log.
type identityOf struct{ origin, sequence uint64 }

func ofIdentity(id *rootv1.CommandIdentity) identityOf {
	return identityOf{id.GetOrigin(), id.GetSequence()}
}

// change is one change by a typed call, with all the tries that it took.
type change struct {
	client, what string
	id           identityOf
	tries        int
	// answered: the call was answered; rejected: as a refusal of the root's.
	answered, rejected bool
	// changed: the answer says that something changed, at token or before.
	changed bool
	token   state.Token
}

// answer is what a typed call says of a change.
type answer struct {
	token   *rootv1.RootToken
	changed bool
}

// typed makes one change by a typed call until it has an answer or has been tried
// often enough. A refusal is an answer, and no error.
func (c *caller) typed(ctx context.Context, kind kindOfLoad, what string, call func(context.Context, coordinatorv1.CoordinatorClient, *rootv1.CommandIdentity) (answer, error)) (*change, error) {
	id := c.load.identities.Next(c.session.Index)
	out := &change{client: c.name, what: what, id: ofIdentity(id)}
	defer func() { c.e.changed(out, c.now()) }()
	err := errNoAnswer
	for range c.tries {
		out.tries++
		var a answer
		if err = c.ask(ctx, func(ctx context.Context, n coordinatorv1.CoordinatorClient) (err error) {
			a, err = call(ctx, n, id)
			return err
		}); err == nil {
			out.answered, out.changed, out.token = true, a.changed, state.TokenFromProto(a.token)
			if c.session.Compare(out.token) < 0 {
				c.session = out.token
			}
			c.progress[kind].Add(1)
			return out, nil
		}
		if ctx.Err() != nil {
			break
		}
		if judgedByRoot(err) {
			out.answered, out.rejected = true, true
			c.progress[kind].Add(1)
			return out, err
		}
		c.turn(ctx)
	}
	return out, err
}

// judgedByRoot says whether an error is the root's verdict on a command: whoever
// asks again gets the same.
func judgedByRoot(err error) bool {
	switch reason.Of(reason.FromGRPC(err)) {
	case rootv1.Reason_REASON_EPOCH_STALE, rootv1.Reason_REASON_NOT_FOUND, rootv1.Reason_REASON_ALREADY_EXISTS, rootv1.Reason_REASON_NOT_EMPTY,
		rootv1.Reason_REASON_VERSION_STALE, rootv1.Reason_REASON_MEMBER_NOT_FOUND, rootv1.Reason_REASON_MEMBER_RETIRED,
		rootv1.Reason_REASON_MEMBER_DRAINING, rootv1.Reason_REASON_UNHEALTHY_MEMBER:
		return true
	}
	return false
}

// goneRegions come and go. Their conf version stays 1: their version rises.
const goneRegions = 3

func goneKey(i int) string { return fmt.Sprintf("gone/%d", i) }

// comeAndGo publishes one of the regions that come and go, or removes it: at the
// epoch that the caller knows of, or at any.
func (c *caller) comeAndGo(ctx context.Context) {
	key := goneKey(c.rng.IntN(goneRegions))
	c.mu.Lock()
	id, known := c.ids[key], c.conf[key]
	c.mu.Unlock()
	if c.rng.IntN(2) == 0 {
		_ = c.publishAt(ctx, key, id, state.Epoch{Version: known + 1, ConfVersion: 1}) // what became of it is in the evidence
		return
	}
	c.next++
	w := &write{client: c.name, key: key, conf: known, removes: true, tag: fmt.Sprintf("%s#%d", c.name, c.next), called: c.now(), returned: history.Never}
	defer c.e.wrote(w)
	req := &coordinatorv1.RemoveRegionRequest{RegionId: id}
	if c.rng.IntN(2) == 0 {
		req.ExpectedEpoch = state.Epoch{Version: known, ConfVersion: 1}.Proto()
	} else {
		w.conf = 0
	}
	done, err := c.typed(ctx, loadRemovals, "remove "+key, func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (answer, error) {
		w.lastTry, w.tries = c.now(), w.tries+1
		req.Identity = id
		r, err := n.RemoveRegion(ctx, req)
		return answer{r.GetToken(), r.GetRemoved()}, err
	})
	w.id = done.id
	switch {
	case done.rejected:
		w.outcome, w.reason, w.returned = rootv1.Outcome_OUTCOME_REJECTED, reason.Of(reason.FromGRPC(err)), c.now()
		c.knows(key, reason.From(reason.FromGRPC(err)).GetRegion().GetEpoch())
	case done.answered && done.changed:
		w.outcome, w.token, w.returned = rootv1.Outcome_OUTCOME_ALREADY_APPLIED, done.token, c.now()
	case done.answered:
		w.absent, w.returned = true, c.now()
	}
}

// knows notes the epoch that a region has, by somebody's answer.
func (l *load) knows(key string, epoch *rootv1.RegionEpoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conf[key] = max(l.conf[key], numberOf(state.EpochFromProto(epoch)))
}

// comingKeyspace is deleted and made again under the same name.
const comingKeyspace = "actors"

// keyspaces makes the keyspace, assigns a slot of it to a member, or deletes it.
func (c *caller) keyspaces(ctx context.Context) {
	switch c.rng.IntN(4) {
	case 0:
		settings := state.DefaultSettings()
		settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1 + c.rng.Uint32N(6)}}}
		settings.Placement = rootv1.Placement_PLACEMENT_ASSIGNED
		_, _ = c.typed(ctx, loadKeyspaces, "make a keyspace", func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (answer, error) {
			r, err := n.CreateKeyspace(ctx, &coordinatorv1.CreateKeyspaceRequest{Name: comingKeyspace, Settings: settings, Identity: id})
			return answer{r.GetToken(), !r.GetAlreadyExisted()}, err
		})
	case 1:
		_, _ = c.typed(ctx, loadKeyspaces, "delete a keyspace", func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (answer, error) {
			r, err := n.DeleteKeyspace(ctx, &coordinatorv1.DeleteKeyspaceRequest{Name: comingKeyspace, ExpectedVersion: 1, Identity: id})
			return answer{r.GetToken(), true}, err
		})
	default:
		c.assign(ctx)
	}
}

// assign gives the first slot of the keyspace to some member.
func (c *caller) assign(ctx context.Context) {
	var slots *coordinatorv1.ScanRegionsResponse
	if c.ask(ctx, func(ctx context.Context, n coordinatorv1.CoordinatorClient) (err error) {
		slots, err = n.ScanRegions(ctx, &coordinatorv1.ScanRegionsRequest{Keyspace: comingKeyspace, Limit: 1})
		return err
	}) != nil || len(slots.GetRegions()) == 0 {
		return
	}
	slot := slots.GetRegions()[0]
	a := &rootv1.Assignment{RegionId: slot.GetId(), ExpectedEpoch: slot.GetEpoch()}
	if c.rng.IntN(3) > 0 {
		a.Owners = []*rootv1.Owner{{MemberId: c.someMember()}}
	}
	_, _ = c.typed(ctx, loadKeyspaces, "assign a slot", func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (answer, error) {
		r, err := n.AssignRegions(ctx, &coordinatorv1.AssignRegionsRequest{Assignments: []*rootv1.Assignment{a}, Identity: id})
		return answer{r.GetToken(), r.GetChanged()}, err
	})
}

const comingMembers = 3

func (c *caller) someMember() string { return fmt.Sprintf("m%d", c.rng.IntN(comingMembers)) }

// members registers a member, drains it or takes that back, says that it failed,
// or removes it.
func (c *caller) members(ctx context.Context) {
	id := c.someMember()
	call := func(what string, ask func(context.Context, coordinatorv1.CoordinatorClient, *rootv1.CommandIdentity) (*rootv1.RootToken, error)) {
		_, _ = c.typed(ctx, loadMembers, what, func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (answer, error) {
			token, err := ask(ctx, n, id)
			return answer{token, false}, err // the answer does not say whether anything changed
		})
	}
	switch c.rng.IntN(5) {
	case 0, 1:
		member := &rootv1.Member{Id: id, Address: "127.0.0.1:1", Kind: "store", StartNonce: c.rng.Uint64() | 1}
		call("register "+id, func(ctx context.Context, n coordinatorv1.CoordinatorClient, id *rootv1.CommandIdentity) (*rootv1.RootToken, error) {
			r, err := n.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{Member: member, Identity: id})
			return r.GetToken(), err
		})
	case 2:
		undo := c.rng.IntN(2) == 0
		call("drain "+id, func(ctx context.Context, n coordinatorv1.CoordinatorClient, command *rootv1.CommandIdentity) (*rootv1.RootToken, error) {
			r, err := n.DrainMember(ctx, &coordinatorv1.DrainMemberRequest{MemberId: id, Undo: undo, Identity: command})
			return r.GetToken(), err
		})
	case 3:
		incarnation := 1 + c.rng.Uint64N(3)
		call("fail "+id, func(ctx context.Context, n coordinatorv1.CoordinatorClient, command *rootv1.CommandIdentity) (*rootv1.RootToken, error) {
			r, err := n.FailMember(ctx, &coordinatorv1.FailMemberRequest{MemberId: id, Incarnation: incarnation, Reason: "chaos", Identity: command})
			return r.GetToken(), err
		})
	default:
		call("remove "+id, func(ctx context.Context, n coordinatorv1.CoordinatorClient, command *rootv1.CommandIdentity) (*rootv1.RootToken, error) {
			r, err := n.RemoveMember(ctx, &coordinatorv1.RemoveMemberRequest{MemberId: id, Identity: command})
			return r.GetToken(), err
		})
	}
}

func (e *evidence) changed(c *change, at time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.typed = append(e.typed, c)
	if c.token.Index != 0 {
		e.acked = append(e.acked, ack{at, c.token.Index})
	}
}

// once: a change is carried out once, however often it was sent; what its caller
// was told of it is so.
func (j *judge) once() error {
	for id, at := range j.carriedOut {
		if len(at) > 1 {
			return fmt.Errorf("command %d of %016x was applied at %s and again at %s", id.sequence, id.origin, at[0], at[1])
		}
	}
	for _, c := range j.typed {
		at := j.carriedOut[c.id]
		switch {
		case !c.answered:
		case c.rejected && len(at) > 0:
			return fmt.Errorf("%s was told that its %q was rejected, it was applied at %s", c.client, c.what, at[0])
		case c.rejected:
		case c.token.Index > uint64(len(j.log)) || c.token.Index == 0 || j.log[c.token.Index-1].term != c.token.Term:
			return fmt.Errorf("%s was told of %s for its %q, the log does not have it", c.client, c.token, c.what)
		case c.changed && len(at) == 0:
			return fmt.Errorf("%s was told that its %q is at %s, it is nowhere", c.client, c.what, c.token)
		case len(at) > 0 && at[0].Compare(c.token) > 0:
			return fmt.Errorf("%s was told that its %q is at %s, it is at %s", c.client, c.what, c.token, at[0])
		}
	}
	return nil
}
