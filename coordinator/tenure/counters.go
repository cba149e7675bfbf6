package tenure

import "sync/atomic"

// Counters are what a Core and a Holder count, for expvar. All only grow.
type Counters struct {
	// EraTransitions counts eras seen to begin, anybody's; Eras those begun here.
	EraTransitions, Eras atomic.Uint64
	// HandoverSteps counts handover stages proposed here and rooted.
	HandoverSteps atomic.Uint64
	// Claims and Confirmations count what was sent.
	Claims, Confirmations atomic.Uint64
	// Lapses counts confirmations that ran out before the next one came.
	Lapses atomic.Uint64
	// GateRejections counts values that were taken and not served because the
	// guard said no.
	GateRejections atomic.Uint64
	// IDExtensions and TsoExtensions count windows rooted; IDs and Timestamps
	// values served.
	IDExtensions, TsoExtensions, IDs, Timestamps atomic.Uint64
	// ClockRefusals counts timestamp windows refused because this machine's
	// clock is too far ahead of the root's.
	ClockRefusals atomic.Uint64
	// Overloads counts requests refused because too many waited.
	Overloads atomic.Uint64
	// Violations counts broken guarantees. All must be 0.
	Violations Violations
}

// Violations counts broken guarantees, found at run time. What would break one
// is not served.
type Violations struct {
	Primacy, Inheritance, Silence, Finality atomic.Uint64
}

// Total is the sum of all violations.
func (v *Violations) Total() uint64 {
	return v.Primacy.Load() + v.Inheritance.Load() + v.Silence.Load() + v.Finality.Load()
}
