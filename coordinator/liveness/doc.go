// Package liveness decides which members are gone.
//
// It owns what a coordinator makes of frames, streams, probes, what other coordinators
// hear and what is reported: suspicion, proof of death, verdicts, and the guards that hold
// them. Core is pure: time is an argument, and what it wants done is handed out by Turn.
// It promises:
//
//  1. Suspicion is cheap, at once, and taken back by the next frame. It ends nothing.
//  2. Proof of death is one of: the member's own address refused a connection twice
//     while it had no stream here; somebody else answered there; the member said that
//     it is gone; whoever waits for its process said that it ended. A reset, a timeout,
//     silence and an address that accepts prove nothing. What a probe found is no proof
//     while another coordinator has a stream of the member, or has heard it since its stream
//     here broke: all are asked when the probe begins that may decide. One that cannot be asked may
//     hear it, also where its port refuses: then it is a proof when that one answers, is off the
//     list, or when regions of one of the member's keyspaces may be granted elsewhere in any case;
//     and it spares no fence before all have answered, neither of other keyspaces nor of what was
//     taken from the member.
//  3. Without proof a verdict comes after silence that nobody else contradicts, counted from
//     what was heard here, in whatever era, or from when this process last stood still,
//     and not before a fence of what the member owns has run out: nobody would get anything
//     of it. What others hear puts it off by as much again at most.
//  4. A fence runs out when its ttl, stretched by the bound of clock rates, has passed
//     since the incarnation was last confirmed, or since this era began, whichever is
//     later. Behind a verdict an incarnation is never confirmed again.
//  5. Guards hold what has no proof: when many fall silent at once, for a time, and above a number a round.
//     They never hold what is proven.
//  6. Work per frame is constant, and a timer costs the logarithm of their number.
//
// It leaves to others: dialling, asking and proposing (the assigner), who gets the
// regions (package placement), confirming a member (package server, see Core.Answered).
package liveness
