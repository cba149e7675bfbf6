package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settingsOutput is what `nokv root settings -o json` prints. The field names stay.
type settingsOutput struct {
	Version            uint64 `json:"version"`
	MaxTenureTTLMillis uint64 `json:"max_tenure_ttl_millis"`
	Revision           uint64 `json:"revision"`
}

func rootSettings() *command {
	return &command{
		name: "settings", args: "[flags]", summary: "show what is set for the whole cluster, or set it",
		long:     "\n`nokv root settings set` sets it; --help there says what there is to set.",
		children: []*command{rootSettingsSet()},
		setup: func(f *flags) func(context.Context, *env, []string) error {
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return r.call(ctx, *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					now, _, err := settingsNow(ctx, cl)
					if err != nil {
						return err
					}
					return showSettings(e, now)
				})
			}
		},
	}
}

func rootSettingsSet() *command {
	return &command{
		name: "set", args: "--max-tenure-ttl TIME [flags]", summary: "set what holds for the whole cluster",
		long: `
A coordinator that claims the Tenure with a longer --tenure-ttl than this is
refused: it is how long ids and timestamps may pause behind a holder that died.
The era under way keeps what it has.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			ttl := f.duration("max-tenure-ttl", 0, "longest `time` that a claim of the Tenure may ask for: 100ms to 5m; 0: the default, 30s")
			version := f.Uint64("version", 0, "set only behind this `version`; 0: behind the one that is shown now")
			why := f.why()
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case !f.given("max-tenure-ttl"):
					return usagef("nothing to set: give --max-tenure-ttl")
				case *ttl%time.Millisecond != 0:
					return usagef("--max-tenure-ttl %v: want whole milliseconds", *ttl)
				}
				return r.call(ctx, *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					now, known, err := settingsNow(ctx, cl)
					if err != nil {
						return err
					}
					if *version != 0 && *version != now.GetVersion() {
						return &reason.Error{Detail: &rootv1.ErrorDetail{
							Reason: rootv1.Reason_REASON_VERSION_STALE, Message: fmt.Sprintf("the settings of the cluster are at version %d, not %d", now.GetVersion(), *version),
						}}
					}
					if now, err = changeSettings(ctx, cl, now, known, *why, func(s *rootv1.ClusterSettings) { s.MaxTenureTtlMillis = uint64(ttl.Milliseconds()) }); err != nil {
						return err
					}
					return showSettings(e, now)
				})
			}
		},
	}
}

// changeSettings changes one of the settings, behind the version that was read at a position of the log, and returns what they
// are then.
func changeSettings(ctx context.Context, cl *rootclient.Client, read *rootv1.ClusterSettings, known uint64, why string, change func(*rootv1.ClusterSettings)) (*rootv1.ClusterSettings, error) {
	next := &rootv1.ClusterSettings{MaxTenureTtlMillis: read.GetMaxTenureTtlMillis(), RevokedCertificates: read.GetRevokedCertificates()}
	if next.GetMaxTenureTtlMillis() == state.DefaultMaxTenureTTLMillis {
		next.MaxTenureTtlMillis = 0 // as where nobody set it
	}
	change(next)
	results, err := cl.Propose(ctx, &rootv1.Command{
		Identity: identity.NewSource().Next(known), Why: why,
		Events: []*rootv1.Event{{Kind: &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
			ExpectedVersion: read.GetVersion(), Settings: next,
		}}}},
	})
	if err != nil {
		return nil, err
	}
	if d := results[0].GetError(); d != nil {
		return nil, &reason.Error{Detail: d}
	}
	now, _, err := settingsNow(ctx, cl)
	return now, err
}

// settingsNow are the settings by a peer that has everything acknowledged by now,
// and how far its log is.
func settingsNow(ctx context.Context, cl *rootclient.Client) (*rootv1.ClusterSettings, uint64, error) {
	at, err := cl.ReadIndex(ctx)
	if err != nil {
		return nil, 0, err
	}
	for ctx.Err() == nil {
		for _, p := range cl.Status(ctx) {
			if p.Err == nil && p.Status.GetAppliedIndex() >= at.Index {
				return p.Status.GetSettings(), at.Index, nil
			}
		}
	}
	return nil, 0, ctx.Err()
}

func showSettings(e *env, s *rootv1.ClusterSettings) error {
	out := settingsOutput{s.GetVersion(), s.GetMaxTenureTtlMillis(), s.GetRevision()}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, "SETTING", "VALUE")
		row(w, "max-tenure-ttl", time.Duration(out.MaxTenureTTLMillis)*time.Millisecond)
		row(w, fmt.Sprintf("# version %d", out.Version))
	})
}
