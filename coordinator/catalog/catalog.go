// Package catalog answers questions about a view: which region holds a key,
// which follow, who owns them and where they are reached.
//
// It owns the soft state that members report, which may vanish at any moment,
// and no truth. It promises:
//
//  1. an answer is a function of one State: it reflects exactly that State's
//     token, however many questions the answer took;
//  2. a lookup that hits allocates nothing and takes no lock;
//  3. soft state is bounded, is never older than what the same sender said
//     before, and never decides what a State says.
//
// How fresh the State is, is settled before: package rootview.
package catalog

import (
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// DefaultKeyspace is the name that an empty name stands for.
const DefaultKeyspace = "default"

// Keyspace finds a keyspace by name; an empty name is DefaultKeyspace. It
// refuses with REASON_NOT_FOUND.
func Keyspace(st *state.State, name string) (*rootv1.Keyspace, error) {
	if name == "" {
		name = DefaultKeyspace
	}
	if ks := st.KeyspaceByName(name); ks != nil {
		return ks, nil
	}
	return nil, NoKeyspace(name)
}

// NoKeyspace is the refusal of Keyspace.
func NoKeyspace(name string) error {
	return reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %q", name)
}

// Lookup finds the region that holds a key. It refuses with REASON_NOT_FOUND
// when there is no such keyspace or no region holds the key; in the second case
// the keyspace is returned too.
func Lookup(st *state.State, keyspace string, key []byte) (*state.Region, *rootv1.Keyspace, error) {
	ks, err := Keyspace(st, keyspace)
	if err != nil {
		return nil, nil, err
	}
	if r := regionOf(st, ks, key); r != nil {
		return r, ks, nil
	}
	return nil, ks, reason.New(rootv1.Reason_REASON_NOT_FOUND, "no region of keyspace %q holds the key %.64q", ks.GetName(), key)
}

// regionOf makes the route key on the stack and looks it up.
func regionOf(st *state.State, ks *rootv1.Keyspace, key []byte) *state.Region {
	id, layout := state.KeyspaceID(ks.GetId()), ks.GetSettings().GetLayout()
	if layout.GetSlots() == nil {
		return st.RegionAtBytes(id, key)
	}
	var room [8]byte
	return st.RegionAtBytes(id, rooted.AppendRouteKey(room[:0], layout, key))
}

// Get finds a region by id, or refuses with REASON_NOT_FOUND.
func Get(st *state.State, id state.RegionID) (*state.Region, error) {
	if r := st.Region(id); r != nil {
		return r, nil
	}
	return nil, NoRegion(id)
}

// NoRegion is the refusal of Get.
func NoRegion(id state.RegionID) error {
	return reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d", id)
}
