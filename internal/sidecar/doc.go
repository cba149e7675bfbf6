// Package sidecar makes a process in any language a member: it runs the process, or stands
// beside it, and asks it by JSON what package member asks a Handler.
//
// It owns the process that it started, the member, and a port on loopback that the process
// asks and reports at. It promises:
//
//  1. The member joins when the process answers and its address takes connections, not before.
//  2. Nothing is said of regions that the process does not know: calls of one region never
//     overlap, one that is late is waited for, and an acquisition of which the outcome is not
//     known is undone before it is asked again.
//  3. That the process has ended is told at once, as a proof of death, and only behind its end
//     and that of its group. A process that cannot be ended is never said to be dead.
//  4. Nothing is started again: its end is the end of Run, with its exit status.
//  5. Who does not know the token is told nothing, and every body, queue and wait is bounded.
//  6. With certificates, callers without one are told whether the process is ready, and nothing
//     else; of the others the process is told the name, by no word of theirs. See Config.Serve.
//
// Admission of requests is the process's own: docs/callers.md says what it has to check.
package sidecar
