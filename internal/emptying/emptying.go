// Package emptying deletes a keyspace with all that is in it, while others may still make
// regions there.
package emptying

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Emptying removes the regions of a keyspace and then the keyspace. Each step is whole: who is
// interrupted begins again, and finds what is left.
type Emptying struct {
	Client *client.Client
	// Name is the keyspace's.
	Name string
	// Step is a context for one step.
	Step func() (context.Context, context.CancelFunc)
	// Progress is told each second how it goes, where one command does not suffice.
	Progress io.Writer
	// Ranges are removed too, whoever reports them. Without it only points are.
	Ranges bool

	removed uint64
	told    time.Time
}

// Run deletes the keyspace at a version; 0: any. It fails with ErrNotEmpty where it may not
// remove what is there, or regions are made as fast as they are removed.
func (x *Emptying) Run(version uint64) (*rootv1.RootToken, error) {
	k, regions, err := x.get()
	if err != nil {
		return nil, err
	}
	layout := k.GetSettings().GetLayout()
	removes := layout.GetPoints() != nil || x.Ranges && layout.GetSlots() == nil
	if !removes || version != 0 && version != k.GetVersion() {
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
		if !errors.Is(err, client.ErrNotEmpty) || turn == mostTurns {
			return at, err
		}
	}
}

func (x *Emptying) delete(version uint64) (*rootv1.RootToken, error) {
	ctx, done := x.Step()
	defer done()
	e := &rootv1.KeyspaceDeleted{Name: x.Name, ExpectedVersion: version, Force: true}
	r, err := x.Client.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: e}})
	return r.GetToken(), err
}

func (x *Emptying) get() (*rootv1.Keyspace, uint64, error) {
	ctx, done := x.Step()
	defer done()
	there, err := x.Client.GetKeyspace(ctx, x.Name, client.Strong())
	return there.GetKeyspace(), there.GetRegions(), err
}

// close has nobody claim what is to go. It returns the version of the keyspace then.
func (x *Emptying) close(k *rootv1.Keyspace) (uint64, error) {
	if k.GetSettings().GetPolicy().GetOnMiss() != rootv1.OnMiss_ON_MISS_CLAIM {
		return k.GetVersion(), nil
	}
	closed := proto.CloneOf(k.GetSettings())
	closed.Policy.OnMiss = rootv1.OnMiss_ON_MISS_NOT_FOUND
	ctx, done := x.Step()
	defer done()
	r, err := x.Client.UpdateKeyspace(ctx, x.Name, k.GetVersion(), closed)
	return r.GetKeyspace().GetVersion(), err
}

// empty removes what is there.
func (x *Emptying) empty(all uint64) error {
	for {
		ids, err := x.some()
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := x.remove(ids); err != nil {
			return err
		}
		x.removed += uint64(len(ids))
		if now := time.Now(); x.removed > removedAtOnce && now.Sub(x.told) >= time.Second {
			x.told = now
			fmt.Fprintf(x.Progress, "keyspace %s: %d of about %d regions are removed\n", x.Name, x.removed, max(all, x.removed))
		}
	}
}

// some are the first regions that are there.
func (x *Emptying) some() (ids []rooted.RegionID, err error) {
	ctx, done := x.Step()
	defer done()
	for r, err := range x.Client.ScanRegions(ctx, nil, nil, client.In(x.Name), client.Strong(), client.Limit(removedAtOnce)) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, r.Region.ID)
	}
	return ids, nil
}

// remove takes regions from whoever owns them, in one command. What is under way of them ends
// first.
func (x *Emptying) remove(ids []rooted.RegionID) error {
	cmd := &rootv1.Command{}
	for _, id := range ids {
		cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(id)}}})
	}
	for range 2 * len(ids) {
		err := x.publish(cmd)
		if !errors.Is(err, client.ErrRangeChangePending) {
			return err
		}
		refused, _ := errors.AsType[*client.Error](err)
		under := refused.Detail.GetTransitionId()
		if under == "" {
			return err
		}
		end := &rootv1.TransitionCancelled{TransitionId: under, Aborted: true, Reason: "its keyspace is deleted"}
		// One that has ended by itself is no failure.
		if err := x.publish(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: end}}}}); err != nil && !errors.Is(err, client.ErrTransitionClosed) && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("changes of regions of keyspace %s begin as fast as they are ended; run this again", x.Name)
}

func (x *Emptying) publish(cmd *rootv1.Command) error {
	ctx, done := x.Step()
	defer done()
	_, err := x.Client.Publish(ctx, cmd)
	return err
}
