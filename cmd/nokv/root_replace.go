package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	rootclient "github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// replaceOutput is what `nokv root replace -o json` prints. The field names stay.
type replaceOutput struct {
	// Stage is done or cancelled.
	Stage string `json:"stage"`
	Lost  uint64 `json:"lost"`
	With  uint64 `json:"with"`
	// TransportAddress is the new peer's; Address is its gRPC address, when it is known.
	TransportAddress string `json:"transport_address"`
	Address          string `json:"address,omitempty"`
	Token            string `json:"token"`
}

func rootReplace() *command {
	return &command{
		name: "replace", args: "--lost ID --with ID [flags]", summary: "put a new root peer in the place of one whose disk is lost",
		long: `
Everything is served meanwhile. First start the new peer: a node id that was
never used, an empty workdir, and the peers that are left:

  nokv meta-root -join -node-id 4 -workdir DIR -addr 127.0.0.1:2383 \
    -transport-addr 127.0.0.1:3383 -peer 1=127.0.0.1:3380 -peer 3=127.0.0.1:3382
  nokv root replace --lost 2 --with 4

The new peer is sent the log and does not vote until it is level; then it votes
in the place of the lost one, whose workdir is refused for ever. One peer at a
time. The command only asks for steps: when it ends early, run it again, here
or elsewhere, and it goes on. Until the new peer votes, --cancel gives it up.

Refused is a lost peer that is heard from (stop it first, or --force), one that
leads (nokv root transfer), and a step while another voter is silent, because
then no majority could be spared. See docs/operations.md.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			lost := f.Uint64("lost", 0, "node `id` of the root peer that is lost (required, but not with --cancel)")
			with := f.Uint64("with", 0, "node `id` of the new root peer (required)")
			force := f.Bool("force", false, "also replace a peer that is heard from")
			cancel := f.Bool("cancel", false, "give the new peer up, before it votes")
			text := f.why()
			r := f.rootWithin(10 * time.Minute)
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case *with == 0:
					return usagef("--with is required: the node id of the new root peer")
				case *cancel && (*lost != 0 || *force):
					return usagef("--cancel takes --with alone: the node id of the new root peer to give up")
				case *lost == 0 && !*cancel:
					return usagef("--lost is required: the node id of the root peer that is lost")
				case *lost == *with:
					return usagef("root peer %d cannot replace itself: the new one has a node id that was never used", *lost)
				}
				p := &replacement{req: &rootv1.ReplacePeerRequest{Lost: *lost, With: *with, Force: *force, Cancel: *cancel}, progress: e.stderr}
				return r.call(why.With(ctx, *text), *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					resp, err := p.run(ctx, cl.Replace)
					if err != nil {
						return err
					}
					return p.show(ctx, e, cl, resp)
				})
			}
		},
	}
}

const (
	// stepEvery is the pause between two steps, stepWithin bounds one.
	stepEvery  = 200 * time.Millisecond
	stepWithin = 5 * time.Second
	// mayPass is how long a refusal is taken for one that passes: a peer that was
	// just killed counts as alive for an election timeout, one that was just started
	// has not knocked, a new root leader is being elected.
	mayPass = 5 * time.Second
	// tellEvery is the pause between two lines of progress.
	tellEvery = 2 * time.Second
)

// replacement asks for steps until nothing is left to do.
type replacement struct {
	req      *rootv1.ReplacePeerRequest
	progress io.Writer
	told     time.Time // when progress was written
	last     string    // what was true at the last answer
}

// run calls step until it is done or cancelled, is refused for longer than
// mayPass, or ctx ends.
func (p *replacement) run(ctx context.Context, step func(context.Context, *rootv1.ReplacePeerRequest) (*rootv1.ReplacePeerResponse, error)) (*rootv1.ReplacePeerResponse, error) {
	p.told = time.Now() // Nothing is told of what takes no time.
	p.last = "no step was taken"
	answered := time.Now()
	for {
		callCtx, cancel := context.WithTimeout(ctx, stepWithin)
		resp, err := step(callCtx, p.req)
		cancel()
		switch stage := resp.GetStage(); {
		case err != nil && (time.Since(answered) > mayPass || !passes(err)):
			return nil, p.explain(err)
		case err != nil && ctx.Err() == nil:
			p.tell(plain(err.Error()))
		case stage == rootv1.ReplaceStage_REPLACE_STAGE_DONE, stage == rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED:
			return resp, nil
		case err == nil:
			answered = time.Now()
			p.last = p.describe(resp)
			p.tell(p.last)
		}
		select {
		case <-time.After(stepEvery):
		case <-ctx.Done():
			if reason.From(err).GetRetryAfterMillis() > 0 {
				return nil, err
			}
			return nil, fmt.Errorf("not finished: %s. What was begun goes on; run the same command again: %w", p.last, context.Cause(ctx))
		}
	}
}

// passes says whether asking again may help by itself.
func passes(err error) bool {
	return reason.From(err).GetRetryAfterMillis() > 0 || unavailable(err)
}

// explain says what to do about an error that did not pass.
func (p *replacement) explain(err error) error {
	if unavailable(err) {
		return fmt.Errorf("%w. A majority of the root peers must be there; when it is lost for good, there is nokv root restore", err)
	}
	return err
}

func (p *replacement) describe(resp *rootv1.ReplacePeerResponse) string {
	switch resp.GetStage() {
	case rootv1.ReplaceStage_REPLACE_STAGE_SETTLING:
		return fmt.Sprintf("root peer %d is about to vote in the place of %d", p.req.GetWith(), p.req.GetLost())
	case rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP:
		return fmt.Sprintf("root peer %d catches up: it has %d of %d entries", p.req.GetWith(), resp.GetMatch(), resp.GetCommit())
	}
	return word(resp.GetStage().String(), "REPLACE_STAGE_")
}

// tell writes a line of progress, when it takes long.
func (p *replacement) tell(what string) {
	if time.Since(p.told) < tellEvery {
		return
	}
	p.told = time.Now()
	fmt.Fprintln(p.progress, what)
}

// show prints what is true now, and what to do next.
func (p *replacement) show(ctx context.Context, e *env, cl *rootclient.Client, resp *rootv1.ReplacePeerResponse) error {
	peer := resp.GetPeer()
	out := replaceOutput{
		Stage: word(resp.GetStage().String(), "REPLACE_STAGE_"), Lost: peer.GetReplaces(), With: p.req.GetWith(),
		TransportAddress: peer.GetTransportAddress(), Token: showToken(resp.GetToken()),
	}
	for _, s := range cl.Status(ctx) {
		if s.NodeID == out.With && s.Err == nil {
			out.Address = s.Address
		}
	}
	if p.req.GetCancel() {
		return e.print(out, func(w *tabwriter.Writer) {
			row(w, fmt.Sprintf("Root peer %d was given up at %s; root peer %d is a root peer as before.", out.With, out.Token, out.Lost))
			row(w, fmt.Sprintf("Stop the process of %d and remove its workdir. The next try takes another node id and an empty workdir.", out.With))
		})
	}
	address := out.Address
	if address == "" {
		address = "its gRPC address"
	}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, fmt.Sprintf("Root peer %d votes in the place of root peer %d, which is no root peer any more (%s).", out.With, out.Lost, out.Token))
		row(w, fmt.Sprintf("At leisure: in every list of root peers, write %d=%s for %d (-peer of meta-root) and %d=%s (-root-peer of coordinators).",
			out.With, out.TransportAddress, out.Lost, out.With, address))
		row(w, fmt.Sprintf("Do not start root peer %d again: the others refuse it.", out.Lost))
	})
}
