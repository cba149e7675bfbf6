package simulation

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// comeBack has the folder of a root peer come back from its past, while keyspaces are created one behind the
// other, and a coordinator begins to follow the root anew.
func (r *run) comeBack() {
	if r.calm {
		return
	}
	r.roots.ComeBack(roottest.Ways[r.k.seed/pastsEvery%3])
	r.found(r.roots.NewLink("founder"), 1)
	for _, n := range r.nodes {
		if n != r.holding() {
			r.After(r.Between(200*time.Millisecond, 900*time.Millisecond), n.kill)
			return
		}
	}
}

// pastsEvery is how many seeds there are to one in which a folder comes back.
const pastsEvery = 8

// found creates keyspaces while a folder comes back.
func (r *run) found(link *roottest.Link, n int) {
	if r.calm || !r.roots.Returning() {
		return
	}
	e := &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: fmt.Sprintf("past-%d", n), Settings: &rootv1.KeyspaceSettings{
			Layout: &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}, Placement: rootv1.Placement_PLACEMENT_REPORTED,
		},
	}}}
	proposeOver(link, &rootv1.Command{Events: []*rootv1.Event{e}}, askLimit, func(*rootv1.CommandResult) {
		r.After(r.Between(2*time.Millisecond, 20*time.Millisecond), func() { r.found(link, n+1) })
	})
}

// names are the keyspaces as coordinators have shown them: nobody ever shows another one under an id.
type names struct {
	by     map[uint32]string
	broken bool
}

// shows notes the keyspaces that a view has anew.
func (r *run) shows(n *node, b rootview.Batch, v *rootview.View) {
	note := func(k *rootv1.Keyspace) bool {
		if was, ok := r.names.by[k.GetId()]; ok && was != k.GetName() && !r.names.broken {
			r.names.broken = true
			r.broken = append(r.broken, fmt.Errorf("Keyspaces: at %v: %s shows keyspace %d as %q, which was shown as %q", r.now(), n.name, k.GetId(), k.GetName(), was))
		}
		r.names.by[k.GetId()] = k.GetName()
		return true
	}
	if b.Snapshot {
		v.State.Keyspaces("", note)
	}
	for _, c := range b.Changes {
		if c.Kind == state.ChangeKeyspace && !c.Removed {
			note(c.Keyspace)
		}
	}
}
