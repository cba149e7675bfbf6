package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func regionCommand() *command {
	return &command{
		name: "region", summary: "publish, find, split, merge, assign and remove regions",
		children: []*command{regionPublish(), regionGet(), regionList(), regionSplit(), regionMerge(), regionAssign(), regionAddOwner(), regionRemoveOwner(), regionRelease(), regionRemove()},
	}
}

// regionOutput is a region in JSON. The field names stay. Keys are text; bytes
// that are not are \xNN, and a backslash is \\.
type regionOutput struct {
	ID       uint64        `json:"id"`
	Keyspace uint32        `json:"keyspace_id"`
	StartKey string        `json:"start_key"`
	EndKey   string        `json:"end_key"`
	Version  uint64        `json:"version"`
	ConfVer  uint64        `json:"conf_version"`
	Owners   []ownerOutput `json:"owners"`
	Revision uint64        `json:"revision"`
	// Frontier is how far its owners got, as they say; absent: none has said.
	Frontier string `json:"frontier,omitempty"`
	// Note is what who assigns knows of it beside the root; absent: nothing.
	Note *noteOutput `json:"note,omitempty"`
}

type ownerOutput struct {
	MemberID    string `json:"member_id"`
	PeerID      uint64 `json:"peer_id,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	Address     string `json:"address,omitempty"`
	// Over: that incarnation may not act any more. The region waits for another owner.
	Over bool `json:"over,omitempty"`
}

func showRegion(r *rootv1.Region) regionOutput {
	out := regionOutput{
		ID: r.GetId(), Keyspace: r.GetKeyspaceId(), StartKey: showKey(r.GetStartKey()), EndKey: showKey(r.GetEndKey()),
		Version: r.GetEpoch().GetVersion(), ConfVer: r.GetEpoch().GetConfVersion(), Revision: r.GetRevision(), Owners: []ownerOutput{},
		Frontier: showKey(r.GetFrontier()),
	}
	for _, o := range r.GetOwners() {
		out.Owners = append(out.Owners, ownerOutput{MemberID: o.MemberId, PeerID: o.PeerId, Incarnation: o.Incarnation})
	}
	return out
}

func showRoute(r client.Route) regionOutput { return showOwned(r.Region.Proto(), r.Members()) }

// showOwned is a region with what is known of its owners.
func showOwned(r *rootv1.Region, members []client.Member) regionOutput {
	out := showRegion(r)
	for _, m := range members {
		for i := range out.Owners {
			if o := &out.Owners[i]; o.MemberID == string(m.ID) {
				o.Address = m.Address
				ended := m.State == rootv1.MemberState_MEMBER_STATE_FAILED || m.State == rootv1.MemberState_MEMBER_STATE_REMOVED
				o.Over = o.Incarnation != 0 && m.Incarnation != 0 && (o.Incarnation != m.Incarnation || ended)
			}
		}
	}
	return out
}

var regionColumns = []any{"ID", "KEYSPACE", "START", "END", "EPOCH", "OWNERS", "REVISION"}

func regionCells(r regionOutput) []any {
	owners := make([]string, 0, len(r.Owners))
	for _, o := range r.Owners {
		if o.Over {
			o.MemberID += " (over)"
		}
		owners = append(owners, o.MemberID)
	}
	epoch := fmt.Sprintf("%d.%d", r.Version, r.ConfVer)
	cells := []any{r.ID, r.Keyspace, orDash(r.StartKey), orDash(r.EndKey), epoch, orDash(strings.Join(owners, ",")), r.Revision}
	if r.Note != nil {
		cells = append(cells, "# "+r.Note.words())
	}
	return cells
}

// orDash shows an empty cell: an open end of a range, or nobody.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func regionID(s string) (rooted.RegionID, error) {
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil || id == 0 {
		return 0, usagef("region id %q: want a number of 1 or more", s)
	}
	return rooted.RegionID(id), nil
}

func regionPublish() *command {
	return &command{
		name: "publish", args: "[START END] [flags]", summary: "root a region, or a newer descriptor of one",
		long: `
Publishes the interval [START, END) of a keyspace. An empty END ("") is open.
Without --id the root gives one. A known region gets the epoch that follows the
rooted one, unless --version and --conf-version say which. Keys are text; \xNN is a byte, \\ a backslash.

  nokv region publish a m
  nokv region publish m "" --owner m1 --owner m2
  nokv region publish user:7 --keyspace tenants        (a point: END may be left out)`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			id := f.Uint64("id", 0, "region `id`; 0: the root gives one")
			keyspace := f.String("keyspace", "default", "`name` of the keyspace")
			version := f.Uint64("version", 0, "epoch `version`: rises when the range changes")
			conf := f.Uint64("conf-version", 0, "epoch conf `version`: rises when the owners change")
			var owners []*rootv1.Owner
			f.Func("owner", "`MEMBER[=PEER_ID]` that owns it; repeat for more", func(s string) error {
				member, peer, has := strings.Cut(s, "=")
				o := &rootv1.Owner{MemberId: member}
				if has {
					n, err := strconv.ParseUint(peer, 10, 64)
					if err != nil {
						return fmt.Errorf("want MEMBER or MEMBER=PEER_ID")
					}
					o.PeerId = n
				}
				owners = append(owners, o)
				return nil
			})
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) < 1 || len(args) > 2 {
					return usagef("want START and END (END may be \"\", or left out for a point)")
				}
				region := &rootv1.Region{Id: *id, Owners: owners, Epoch: &rootv1.RegionEpoch{Version: *version, ConfVersion: *conf}}
				var err error
				if region.StartKey, err = parseKey(args[0]); err != nil {
					return err
				}
				if len(args) == 2 {
					if region.EndKey, err = parseKey(args[1]); err != nil {
						return err
					}
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					k, err := cl.GetKeyspace(ctx, *keyspace, client.Strong())
					if err != nil {
						return err
					}
					if len(args) == 1 && layoutName(k.Keyspace.GetSettings().GetLayout()) == "ranges" {
						return usagef("keyspace %s has layout ranges: END is needed (\"\" for an open end)", *keyspace)
					}
					region.KeyspaceId = k.Keyspace.GetId()
					done, err := cl.PublishRegion(ctx, rooted.RegionFromProto(region))
					if err != nil {
						return err
					}
					return printChange(e, done.Changed, done.Token, done.Region)
				})
			}
		},
	}
}

// changeOutput is what a change of regions prints in JSON. The field names stay.
type changeOutput struct {
	// Outcome is "applied" or "already_applied".
	Outcome string         `json:"outcome"`
	Token   string         `json:"token"`
	Regions []regionOutput `json:"regions"`
}

func showChange(changed bool, at rooted.Token, regions ...*rooted.Region) changeOutput {
	out := changeOutput{Outcome: "already_applied", Token: at.String(), Regions: []regionOutput{}}
	if changed {
		out.Outcome = "applied"
	}
	for _, r := range regions {
		out.Regions = append(out.Regions, showRegion(r.Proto()))
	}
	return out
}

func (c *changeOutput) table(w *tabwriter.Writer) {
	row(w, regionColumns...)
	for _, r := range c.Regions {
		row(w, regionCells(r)...)
	}
	row(w, "# "+c.Outcome+" at "+c.Token)
}

func printChange(e *env, changed bool, at rooted.Token, regions ...*rooted.Region) error {
	out := showChange(changed, at, regions...)
	return e.print(out, out.table)
}

func regionGet() *command {
	return &command{
		name: "get", args: "KEY | --id ID [flags]", summary: "find the region that holds a key",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			id := f.Uint64("id", 0, "look up by region `id` instead")
			keyspace := f.String("keyspace", "default", "`name` of the keyspace")
			c, r := f.client(), f.read()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				opts, err := r.options()
				if err != nil {
					return err
				}
				if (len(args) == 1) == (*id != 0) || len(args) > 1 {
					return usagef("want one KEY, or --id")
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					var route client.Route
					var err error
					if *id != 0 {
						route, err = cl.GetRegion(ctx, rooted.RegionID(*id), opts...)
					} else {
						var key []byte
						if key, err = parseKey(args[0]); err != nil {
							return err
						}
						route, err = cl.GetRegionByKey(ctx, key, append(opts, client.In(*keyspace))...)
					}
					if err != nil {
						return err
					}
					out := struct {
						regionOutput
						Disclosure disclosureOutput `json:"disclosure"`
					}{showRoute(route), showDisclosure(route.Disclosure())}
					out.Note = noteOf(ctx, cl, route.Region.ID)
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, regionColumns...)
						row(w, regionCells(out.regionOutput)...)
						d := out.Disclosure
						row(w, fmt.Sprintf("# %s from %s at %s, %d entries behind, %s", d.ServingClass, d.Coordinator, d.ServedToken, d.LagEntries, d.DegradedMode))
					})
				})
			}
		},
	}
}

func regionList() *command {
	return &command{
		name: "list", args: "[START [END]] [flags]", summary: "list regions in key order",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			keyspace := f.String("keyspace", "default", "`name` of the keyspace")
			var notes map[uint64]*noteOutput
			parse := func(args []string) (query[client.Route], error) {
				if len(args) > 2 {
					return nil, usagef("want START and END at most")
				}
				var bounds [2][]byte
				for i, a := range args {
					var err error
					if bounds[i], err = parseKey(a); err != nil {
						return nil, err
					}
				}
				return func(ctx context.Context, cl *client.Client, opts ...client.ReadOption) iter.Seq2[client.Route, error] {
					notes = notesOf(ctx, cl, *keyspace)
					return cl.ScanRegions(ctx, bounds[0], bounds[1], append(opts, client.In(*keyspace))...)
				}, nil
			}
			show := func(r client.Route) regionOutput {
				out := showRoute(r)
				out.Note = notes[out.ID]
				return out
			}
			return list(f, parse, show, regionColumns, regionCells)
		},
	}
}
