// Package state is rooted truth: one deterministic function over the log.
//
// It owns the meaning of every event and the records that events make. It
// promises:
//
//  1. Deterministic. Equal logs give equal States, results and hashes, on
//     every machine, in every year. Apply reads its receiver and the command
//     and nothing else: no clock, chance, map order or I/O.
//  2. Atomic. All events of a Command apply, or none does; a rejected command
//     leaves the hash as it was.
//  3. Idempotent. A command with an identity that is sent again is recognised,
//     whatever happened in between, and answered as it was the first time; one
//     older than what is remembered is refused as of unknown outcome. Without an
//     identity what it asks for is found already applied: each event's method
//     says what "already" means for it.
//  4. No guess. What this version does not know (kinds, fields, enum numbers)
//     is an error, not a rejection: the replica stops, the State is unchanged.
//  5. Cheap snapshots. Fork takes constant time; a State that nobody applies
//     to any more may be read by many.
//  6. One hash. Equal token means equal Hash; see hash.go for the definition.
//  7. Bounded. Every list, name and table has a limit named here (limits.go),
//     judged when a command is checked and again when it applies.
//  8. Primacy, Inheritance, Silence and Finality of the authority protocol
//     hold in every State that can be reached.
//
// It leaves to others: durability and order (storage, replica), time (the root
// leader judges expiry before it proposes), liveness, load and plans.
package state
