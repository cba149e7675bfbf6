package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nokv/nokv/internal/chronicle"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/reason"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// storyOutput is one line of `nokv events -o json`. The field names stay.
type storyOutput struct {
	// Time is when it was proposed, by the clock of the root leader of then.
	Time  string `json:"time,omitempty"`
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
	// Command counts the commands of an entry from 0.
	Command int `json:"command"`
	// Kind is the name of the event, such as "regions_assigned".
	Kind string `json:"kind"`
	// Outcome is applied, already_applied or rejected; absent: it is not known any more.
	Outcome string `json:"outcome,omitempty"`
	// Reason is why it was rejected.
	Reason    string   `json:"reason,omitempty"`
	Text      string   `json:"text"`
	Actor     string   `json:"actor,omitempty"`
	Via       string   `json:"via,omitempty"`
	Why       string   `json:"why,omitempty"`
	Keyspaces []string `json:"keyspaces,omitempty"`
	Members   []string `json:"members,omitempty"`
	Regions   []uint64 `json:"regions,omitempty"`
}

func eventsCommand() *command {
	return &command{
		name: "events", args: "[flags]", summary: "tell what happened, and why: members, moves, changes, eras",
		long: `
Tells the retained log of the metadata root in sentences, oldest first: what happened to
members, who was given which regions and why, what operators changed, who held the
Tenure. Times are those of the root leader's clock, shown in this machine's zone. What was
refused is told with its reason; a verdict that a guard holds, as a member that stays active.

  nokv events --follow
  nokv events --member m1 --keyspace games
  nokv events --region 17 -o json

It asks root peers. nokv root events prints the same log as it is.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := &story{}
			f.StringVar(&s.filter.Keyspace, "keyspace", "", "only what is about the keyspace of this `name`, or members that take its regions")
			f.StringVar(&s.filter.Member, "member", "", "only what is about the member of this `id`")
			f.Uint64Var(&s.filter.Region, "region", 0, "only what is about the region of this `id`")
			f.StringVar(&s.filter.Actor, "actor", "", "only what this `ROLE/NAME` asked for; NAME may end in *")
			f.BoolVar(&s.filter.All, "all", false, "routine too: fences, steps of handovers and moves, what was so already")
			f.Uint64Var(&s.after, "after", 0, "only what is behind this log `index`")
			last := f.Uint64("last", 100, "only so many `lines` of what has happened by now; 0: all that is retained")
			f.BoolVar(&s.follow, "follow", false, "go on with what happens, until Ctrl-C")
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if f.given("region") && s.filter.Region == 0 {
					return usagef("--region 0: want an id of 1 or more")
				}
				if err := checkActor(f, s.filter.Actor); err != nil {
					return err
				}
				timeout := *r.timeout
				if s.follow {
					timeout = 0
				}
				s.env, s.last = e, *last
				err := r.call(ctx, timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					return s.tell(ctx, cl)
				})
				if s.follow && ctx.Err() != nil {
					return nil
				}
				return err
			}
		},
	}
}

// story is what nokv events tells.
type story struct {
	env    *env
	filter chronicle.Filter
	after  uint64
	last   uint64
	follow bool
	// kept are the last lines of what had happened when it began.
	kept []chronicle.Line
}

// tell tells what is retained. A young cluster's log goes back to its first entry, so
// that everything is known of each; otherwise the newest state says what it knows of what
// was before it.
func (s *story) tell(ctx context.Context, cl *rootclient.Client) error {
	at, err := cl.ReadIndex(ctx)
	if err != nil {
		return err
	}
	from, err := startOfEvents(ctx, cl, at, 0, at.Index)
	if err != nil {
		return err
	}
	if s.after > at.Index {
		return usagef("--after %d is beyond the log's end, %d", s.after, at.Index)
	}
	st := state.New()
	if from > 0 {
		if st, err = snapshot(ctx, cl); err != nil {
			return err
		}
		at = rooted.Token{Incarnation: at.Incarnation, Term: max(at.Term, st.Token().Term), Index: max(at.Index, st.Token().Index)}
		from = max(from, s.after)
	}
	c := chronicle.New(st, s.filter)
	done, told := false, from
	err = tailEvents(ctx, cl, at, from, s.follow, func(t *rootv1.TailEntry) error {
		told = t.GetIndex()
		lines, err := c.Tell(t)
		if err != nil || t.GetIndex() <= s.after {
			return err
		}
		for _, l := range lines {
			if err := s.line(l, done); err != nil {
				return err
			}
		}
		if !done && t.GetIndex() >= at.Index {
			done = true
			if what := c.Unknown(); what != "" && !s.follow {
				s.kept = nil
				return &reason.Error{Detail: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_NOT_FOUND, Message: "there is no " + what + ", and nothing that is retained is about one"}}
			}
			return s.flush()
		}
		return nil
	})
	if err != nil && !done {
		return s.stopped(err, told, at.Index)
	}
	return errors.Join(err, s.flush())
}

// stopped says how far the log was read when an error ended it. What is kept are not the last lines then.
func (s *story) stopped(err error, told, end uint64) error {
	s.kept = nil
	return fmt.Errorf("the log was read up to position %d of %d; a longer --timeout reads more: %w", told, end, err)
}

// snapshot is the newest state of a root peer, without secrets.
func snapshot(ctx context.Context, cl *rootclient.Client) (st *state.State, err error) {
	made := state.NewRestoring()
	err = cl.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		part, err := state.PartOf(chunk.GetRecords())
		if err == nil {
			err = made.Add(part)
		}
		if err == nil && chunk.GetLast() {
			st, err = made.Finish(state.TokenFromProto(chunk.GetToken()), chunk.GetStateHash())
		}
		return err
	})
	return st, err
}

// line prints a line, or keeps it while more may come that is older than now.
func (s *story) line(l chronicle.Line, now bool) error {
	if now || s.last == 0 {
		return s.print(l)
	}
	if s.kept = append(s.kept, l); uint64(len(s.kept)) >= 2*s.last {
		s.kept = append(s.kept[:0], s.kept[uint64(len(s.kept))-s.last:]...)
	}
	return nil
}

func (s *story) flush() error {
	for _, l := range s.kept[uint64(len(s.kept))-min(s.last, uint64(len(s.kept))):] {
		if err := s.print(l); err != nil {
			return err
		}
	}
	s.kept = nil
	return nil
}

func (s *story) print(l chronicle.Line) error {
	if s.env.output != "json" {
		when := "-"
		if !l.Time.IsZero() {
			when = l.Time.Local().Format("2006-01-02 15:04:05.000")
		}
		_, err := fmt.Fprintf(s.env.stdout, "%-23s  %s%s\n", when, oneline.Of(l.Text), byWhom(l.Actor, l.Via, l.Why))
		return err
	}
	out := storyOutput{
		Term: l.Term, Index: l.Index, Command: l.Command, Kind: l.Kind, Outcome: l.Outcome, Text: l.Text,
		Actor: l.Actor, Via: l.Via, Why: l.Why, Keyspaces: l.Keyspaces, Members: l.Members, Regions: l.Regions,
	}
	if !l.Time.IsZero() {
		out.Time = showTime(l.Time)
	}
	if l.Reason != rootv1.Reason_REASON_UNSPECIFIED {
		out.Reason = reason.Name(l.Reason)
	}
	return s.env.printLine(out)
}
