package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func memberDrain() *command {
	return &command{
		name: "drain", args: "ID [flags]", summary: "keep new regions away from a member, and have those it has moved to others",
		long: `
Regions of assigned keyspaces are moved to other members, a few at a time; those of
reported keyspaces are the members' own to move. With --wait the command goes on until
the member owns nothing, and says how far it is; exit status 1 when that took too long: the
member still drains then. nokv member undrain takes it back.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is meant; 0: the current one")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			wait := f.duration("wait", 0, "wait for so `long` at most until it owns nothing; 0: do not wait")
			return memberChange(f, 1, nil, wait, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.DrainMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason, false)
			})
		},
	}
}

func memberUndrain() *command {
	return &command{
		name: "undrain", args: "ID [flags]", summary: "let a member that drains take regions again",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is meant; 0: the current one")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			return memberChange(f, 1, nil, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.DrainMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason, true)
			})
		},
	}
}

func memberFail() *command {
	return &command{
		name: "fail", args: "ID [flags]", summary: "say that a process of a member is dead",
		long: `
Its regions go to others: at once where the fence is the epoch, behind the ttl otherwise, unless
--process-ended says that the process is certainly no more. One that is alive after all stops,
and registers anew.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is dead, as nokv member list shows it; needed")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			ended := f.Bool("process-ended", false, "you have seen its process end: nothing is waited for. Two owners at a time when that is wrong")
			check := func([]string) error {
				if *incarnation == 0 {
					return usagef("--incarnation is needed: the verdict is about one process")
				}
				return nil
			}
			return memberChange(f, 1, check, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				var signals []string
				if *ended {
					signals = []string{liveness.ProcessEndedSignal}
				}
				return cl.FailMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason, signals...)
			})
		},
	}
}

func memberRemove() *command {
	return &command{
		name: "remove", args: "ID [flags]", summary: "retire a member that owns nothing",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is meant; 0: the current one")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			return memberChange(f, 1, nil, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.RemoveMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason)
			})
		},
	}
}

// memberChange runs a command that changes one member, and prints it. check, if
// any, judges its words before anybody is asked; with wait it goes on for so long at
// most until the member owns nothing.
func memberChange(f *flags, arguments int, check func(args []string) error, wait *time.Duration, do func(context.Context, *client.Client, []string) (*rootv1.Member, error)) func(context.Context, *env, []string) error {
	c := f.changing()
	f.withOutput()
	return func(ctx context.Context, e *env, args []string) error {
		if len(args) != arguments {
			return usagef("%d arguments, want %d", len(args), arguments)
		}
		if check != nil {
			if err := check(args); err != nil {
				return err
			}
		}
		waits := wait != nil && *wait > 0
		if waits {
			*c.timeout += *wait
		}
		return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
			m, err := do(ctx, cl, args)
			if err != nil {
				return err
			}
			out := showMember(m, nil)
			if !waits || e.output != "json" { // then it is lines
				err = e.print(out, func(w *tabwriter.Writer) {
					text := fmt.Sprintf("member %s is %s", out.ID, out.State)
					if out.Incarnation != 0 {
						text += fmt.Sprintf(", incarnation %d", out.Incarnation)
					}
					row(w, text)
				})
			}
			if err != nil || !waits {
				return err
			}
			return awaitDrained(ctx, e, cl, m, *wait)
		})
	}
}

// drainOutput is a line of `nokv member drain --wait -o json`. The field names stay.
type drainOutput struct {
	ID    string `json:"id"`
	State string `json:"state"`
	// RegionsLeft are owned by the member still; of them MovesUnderWay are on their way.
	RegionsLeft   uint64 `json:"regions_left"`
	MovesUnderWay uint64 `json:"moves_under_way"`
	// DeadlineMillis is how long it will be waited for.
	DeadlineMillis int64 `json:"deadline_millis"`
	Drained        bool  `json:"drained"`
}

// drainLook is how often it is looked how far a drain is.
const drainLook = 200 * time.Millisecond

// awaitDrained says how far a drain is, whenever that changes, until nothing is left.
func awaitDrained(ctx context.Context, e *env, cl *client.Client, m *rootv1.Member, within time.Duration) error {
	id, begin := rooted.MemberID(m.GetId()), time.Now()
	look := time.NewTicker(drainLook)
	defer look.Stop()
	for last := (drainOutput{}); ; {
		now, err := cl.GetMember(ctx, id, client.Strong())
		if err != nil {
			return err
		}
		is, left := now.GetMember(), within-time.Since(begin)
		out := drainOutput{
			ID: m.GetId(), State: word(is.GetState().String(), "MEMBER_STATE_"), RegionsLeft: now.GetOwnedRegions(),
			DeadlineMillis: max(left, 0).Milliseconds(),
		}
		coming := uint64(0)
		if out.MovesUnderWay, coming, err = movesOf(ctx, cl, is); err != nil {
			return err
		}
		out.Drained = out.RegionsLeft == 0 && coming == 0
		if out.RegionsLeft != last.RegionsLeft || out.MovesUnderWay != last.MovesUnderWay || out.State != last.State || out.Drained {
			if err := out.print(e, left, time.Since(begin)); err != nil {
				return err
			}
		}
		switch last = out; {
		case out.Drained:
			return nil
		case is.GetIncarnation() != m.GetIncarnation():
			return fmt.Errorf("member %s began anew as incarnation %d, which does not drain: drain that one", id, is.GetIncarnation())
		case is.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE:
			return fmt.Errorf("member %s is active, with %d regions: somebody took the drain back", id, out.RegionsLeft)
		case left <= 0:
			return fmt.Errorf("member %s still owns %d regions after %s, %d on their way; it drains on. nokv member list shows who could take them, nokv events what happened",
				id, out.RegionsLeft, within, out.MovesUnderWay)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *drainOutput) print(e *env, left, spent time.Duration) error {
	if e.output == "json" {
		return e.printLine(d)
	}
	text := fmt.Sprintf("%d regions left, %d on their way, %s until the deadline", d.RegionsLeft, d.MovesUnderWay, max(left, 0).Round(time.Second))
	switch {
	case d.Drained:
		text = fmt.Sprintf("nothing is left, after %s", spent.Round(time.Millisecond))
	case d.State != "draining":
		text += "; it is " + d.State
	}
	_, err := fmt.Fprintf(e.stdout, "%s  %s\n", time.Now().Format("15:04:05.000"), text)
	return err
}
