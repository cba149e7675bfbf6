package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/emptying"
	"github.com/nokv/nokv/internal/settings"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func keyspaceCommand() *command {
	return &command{
		name: "keyspace", summary: "create, change, list and delete keyspaces",
		children: []*command{keyspaceCreate(), keyspaceUpdate(), keyspaceGet(), keyspaceList(), keyspaceDelete(), keyspaceSettings()},
	}
}

// keyspaceOutput is a keyspace in JSON. The field names stay.
type keyspaceOutput struct {
	ID        uint32 `json:"id"`
	Name      string `json:"name"`
	Version   uint64 `json:"version"`
	Layout    string `json:"layout"`
	Slots     uint32 `json:"slots,omitempty"`
	Placement string `json:"placement"`
	MaxOwners uint32 `json:"max_owners"`
	Preset    string `json:"preset,omitempty"`
	Revision  uint64 `json:"revision"`
	// Settings are the whole settings, as protobuf JSON.
	Settings rawJSON `json:"settings"`
}

type rawJSON []byte

// MarshalJSON implements json.Marshaler.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

func showMessage(m proto.Message) rawJSON {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return rawJSON("null")
	}
	return raw
}

func showKeyspace(k *rootv1.Keyspace) keyspaceOutput {
	s := k.GetSettings()
	return keyspaceOutput{
		ID: k.GetId(), Name: k.GetName(), Version: k.GetVersion(), Layout: layoutName(s.GetLayout()),
		Slots: s.GetLayout().GetSlots().GetCount(), Placement: word(s.GetPlacement().String(), "PLACEMENT_"),
		MaxOwners: s.GetOwnership().GetMaxOwners(), Preset: s.GetPreset(), Revision: k.GetRevision(), Settings: showMessage(s),
	}
}

func layoutName(l *rootv1.Layout) string {
	switch l.GetKind().(type) {
	case *rootv1.Layout_Slots_:
		return "slots"
	case *rootv1.Layout_Points_:
		return "points"
	}
	return "ranges"
}

func keyspaceCells(k keyspaceOutput) []any {
	layout := k.Layout
	if k.Slots > 0 {
		layout = fmt.Sprintf("slots(%d)", k.Slots)
	}
	return []any{k.Name, k.ID, layout, k.Placement, orDash(k.Preset), k.Version}
}

var keyspaceColumns = []any{"NAME", "ID", "LAYOUT", "PLACEMENT", "PRESET", "VERSION"}

func keyspaceGet() *command {
	return &command{
		name: "get", args: "NAME [flags]", summary: "show a keyspace",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c, r := f.client(), f.read()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				opts, err := r.options()
				if err != nil {
					return err
				}
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					k, err := cl.GetKeyspace(ctx, args[0], opts...)
					if err != nil {
						return err
					}
					out := struct {
						keyspaceOutput
						Regions    uint64           `json:"regions"`
						Disclosure disclosureOutput `json:"disclosure"`
						// Round is how it was evened out last; absent: not, as far as is known.
						Round *roundOutput `json:"round,omitempty"`
					}{showKeyspace(k.Keyspace), k.Regions, showDisclosure(k.Disclosure), lastRound(ctx, cl, k.Keyspace)}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, "NAME", "ID", "LAYOUT", "PLACEMENT", "PRESET", "VERSION", "REGIONS")
						row(w, out.Name, out.ID, out.Layout, out.Placement, orDash(out.Preset), out.Version, out.Regions)
						settingsTable(w, k.Keyspace.GetSettings(), nil)
						if out.Round != nil {
							row(w)
							roundsTable(w, *out.Round)
						}
					})
				})
			}
		},
	}
}

// guideOutput is a setting in JSON, with what it costs. The field names stay.
type guideOutput struct {
	Setting string   `json:"setting"`
	Takes   string   `json:"takes"`
	Choices []string `json:"choices,omitempty"`
	// Default is what counts where nothing is set, Least the least that it may be; absent: any.
	Default string `json:"default"`
	Least   string `json:"least,omitempty"`
	What    string `json:"what"`
	// Lower and Higher are the price of less, and of more.
	Lower  string `json:"lower"`
	Higher string `json:"higher"`
}

func keyspaceSettings() *command {
	return &command{
		name: "settings", args: "[NAME ...] [flags]", summary: "show every setting there is, what counts by default, and what less and more of it cost",
		long: `
Asks nobody: these are the settings that this version knows. With names, or beginnings of them,
those alone. What counts in a keyspace, nokv keyspace get shows.

  nokv keyspace settings liveness guards-flap`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				var all []guideOutput
				for _, s := range settings.All() {
					wanted := func(name string) bool { return strings.HasPrefix(s.Name, name) }
					if g := s.Guide(); len(args) == 0 || slices.ContainsFunc(args, wanted) {
						all = append(all, guideOutput{s.Name, s.Takes, s.Choices, s.Default(), s.Least(), g.What, g.Lower, g.Higher})
					}
				}
				if len(all) == 0 {
					return usagef("no setting begins with %q: nokv keyspace settings shows all", args)
				}
				return e.print(all, func(w *tabwriter.Writer) {
					for i, x := range all {
						if i > 0 {
							row(w)
						}
						least := ""
						if x.Least != "" {
							least = ", at least " + x.Least
						}
						row(w, x.Setting, fmt.Sprintf("%s (default %s%s)", x.What, x.Default, least))
						if len(x.Choices) > 0 {
							row(w, "  one of", strings.Join(x.Choices, ", "))
							row(w, "", x.Lower)
							row(w, "", x.Higher)
							continue
						}
						row(w, "  less", x.Lower)
						row(w, "  more", x.Higher)
					}
				})
			}
		},
	}
}

func keyspaceList() *command {
	return &command{
		name: "list", args: "[flags]", summary: "list keyspaces",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return list(f, unargued((*client.Client).ListKeyspaces), showKeyspace, keyspaceColumns, keyspaceCells)
		},
	}
}

func keyspaceDelete() *command {
	return &command{
		name: "delete", args: "NAME [flags]", summary: "delete a keyspace that has no regions",
		long: `
Slots that have no owner count for nothing. With --force those that have one are taken from it:
their owners are shown that they end, and what they have not saved is lost. Moves that are under
way in them end.

So it is with points: with --force nobody claims new ones from then on (policy-on-miss is
not_found), all there are are removed, 512 in a command, and then the keyspace. Who is
interrupted runs it again; --timeout is for each command then.

  nokv keyspace delete games --force --why "the test is over"`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			version := f.Uint64("version", 0, "delete only this `version` of it; 0: any")
			force := f.Bool("force", false, "of slots and points: take them from their owners")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				deletes := func(ctx context.Context, cl *client.Client) (*rootv1.RootToken, error) {
					r, err := cl.DeleteKeyspace(ctx, args[0], *version)
					return r.GetToken(), err
				}
				if *force {
					deletes = func(_ context.Context, cl *client.Client) (*rootv1.RootToken, error) {
						x := &emptying.Emptying{Client: cl, Name: args[0], Progress: e.stderr, Step: func() (context.Context, context.CancelFunc) {
							return context.WithTimeout(client.WithWhy(ctx, *c.why), *c.timeout)
						}}
						return x.Run(*version)
					}
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					at, err := deletes(ctx, cl)
					if err != nil {
						return err
					}
					out := struct {
						Name  string `json:"name"`
						Token string `json:"token"`
					}{args[0], showToken(at)}
					return e.print(out, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("deleted keyspace %s at %s", out.Name, out.Token)) })
				})
			}
		},
	}
}
