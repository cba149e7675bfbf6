package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	rootclient "github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// revokedOutput is what `nokv cert revoke -o json` prints. The field names stay.
type revokedOutput struct {
	// Revoked are ROLE/NAME and serial numbers, in order.
	Revoked  []string `json:"revoked"`
	Revision uint64   `json:"revision"`
}

func certRevoke() *command {
	return &command{
		name: "revoke", args: "[ROLE/NAME|SERIAL] [flags]", summary: "have processes that listen refuse a certificate, or list which ones are refused",
		long: `
Within a second no root peer, coordinator, member, store, sidecar or proxy takes the
certificate any more, and connections that were opened with it end. Processes that only
dial, such as this one, are not told.
ROLE/NAME, such as member/m7, is all certificates of that principal, also those that are made
later; SERIAL, in hexadecimal digits as "nokv cert show" has it, is one. That of a root peer
is revoked by its serial number, once the peer has another one. It holds until --undo.
Without a name or number, what is revoked is listed.

What a revoked member owns goes to others when it is silent; "nokv member fail" gives it away at once.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			undo := f.Bool("undo", false, "take back that it is revoked")
			why := f.why()
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 1:
					return usagef("want one ROLE/NAME or SERIAL, got %q", args)
				case *undo && len(args) == 0:
					return usagef("--undo: say what is not to be revoked any more, ROLE/NAME or SERIAL")
				}
				return r.call(ctx, *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					now, known, err := settingsNow(ctx, cl)
					if err != nil {
						return err
					}
					if len(args) > 0 {
						name := revokedName(args[0])
						at, there := slices.BinarySearch(now.GetRevokedCertificates(), name)
						if *undo && !there {
							return fmt.Errorf("%s is not revoked: nokv cert revoke lists what is", name)
						}
						if now, err = changeSettings(ctx, cl, now, known, *why, func(s *rootv1.ClusterSettings) {
							switch {
							case *undo:
								s.RevokedCertificates = slices.Delete(s.RevokedCertificates, at, at+1)
							case !there:
								s.RevokedCertificates = slices.Insert(s.RevokedCertificates, at, name)
							}
						}); err != nil {
							return err
						}
					}
					out := revokedOutput{append([]string{}, now.GetRevokedCertificates()...), now.GetRevision()}
					return e.print(out, func(w *tabwriter.Writer) {
						for _, name := range out.Revoked {
							row(w, name)
						}
						if len(out.Revoked) == 0 {
							row(w, "no certificate is revoked")
						}
					})
				})
			}
		},
	}
}

// revokedName is what an argument means as it is rooted: serial numbers are also written in capitals, with colons and with zeros in front.
func revokedName(arg string) string {
	if strings.Contains(arg, "/") {
		return arg
	}
	return strings.TrimLeft(strings.ToLower(strings.ReplaceAll(arg, ":", "")), "0")
}
