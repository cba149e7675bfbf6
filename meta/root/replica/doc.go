// Package replica is one peer of the metadata root: the loop that owns raft
// and the state machine.
//
// It owns the order of things: what is sent before a durable write and what
// after, when an entry is applied, when a caller is told. It promises:
//
//  1. What is acknowledged is durable on a quorum and applied here; one durable
//     write carries everything that waited.
//  2. A proposal is answered once: with its results, with a refusal (nothing
//     changed), or with REASON_OUTCOME_UNKNOWN.
//  3. A read index was confirmed by a quorum after the request arrived, in an
//     attempt of its own, and is applied here when it is answered.
//  4. An era is confirmed only by a leader that a quorum followed after the
//     request arrived, from applied state, and not while a claim over it is
//     under way; it is found expired only when no confirmation of any leader can
//     still be good (rules 1 to 3 of the authority design).
//  5. A Turn that takes longer than an election timeout, whatever it waited for,
//     ends the leadership. From about that time on, in a Turn or between two, this
//     peer says that it may know nothing of the present, until a quorum has
//     followed its leader in a read index that began behind that.
//  6. A failed write, an entry that cannot be applied, and a state that differs
//     from the majority's end Run with an error that names the index; nothing is
//     acknowledged after it.
//  7. Core decides alone: equal Inputs give equal Outputs, given raft's
//     crypto/rand. Replica adds the goroutines, the clock and the waiting.
//
// It leaves bytes on disk to storage, bytes between peers to transport, and
// the meaning of commands to state.
package replica
