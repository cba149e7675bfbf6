package sidecar

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/loglimit"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// handler asks the process what package member asks. It implements every interface of a
// Handler; what the process does not know is answered for it.
type handler struct {
	caller caller
	// life ends with the process. Calls do not end with their own context: what is late is
	// still under way, and nothing else may be asked of its region before it returns.
	life   context.Context
	calls  atomic.Uint64
	pause  time.Duration // between two tries to learn or undo what is not known
	logger hclog.Logger
	// unknown bounds what is said of calls whose outcome is not known.
	unknown loglimit.Lines
}

var (
	errUnknownCall = errors.New("the process does not know this call: it has to answer it (docs/callers.md)")
	errNoMerges    = errors.New("the process cannot merge regions that got differently far")
)

func (h *handler) ask(name string, r member.Region, more func(*Call)) (Answer, error) {
	return h.caller.ask(h.life, h.call(name, r, more))
}

// call is one with an id of its own.
func (h *handler) call(name string, r member.Region, more func(*Call)) Call {
	c := Call{ID: strconv.FormatUint(h.calls.Add(1), 10), Call: name}
	if r.ID != 0 {
		c.RegionJSON, c.Keyspace = regionJSON(r), r.Keyspace
	}
	if more != nil {
		more(&c)
	}
	return c
}

// must is ask of what the process has to know.
func (h *handler) must(name string, r member.Region) (Answer, error) {
	a, err := h.ask(name, r, nil)
	if err == nil && a.Unsupported {
		err = errUnknownCall
	}
	return a, err
}

// Acquire implements member.Handler. Behind an error nothing of the region is left: where
// that is not known, it is evicted.
func (h *handler) Acquire(_ context.Context, r member.Region) error {
	_, err := h.must("acquire", r)
	var refused *Refused
	if err == nil || errors.Is(err, errUnknownCall) || errors.As(err, &refused) {
		return err
	}
	for h.life.Err() == nil {
		gone := h.evict(r)
		if gone == nil {
			return err
		}
		h.unknown.Warn(h.logger, "acquire", "what became of an acquisition is not known, and it cannot be undone yet", "region", r.ID, "err", gone)
		h.rest()
	}
	return err
}

// Release implements member.Handler. Behind an error the region is held as before: where that is
// not known, the same is asked again.
func (h *handler) Release(_ context.Context, r member.Region) ([]byte, error) {
	c := h.call("release", r, nil)
	for {
		a, err := h.caller.ask(h.life, c)
		var refused *Refused
		switch {
		case err == nil && a.Unsupported:
			return nil, errUnknownCall
		case err == nil:
			return a.frontier(), nil
		case errors.As(err, &refused) || !h.rest():
			return nil, err
		}
		h.unknown.Warn(h.logger, "release", "what became of a release is not known yet", "region", r.ID, "err", err)
	}
}

// rest pauses between two tries; false: the process has ended.
func (h *handler) rest() bool {
	select {
	case <-time.After(h.pause):
	case <-h.life.Done():
	}
	return h.life.Err() == nil
}

// Evict implements member.Evicter.
func (h *handler) Evict(_ context.Context, r member.Region) error { return h.evict(r) }

func (h *handler) evict(r member.Region) error {
	a, err := h.ask("evict", r, nil)
	if err == nil && a.Unsupported {
		_, err = h.must("release", r)
	}
	return err
}

// Prepare implements member.Preparer.
func (h *handler) Prepare(_ context.Context, r member.Region, from member.Peer) error {
	_, err := h.ask("prepare", r, func(c *Call) {
		c.From = &PeerJSON{Member: string(from.ID), Address: from.Address, Epoch: from.Epoch.String()}
	})
	return err
}

// Abandon implements member.Preparer.
func (h *handler) Abandon(_ context.Context, r member.Region) error {
	_, err := h.ask("abandon", r, nil)
	return err
}

// Merge implements member.Merger.
func (h *handler) Merge(_ context.Context, left, right member.Region) ([]byte, error) {
	a, err := h.ask("merge", left, func(c *Call) { c.Right = regionJSON(right) })
	switch {
	case err != nil:
		return nil, err
	case a.Unsupported && left.Frontier != right.Frontier:
		return nil, errNoMerges
	case a.Unsupported:
		return []byte(left.Frontier), nil
	}
	return a.frontier(), nil
}

// Checkpoint implements member.Checkpointer.
func (h *handler) Checkpoint(_ context.Context, r member.Region) ([]byte, error) {
	a, err := h.must("checkpoint", r)
	if err != nil {
		return nil, err
	}
	return a.frontier(), nil
}

// Idle implements member.IdleReleaser. Who does not know the call may be using the region: no
// request passes here.
func (h *handler) Idle(_ context.Context, r member.Region) (bool, error) {
	a, err := h.ask("idle", r, nil)
	return a.Idle && !a.Unsupported, err
}

// TransferLeader implements member.LeaderTransferrer.
func (h *handler) TransferLeader(_ context.Context, r member.Region, to rooted.MemberID) error {
	a, err := h.ask("transfer-leader", r, func(c *Call) { c.To = string(to) })
	if err == nil && a.Unsupported {
		err = errUnknownCall
	}
	return err
}

// Stopped implements member.Stopper.
func (h *handler) Stopped(_ context.Context, keyspace string) { h.tell("stop", keyspace) }

// Resumed implements member.Stopper.
func (h *handler) Resumed(_ context.Context, keyspace string) { h.tell("resume", keyspace) }

func (h *handler) tell(name, keyspace string) {
	if _, err := h.ask(name, member.Region{}, func(c *Call) { c.Keyspace = keyspace }); err != nil && h.life.Err() == nil {
		h.logger.Warn("the process was not told", "call", name, "keyspace", keyspace, "err", err)
	}
}

// drain tells the process that its regions are about to go.
func (h *handler) drain(within, deadline time.Duration, reason string) {
	ctx, cancel := context.WithTimeout(h.life, within)
	defer cancel()
	c := Call{ID: strconv.FormatUint(h.calls.Add(1), 10), Call: "drain", Reason: reason, DeadlineMillis: deadline.Milliseconds()}
	if _, err := h.caller.ask(ctx, c); err != nil && h.life.Err() == nil {
		h.logger.Warn("the process did not hear that it is to drain", "err", err)
	}
}
