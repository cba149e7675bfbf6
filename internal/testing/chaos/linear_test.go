package chaos

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A region is a register: its epoch and the tag that was written with it. A change
// takes effect when its epoch is above, or above that of the one that was removed;
// one that is not is refused as stale. A removal empties the register, when it
// names no epoch or the one that is there. Strong reads read the register.

// register is the state of one region; no conf: there is none.
type register struct {
	conf uint64
	tag  string
	// last is the epoch of the one that was removed last.
	last uint64
}

// action is what an operation does to a register.
type action struct {
	key  string
	kind actionKind
	register
}

type actionKind int

const (
	writes     actionKind = iota // puts the register
	findsNewer                   // sees that the register is not below conf
	reads                        // sees the register
	removes                      // empties it
	findsOther                   // sees that there is another epoch than conf, or none
	findsNone                    // sees that there is none
)

var registers = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(at, input, _ any) (bool, any) {
		now, a := at.(register), input.(action)
		switch a.kind {
		case writes:
			return a.conf > max(now.conf, now.last), register{a.conf, a.tag, now.last}
		case findsNewer:
			return max(now.conf, now.last) >= a.conf, now
		case removes:
			return now.conf > 0 && (a.conf == 0 || a.conf == now.conf), register{last: now.conf}
		case findsOther:
			return now.conf > 0 && now.conf != a.conf, now
		case findsNone:
			return now.conf == 0, now
		default:
			return now.conf == a.conf && now.tag == a.tag, now
		}
	},
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, o := range all {
			key := o.Input.(action).key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
}

// linearWithin bounds the search for an order.
const linearWithin = time.Minute

// rootWrites: per region, changes and strong reads have an order that fits
// their answers and their times.
func (j *judge) rootWrites() error {
	var all []porcupine.Operation
	add := func(a action, called, returned time.Duration) {
		end := int64(math.MaxInt64)
		if returned != history.Never {
			end = int64(returned)
		}
		all = append(all, porcupine.Operation{Input: a, Call: int64(called), Return: end})
	}
	for _, w := range j.writes {
		if w.removes {
			switch {
			case len(j.carriedOut[w.id]) > 0:
				add(action{w.key, removes, register{conf: w.conf}}, w.called, w.returned)
			case w.outcome == rootv1.Outcome_OUTCOME_REJECTED && w.reason == rootv1.Reason_REASON_EPOCH_STALE:
				add(action{w.key, findsOther, register{conf: w.conf}}, w.lastTry, w.returned)
			case w.outcome == rootv1.Outcome_OUTCOME_REJECTED:
				return fmt.Errorf("%s: the removal of %q was rejected: %v", w.client, w.key, w.reason)
			case w.absent:
				add(action{w.key, findsNone, register{}}, w.called, w.returned)
			}
			continue
		}
		took := len(j.applied[w.tag]) > 0
		switch {
		case w.outcome == rootv1.Outcome_OUTCOME_REJECTED && w.reason != rootv1.Reason_REASON_EPOCH_STALE:
			return fmt.Errorf("%s: %q was rejected: %v", w.client, w.tag, w.reason)
		case took:
			// Also when an answer was lost inside and the second try found it stale.
			add(action{w.key, writes, register{conf: w.conf, tag: w.tag}}, w.called, w.returned)
		case w.outcome == rootv1.Outcome_OUTCOME_REJECTED:
			add(action{w.key, findsNewer, register{conf: w.conf, tag: w.tag}}, w.lastTry, w.returned)
		}
		// What has no answer and is not in the log did not happen.
	}
	for _, r := range j.reads {
		if r.kind == strong {
			add(action{r.key, reads, registerOf(r.region)}, r.called, r.returned)
		}
	}
	switch porcupine.CheckOperationsTimeout(registers, all, linearWithin) {
	case porcupine.Illegal:
		return fmt.Errorf("%d operations have no order that fits region %s", len(all), illegal(all))
	case porcupine.Unknown:
		return fmt.Errorf("no order of %d operations was found or ruled out within %v", len(all), linearWithin)
	}
	return nil
}

// illegal names the regions without an order.
func illegal(all []porcupine.Operation) string {
	names := ""
	for _, part := range registers.Partition(all) {
		if porcupine.CheckOperationsTimeout(registers, part, linearWithin) == porcupine.Illegal {
			names += fmt.Sprintf(" %q (%d operations)", part[0].Input.(action).key, len(part))
		}
	}
	return names
}

func registerOf(r *state.Region) register {
	if r == nil {
		return register{}
	}
	return register{conf: numberOf(r.Epoch), tag: r.Frontier}
}
