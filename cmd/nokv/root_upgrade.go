package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/why"
	rootclient "github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// upgradeOutput is what `nokv root upgrade -o json` prints. The field names stay.
type upgradeOutput struct {
	// FeatureLevel is the rooted one afterwards; CommonLevel what every process understands.
	FeatureLevel uint32 `json:"feature_level"`
	CommonLevel  uint32 `json:"common_level"`
	// Below stand in the way of more.
	Below []upgradeProcess `json:"below"`
}

// upgradeProcess is a process with the level that it understands; 0: it is not heard from.
type upgradeProcess struct {
	Process      string `json:"process"`
	ID           string `json:"id"`
	Address      string `json:"address"`
	FeatureLevel uint32 `json:"feature_level"`
}

func rootUpgrade() *command {
	return &command{
		name: "upgrade", args: "[flags]", summary: "allow what every process understands by now",
		long: `
After a rolling upgrade the cluster goes on as before until every root peer,
coordinator and reader understands more; then the feature level is raised, by
itself after a while, or by this command at once. From then on older processes
are refused. Who stands in the way is listed, with the way out, and the exit
status is 1 then.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			to := f.Uint("to", 0, "feature `level` to raise to; 0: the highest that every process understands")
			dryRun := f.Bool("dry-run", false, "raise nothing, say what would be")
			text := f.why()
			r := f.rootWithin(10 * time.Second)
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return r.call(why.With(ctx, *text), *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					resp, err := cl.Raise(ctx, &rootv1.RaiseFeatureLevelRequest{To: uint32(*to), DryRun: *dryRun})
					if err != nil {
						return err
					}
					if err := e.print(upgraded(resp), func(w *tabwriter.Writer) { showUpgrade(w, resp) }); err != nil {
						return err
					}
					if !*dryRun && len(resp.GetBelow()) > 0 {
						return fmt.Errorf("the feature level stays %d: upgrade who is listed, or take it off the list", resp.GetFeatureLevel())
					}
					return nil
				})
			}
		},
	}
}

func upgraded(resp *rootv1.RaiseFeatureLevelResponse) upgradeOutput {
	out := upgradeOutput{FeatureLevel: resp.GetFeatureLevel(), CommonLevel: resp.GetCommonLevel(), Below: []upgradeProcess{}}
	for _, p := range resp.GetBelow() {
		out.Below = append(out.Below, upgradeProcess{p.GetProcess(), p.GetId(), p.GetAddress(), p.GetFeatureLevel()})
	}
	return out
}

func showUpgrade(t *tabwriter.Writer, resp *rootv1.RaiseFeatureLevelResponse) {
	fmt.Fprintf(t, "feature level\t%d\nevery process understands\t%d\n", resp.GetFeatureLevel(), resp.GetCommonLevel())
	if len(resp.GetBelow()) > 0 {
		fmt.Fprintf(t, "\nPROCESS\tID\tADDRESS\tLEVEL\n")
	}
	for _, p := range resp.GetBelow() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", p.GetProcess(), p.GetId(), p.GetAddress(), p.GetFeatureLevel())
	}
	for _, p := range resp.GetBelow() {
		fmt.Fprintf(t, "\n%s\n", wayOut(p))
	}
}

// wayOut says what to do about a process that stands in the way.
func wayOut(p *rootv1.FeatureSupport) string {
	switch p.GetProcess() {
	case "coordinator":
		return fmt.Sprintf("coordinator %[1]s: upgrade it, or stop it; if it is gone: nokv coordinator remove %[1]s", p.GetId())
	case "root peer":
		return fmt.Sprintf("root peer %[1]s: upgrade it, or start it; if it is lost: nokv root replace --lost %[1]s", p.GetId())
	default:
		return fmt.Sprintf("%s %s: upgrade it, or stop it", p.GetProcess(), p.GetId())
	}
}
