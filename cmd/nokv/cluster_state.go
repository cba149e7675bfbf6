package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// The states of a whole cluster, the worst first.
const (
	// stateDegraded: something is away, or regions wait for what is not there. What makes the root or
	// the authority doubtful is worse than forming and no_members, the rest is not.
	stateDegraded = "degraded"
	// stateForming: there was no era yet.
	stateForming = "forming"
	// stateNoMembers: nobody takes regions.
	stateNoMembers = "no_members"
	// stateMoving: regions are on their way.
	stateMoving = "moving"
	// stateSingle and stateStable: nothing is wrong and nothing moves, with one member, or more.
	stateSingle = "single"
	stateStable = "stable"
)

// countedMoves bounds the changes under way that are counted to say that there are some.
const countedMoves = 1000

// movesUnderWay counts changes of regions that are under way, countedMoves at most.
func movesUnderWay(ctx context.Context, cl *client.Client) (n uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, err := range cl.ListTransitions(ctx, 0, false, client.Limit(countedMoves)) {
		if err != nil {
			return n, err
		}
		if n++; n == countedMoves {
			break
		}
	}
	return n, nil
}

// judge says in a word how the cluster is, the worst that is true of it, and why. unknown: it was
// not told whether regions move.
func (s *statusOutput) judge(unknown error) {
	doubts, rest := s.doubts(), s.wrong()
	if unknown != nil && len(doubts) == 0 {
		rest = append(rest, "whether regions move cannot be told: "+explain(unknown))
	}
	say := func(state string, why ...string) { s.State, s.StateWhy = state, strings.Join(why, "; ") }
	const noMember = "no member is active"
	switch {
	case len(doubts) > 0:
		why := doubts
		if s.Members != nil && s.Members.Active == 0 {
			why = append(why, noMember)
		}
		why = append(why, rest...)
		if s.asOf != "" {
			why = append(why, "members and regions are "+s.asOf)
		}
		say(stateDegraded, why...)
	case s.Era == 0:
		say(stateForming, append([]string{"no coordinator has held the Tenure yet"}, rest...)...)
	case s.Members.Active == 0:
		say(stateNoMembers, append([]string{noMember}, rest...)...)
	case len(rest) > 0:
		say(stateDegraded, rest...)
	case s.MovesUnderWay == countedMoves:
		say(stateMoving, fmt.Sprintf("%d changes of regions or more are under way, %d members drain", countedMoves, s.Members.Draining))
	case s.Members.Draining > 0 || s.MovesUnderWay > 0:
		say(stateMoving, fmt.Sprintf("%d changes of regions are under way, %d members drain", s.MovesUnderWay, s.Members.Draining))
	case s.Members.Active == 1:
		say(stateSingle, "one member, nothing moves")
	default:
		say(stateStable, fmt.Sprintf("%d members, nothing moves", s.Members.Active))
	}
}

// blind says how many of the coordinators that answer do not reach the root, and of how many.
func (s *statusOutput) blind() (blind, of uint64) {
	for _, c := range s.Coordinators {
		if c.Error == "" {
			of++
			if c.Disclosure != nil && c.Disclosure.DegradedMode == "root_unavailable" {
				blind++
			}
		}
	}
	return blind, of
}

// cutOff says that no coordinator that answers reaches the root.
func (s *statusOutput) cutOff() bool {
	blind, of := s.blind()
	return blind > 0 && blind == of
}

// doubts are what makes the root or the authority doubtful, the worst first: whatever else is said of
// the cluster may be wrong with them.
func (s *statusOutput) doubts() (all []string) {
	serving, broken, leads := false, false, false
	for _, c := range s.Coordinators {
		serving = serving || c.ServingAuthority
		broken = broken || slices.ContainsFunc(c.InvariantViolations, func(n uint64) bool { return n > 0 })
	}
	for _, p := range s.RootPeers {
		leads = leads || p.Leader && !p.Replaced
	}
	if broken {
		all = append(all, "an invariant is broken")
	}
	if s.cutOff() || len(s.RootPeers) > 0 && !leads {
		all = append(all, "the root has no quorum that is in reach")
	}
	if s.Members == nil {
		all = append(all, "no coordinator that answers has read the root: the Tenure, members and regions are not known")
	}
	if s.Era > 0 && !serving {
		why := "nobody serves ids and timestamps"
		if s.heldOutOfReach() {
			why += fmt.Sprintf(": coordinator %s holds the Tenure, and is not in reach; if that lasts, nokv tenure end --why TEXT lets another one take it", s.Holder)
		}
		all = append(all, why)
	}
	return all
}

// heldOutOfReach says that who holds the Tenure did not answer. It may be well, and in the root's
// reach: then nobody else takes the Tenure by himself.
func (s *statusOutput) heldOutOfReach() bool {
	return s.Holder != "" && !slices.ContainsFunc(s.Coordinators, func(c coordinatorStatusOutput) bool { return c.ID == s.Holder && c.Error == "" })
}

// wrong is what else makes a cluster degraded, the worst first. A member that has failed does not: its
// regions are others', or they count. Nor does a root peer that was replaced.
func (s *statusOutput) wrong() (all []string) {
	say := func(n uint64, one, more string) {
		switch {
		case n == 1:
			all = append(all, one)
		case n > 1:
			all = append(all, fmt.Sprintf("%d %s", n, more))
		}
	}
	var unreachable, peersAway, waiting uint64
	for _, c := range s.Coordinators {
		if c.Error != "" {
			unreachable++
		}
	}
	for _, p := range s.RootPeers {
		if !p.Replaced && (!p.Reachable || p.Problem != "") {
			peersAway++
		}
	}
	for _, x := range s.Stuck {
		waiting += x.Count
	}
	if m := s.Members; m != nil {
		say(m.Orphaned, "one region has no owner", "regions have no owner")
		say(m.Suspected, "one member is suspected", "members are suspected")
	}
	say(waiting, "one region waits", "regions wait")
	if hooks := s.RestingHooks; len(hooks) > 0 {
		say(uint64(len(hooks)), fmt.Sprintf("the hook of keyspace %s is of no use (%s): its regions are placed by %s", hooks[0].Keyspace, hooks[0].Why, hooks[0].Instead),
			fmt.Sprintf("hooks are of no use, such as that of keyspace %s (%s): its regions are placed by %s", hooks[0].Keyspace, hooks[0].Why, hooks[0].Instead))
	}
	say(peersAway, "one root peer is away", "root peers are away")
	for _, p := range s.RootPeers {
		if p.DiskLow != "" && !p.Replaced {
			all = append(all, fmt.Sprintf("the disk of root peer %d is full or nearly so: %s", p.NodeID, plain(p.DiskLow)))
		}
	}
	say(unreachable, "one coordinator is away", "coordinators are away")
	if blind, of := s.blind(); blind < of {
		say(blind, "one coordinator does not reach the root", "coordinators do not reach the root")
	}
	return all
}
