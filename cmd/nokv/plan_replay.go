package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/recorder"
	"github.com/nokv/nokv/coordinator/replay"
	"github.com/nokv/nokv/internal/evenness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

func planRecord() *command {
	return &command{
		name: "record", args: "FILE [flags]", summary: "write what the planner saw lately to a file",
		long: `
Every coordinator keeps what it saw while it held the Tenure: who came and went, and what load
regions had, at each --record-every, in --record-bytes of memory. The holder's is written to
FILE, which nokv plan replay reads.

  nokv plan record today.rec`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one FILE")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error { return record(ctx, e, cl, args[0]) })
			}
		},
	}
}

// recordOutput is what `nokv plan record -o json` prints. The field names stay.
type recordOutput struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	// Samples from the first to the last one, so many milliseconds.
	Samples    int    `json:"samples"`
	TookMillis uint64 `json:"took_millis"`
	// LostSegments were dropped while they were read.
	LostSegments uint64 `json:"lost_segments,omitempty"`
}

// record writes a recording next to its file, and then in its place.
func record(ctx context.Context, e *env, cl *client.Client, file string) (err error) {
	to, err := os.CreateTemp(filepath.Dir(file), ".nokv-record-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = to.Close()
		_ = os.Remove(to.Name()) // it is not there any more if all went well
	}()
	if _, err := io.WriteString(to, recorder.Magic); err != nil {
		return err
	}
	out := recordOutput{File: file}
	for at := uint64(0); ; {
		piece, err := cl.ReadRecording(ctx, at)
		if err != nil {
			return err
		}
		if _, err := to.Write(piece.GetData()); err != nil {
			return err
		}
		if out.LostSegments += piece.GetLost(); piece.GetLast() {
			break
		}
		if piece.GetNext() <= at {
			return fmt.Errorf("the coordinator comes to no end: it is at %d", at)
		}
		at = piece.GetNext()
	}
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	first, last := uint64(0), uint64(0)
	if err := recorder.ReadFile(to, func(s *coordinatorv1.RecordedSegment) error {
		for _, f := range s.GetFrames() {
			if out.Samples++; out.Samples == 1 {
				first = f.GetAtMillis()
			}
			last = f.GetAtMillis()
		}
		return nil
	}); err != nil {
		return fmt.Errorf("what the coordinator sent: %w", err)
	}
	if out.Samples == 0 {
		return fmt.Errorf("the holder of the Tenure has seen nothing yet: it samples at each --record-every, 10s by default")
	}
	out.TookMillis = last - min(first, last)
	if err := to.Chmod(0o644); err != nil {
		return err
	}
	if out.Bytes, err = to.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if err := to.Close(); err != nil {
		return err
	}
	if err := os.Rename(to.Name(), file); err != nil {
		return err
	}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, fmt.Sprintf("%s: %d samples of %v, %d bytes", file, out.Samples, (time.Duration(out.TookMillis)*time.Millisecond).Round(time.Second), out.Bytes))
	})
}

func planReplay() *command {
	return &command{
		name: "replay", args: "FILE [flags]", summary: "run the planner over what was recorded: how it would have done",
		long: `
Runs the planner of this version in virtual time over a file of nokv plan record. Members come
and go, and loads are, as they were; where regions are is the planner's. Moves take no time, and
no era ends: a new holder lets things be at first, so that fewer moves may have been made. With
--policy, other settings are tried beside the recorded ones.

  nokv plan replay today.rec
  nokv plan replay today.rec --policy policy.json --keyspace games --svg replay.svg

It asks nobody: a cluster is not needed.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			policy := f.String("policy", "", "settings to lay over the recorded ones: protobuf JSON in this `file`")
			keyspace := f.String("keyspace", "", "only the keyspace of this `name`")
			svg := f.String("svg", "", "draw how even members were over time to this `file`")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one FILE")
				}
				out := replayOutput{}
				runs := []replay.Config{{}}
				if *policy != "" {
					s, err := policyFile(*policy)
					if err != nil {
						return err
					}
					runs = append(runs, replay.Config{Settings: s, Keyspace: *keyspace})
				}
				var all []*replay.Outcome
				for i, cfg := range runs {
					done, err := replayed(ctx, args[0], cfg)
					if err != nil {
						return err
					}
					all = append(all, done)
					out.add([]string{"recorded", "policy"}[i], done, *keyspace)
				}
				switch {
				case len(all[0].Keyspaces) == 0:
					return fmt.Errorf("%s: no assigned keyspace is in it", args[0])
				case len(out.Runs[0].Keyspaces) == 0:
					return usagef("--keyspace %s is not in the recording; there are %s", *keyspace, strings.Join(namesOf(all[0]), ", "))
				}
				if *svg != "" {
					if err := os.WriteFile(*svg, drawReplay(all, *keyspace), 0o644); err != nil {
						return err
					}
				}
				return e.print(out, out.table)
			}
		},
	}
}

// replayed replays a file.
func replayed(ctx context.Context, file string, cfg replay.Config) (*replay.Outcome, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, usagef("%s", err)
	}
	defer in.Close()
	p, err := replay.New(cfg)
	if err != nil {
		return nil, err
	}
	err = recorder.ReadFile(in, func(s *coordinatorv1.RecordedSegment) error {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return p.Segment(s)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	out, err := p.Outcome()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}

// replayOutput is what `nokv plan replay -o json` prints. The field names stay.
type replayOutput struct {
	TookMillis int64             `json:"took_millis"`
	Samples    int               `json:"samples"`
	Eras       int               `json:"eras"`
	LeftOut    uint64            `json:"left_out_regions,omitempty"`
	Runs       []replayRunOutput `json:"runs"`
}

type replayRunOutput struct {
	// Settings are recorded, or policy: those of --policy over them.
	Settings  string                 `json:"settings"`
	Keyspaces []replayKeyspaceOutput `json:"keyspaces"`
	// Refused is what rounds did not do, of all keyspaces, by reason.
	Refused map[string]uint64 `json:"refused"`
}

type replayKeyspaceOutput struct {
	Keyspace string `json:"keyspace"`
	Regions  int    `json:"regions"`
	By       string `json:"by"`
	// What the fullest member had, of 1,000 of its fair part, over time.
	P50   float64 `json:"imbalance_p50_permille"`
	P99   float64 `json:"imbalance_p99_permille"`
	Max   float64 `json:"imbalance_max_permille"`
	Moves uint64  `json:"moves"`
	// LoadMoved to even out, and what of all load that is.
	LoadMoved     float64       `json:"load_moved"`
	MovedPermille float64       `json:"load_moved_permille"`
	Changes       []begunOutput `json:"changes"`
}

func (o *replayOutput) add(name string, done *replay.Outcome, only string) {
	o.TookMillis, o.Samples, o.Eras, o.LeftOut = done.Took.Milliseconds(), done.Frames, done.Eras, done.LeftOut
	run := replayRunOutput{Settings: name, Keyspaces: []replayKeyspaceOutput{}, Refused: map[string]uint64{}}
	maps.Copy(run.Refused, done.Refused)
	for _, k := range done.Keyspaces {
		if only != "" && k.Name != only {
			continue
		}
		x := replayKeyspaceOutput{
			Keyspace: k.Name, Regions: k.Regions, By: "count", P50: k.Quantile(500), P99: k.Quantile(990), Max: k.Quantile(1000),
			Moves: k.Moves(), LoadMoved: k.LoadMoved, Changes: []begunOutput{},
		}
		if k.ByLoad {
			x.By = "load"
		}
		if k.LoadMean > 0 {
			x.MovedPermille = k.LoadMoved / k.LoadMean * 1000
		}
		for c, n := range k.Changes {
			x.Changes = append(x.Changes, begunOutput{c.Operation, word(c.Reason.String(), "OPERATION_REASON_"), n})
		}
		slices.SortFunc(x.Changes, func(a, b begunOutput) int {
			return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Reason, b.Reason))
		})
		run.Keyspaces = append(run.Keyspaces, x)
	}
	o.Runs = append(o.Runs, run)
}

func (o *replayOutput) table(w *tabwriter.Writer) {
	row(w, fmt.Sprintf("%d samples of %v, %d eras", o.Samples, (time.Duration(o.TookMillis)*time.Millisecond).Round(time.Second), o.Eras))
	if o.Eras > 1 {
		row(w, "# replayed as one era: what new holders let be at first, and what others did between them, is not in it")
	}
	if o.LeftOut > 0 {
		row(w, fmt.Sprintf("# as many as %d regions are not in it: a sample had no room for them", o.LeftOut))
	}
	row(w)
	row(w, "SETTINGS", "KEYSPACE", "REGIONS", "BY", "FULLEST / FAIR p50", "p99", "max", "MOVES", "LOAD MOVED", "CHANGES")
	for _, r := range o.Runs {
		for _, k := range r.Keyspaces {
			row(w, r.Settings, k.Keyspace, k.Regions, k.By, fmt.Sprintf("%.2f", k.P50/1000), fmt.Sprintf("%.2f", k.P99/1000), fmt.Sprintf("%.2f", k.Max/1000),
				k.Moves, fmt.Sprintf("%s, %.0f%%", evenness.Number(k.LoadMoved), k.MovedPermille/10), orDash(begunText(k.Changes)))
		}
	}
	for _, r := range o.Runs {
		for _, why := range slices.Sorted(maps.Keys(r.Refused)) {
			row(w, fmt.Sprintf("# %s: not done %d times: %s", r.Settings, r.Refused[why], why))
		}
	}
}

func namesOf(o *replay.Outcome) (names []string) {
	for _, k := range o.Keyspaces {
		names = append(names, k.Name)
	}
	return names
}

// drawReplay draws one keyspace: that of the name, or the one with most moves.
func drawReplay(all []*replay.Outcome, only string) []byte {
	best := slices.MaxFunc(all[len(all)-1].Keyspaces, func(a, b *replay.Keyspace) int {
		return cmp.Or(cmp.Compare(flag01(a.Name == only), flag01(b.Name == only)), cmp.Compare(a.Moves(), b.Moves()), cmp.Compare(a.Quantile(990), b.Quantile(990)))
	})
	var lines []evenness.Line
	var words []string
	for i, o := range all {
		for _, k := range o.Keyspaces {
			if k.Name != best.Name {
				continue
			}
			l := evenness.Line{Name: []string{"as recorded", "with --policy"}[i], Colour: []string{"before", "after"}[i], At: k.At}
			for _, p := range k.Permille {
				l.Y = append(l.Y, p/1000)
			}
			lines = append(lines, l)
			words = append(words, fmt.Sprintf("%s: %d moves, p99 %.2f", l.Name, k.Moves(), k.Quantile(990)/1000))
		}
	}
	return evenness.Lines("replay of "+best.Name, strings.Join(words, "; "), "fullest / fair", lines)
}

func flag01(is bool) int {
	if is {
		return 1
	}
	return 0
}
