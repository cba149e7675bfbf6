// Package placement plans who owns the regions of assigned keyspaces.
//
// It owns what follows from rooted state, from what is observed of members and regions
// and from the keyspaces' settings: Make says which regions go where, each operation
// with its reason, and what is refused, with its own. Work keeps what must be looked at.
// It promises:
//
//  1. The same input gives the same bytes, in whatever order its lists and maps are.
//  2. Every operation carries the epoch that it was planned at, or the transition: what
//     changed meanwhile makes the root refuse it.
//  3. A region whose owner may still act for it is granted to nobody else: its fence
//     has run out, its owner is proven dead, or it released it at its exact frontier.
//  4. What is under way is in the root: who plans next goes on from there. A move ends:
//     done, given up at its deadline, or given up because its next owner cannot take.
//  5. Shared regions are made before they are broken.
//  6. Work per round is that of what changed: regions are read where they are named, members
//     where a region needs one. Only evening a keyspace out looks at all of its regions.
//  7. A region whose owners keep dying soon after they got it is given out no more, but to a
//     member that has nothing else (Poison).
//
// It leaves to others: what is observed (package liveness, package catalog), loads (package
// load), how a keyspace is evened out (package balance), who is proposed (package propose),
// and proposing the operations and what becomes of them (the assigner).
package placement
