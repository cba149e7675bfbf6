package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// noteOutput is what who assigns knows of a region, in JSON. The field names stay.
type noteOutput struct {
	// Keys in it, and how many it may have, if it has more.
	Keys    uint64 `json:"keys,omitempty"`
	MaxKeys uint64 `json:"max_keys,omitempty"`
	// Quarantined is why it is in quarantine, for so long still.
	Quarantined      string `json:"quarantined,omitempty"`
	QuarantineMillis uint64 `json:"quarantine_millis,omitempty"`
	// Refused is why nothing was done for it when it was planned last.
	Refused string `json:"refused,omitempty"`
	// Failing is what an owner's application could not do, as the owner said last: of one region, not in lists.
	Failing string `json:"failing,omitempty"`
}

func showNote(n *coordinatorv1.RegionNote) *noteOutput {
	return &noteOutput{n.GetKeyCount(), n.GetMaxKeys(), n.GetQuarantined(), n.GetQuarantineMillis(), n.GetRefused(), n.GetFailing()}
}

func (n *noteOutput) words() string {
	var all []string
	if n.Refused != "" {
		all = append(all, "waits: "+n.Refused)
	}
	if n.Failing != "" {
		all = append(all, "its application fails: "+n.Failing)
	}
	if n.Quarantined != "" {
		left := (time.Duration(n.QuarantineMillis) * time.Millisecond).Round(time.Second)
		all = append(all, fmt.Sprintf("in quarantine for %s, see nokv region release: %s", left, n.Quarantined))
	}
	if n.MaxKeys > 0 {
		all = append(all, fmt.Sprintf("keys_over_limit: %d keys, %d allowed", n.Keys, n.MaxKeys))
	}
	return strings.Join(all, "; ")
}

// notesWithin is how long who assigns may take to say what it knows: what is listed does
// not wait for it.
const notesWithin = time.Second

// noteOf asks what is known of a region; nil: nothing, or nobody says.
func noteOf(ctx context.Context, cl *client.Client, id rooted.RegionID) *noteOutput {
	ctx, cancel := context.WithTimeout(ctx, notesWithin)
	defer cancel()
	notes, _, err := cl.RegionNotes(ctx, id, "")
	if err != nil || len(notes) == 0 {
		return nil
	}
	return showNote(notes[0])
}

// notesOf asks what is known of the regions of a keyspace, as far as anybody says.
func notesOf(ctx context.Context, cl *client.Client, keyspace string) map[uint64]*noteOutput {
	ctx, cancel := context.WithTimeout(ctx, notesWithin)
	defer cancel()
	notes, _, err := cl.RegionNotes(ctx, 0, keyspace)
	if err != nil {
		return nil
	}
	all := map[uint64]*noteOutput{}
	for _, n := range notes {
		all[n.GetRegionId()] = showNote(n)
	}
	return all
}

func regionRelease() *command {
	return &command{
		name: "release", args: "ID [flags]", summary: "give a region another chance that is in quarantine because its owners died",
		long: `
A region whose owners die within a minute of getting it, three times in a row, is given only to a
member that has nothing else, for 10 minutes. This ends that; one more such death begins it
again. It is known to the coordinator that assigns, and to the next one from the log as far as that
one has followed it: behind a change, look at nokv region get.

  nokv region release 17 --why "the poisonous row is gone"`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("want one region ID")
				}
				id, err := regionID(args[0])
				if err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					released, err := cl.ReleaseRegion(ctx, id)
					if err != nil {
						return err
					}
					out := struct {
						ID       uint64 `json:"id"`
						Released bool   `json:"released"`
					}{uint64(id), released}
					return e.print(out, func(w *tabwriter.Writer) {
						if released {
							row(w, fmt.Sprintf("region %d is released", id))
						} else {
							row(w, fmt.Sprintf("region %d is in no quarantine", id))
						}
					})
				})
			}
		},
	}
}

// membersOutput is the line that says how a cluster is, in JSON. The field names stay.
type membersOutput struct {
	Active    uint64 `json:"active"`
	Draining  uint64 `json:"draining"`
	Failed    uint64 `json:"failed"`
	Suspected uint64 `json:"suspected"`
	// Assigned regions have an owner who may act, Orphaned ones none.
	Assigned uint64 `json:"assigned_regions"`
	Orphaned uint64 `json:"orphaned_regions"`
}

func showMembers(st *coordinatorv1.StatusResponse) *membersOutput {
	return &membersOutput{
		Active: st.GetMembersActive(), Draining: st.GetMembersDraining(), Failed: st.GetMembersFailed(), Suspected: st.GetMembersSuspected(),
		Assigned: st.GetAssignedRegions(), Orphaned: st.GetOrphanedRegions(),
	}
}

// words is a line of the table; nil: nobody knows them.
func (m *membersOutput) words() string {
	if m == nil {
		return "not known"
	}
	text := fmt.Sprintf("%d active of %d", m.Active, m.Active+m.Draining+m.Failed)
	for _, x := range []struct {
		n    uint64
		what string
	}{{m.Draining, "draining"}, {m.Failed, "failed"}, {m.Suspected, "suspected"}} {
		if x.n > 0 {
			text += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	return fmt.Sprintf("%s; %d of %d regions assigned", text, m.Assigned, m.Assigned+m.Orphaned)
}

// stuckOutput is what a keyspace waits for, in JSON. The field names stay.
type stuckOutput struct {
	Keyspace string `json:"keyspace"`
	Why      string `json:"why"`
	Count    uint64 `json:"count"`
	Region   uint64 `json:"region,omitempty"`
}

func (x *stuckOutput) words() string {
	text := fmt.Sprintf("%d regions of %s: %s", x.Count, x.Keyspace, x.Why)
	if x.Region != 0 {
		text += fmt.Sprintf(", such as %d: nokv region get --id %d", x.Region, x.Region)
	}
	return text
}
