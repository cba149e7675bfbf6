// Package ownership searches the protocol of ownership exhaustively, within bounds: who may
// act for a region, of members that are confirmed, fail, and hand regions over. It holds
// tests only.
//
// A world is the whole cluster in a few numbers: what is rooted, two coordinators, up to three
// processes of members, and every message under way. Behind the numbers are real things: a
// state.State, on which each step is a command applied by ApplyEntry; the liveness.Core of a
// coordinator; the held.Core of a member, with its Table. What happens to one is done once,
// to a clone, and remembered. Plans are placement.Make's, sets are shown.Core's. A model are the
// streams, the application, and these lines: assigner's follow, holdEra, order, land and lastWords;
// server's round, mayConfirm, speaker, relay and passBack.
//
// It promises:
//
//  1. Every step keeps the promises of the design: one owner an epoch; one owner a moment where
//     the fence is a ttl; the next owner starts at the frontier of a release, also of a member that
//     ended without a drain and was heard, whoever holds the Tenure by then, and no frontier falls;
//     orphans are counted.
//  2. From the worlds that are asked, without another fault, every region gets an owner that
//     acts and every move ends, if somebody is left who may own.
//  3. Leaving out any rule of the table in contrast_test.go breaks the promise named there; the
//     shortest way to it is printed.
//  4. Worlds are compared whole. Counts are the same in every run.
//
// In the bounds: any delay of frames, answers, sets and commands, each stream in order, which
// is also a link that is cut in one direction, and a process that stands still; streams that
// break, and end at one side before the other, and streams that the other coordinator passes on, each
// half with delays of its own; crashes of members, and ends without a drain, the same member again on
// one machine or on two; takeovers by another coordinator at any time, views that lag; probes
// that are answered, refused, also by sockets that are not the members', or come to nothing; clocks whose rates differ, each tick anew, up
// to the bound.
//
// Whoever computes does so at once, and delays only what it sends; of a configuration's
// processes, some delay nothing. Out of the bounds: what the root checks of claims (see
// package explorer; here any claim is fine, and an era is confirmed while it is the rooted
// one); crashes of coordinators; changes in sets, which package shown compares with complete
// ones; probes that take time; shared regions; views that catch up by halves.
//
// The flags -explorer.states and -explorer.walks search more.
package ownership
