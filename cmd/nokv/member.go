package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func memberCommand() *command {
	return &command{
		name: "member", summary: "list, register, drain, fail and remove members",
		children: []*command{memberList(), memberRegister(), memberDrain(), memberFail(), memberRemove()},
	}
}

// memberOutput is a member in JSON. The field names stay.
type memberOutput struct {
	ID          string            `json:"id"`
	Address     string            `json:"address"`
	Kind        string            `json:"kind"`
	State       string            `json:"state"`
	Reason      string            `json:"reason,omitempty"`
	Incarnation uint64            `json:"incarnation"`
	Labels      map[string]string `json:"labels,omitempty"`
	Regions     *uint64           `json:"owned_regions,omitempty"`
}

func showMember(m *rootv1.Member, owned *uint64) memberOutput {
	return memberOutput{
		ID: m.GetId(), Address: m.GetAddress(), Kind: m.GetKind(), State: word(m.GetState().String(), "MEMBER_STATE_"),
		Reason: m.GetReason(), Incarnation: m.GetIncarnation(), Labels: m.GetLabels(), Regions: owned,
	}
}

func memberList() *command {
	return &command{
		name: "list", args: "[flags]", summary: "list members",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			show := func(m *coordinatorv1.MemberStatus) memberOutput { return showMember(m.GetMember(), &m.OwnedRegions) }
			return list(f, unargued((*client.Client).ListMembers), show,
				[]any{"ID", "ADDRESS", "KIND", "STATE", "INCARNATION", "REGIONS", "REASON"},
				func(m memberOutput) []any {
					return []any{m.ID, orDash(m.Address), orDash(m.Kind), m.State, m.Incarnation, *m.Regions, orDash(m.Reason)}
				})
		},
	}
}

func memberRegister() *command {
	return &command{
		name: "register", args: "ID ADDRESS [flags]", summary: "register a member process; its older processes are superseded",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			m := &rootv1.Member{Labels: map[string]string{}}
			f.StringVar(&m.Kind, "kind", "", "`word` for what it is, such as store or worker")
			f.Uint64Var(&m.Capacity, "capacity", 0, "`share` of load it can take; 0 counts as 1")
			f.Func("label", "`NAME=VALUE`; repeat for more", func(s string) error {
				name, value, ok := strings.Cut(s, "=")
				if !ok {
					return fmt.Errorf("want NAME=VALUE")
				}
				m.Labels[name] = value
				return nil
			})
			check := func(args []string) error {
				if err := checkAddr(args[1]); err != nil {
					return usagef("ADDRESS %s", err)
				}
				return nil
			}
			return memberChange(f, 2, check, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				var nonce [8]byte
				_, _ = rand.Read(nonce[:]) // never fails: crypto/rand crashes the process instead
				m.Id, m.Address, m.StartNonce = args[0], args[1], binary.LittleEndian.Uint64(nonce[:])
				return cl.RegisterMember(ctx, m)
			})
		},
	}
}

func memberDrain() *command {
	return &command{
		name: "drain", args: "ID [flags]", summary: "keep new regions away from a member",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is meant; 0: the current one")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			undo := f.Bool("undo", false, "let it take regions again")
			return memberChange(f, 1, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.DrainMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason, *undo)
			})
		},
	}
}

func memberFail() *command {
	return &command{
		name: "fail", args: "ID [flags]", summary: "say that a process of a member is dead",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			incarnation := f.Uint64("incarnation", 0, "`number` of the process that is dead, as nokv member list shows it; needed")
			reason := f.text("reason", state.MaxTextBytes, "that says why")
			check := func([]string) error {
				if *incarnation == 0 {
					return usagef("--incarnation is needed: the verdict is about one process")
				}
				return nil
			}
			return memberChange(f, 1, check, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.FailMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason)
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
			return memberChange(f, 1, nil, func(ctx context.Context, cl *client.Client, args []string) (*rootv1.Member, error) {
				return cl.RemoveMember(ctx, rooted.MemberID(args[0]), *incarnation, *reason)
			})
		},
	}
}

// memberChange runs a command that changes one member, and prints it. check, if
// any, judges its words before anybody is asked.
func memberChange(f *flags, arguments int, check func(args []string) error, do func(context.Context, *client.Client, []string) (*rootv1.Member, error)) func(context.Context, *env, []string) error {
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
		return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
			m, err := do(ctx, cl, args)
			if err != nil {
				return err
			}
			out := showMember(m, nil)
			return e.print(out, func(w *tabwriter.Writer) {
				text := fmt.Sprintf("member %s is %s", out.ID, out.State)
				if out.Incarnation != 0 {
					text += fmt.Sprintf(", incarnation %d", out.Incarnation)
				}
				row(w, text)
			})
		})
	}
}
