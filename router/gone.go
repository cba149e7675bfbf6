package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Gone is the end of a request whose member is gone, as WhileOwner says it. The answer is lost: the request may have
// been run.
type Gone struct {
	Member rooted.MemberID
	// Silent is how long the member said nothing while it was known to be gone.
	Silent time.Duration
}

// Error implements error.
func (e *Gone) Error() string {
	return fmt.Sprintf("member %q is gone and said nothing for %v: the request may have been run", e.Member, e.Silent)
}

// Is says that the answer is lost.
func (*Gone) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// GRPCStatus is that of a connection that was lost.
func (e *Gone) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// Attempt is one request at one member, which WhileOwner looks after. The caller says when it waits for the member, by
// Waiting and Waited: while it does something else with what came, the member owes nothing.
type Attempt struct {
	cancel  context.CancelCauseFunc
	look    *time.Timer
	ended   atomic.Bool
	waiting atomic.Int64
	heard   atomic.Uint64
}

// leftSilence is how long an answer that has begun may say nothing when its member has drained and left.
const leftSilence = 30 * time.Second

// WhileOwner returns the context of a request at a target. The context ends, with a *Gone as its cause, when the member was
// said to have failed, another one has the key, and the member has said nothing for Config.FailedWithin since, while the
// caller waited: one that is stopped, or cut off, keeps its connections. Without a key the member alone counts. One that
// drained and left may finish what it has: an answer that has begun there ends after 30 s of silence. A planned move ends
// nothing.
//
// It begins to look after FailedWithin, which most requests do not take. The caller ends the Attempt.
func (r *Router) WhileOwner(ctx context.Context, key []byte, o Options, t Target) (context.Context, *Attempt) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &Attempt{cancel: cancel}
	a.look = time.AfterFunc(r.cfg.FailedWithin, func() {
		left, ok := r.untilGone(ctx, key, o.Keyspace, t)
		if !ok {
			return
		}
		within := r.cfg.FailedWithin
		if left {
			within = leftSilence
		}
		for {
			heard := a.heard.Load()
			waits := a.waiting.Load() > 0 // behind heard: one that has ended since was heard of
			if !sleep(ctx, within) {
				return
			}
			waits = waits && a.waiting.Load() > 0
			if heard == 0 {
				waits = !left
			}
			if waits && heard == a.heard.Load() {
				a.end(&Gone{Member: t.Member, Silent: within})
				return
			}
		}
	})
	return ctx, a
}

// Waiting takes note that the caller waits for the member: to say something, or to take something. Until the answer has
// begun it always does.
func (a *Attempt) Waiting() { a.waiting.Add(1) }

// Waited ends what Waiting began. heard: something of the answer came.
func (a *Attempt) Waited(heard bool) {
	a.waiting.Add(-1) // first: WhileOwner looks at heard before it
	if heard {
		a.heard.Add(1)
	}
}

// End ends the context with a cause, and the looking. False: the attempt had been ended before.
func (a *Attempt) End(why error) bool {
	a.look.Stop()
	return a.end(why)
}

func (a *Attempt) end(why error) bool {
	first := a.ended.CompareAndSwap(false, true)
	if first {
		a.cancel(why)
	}
	return first
}

// untilGone waits until the member of a target is gone, and its key another one's; left: it had drained. False: the
// context ended first.
func (r *Router) untilGone(ctx context.Context, key []byte, keyspace string, t Target) (left, ok bool) {
	v, err := r.viewOf(keyspace)
	if err != nil {
		return false, false
	}
	gone := func() bool {
		if t.peer == nil {
			t.peer, _ = v.cache.Member(t.Member)
		}
		return t.over()
	}
	for {
		// Once another one has the key, it tells nothing of this member any more. It may come back here.
		if key != nil && r.Follow(ctx, key, Options{Keyspace: keyspace}, func(now Target, err error) bool { return err != nil || !t.Lost(now, err) }) != nil {
			return false, false
		}
		if gone() {
			return !t.Failed(), true
		}
		for !gone() {
			if !sleep(ctx, r.cfg.FailedWithin) {
				return false, false
			}
		}
	}
}

// over says whether the process of a target has ended or failed, by what is known now.
func (t Target) over() bool {
	if t.peer == nil {
		return false
	}
	now := t.peer.Now()
	return now.Incarnation >= t.Incarnation && over(now.State) || t.Incarnation != 0 && now.Incarnation > t.Incarnation
}

// Failed says whether the member, as this incarnation, was said to have failed, by what is known now: not if it
// drained and left, which may finish what it has.
func (t Target) Failed() bool {
	return t.over() && !(t.peer.Now().Left && (t.Incarnation == 0 || t.peer.Now().Incarnation == t.Incarnation))
}

// Lost says whether the member of a target has lost the key, by what Follow tells of the key now.
func (t Target) Lost(now Target, err error) bool {
	if r := now.Region; r != nil {
		if t.Region != nil && r.Revision < t.Region.Revision {
			return false // older
		}
		if (t.Region == nil || r.ID == t.Region.ID) && t.Epoch.NewerThan(r.Epoch) {
			return false // a member named this one, and the root does not say so yet
		}
	}
	if said, ok := errors.AsType[*client.Error](err); ok {
		switch said.Reason {
		case rootv1.Reason_REASON_NOT_FOUND:
			at := rooted.TokenFromProto(said.Detail.GetCurrentToken())
			return at == (rooted.Token{}) || at.Compare(t.Token) >= 0
		case rootv1.Reason_REASON_UNHEALTHY_MEMBER, rootv1.Reason_REASON_NO_ACTIVE_MEMBERS:
			return true
		}
	}
	if err != nil || now.Region == nil {
		return false // not known
	}
	for _, o := range now.Region.Owners {
		if o.Member == t.Member && (t.Incarnation == 0 || o.Incarnation == 0 || o.Incarnation == t.Incarnation) {
			return false
		}
	}
	return true
}
