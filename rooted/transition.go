package rooted

import (
	"fmt"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var transitionNames = map[rootv1.TransitionKind]string{
	rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:    "add-peer",
	rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER: "remove-peer",
	rootv1.TransitionKind_TRANSITION_KIND_SPLIT:       "split",
	rootv1.TransitionKind_TRANSITION_KIND_MERGE:       "merge",
	rootv1.TransitionKind_TRANSITION_KIND_MOVE:        "move",
}

// TransitionID is the stable id of a planned change: its kind, the region
// that changes and the epoch it was planned at, such as "split-17-3.1".
func TransitionID(kind rootv1.TransitionKind, region RegionID, base Epoch) string {
	return fmt.Sprintf("%s-%d-%s", transitionNames[kind], region, base)
}
