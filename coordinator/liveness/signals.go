package liveness

import (
	"slices"
	"strings"
)

// Signals are what speaks against a member, or for it.
type Signals uint16

// Signals, in the words that verdicts carry and people read.
const (
	// StreamClosed: its stream here has ended.
	StreamClosed Signals = 1 << iota
	// Silent: no frame came for as long as suspicion takes.
	Silent
	// ProbeRefused: its own address refused a connection twice. Proof.
	ProbeRefused
	// ProbeOther: somebody else answered at its own address. Proof.
	ProbeOther
	// ProbeSilent: its own address did not answer, or not to the end.
	ProbeSilent
	// ProbeAnswered: the incarnation itself answered at its own address.
	ProbeAnswered
	// HeardElsewhere: another coordinator hears it.
	HeardElsewhere
	// Goodbye: it said that it will leave.
	Goodbye
	// Gone: it said that it has stopped serving. Proof.
	Gone
	// ProcessEnded: whoever waits for its process said that it ended. Proof.
	ProcessEnded
	// DialFailures: callers cannot connect to it.
	DialFailures
	// TakesNothing: it says nothing that shows that it has taken what it was shown long ago.
	TakesNothing
)

// proofs are the signals that prove a death.
const proofs = ProbeRefused | ProbeOther | Gone | ProcessEnded

// passing are the signals that a frame takes back.
const passing = StreamClosed | Silent | ProbeRefused | ProbeOther | ProbeSilent | ProbeAnswered | HeardElsewhere

var signalNames = [...]string{
	"stream_closed", "silent", "probe_refused", "probe_other", "probe_silent", "probe_answered",
	"heard_elsewhere", "goodbye", "gone", "process_ended", "dial_failures", "takes_nothing",
}

// explained reports whether the signals of a member that has failed say more than silence: a proof,
// or nothing at all, as an operator does.
func explained(names []string) bool {
	return len(names) == 0 || slices.ContainsFunc(proofs.Names(), func(proof string) bool { return slices.Contains(names, proof) })
}

// ProcessEndedSignal is ProcessEnded in a MemberStateChanged: an operator or an
// integrator who fails a member with it vouches that its process has ended.
const ProcessEndedSignal = "process_ended"

// Names are the signals' names.
func (s Signals) Names() []string {
	var names []string
	for i, name := range signalNames {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String is the names with commas.
func (s Signals) String() string { return strings.Join(s.Names(), ",") }
