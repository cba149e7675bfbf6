package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

const (
	// removedAtOnce bounds the regions that one command removes, and mostTurns how often a
	// keyspace is looked through again because somebody made regions in it meanwhile.
	removedAtOnce = 512
	mostTurns     = 64
)

// emptying removes the regions of a keyspace of points and then the keyspace. Each step is
// whole: who is interrupted begins again, and finds what is left.
type emptying struct {
	e    *env
	cl   *client.Client
	name string
	// step is a context for one step.
	step    func() (context.Context, context.CancelFunc)
	removed uint64
	told    time.Time
}

// run deletes the keyspace at a version; 0: any.
func (x *emptying) run(version uint64) (*rootv1.RootToken, error) {
	k, regions, err := x.get()
	if err != nil {
		return nil, err
	}
	points := k.GetSettings().GetLayout().GetPoints() != nil
	if !points || version != 0 && version != k.GetVersion() {
		return x.delete(version) // which refuses another version: nothing is removed of that
	}
	if version = k.GetVersion(); regions > 0 { // it is this one that is emptied, and nobody changes it meanwhile
		if version, err = x.close(k); err != nil {
			return nil, err
		}
	}
	for turn := 0; ; turn++ {
		if err := x.empty(regions); err != nil {
			return nil, err
		}
		at, err := x.delete(version)
		if reasonOf(err) != rootv1.Reason_REASON_NOT_EMPTY || turn == mostTurns {
			return at, err
		}
	}
}

func (x *emptying) delete(version uint64) (*rootv1.RootToken, error) {
	ctx, done := x.step()
	defer done()
	return deleteKeyspace(ctx, x.cl, &rootv1.KeyspaceDeleted{Name: x.name, ExpectedVersion: version, Force: true})
}

func (x *emptying) get() (*rootv1.Keyspace, uint64, error) {
	ctx, done := x.step()
	defer done()
	there, err := x.cl.GetKeyspace(ctx, x.name, client.Strong())
	return there.GetKeyspace(), there.GetRegions(), err
}

// close has nobody claim what is to go. It returns the version of the keyspace then.
func (x *emptying) close(k *rootv1.Keyspace) (uint64, error) {
	if k.GetSettings().GetPolicy().GetOnMiss() != rootv1.OnMiss_ON_MISS_CLAIM {
		return k.GetVersion(), nil
	}
	closed := proto.CloneOf(k.GetSettings())
	closed.Policy.OnMiss = rootv1.OnMiss_ON_MISS_NOT_FOUND
	ctx, done := x.step()
	defer done()
	r, err := x.cl.UpdateKeyspace(ctx, x.name, k.GetVersion(), closed)
	return r.GetKeyspace().GetVersion(), err
}

// empty removes what is there.
func (x *emptying) empty(all uint64) error {
	for {
		ids, err := x.some()
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := x.remove(ids); err != nil {
			return err
		}
		x.removed += uint64(len(ids))
		if now := time.Now(); now.Sub(x.told) >= time.Second {
			x.told = now
			fmt.Fprintf(x.e.stderr, "keyspace %s: %d of about %d regions are removed\n", x.name, x.removed, max(all, x.removed))
		}
	}
}

// some are the first regions that are there.
func (x *emptying) some() (ids []rooted.RegionID, err error) {
	ctx, done := x.step()
	defer done()
	for r, err := range x.cl.ScanRegions(ctx, nil, nil, client.In(x.name), client.Strong(), client.Limit(removedAtOnce)) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, r.Region.ID)
	}
	return ids, nil
}

// remove takes regions from whoever owns them, in one command. What is under way of them ends
// first.
func (x *emptying) remove(ids []rooted.RegionID) error {
	cmd := &rootv1.Command{}
	for _, id := range ids {
		cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(id)}}})
	}
	for range 2 * len(ids) {
		err := x.publish(cmd)
		if reasonOf(err) != rootv1.Reason_REASON_RANGE_CHANGE_PENDING {
			return err
		}
		refused, _ := errors.AsType[*client.Error](err)
		under := refused.Detail.GetTransitionId()
		if under == "" {
			return err
		}
		end := &rootv1.TransitionCancelled{TransitionId: under, Aborted: true, Reason: "its keyspace is deleted"}
		if err := x.publish(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: end}}}}); err != nil {
			switch reasonOf(err) {
			case rootv1.Reason_REASON_TRANSITION_CLOSED, rootv1.Reason_REASON_NOT_FOUND: // it has ended by itself
			default:
				return err
			}
		}
	}
	return fmt.Errorf("changes of regions of keyspace %s begin as fast as they are ended; run this again", x.name)
}

func (x *emptying) publish(cmd *rootv1.Command) error {
	ctx, done := x.step()
	defer done()
	_, err := x.cl.Publish(ctx, cmd)
	return err
}
