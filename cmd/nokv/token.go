package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/mtls/principal"
)

func tokenCommand() *command {
	return &command{
		name: "token", summary: "make and revoke the bearer tokens of the HTTP ports",
		children: []*command{tokenCreate(), tokenRevoke(), tokenRotate()},
	}
}

// createdToken is what `nokv token create -o json` prints. The field names stay.
type createdToken struct {
	Token   string `json:"token"`
	ID      string `json:"id"`
	Expires string `json:"expires"`
}

func tokenCreate() *command {
	return &command{
		name: "create", args: "--role ROLE --name NAME [--ttl TIME] [flags]", summary: "make a token; it is printed alone, once, and kept nowhere",
		long: `
Whoever shows it to a metrics address, or to nokv proxy --callers token, in a header "Authorization: Bearer TOKEN",
is operator/NAME or client/NAME there, as by a client certificate. Its id, which
-o json prints too, is what revokes it.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			role := f.String("role", "", "`operator or client` (required)")
			name := f.String("name", "", "`name` of whom it is for, as in a certificate (required)")
			ttl := f.life("ttl", oneDay, bearer.MaxLife, "12h or 90d", "400 days", "(default 1d; at most 400d)")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case *role == "" || *name == "":
					return usagef("--role and --name are required")
				}
				if r, err := principal.ParseRole(*role); err != nil || r != principal.Operator && r != principal.Client {
					return usagef("-role %q: use operator or client: the others have certificates", *role)
				}
				if err := principal.CheckName(*name); err != nil {
					return usagef("-name %v", err)
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.CreateToken(ctx, *role, *name, *ttl)
					if err != nil {
						return err
					}
					out := createdToken{r.GetToken(), r.GetId(), time.Unix(int64(r.GetExpiresUnixSeconds()), 0).UTC().Format(time.RFC3339)}
					return e.print(out, func(w *tabwriter.Writer) { row(w, out.Token) })
				})
			}
		},
	}
}

// revokedToken is what `nokv token revoke -o json` prints. The field names stay.
type revokedToken struct {
	Changed bool   `json:"changed"`
	ID      string `json:"id"`
	Token   string `json:"token"`
}

func tokenRevoke() *command {
	return &command{
		name: "revoke", args: "ID [flags]", summary: "end one token before its time",
		long: `
Each process refuses the token from when it hears of that, which is at once
unless it is cut off.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("%d arguments, want the id of a token", len(args))
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.RevokeToken(ctx, args[0])
					if err != nil {
						return err
					}
					out := revokedToken{r.GetChanged(), args[0], showToken(r.GetToken())}
					return e.print(out, func(w *tabwriter.Writer) { row(w, "token "+out.ID+" is revoked") })
				})
			}
		},
	}
}

// rotatedKey is what `nokv token rotate -o json` prints. The field names stay.
type rotatedKey struct {
	Key   uint32 `json:"key"`
	Token string `json:"token"`
}

func tokenRotate() *command {
	return &command{
		name: "rotate", args: "[flags]", summary: "make the next key that signs tokens",
		long: `
Tokens of the key before stay good until their end or the next rotation, and older
ones end: rotated twice, every token that there is has ended.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.RotateTokenKey(ctx)
					if err != nil {
						return err
					}
					out := rotatedKey{r.GetId(), showToken(r.GetToken())}
					return e.print(out, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("key %d signs tokens from now on", out.Key)) })
				})
			}
		},
	}
}
