// Package assigner roots who has failed and who owns what, while this coordinator holds
// the Tenure.
//
// It owns the detector and the planner of one coordinator, and what is on its way to the
// root from them. It promises:
//
//  1. The detector hears frames and ends of streams at all times, so that a new holder
//     needs no warm-up. Nothing else is done without the Tenure.
//  2. Every command names the era that it was made in and has an identity: what a deposed
//     holder still sends is refused, and what is sent again is judged once.
//  3. A verdict is one command. Grants are many in a command, hottest first, and so
//     are steps of moves, which gather while very many are under way; what is refused as a
//     whole is sent again one by one.
//  4. Nothing is planned for a region while something about it is on its way, or is not
//     in the view yet.
//  5. What is on its way is bounded in number and bytes, every call has a deadline, and all
//     of them end with the era.
//  6. A keyspace is evened out only when all members have said here everything that they have,
//     or 10 s after the era began; while something is not as it was; and not while
//     something that was planned for it is on its way. What another holder moved is remembered.
//  7. Members are probed, asked about and confirmed whatever else is done here: no plan holds that up, nor
//     a look at what is not served.
//
// It leaves to others: what is thought of members (package liveness), what is planned
// (package placement), what members are shown and who confirms them (package server).
package assigner
