package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func tenureCommand() *command {
	return &command{
		name: "tenure", summary: "ask the coordinator in charge to give up ids and timestamps",
		children: []*command{tenureEnd()},
	}
}

// tenureOutput is what `nokv tenure end -o json` prints. The field names stay.
type tenureOutput struct {
	Era    uint64 `json:"era"`
	Holder string `json:"holder"`
	// Actor and Why are of who asked first.
	Actor string `json:"actor"`
	Why   string `json:"why"`
	Token string `json:"token"`
}

func tenureEnd() *command {
	return &command{
		name: "end", args: "--why TEXT [--era N] [flags]", summary: "ask the era under way to end; another coordinator takes over",
		long: `
From the moment that this is rooted nobody confirms the era any more. Its holder
retires it at once and leaves the Tenure to the others for 5 s; one that hangs is
over within its ttl, and never earlier. Ids and timestamps pause until another
coordinator has claimed.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			era := f.Uint64("era", 0, "end only this `era`; 0: the one that is active")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if *c.why == "" {
					return usagef("--why is needed: it is what the others find in logs and status")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.EndTenure(ctx, rooted.Era(*era))
					if err != nil {
						return err
					}
					t := r.GetTenure()
					out := tenureOutput{t.GetEra(), t.GetHolderId(), t.GetEnd().GetActor(), t.GetEnd().GetWhy(), showToken(r.GetToken())}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, fmt.Sprintf("era %d of %s was asked to end", out.Era, orDash(out.Holder)))
					})
				})
			}
		},
	}
}

// howEnded says how the era before the current one ended, and why.
func howEnded(h *rootv1.Handover) string {
	l := h.GetLegacy()
	if l == nil {
		return ""
	}
	how := strings.ReplaceAll(string(witness.EndOf(h)), "_", " ")
	text := fmt.Sprintf("era %d of %s %s", l.GetEra(), orDash(l.GetHolderId()), how)
	if end := l.GetEnd(); end != nil {
		text += "; " + asked(end)
	}
	return text
}

func asked(end *rootv1.TenureEnd) string {
	by := end.GetActor()
	if by == "" {
		by = "somebody"
	}
	if end.GetWhy() == "" {
		return by + " asked it to end"
	}
	return fmt.Sprintf("%s asked it to end: %s", by, end.GetWhy())
}
