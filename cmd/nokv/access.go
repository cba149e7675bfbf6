package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func accessCommand() *command {
	return &command{
		name: "access", summary: "grant and take back what principals may do with keyspaces",
		children: []*command{accessGrant(), accessRevoke(), accessList(), accessCheck()},
	}
}

// grantOutput is a grant in JSON. The field names stay.
type grantOutput struct {
	Principal string   `json:"principal"`
	Keyspace  string   `json:"keyspace"`
	Verbs     []string `json:"verbs"`
	Revision  uint64   `json:"revision"`
}

func showGrant(g *rootv1.Grant) grantOutput {
	out := grantOutput{Principal: g.GetPrincipal(), Keyspace: g.GetKeyspace(), Verbs: []string{}, Revision: g.GetRevision()}
	for _, v := range g.GetVerbs() {
		out.Verbs = append(out.Verbs, word(v.String(), "VERB_"))
	}
	return out
}

// grantChange is what grant and revoke print in JSON. The field names stay.
type grantChange struct {
	Changed bool `json:"changed"`
	// Hint says what may be a slip.
	Hint  string      `json:"hint,omitempty"`
	Grant grantOutput `json:"grant"`
	Token string      `json:"token"`
}

func accessGrant() *command {
	return &command{
		name: "grant", args: "PRINCIPAL VERB[,VERB...] KEYSPACE [flags]", summary: "let a principal do something with a keyspace",
		long: `
PRINCIPAL is client/NAME, proxy/NAME or member/NAME, as in its certificate; VERB is read,
claim, publish, admin, or host: to own regions, for members. The last three imply read. NAME and KEYSPACE
may end in *. The first grant that names a keyspace closes it to everybody whom none names: also members
need a grant then. Operators need none.

  nokv access grant 'client/billing-*' read,claim tenants
  nokv access grant 'member/*' host tenants`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return accessChange(f, []int{3}, func(ctx context.Context, cl *client.Client, args []string) (grantChange, error) {
				verbs, err := verbsOf(args[1])
				if err != nil {
					return grantChange{}, err
				}
				r, err := cl.GrantAccess(ctx, args[0], args[2], verbs...)
				return grantChange{r.GetChanged(), r.GetHint(), showGrant(r.GetGrant()), showToken(r.GetToken())}, err
			})
		},
	}
}

func accessRevoke() *command {
	return &command{
		name: "revoke", args: "PRINCIPAL [VERB[,VERB...]] KEYSPACE [flags]", summary: "take back what was granted by the same names",
		long: `
Without VERB all verbs. When the last grant that names a keyspace is taken back, it is open again:
every client may read and claim there, and every member own regions.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return accessChange(f, []int{2, 3}, func(ctx context.Context, cl *client.Client, args []string) (grantChange, error) {
				var verbs []rootv1.Verb
				var err error
				if len(args) == 3 {
					if verbs, err = verbsOf(args[1]); err != nil {
						return grantChange{}, err
					}
				}
				r, err := cl.RevokeAccess(ctx, args[0], args[len(args)-1], verbs...)
				return grantChange{r.GetChanged(), r.GetHint(), showGrant(r.GetGrant()), showToken(r.GetToken())}, err
			})
		},
	}
}

func accessChange(f *flags, arguments []int, do func(context.Context, *client.Client, []string) (grantChange, error)) func(context.Context, *env, []string) error {
	c := f.changing()
	f.withOutput()
	return func(ctx context.Context, e *env, args []string) error {
		if !slices.Contains(arguments, len(args)) {
			return usagef("%d arguments, want %s", len(args), strings.Trim(strings.ReplaceAll(fmt.Sprint(arguments), " ", " or "), "[]"))
		}
		return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
			out, err := do(ctx, cl, args)
			if err != nil {
				return err
			}
			return e.print(out, func(w *tabwriter.Writer) {
				verbs := "nothing"
				if len(out.Grant.Verbs) > 0 {
					verbs = strings.Join(out.Grant.Verbs, ", ")
				}
				row(w, fmt.Sprintf("%s is granted %s on %s", out.Grant.Principal, verbs, out.Grant.Keyspace))
				if out.Hint != "" {
					row(w, "# "+out.Hint)
				}
			})
		})
	}
}

func accessList() *command {
	return &command{
		name: "list", args: "[flags]", summary: "list what was granted",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return list(f, unargued((*client.Client).ListGrants), showGrant,
				[]any{"KEYSPACE", "PRINCIPAL", "VERBS", "REVISION"},
				func(g grantOutput) []any {
					return []any{g.Keyspace, g.Principal, strings.Join(g.Verbs, ","), g.Revision}
				})
		},
	}
}

// accessOutput is what `nokv access check -o json` prints. The field names stay.
type accessOutput struct {
	Allowed bool `json:"allowed"`
	// Grant says so; absent where none is needed, or none does.
	Grant *grantOutput `json:"grant,omitempty"`
	Why   string       `json:"why"`
}

// errNotAllowed ends `nokv access check` with exit status 1 after it has printed.
var errNotAllowed = errors.New("not allowed: see above")

func accessCheck() *command {
	return &command{
		name: "check", args: "PRINCIPAL VERB KEYSPACE [flags]", summary: "say whether a principal may do something, and by which grant",
		long: `
Exit status 0 when it may, 1 when it may not.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c, r := f.client(), f.read()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				opts, err := r.options()
				if err != nil {
					return err
				}
				if len(args) != 3 {
					return usagef("%d arguments, want 3", len(args))
				}
				verbs, err := verbsOf(args[1])
				if err != nil {
					return err
				}
				if len(verbs) != 1 {
					return usagef("VERB %s: want one", args[1])
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					a, err := cl.CheckAccess(ctx, args[0], verbs[0], args[2], opts...)
					if err != nil {
						return err
					}
					out := accessOutput{Allowed: a.GetAllowed(), Why: a.GetWhy()}
					if a.GetGrant() != nil {
						g := showGrant(a.GetGrant())
						out.Grant = &g
					}
					answer := "no"
					if out.Allowed {
						answer = "yes"
					}
					if err := e.print(out, func(w *tabwriter.Writer) { row(w, answer+": "+out.Why) }); err != nil {
						return err
					}
					if !out.Allowed {
						return errNotAllowed
					}
					return nil
				})
			}
		},
	}
}

func verbsOf(text string) ([]rootv1.Verb, error) {
	var verbs []rootv1.Verb
	for _, w := range strings.Split(text, ",") {
		v := rootv1.Verb(rootv1.Verb_value["VERB_"+strings.ToUpper(w)])
		if v == rootv1.Verb_VERB_UNSPECIFIED {
			return nil, usagef("VERB %q: use read, claim, host, publish or admin", w)
		}
		verbs = append(verbs, v)
	}
	return verbs, nil
}
