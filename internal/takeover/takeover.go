// Package takeover measures what callers missed while authority or leadership
// changed hands.
//
// It owns no process and no clock: calls and events go in, gaps, what they are
// made of, and a picture come out. It promises: (1) a gap is the longest time
// that one client went without a successful reply of one kind, and never less
// than that; (2) the parts of a gap add up to it exactly, whatever events are
// missing; (3) the same round gives the same picture, byte for byte. Ending
// processes, and who is a holder or leader, are the caller's.
package takeover

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/history"
)

// Action is what was done to the victims.
type Action string

// What can be done to a process.
const (
	// Kill ends it at once (SIGKILL).
	Kill Action = "kill"
	// Hang stops it and lets it go on once it was replaced (SIGSTOP, SIGCONT):
	// its connections stay, and nobody is told.
	Hang Action = "hang"
	// Restart asks it to end (SIGTERM), and starts it again.
	Restart Action = "restart"
)

// Victim is whom it was done to.
type Victim string

// The victims of a round.
const (
	// Holder of the Tenure, and the leader of the root.
	Holder Victim = "holder"
	Leader Victim = "leader"
	// Both at once.
	Both Victim = "both"
	// Member that hosts regions, and all three at once.
	Member Victim = "member"
	All    Victim = "member+holder+leader"
)

// Round is one takeover. All times are since one start, by one clock.
type Round struct {
	Action Action
	Victim Victim
	// Victims and Members are names of processes; the victims are members too.
	// Roots are members that are root peers, the others are coordinators.
	Victims, Members, Roots []string
	// At is the moment of the action, Until when everything was healthy again.
	At, Until time.Duration
	// Gone is when the killed processes had ended: on a busy machine that takes
	// its time, in which their connections are open. 0: not known.
	Gone time.Duration
	// Calls are those of the clients, from some time before At on.
	Calls []history.Call
	// Events are what the processes logged, in any order, from their start on.
	Events []Event
}

// Gap is a time without a successful reply.
type Gap struct {
	Client string
	// From is when the last reply before it came, To when the first one after.
	From, To time.Duration
}

// Length of the gap.
func (g Gap) Length() time.Duration { return g.To - g.From }

// Gap is the longest gap of any client in calls of one kind (history.OpTSO and
// so on) that ends after the action and begins before Until. An error names a
// client that had no reply before the kill, or none after it.
func (r *Round) Gap(op string) (Gap, error) {
	var longest Gap
	for client, returns := range r.returns(op) {
		first, _ := slices.BinarySearch(returns, r.At)
		switch {
		case first == 0:
			return Gap{}, fmt.Errorf("%s had no reply of kind %s before the kill", client, op)
		case first == len(returns):
			return Gap{}, fmt.Errorf("%s had no reply of kind %s after the kill", client, op)
		}
		for i := first; i < len(returns) && returns[i-1] < r.Until; i++ {
			g := Gap{client, returns[i-1], returns[i]}
			if g.Length() > longest.Length() || g.Length() == longest.Length() && g.Client < longest.Client {
				longest = g
			}
		}
	}
	if longest.Client == "" {
		return Gap{}, fmt.Errorf("there is no call of kind %s", op)
	}
	return longest, nil
}

// returns are the moments of successful replies by client, in order.
func (r *Round) returns(op string) map[string][]time.Duration {
	out := make(map[string][]time.Duration)
	for i := range r.Calls {
		if c := &r.Calls[i]; c.Op == op && c.Err == "" && c.ReturnNS != 0 {
			out[c.Client] = append(out[c.Client], time.Duration(c.ReturnNS))
		}
	}
	for _, returns := range out {
		slices.Sort(returns)
	}
	return out
}

// Load is how much there was in the time from, to before the action: the least
// number of replies of kind op that a client had, and the longest that one
// went without.
func (r *Round) Load(op string, from, to time.Duration) (least int, longest time.Duration) {
	least = math.MaxInt
	for _, returns := range r.returns(op) {
		i, _ := slices.BinarySearch(returns, from)
		j, _ := slices.BinarySearch(returns, to)
		least = min(least, j-i)
		for k := max(i, 1); k < j; k++ {
			longest = max(longest, returns[k]-returns[k-1])
		}
	}
	if least == math.MaxInt {
		least = 0
	}
	return least, longest
}

// Quantiles of durations.
type Quantiles struct {
	P50, P99, Max time.Duration
}

// Summary returns the quantiles of all values, by nearest rank; zeros of none.
func Summary(all []time.Duration) Quantiles {
	if len(all) == 0 {
		return Quantiles{}
	}
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, cmp.Compare)
	rank := func(percent int) time.Duration {
		return sorted[max((len(sorted)*percent+99)/100, 1)-1]
	}
	return Quantiles{P50: rank(50), P99: rank(99), Max: sorted[len(sorted)-1]}
}
