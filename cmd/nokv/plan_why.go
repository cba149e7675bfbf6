package main

import (
	"fmt"
	"slices"
	"text/tabwriter"
)

// notDoneFor says what a word in NOT DONE stands for, and which setting says how much of it.
var notDoneFor = map[string]string{
	"no_active_members":  "nobody is active, is heard and takes regions of the keyspace",
	"capacity_exceeded":  "who may have it has as many regions as limits-max-regions-per-member or policy-rebalance-absolute-limit says",
	"fence_runs":         "its last owner may still act for it: its fence is a time, ownership-ttl",
	"not_ready":          "the next owner prepares, for moves-prepare-max at most",
	"not_released":       "the old owner finishes what it began, until moves-deadline",
	"too_many_moves":     "as many moves are under way from a member, or to one, as policy-rebalance-in-flight or moves-in-flight says",
	"hot_region_alone":   "a member has more than its part because of one region",
	"no_gain":            "there is room, but no move would lower the higher load by policy-rebalance-min-gap, and by load by 2% of the fair part",
	"no_room":            "nobody who may have it has room for it below the load limit that it reports",
	"little_load":        "a member has more than its part, but less than 5% of the load limit that it reports",
	"load_unknown":       "members with much of the load were not heard for policy-rebalance-load-max-age",
	"budget_spent":       "as much was moved as policy-rebalance-round-permille, -hour-permille and -max-moves allow",
	"resting":            "regions that moved are let be for policy-rebalance-spacing, and behind a move that was given up for policy-rebalance-backoff",
	"cooling_down":       "members were relieved less than policy-rebalance-cooldown ago, or policy-rebalance-interval if that is longer",
	"joined":             "who joined is let be for policy-rebalance-settle, or, if that is not set, for 10 s while others drain",
	"not_served":         "its owner gets ready to serve it for too long, or fails to, or says nothing of it, or its Release does not return: nokv region get says what it says; one that cannot be got ready goes elsewhere behind prepare-max",
	"recovered":          "nothing goes back to who came back for guards-no-move-back",
	"poison_suspected":   "owners of the region died soon after they got it: nokv region release ends its quarantine",
	"mass_failure_hold":  "most members are not heard: see guards-mass-permille and guards-mass-hold",
	"named_nobody":       "the hook of policy-hook-url named a member that is none, or takes nothing",
	"named_unfit":        "the hook of policy-hook-url named a member that may not have it",
	"named_full":         "the hook of policy-hook-url named a member that would have much more than its part",
	"held_for_member":    "its owner's next process is waited for, for start-hold",
	"awaits_members":     "the keyspace is new: start-members are waited for",
	"keys_over_limit":    "it has more keys than limits-max-keys-per-region",
	"no_eligible_member": "nobody has the labels that a label rule wants",
	"no_other_member":    "who may have it has it already, or is with another owner by policy-spread",
}

// wordsOf explains the words that are shown, each once.
func wordsOf(w *tabwriter.Writer, shown []string) {
	slices.Sort(shown)
	for _, why := range slices.Compact(shown) {
		if text := notDoneFor[why]; text != "" {
			row(w, fmt.Sprintf("# %s: %s", why, text))
		}
	}
}
