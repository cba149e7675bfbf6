package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settingFlags are the settings of a keyspace as flags.
type settingFlags struct {
	all    []settings.Setting
	given  map[string]string
	json   *string
	labels map[string]string
}

// settings declares a flag for every setting.
func (f *flags) settings() *settingFlags {
	s := &settingFlags{all: settings.All(), given: map[string]string{}, labels: map[string]string{}}
	for i := range s.all {
		one := &s.all[i]
		takes := one.Takes
		if len(one.Choices) > 0 {
			takes = strings.Join(one.Choices, ", ")
		}
		f.Func(one.Name, "setting: `"+takes+"`", func(text string) error {
			s.given[one.Name] = text
			return one.Set(&rootv1.KeyspaceSettings{}, text)
		})
	}
	f.label(s.labels, "`NAME=VALUE`, for people and tools; repeat for more")
	s.json = f.String("settings", "", "settings as protobuf `JSON` of nokv.root.v1.KeyspaceSettings; what is null, 0 or an empty list there is taken back; flags replace what it says")
	return s
}

// over returns settings with what was given in the place of what they say.
func (s *settingFlags) over(base *rootv1.KeyspaceSettings) (*rootv1.KeyspaceSettings, error) {
	out, err := settings.Overlay(base, []byte(cmp.Or(*s.json, "{}")))
	if err != nil {
		return nil, usagef("--settings: %s", err)
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	maps.Copy(out.Labels, s.labels)
	for i := range s.all {
		value, ok := s.given[s.all[i].Name]
		if !ok {
			continue
		}
		if err := s.all[i].Set(out, value); err != nil {
			return nil, usagef("-%s %q: %s", s.all[i].Name, value, err)
		}
	}
	return out, nil
}

// settingsTable prints every setting that counts, and which of them are others than in
// before.
func settingsTable(w *tabwriter.Writer, s, before *rootv1.KeyspaceSettings) {
	changed := map[string]string{}
	if before != nil {
		for _, c := range settings.Diff(before, s) {
			changed[c.Name] = "  (before: " + orDash(c.From) + ")"
		}
	}
	row(w)
	row(w, "SETTING", "VALUE")
	for _, one := range settings.All() {
		text := one.Counts(s)
		if text != "" && one.Text(s) == "" {
			text += "  (default)"
		}
		if text != "" || changed[one.Name] != "" {
			row(w, one.Name, orDash(text)+changed[one.Name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.GetLabels())) {
		row(w, "label", name+"="+s.GetLabels()[name])
	}
	for _, rule := range s.GetPolicy().GetLabelRules() {
		row(w, "label rule", fmt.Sprintf("%q: %v", rule.GetKeyPrefix(), rule.GetLabels()))
	}
}

func keyspaceCreate() *command {
	return &command{
		name: "create", args: "NAME [flags]", summary: "create a keyspace",
		long: `
Settings start from a preset (tenants, games, actors, kv, partitions); --settings and the
flags of single settings replace what it says. What counts in the end is shown; --dry-run
says whether the root would take it, and creates nothing.

  nokv keyspace create orders
  nokv keyspace create players --layout slots --slots 1024
  nokv keyspace create g1 --preset games --liveness-dead-after 3s --liveness-probe false --dry-run`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			preset := f.String("preset", "", "settings to start from: `name`")
			layout := f.String("layout", "", "`ranges, slots or points` (default ranges, or the preset's)")
			slots := f.Uint("slots", 0, "number of slots, 1 to 16,384, for --layout slots")
			dry := f.Bool("dry-run", false, "show what it would be, and whether it would be taken")
			s := f.settings()
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				base := state.DefaultSettings()
				if *preset != "" {
					var ok bool
					if base, ok = state.Preset(*preset); !ok {
						return usagef("--preset %q: use tenants, games, actors, kv or partitions", *preset)
					}
				}
				want, err := s.over(base)
				if err != nil {
					return err
				}
				if err := setLayout(want, *layout, *slots); err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					if *dry {
						event := &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: args[0], Settings: want}}}
						return dryRun(ctx, e, cl, event, nil)
					}
					r, err := cl.CreateKeyspaceOf(ctx, args[0], want)
					if reasonOf(err) == rootv1.Reason_REASON_ALREADY_EXISTS {
						if there, _ := cl.GetKeyspace(ctx, args[0], client.Strong()); there != nil {
							return fmt.Errorf("%w: %s", err, differs(there.GetKeyspace().GetSettings(), want))
						}
					}
					if err != nil {
						return err
					}
					out := struct {
						keyspaceOutput
						Token          string `json:"token"`
						AlreadyExisted bool   `json:"already_existed"`
					}{showKeyspace(r.Keyspace), showToken(r.Token), r.AlreadyExisted}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, keyspaceColumns...)
						row(w, keyspaceCells(out.keyspaceOutput)...)
						settingsTable(w, r.Keyspace.GetSettings(), nil)
					})
				})
			}
		},
	}
}

// differs says which settings are others than was asked for, the first few.
func differs(is, asked *rootv1.KeyspaceSettings) string {
	const most = 4
	var all []string
	if l, want := layoutName(is.GetLayout()), layoutName(asked.GetLayout()); l != want {
		all = append(all, fmt.Sprintf("the layout is %s, asked %s", l, want))
	} else if n, want := is.GetLayout().GetSlots().GetCount(), asked.GetLayout().GetSlots().GetCount(); n != want {
		all = append(all, fmt.Sprintf("it has %d slots, asked %d", n, want))
	}
	for _, c := range settings.Diff(is, asked) {
		all = append(all, fmt.Sprintf("%s is %s, asked %s", c.Name, orDash(c.From), orDash(c.To)))
	}
	if len(all) == 0 {
		return "they count alike, but are not the same: see nokv keyspace get"
	}
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}

// setLayout writes what --layout and --slots say.
func setLayout(s *rootv1.KeyspaceSettings, layout string, slots uint) error {
	if slots > 0 && layout == "" {
		layout = "slots"
	}
	switch {
	case layout == "":
	case layout == "ranges" && slots == 0:
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
	case layout == "points" && slots == 0:
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
	case layout == "slots" && slots > 0 && slots <= 16384:
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: uint32(slots)}}}
	case layout == "slots":
		return usagef("--slots %d: want 1 to 16,384", slots)
	default:
		return usagef("--layout %q with --slots %d: use ranges, points, or slots with --slots", layout, slots)
	}
	return nil
}

// dryRun shows what a keyspace would be, and fails if the root would not take it.
func dryRun(ctx context.Context, e *env, cl *client.Client, event *rootv1.Event, before *rootv1.KeyspaceSettings) error {
	assessed, err := cl.AssessRootEvent(ctx, event, client.Strong())
	if err != nil {
		return err
	}
	if d := assessed.GetResult().GetError(); d != nil {
		return &reason.Error{Detail: d}
	}
	var k *rootv1.Keyspace
	for _, made := range assessed.GetResult().GetEvents() {
		k = made.GetKeyspace()
	}
	out := struct {
		keyspaceOutput
		DryRun bool `json:"dry_run"`
	}{showKeyspace(k), true}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, keyspaceColumns...)
		row(w, keyspaceCells(out.keyspaceOutput)...)
		settingsTable(w, k.GetSettings(), before)
		row(w)
		row(w, "# a dry run: nothing was changed")
	})
}

func keyspaceUpdate() *command {
	return &command{
		name: "update", args: "NAME [flags]", summary: "change settings of a keyspace",
		long: `
What is not given stays as it is; an empty value, or 0, takes a setting back. The layout
never changes.

  nokv keyspace update games --liveness-dead-after 3s --moves-in-flight 64
  nokv keyspace update games --guards-mass-permille 1000 --dry-run`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			version := f.Uint64("version", 0, "change only this `version` of it; 0: the one that is there")
			dry := f.Bool("dry-run", false, "show what it would be, and whether it would be taken")
			s := f.settings()
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				if _, err := s.over(nil); err != nil {
					return err
				}
				if len(s.given) == 0 && len(s.labels) == 0 && *s.json == "" {
					return usagef("nothing to change: give a setting, such as --liveness-dead-after 3s")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					there, err := cl.GetKeyspace(ctx, args[0], client.Strong())
					if err != nil {
						return err
					}
					k := there.GetKeyspace()
					want, err := s.over(k.GetSettings())
					if err != nil {
						return err
					}
					expected := k.GetVersion()
					if *version != 0 {
						expected = *version
					}
					if *dry {
						event := &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
							Name: args[0], ExpectedVersion: expected, Settings: want,
						}}}
						return dryRun(ctx, e, cl, event, k.GetSettings())
					}
					r, err := cl.UpdateKeyspace(ctx, args[0], expected, want)
					if err != nil {
						return err
					}
					out := struct {
						keyspaceOutput
						Token string `json:"token"`
					}{showKeyspace(r.GetKeyspace()), showToken(r.GetToken())}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, keyspaceColumns...)
						row(w, keyspaceCells(out.keyspaceOutput)...)
						settingsTable(w, r.GetKeyspace().GetSettings(), k.GetSettings())
					})
				})
			}
		},
	}
}
