package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// The states of a whole cluster, in the order in which they are looked for.
const (
	// stateForming: there was no era yet.
	stateForming = "forming"
	// stateNoMembers: nobody takes regions.
	stateNoMembers = "no_members"
	// stateDegraded: something is away, or regions wait for what is not there.
	stateDegraded = "degraded"
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

// judge says in a word how the cluster is, and why. unknown: it was not told whether regions
// move.
func (s *statusOutput) judge(unknown error) {
	s.State, s.StateWhy = stateStable, fmt.Sprintf("%d members, nothing moves", s.Members.Active)
	switch {
	case unknown != nil:
		s.State, s.StateWhy = stateDegraded, "whether regions move cannot be told: "+explain(unknown)
	case s.Members.Active == 1:
		s.State, s.StateWhy = stateSingle, "one member, nothing moves"
	}
	if s.Members.Draining > 0 || s.MovesUnderWay > 0 {
		s.State, s.StateWhy = stateMoving, fmt.Sprintf("%d changes of regions are under way, %d members drain", s.MovesUnderWay, s.Members.Draining)
		if s.MovesUnderWay == countedMoves {
			s.StateWhy = fmt.Sprintf("%d changes of regions or more are under way, %d members drain", countedMoves, s.Members.Draining)
		}
	}
	if wrong := s.wrong(); len(wrong) > 0 {
		s.State, s.StateWhy = stateDegraded, strings.Join(wrong, "; ")
	}
	if s.Members.Active == 0 {
		s.State, s.StateWhy = stateNoMembers, "no member is active"
		if s.Members.Orphaned > 0 {
			s.StateWhy = fmt.Sprintf("no member is active, and %d regions have no owner", s.Members.Orphaned)
		}
	}
	if s.Era == 0 {
		s.State, s.StateWhy = stateForming, "no coordinator has held the Tenure yet"
	}
}

// heldOutOfReach says that who holds the Tenure did not answer. It may be well, and in the root's
// reach: then nobody else takes the Tenure by himself.
func (s *statusOutput) heldOutOfReach() bool {
	return s.Holder != "" && !slices.ContainsFunc(s.Coordinators, func(c coordinatorStatusOutput) bool { return c.ID == s.Holder && c.Error == "" })
}

// wrong is what makes a cluster degraded. A member that has failed does not: its regions are
// others', or they count.
func (s *statusOutput) wrong() (all []string) {
	say := func(n uint64, one, more string) {
		switch {
		case n == 1:
			all = append(all, one)
		case n > 1:
			all = append(all, fmt.Sprintf("%d %s", n, more))
		}
	}
	var unreachable, peersAway, leaders uint64
	serving, broken, lost := false, false, false
	for _, c := range s.Coordinators {
		if c.Error != "" {
			unreachable++
			continue
		}
		serving = serving || c.ServingAuthority
		for _, n := range c.InvariantViolations {
			broken = broken || n > 0
		}
		lost = lost || c.Disclosure != nil && c.Disclosure.DegradedMode == "root_unavailable"
	}
	for _, p := range s.RootPeers {
		if !p.Reachable || p.Problem != "" {
			peersAway++
		}
		if p.Leader {
			leaders++
		}
	}
	if broken {
		all = append(all, "an invariant is broken")
	}
	if lost || len(s.RootPeers) > 0 && leaders == 0 {
		all = append(all, "the root has no quorum that is in reach")
	}
	if s.Era > 0 && !serving {
		why := "nobody serves ids and timestamps"
		if s.heldOutOfReach() {
			why += fmt.Sprintf(": coordinator %s holds the Tenure, and is not in reach; if that lasts, nokv tenure end --why TEXT lets another one take it", s.Holder)
		}
		all = append(all, why)
	}
	say(s.Members.Orphaned, "one region has no owner", "regions have no owner")
	say(s.Members.Suspected, "one member is suspected", "members are suspected")
	waiting := uint64(0)
	for _, x := range s.Stuck {
		waiting += x.Count
	}
	say(waiting, "one region waits", "regions wait")
	say(peersAway, "one root peer is away", "root peers are away")
	say(unreachable, "one coordinator is away", "coordinators are away")
	return all
}
