package router

import (
	"context"
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/pin"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// untoldFor is how long coordinators are asked to open pins for who may not have the keys
// before they are asked for the keys again.
const untoldFor = time.Minute

// Pinned finds the process that a pin names: no other is ever its target, whatever becomes of
// the region. Keyspace is one of Config.Keyspaces; empty: the first. The Target has no
// Region and no Epoch: the member knows what it has begun, and for which.
//
// It is opened here, without asking anybody, where this process may have the keys: as a
// member, as a client who may publish in the keyspace, or without certificates. Others
// have a coordinator open each. Errors are *client.Error, of reason not_found (it is no pin of
// this keyspace, with a *pin.Error that says why), pin_lost (its process has ended, or it has:
// begin the work anew), or those of a read.
func (r *Router) Pinned(ctx context.Context, text, keyspace string) (Target, error) {
	v, err := r.viewOf(keyspace)
	if err != nil {
		return Target{}, err
	}
	if until := v.untold.Load(); until != nil && time.Now().Before(*until) {
		return v.resolvePin(ctx, text)
	}
	p, err := v.pins.Open(ctx, text)
	if errors.Is(err, client.ErrPermissionDenied) {
		until := time.Now().Add(untoldFor)
		v.untold.Store(&until)
		return v.resolvePin(ctx, text)
	}
	if err != nil {
		return Target{}, ofPin(err)
	}
	if h, ok := v.cache.Member(p.Member); ok {
		m := h.Member()
		at, _ := v.cache.At()
		switch {
		case lives(&m, p.Incarnation):
			return Target{Member: m.ID, Address: m.Address, Incarnation: p.Incarnation, Token: at.Token, AsOf: v.known(v.cache.AsOf()), peer: h}, nil
		case m.Incarnation > p.Incarnation, m.Incarnation == p.Incarnation && over(m.State):
			return Target{}, ofPin(pin.LostWith(p.Member))
		}
	}
	return v.memberOf(ctx, p.Member, p.Incarnation)
}

func (r *Router) viewOf(keyspace string) (*view, error) {
	if keyspace == "" {
		return r.first, nil
	}
	if v := r.views[keyspace]; v != nil {
		return v, nil
	}
	return nil, refuse(rootv1.Reason_REASON_INVALID_REQUEST, nil, "keyspace %.80q is not one of Config.Keyspaces", keyspace)
}

func over(s rootv1.MemberState) bool {
	return s == rootv1.MemberState_MEMBER_STATE_FAILED || s == rootv1.MemberState_MEMBER_STATE_REMOVED
}

// ofPin is the error of a pin that is not taken.
func ofPin(err error) error {
	no, ok := errors.AsType[*pin.Error](err)
	if !ok {
		return err
	}
	return &client.Error{Op: "Pinned", Reason: no.Reason(), Cause: no}
}

// memberOf asks for a member that the watch has not told of, or not as it is now.
func (v *view) memberOf(ctx context.Context, id rooted.MemberID, incarnation uint64) (Target, error) {
	said, err := v.r.cfg.Client.GetMember(ctx, id, client.Strong())
	m := said.GetMember()
	switch {
	case errors.Is(err, client.ErrMemberNotFound), err == nil && !pin.Lives(m, incarnation):
		return Target{}, ofPin(pin.LostWith(id))
	case err != nil:
		return Target{}, err
	case m.GetAddress() == "":
		return Target{}, refuse(rootv1.Reason_REASON_UNHEALTHY_MEMBER, nil, "member %.80q has no address: register it with one", id)
	}
	return Target{Member: id, Address: m.GetAddress(), Incarnation: incarnation}, nil
}

// resolvePin has a coordinator open a pin.
func (v *view) resolvePin(ctx context.Context, text string) (Target, error) {
	said, err := v.r.cfg.Client.ResolvePin(ctx, v.keyspace, text)
	if err != nil {
		return Target{}, err
	}
	o := said.GetOwner()
	return Target{Member: rooted.MemberID(o.GetMemberId()), Address: o.GetAddress(), Incarnation: o.GetIncarnation()}, nil
}

// DoPinned runs a function once at the process that a pin names. If nothing could be sent
// there it waits for what becomes of that, as PinGone does. What the function returns
// stands else: where the answer was lost, which it is too when the process fails meanwhile
// (*Gone), the request may have been run.
func (r *Router) DoPinned(ctx context.Context, text, keyspace string, run func(context.Context, Target) error) error {
	t, err := r.Pinned(ctx, text, keyspace)
	if err != nil {
		return err
	}
	if err = r.run(ctx, nil, Options{Keyspace: keyspace}, t, run); err == nil || !unsent(err, t.Address) {
		return err
	}
	return r.PinGone(ctx, t, keyspace, err)
}

// PinGone says what it means that nothing could be sent to the target of a pin: the error of
// reason pin_lost as soon as its process is known to have ended, which it waits for, Config.Hold
// at most; else failed.
func (r *Router) PinGone(ctx context.Context, t Target, keyspace string, failed error) error {
	v, err := r.viewOf(keyspace)
	if err != nil {
		return failed
	}
	if v.waiting.Add(1) > int64(r.cfg.MaxWaiting) {
		v.waiting.Add(-1)
		return failed
	}
	defer v.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Hold)
	defer cancel()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for ask := true; ; {
		changed := v.cache.Changed()
		if h, ok := v.cache.Member(t.Member); ok {
			if m := h.Member(); m.Incarnation > t.Incarnation || m.Incarnation == t.Incarnation && over(m.State) {
				return ofPin(pin.LostWith(t.Member))
			}
		}
		if ask {
			asked, stop := context.WithTimeout(ctx, askEvery)
			_, err := v.memberOf(asked, t.Member, t.Incarnation)
			stop()
			if errors.Is(err, client.ErrPinLost) {
				return err
			}
		}
		select {
		case <-changed:
			ask = false
		case <-ticker.C:
			ask = true
		case <-ctx.Done():
			return failed
		}
	}
}
