package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func keyspaceCommand() *command {
	return &command{
		name: "keyspace", summary: "create, list and delete keyspaces",
		children: []*command{keyspaceCreate(), keyspaceGet(), keyspaceList(), keyspaceDelete()},
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
	return []any{k.Name, k.ID, layout, k.Placement, k.Preset, k.Version}
}

var keyspaceColumns = []any{"NAME", "ID", "LAYOUT", "PLACEMENT", "PRESET", "VERSION"}

func keyspaceCreate() *command {
	return &command{
		name: "create", args: "NAME [flags]", summary: "create a keyspace",
		long: `
Settings start from a preset (tenants, games, actors, kv, partitions); flags and
--settings, protobuf JSON of nokv.root.v1.KeyspaceSettings, replace what it says.

  nokv keyspace create orders
  nokv keyspace create players --layout slots --slots 1024
  nokv keyspace create tenants --preset tenants`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			preset := f.String("preset", "", "settings to start from: `name`")
			layout := f.String("layout", "", "`ranges, slots or points` (default ranges, or the preset's)")
			slots := f.Uint("slots", 0, "number of slots, 1 to 16,384, for --layout slots")
			settings := f.String("settings", "", "settings as protobuf `JSON`")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				over, err := settingsOf(*settings, *layout, *slots)
				if err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.CreateKeyspace(ctx, args[0], *preset, over)
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
					})
				})
			}
		},
	}
}

func settingsOf(text, layout string, slots uint) (*rootv1.KeyspaceSettings, error) {
	s := &rootv1.KeyspaceSettings{}
	if text != "" {
		if err := protojson.Unmarshal([]byte(text), s); err != nil {
			return nil, usagef("--settings: %s", strings.ReplaceAll(err.Error(), "\u00a0", " "))
		}
	}
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
		return nil, usagef("--slots %d: want 1 to 16,384", slots)
	default:
		return nil, usagef("--layout %q with --slots %d: use ranges, points, or slots with --slots", layout, slots)
	}
	return s, nil
}

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
					}{showKeyspace(k.Keyspace), k.Regions, showDisclosure(k.Disclosure)}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, "NAME", "ID", "LAYOUT", "PLACEMENT", "PRESET", "VERSION", "REGIONS")
						row(w, out.Name, out.ID, out.Layout, out.Placement, out.Preset, out.Version, out.Regions)
					})
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
		setup: func(f *flags) func(context.Context, *env, []string) error {
			version := f.Uint64("version", 0, "delete only this `version` of it; 0: any")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one keyspace")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.DeleteKeyspace(ctx, args[0], *version)
					if err != nil {
						return err
					}
					out := struct {
						Name  string `json:"name"`
						Token string `json:"token"`
					}{args[0], showToken(r.Token)}
					return e.print(out, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("deleted keyspace %s at %s", out.Name, out.Token)) })
				})
			}
		},
	}
}
