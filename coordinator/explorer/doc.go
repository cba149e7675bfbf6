// Package explorer searches the authority protocol exhaustively, within bounds.
// It holds tests only.
//
// A world is the whole cluster in about a hundred bytes: what is rooted, the
// root leader's memory, two or three coordinators, clients, and every message
// under way. What is rooted is a real state.State: each step on it is a real
// command, applied by ApplyEntry to a Fork, and a world holds its number in a
// table. Windows are real idalloc.Runs, numbered in the same way. The rest is a
// model of these lines:
//
//   - tenure.Core: learn, begin, end, Want, confirmAt, OnConfirmed, target,
//     Shutdown, OnDrained; tenure.RawHolder: Take, Run.Good, Confirm, begin, end,
//     extend. TestModelIsTheHolder walks at random beside real RawHolders.
//   - replica's authority: elected, judge, untilExpired, answerConfirm.
//     TestModelIsTheLeader walks at random beside three real replicas.
//   - client's checkEra.
//
// It promises:
//
//  1. Every step keeps Primacy, Inheritance, Silence, the safe part of Finality,
//     Tso order and AllocID as the design states them; what only coordinators
//     can see is asked too, before a client could notice.
//  2. From every world that has room left within the bounds, a client can be
//     served by the current era, with no handover open, without another fault.
//  3. Leaving out any rule of the table in contrast_test.go breaks the promise
//     named there; the shortest way to it is printed.
//  4. Worlds are compared whole, never by hash alone: none is missed for a
//     collision. Counts are the same in every run.
//
// In the bounds: any interleaving; loss, delay and repetition of requests and
// replies; crash and restart of any process at any step; elections at any step,
// which lose claims under way; shutdown and retirement; a process or a machine
// that stands still for any time between any two steps; clocks that run at
// different rates, each tick anew, up to the bound that the leader allows for;
// one restore from one backup; ids that the root gives by itself. Coordinators
// are interchangeable, and worlds that differ in their order alone are one.
//
// Steps that commute with all others between them are one step: a claim is sent
// and judged, a confirmation is acknowledged by the quorum and answered, a call
// begins and its value is taken (had it begun before, less would be asked).
//
// Out of the bounds: more eras, values, calls and messages than the
// configurations say; raft (the root is one log, see meta/root/roottest); when a
// standby finds it worth claiming (it may at any time here); wall clocks and the
// arithmetic of timestamps in tso (they only skip values of a window); a second
// restore. Of a restore it is assumed that the restored root lets nobody claim
// before the old one's confirmations have lapsed, and that its fences jump over
// all that was rooted since the backup.
//
// The flags -explorer.states and -explorer.depth search the large configurations further.
package explorer
