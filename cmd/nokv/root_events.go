package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/chronicle"
	"github.com/nokv/nokv/internal/reason"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// eventOutput is one line of `nokv root events -o json`. The field names stay.
type eventOutput struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
	// Command counts the commands of an entry from 0.
	Command int `json:"command"`
	// Kind is the name of the event, such as "region_published".
	Kind string `json:"kind"`
	// Event is the whole event as protobuf JSON.
	Event rawJSON `json:"event"`
	// Actor is who asked, ROLE/NAME, where somebody could vouch for it; Why is in the caller's words.
	// Via is the coordinator that named it.
	Actor string `json:"actor,omitempty"`
	Via   string `json:"via,omitempty"`
	Why   string `json:"why,omitempty"`
	// Time is when it was proposed, by the root leader's clock.
	Time string `json:"time,omitempty"`
}

// showTime is a time in JSON.
func showTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func rootEvents() *command {
	return &command{
		name: "events", args: "[flags]", summary: "print the rooted log: what was asked, in order",
		long: `
Prints the events of retained log entries, oldest first. An event in the log was
asked for; whether its command applied is a matter of the state it met.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			after := f.Uint64("after", 0, "start behind this log `index` (default: the last --last entries)")
			actor := f.String("actor", "", "print only what this `ROLE/NAME` asked for; NAME may end in *")
			last := f.Uint64("last", 50, "without --after, start so many `entries` back")
			follow := f.Bool("follow", false, "go on with new entries until Ctrl-C")
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if err := checkActor(f, *actor); err != nil {
					return err
				}
				timeout := *r.timeout
				if *follow {
					timeout = 0
				}
				err := r.call(ctx, timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					at, err := cl.ReadIndex(ctx)
					if err != nil {
						return err
					}
					from, err := startOfEvents(ctx, cl, at, *after, *last)
					if err != nil {
						return err
					}
					if e.output != "json" {
						fmt.Fprintln(e.stdout, "INDEX     TERM  EVENT")
					}
					return tailEvents(ctx, cl, at, from, *follow, func(t *rootv1.TailEntry) error { return printEntry(e, t, *actor) })
				})
				if *follow && ctx.Err() != nil {
					return nil
				}
				return err
			}
		},
	}
}

// checkActor judges --actor.
func checkActor(f *flags, actor string) error {
	if role, name, _ := strings.Cut(actor, "/"); f.given("actor") {
		if _, err := principal.ParseRole(role); err != nil || name == "" {
			return usagef("--actor %q: want ROLE/NAME, such as operator/ann or coordinator/*", actor)
		}
	}
	return nil
}

// tailEvents calls fn with the entries behind an index, up to at; with follow, without
// an end.
func tailEvents(ctx context.Context, cl *rootclient.Client, at rooted.Token, from uint64, follow bool, fn func(*rootv1.TailEntry) error) error {
	stream, m, err := tailFrom(ctx, cl, at, from)
	if err != nil {
		return err
	}
	defer stream.Close()
	for done := from >= at.Index; !done || follow; {
		for _, entry := range m.GetEntries() {
			if err := fn(entry); err != nil {
				return err
			}
			done = done || entry.GetIndex() >= at.Index
		}
		if done && !follow {
			break
		}
		if m, err = stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}

// tailFrom opens a tail behind an index and returns it with its first message.
// A position has a term, which only the log knows: it is at most that of at,
// and the peer refuses any other one, so it is found from there downwards.
func tailFrom(ctx context.Context, cl *rootclient.Client, at rooted.Token, from uint64) (rootclient.TailStream, *rootv1.TailResponse, error) {
	if from == 0 {
		at.Term = 0
	}
	for term := at.Term; ; {
		token := rooted.Token{Incarnation: at.Incarnation, Term: term, Index: from}
		if from == 0 {
			token = rooted.Token{}
		}
		stream, m, err := firstOfTail(ctx, cl, token)
		switch {
		case err == nil:
			return stream, m, nil
		case reason.Of(err) == rootv1.Reason_REASON_CLUSTER_MISMATCH && term > 1:
			term--
		case !unavailable(err) || ctx.Err() != nil:
			return nil, nil, err
		} // else a peer is away: the next try is at another one
	}
}

func firstOfTail(ctx context.Context, cl *rootclient.Client, token rooted.Token) (rootclient.TailStream, *rootv1.TailResponse, error) {
	stream, err := cl.Tail(ctx, token)
	if err != nil {
		return nil, nil, err
	}
	m, err := stream.Recv()
	if err != nil {
		stream.Close()
	}
	return stream, m, err
}

// startOfEvents is the index to start behind: never before what every peer retains.
func startOfEvents(ctx context.Context, cl *rootclient.Client, at rooted.Token, after, last uint64) (uint64, error) {
	if after > at.Index {
		return 0, usagef("--after %d is beyond the log's end, %d", after, at.Index)
	}
	if after > 0 {
		return after, nil
	}
	from := at.Index - min(at.Index, last)
	for _, p := range cl.Status(ctx) {
		if first := p.Status.GetFirstIndex(); p.Err == nil && first > 0 {
			from = max(from, first-1)
		}
	}
	return from, nil
}

// printEntry prints the events of an entry; those of one actor, or all.
func printEntry(e *env, t *rootv1.TailEntry, actor string) error {
	var entry rootv1.Entry
	if err := proto.Unmarshal(t.GetEntry(), &entry); err != nil {
		return fmt.Errorf("entry %d: %w", t.GetIndex(), err)
	}
	if len(entry.Commands) == 0 && e.output != "json" && actor == "" {
		fmt.Fprintf(e.stdout, "%-9d %-5d %s\n", t.GetIndex(), t.GetTerm(), "(a leader's first entry)")
	}
	for i, c := range entry.GetCommands() {
		if prefix, some := strings.CutSuffix(actor, "*"); actor != "" && c.GetActor() != actor && !(some && strings.HasPrefix(c.GetActor(), prefix)) {
			continue
		}
		for _, event := range c.GetEvents() {
			out := eventOutput{t.GetTerm(), t.GetIndex(), i, chronicle.KindOf(event), showMessage(hideSecrets(event)), c.GetActor(), c.GetVia(), c.GetWhy(), ""}
			if ms := entry.GetUnixMillis(); ms != 0 {
				out.Time = showTime(time.UnixMilli(int64(ms)))
			}
			if e.output == "json" {
				if err := e.printLine(out); err != nil {
					return err
				}
				continue
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 0, ' ', 0)
			fmt.Fprintf(w, "%-9d %-5d %s %s%s\n", out.Index, out.Term, out.Kind, strings.TrimSpace(string(out.Event)), byWhom(out.Actor, out.Via, out.Why))
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// byWhom stands behind an event: who asked, through which coordinator, and why.
func byWhom(actor, via, why string) string {
	text := ""
	if actor != "" {
		text = "  by " + actor
	}
	if via != "" {
		text += " through " + via
	}
	if why != "" {
		text += fmt.Sprintf("  why %q", why)
	}
	return text
}

// hideSecrets takes keys out of what is printed.
func hideSecrets(event *rootv1.Event) *rootv1.Event {
	c := event
	if event.GetPinKeyRotated() != nil {
		c = proto.CloneOf(event)
		c.GetPinKeyRotated().Secret = nil
	}
	if event.GetTokenKeyRotated() != nil {
		c = proto.CloneOf(event)
		c.GetTokenKeyRotated().Secret = nil
	}
	return c
}
