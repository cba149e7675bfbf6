// Package claims makes the regions of keys at their first touch, while this coordinator
// holds the Tenure.
//
// It owns the claims that wait here, and what was given and is not in a view yet. It
// promises:
//
//  1. A region is made by one command, with its owner and in the era that is held. Of many
//     who claim a key at once one makes it, and all are told of it; what somebody else made
//     first is adopted.
//  2. Who gets it is said by the keyspace's strategy, hooks and brought code among them,
//     limits and label rules (package placement), never a member that is suspected, drains or has failed. What was given
//     counts at once. A claim costs no more where there are more members or regions.
//  3. Claims gather while calls are under way, so that many are in few entries. All that
//     waits is bounded in number and bytes; what has no room is refused at once. One keyspace
//     leaves a quarter of the room to others, and they take turns; slow hooks, its own or
//     those of others, hold up no claim for long.
//  4. Nobody waits longer than its context. What nobody waits for any more and was not sent
//     is not sent.
//  5. A command has an identity, so that what is sent again is judged once, and ends with
//     its era: what became of it is unknown then, and whoever claims again finds it.
//
// It leaves to others: who may claim (package server), what is orphaned (package assigner).
package claims
