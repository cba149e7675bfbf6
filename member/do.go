package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/rooted"
)

// Request is what a caller wants to act for.
type Request struct {
	// Region, or 0: the one of Keyspace that Key is in. Beside a Region, the Keyspace has to be its own, and Key in it.
	Region   rooted.RegionID
	Keyspace string
	Key      []byte
	// Epoch that the caller's route has. The zero Epoch is for this process itself: the
	// region as it is held now.
	Epoch rooted.Epoch
}

// Moved says that another member has the region, or is about to: ask it, at an epoch
// of Epoch or above.
type Moved struct {
	Region  rooted.RegionID
	To      rooted.MemberID
	Address string
	Epoch   rooted.Epoch
}

// Error implements error.
func (e *Moved) Error() string {
	return fmt.Sprintf("region %d moved to member %q at %s: ask it, at epoch %s or above", e.Region, e.To, e.Address, e.Epoch)
}

// EpochStale says that the caller's route is older than what this member holds: ask a
// coordinator again.
type EpochStale struct {
	// Region that was asked for, or that its key has come into.
	Region rooted.RegionID
	// Current is the epoch that this member acts at.
	Current rooted.Epoch
}

// Error implements error.
func (e *EpochStale) Error() string {
	return fmt.Sprintf("region %d is at epoch %s here: ask a coordinator for its route again, as nokv region get --id %d does", e.Region, e.Current, e.Region)
}

// NotOwned says that this member does not own the region.
type NotOwned struct {
	// Region; 0: no region of this member holds the key.
	Region rooted.RegionID
	// Keyspace that was asked for, if it was named.
	Keyspace string
	// Held is the epoch that this member last had it at, if it did; Asked is the request's.
	Held, Asked rooted.Epoch
	// Ran: the work was done, and the region lost meanwhile. Its effects may be there.
	Ran bool
}

// Error implements error.
func (e *NotOwned) Error() string {
	switch {
	case e.Ran:
		return fmt.Sprintf("region %d was lost at epoch %s while the request ran: its outcome is not known", e.Region, e.Held)
	case e.Region == 0:
		if e.Keyspace == "" {
			return "no region of this member holds the key: ask a coordinator for its route, as nokv region get does"
		}
		return fmt.Sprintf("no region of keyspace %s here holds the key: ask a coordinator for its route, as nokv region get --keyspace %s KEY does", e.Keyspace, e.Keyspace)
	case e.Held != (rooted.Epoch{}) && e.Asked.NewerThan(e.Held):
		return fmt.Sprintf("region %d was last at epoch %s here, and epoch %s of the request did not come in time: ask a coordinator for its route, as nokv region get --id %d does",
			e.Region, e.Held, e.Asked, e.Region)
	}
	return fmt.Sprintf("region %d is not this member's: ask a coordinator for its route, as nokv region get --id %d does", e.Region, e.Region)
}

// Unconfirmed says that no holder of the Tenure has confirmed this member for the ttl of
// the keyspace: the region may be somebody else's by now.
type Unconfirmed struct {
	Region rooted.RegionID
	Epoch  rooted.Epoch
	// Ran: the work was done. Its effects may be there.
	Ran bool
}

// Error implements error.
func (e *Unconfirmed) Error() string {
	if e.Ran {
		return fmt.Sprintf("region %d: this member was not confirmed in time while the request ran: its outcome is not known", e.Region)
	}
	return fmt.Sprintf("region %d: this member was not confirmed in time: try again, or ask a coordinator for the route, as nokv region get --id %d does", e.Region, e.Region)
}

// ErrTooManyHeld says that as many requests as may already wait for regions that are on
// their way, or for the one that is asked for: see Config.MaxHeld.
var ErrTooManyHeld = errors.New("too many requests wait for regions that are on their way here: try again")

// ErrNotRunning is what Do returns before Run has registered the member, and after it
// has returned.
var ErrNotRunning = errors.New("the member does not run")

// Do runs fn for a request, if this member may act for it. A request of an epoch that
// is on its way here waits for it, as long as the keyspace's settings say and the
// context lasts. The error is fn's, or *Moved, *EpochStale, *NotOwned or *Unconfirmed,
// each with the way out: fn then was not called, or, with Ran, nobody may be told of its
// outcome. The context that fn gets is for as long as fn runs, and ends when the region is to
// be let go and Config.RequestGrace is over; see Region.Leaving.
func (m *Member) Do(ctx context.Context, req Request, fn func(context.Context, Region) error) error {
	t := m.table.Load()
	if t == nil {
		return ErrNotRunning
	}
	g, err := m.admit(ctx, t, &req)
	if err != nil {
		return err
	}
	defer m.leave(t, g)
	running := &requestContext{Context: ctx, grant: g}
	defer running.end()
	err = fn(running, regionOf(g.Region, g.Keyspace(), g))
	if no := t.Check(g, m.cfg.clock); no != nil {
		return errorOf(no, &req, true)
	}
	return err
}

// admit lets a request in, or says why not; who is let in leaves.
func (m *Member) admit(ctx context.Context, t *held.Table, req *Request) (*held.Grant, error) {
	q := held.Request{Region: req.Region, Keyspace: req.Keyspace, Key: req.Key, Epoch: req.Epoch}
	g, no := t.Admit(q, m.cfg.clock)
	if no != nil && no.Verdict == held.Wait {
		var err error
		if g, no, err = m.hold(ctx, t, q, no); err != nil {
			return nil, err
		}
	}
	if no != nil {
		return nil, errorOf(no, req, false)
	}
	if req.Key != nil {
		g.Touch(req.Key)
	}
	return g, nil
}

// Left is for how long the right to act for a region is confirmed, from now on, where the
// fence of its keyspace is a ttl; false: it is not by time that the right ends. Within Do.
func (m *Member) Left(r Region) (time.Duration, bool) {
	t := m.table.Load()
	if t == nil || r.grant == nil {
		return 0, true
	}
	return t.Left(r.grant, m.cfg.clock)
}

func (m *Member) leave(t *held.Table, g *held.Grant) {
	if !t.Leave(g) {
		return
	}
	m.mu.Lock()
	if m.core != nil && m.core.Table() == t {
		m.core.Drained(g.Region.ID, m.cfg.clock.Now())
	}
	m.mu.Unlock()
	m.kick()
}

// hold lets a request wait.
func (m *Member) hold(ctx context.Context, t *held.Table, q held.Request, no *held.Refusal) (*held.Grant, *held.Refusal, error) {
	if !m.waiting.enter(no.Region, m.cfg.MaxHeld) {
		return nil, nil, ErrTooManyHeld
	}
	defer m.waiting.leave(no.Region)
	over := time.NewTimer(no.Hold)
	defer over.Stop()
	for at := no.Region; ; {
		turn, done := t.Changed(at, &q)
		g, no := t.Admit(q, m.cfg.clock)
		switch {
		case no == nil || no.Verdict != held.Wait:
			done()
			return g, no, nil
		case no.Region != at: // the key has come into another one
			done()
			at = no.Region
			continue
		}
		select {
		case <-turn:
			done()
		case <-over.C:
			done()
			return nil, &held.Refusal{Verdict: held.NotOwned, Region: no.Region, Epoch: no.Epoch}, nil
		case <-ctx.Done():
			done()
			return nil, nil, ctx.Err()
		}
	}
}

// waiting counts requests that wait, by what region they began to wait for.
type waiting struct {
	mu sync.Mutex
	// Guarded by mu.
	all    int
	region map[rooted.RegionID]int
}

// heldReserve bounds the requests of one region: three times as many as it leaves room for.
const heldReserve = 3

// enter counts one more, if there is room for it, and for those of other regions.
func (w *waiting) enter(id rooted.RegionID, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if free := most - w.all; free <= 0 || w.region[id] > 0 && w.region[id] >= heldReserve*free {
		return false
	}
	w.all++
	w.region[id]++
	return true
}

func (w *waiting) leave(id rooted.RegionID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.region[id]--; w.region[id] == 0 {
		delete(w.region, id)
	}
}

func (w *waiting) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

func errorOf(no *held.Refusal, req *Request, ran bool) error {
	switch no.Verdict {
	case held.Moved:
		return &Moved{Region: no.Region, To: no.To, Address: no.Address, Epoch: no.Epoch}
	case held.EpochStale:
		return &EpochStale{Region: no.Region, Current: no.Epoch}
	case held.Unconfirmed:
		return &Unconfirmed{Region: no.Region, Epoch: no.Epoch, Ran: ran}
	default:
		return &NotOwned{Region: no.Region, Keyspace: req.Keyspace, Held: no.Epoch, Asked: req.Epoch, Ran: ran}
	}
}
