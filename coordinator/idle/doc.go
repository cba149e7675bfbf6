// Package idle releases the regions of points that nobody uses, while this coordinator
// holds the Tenure.
//
// It owns what was asked of members and what is on its way to the root from them. It
// promises:
//
//  1. A region is removed only after its owner has said that it stopped because nobody uses
//     it, at the epoch that the root still has: a command removes it at that epoch, in the
//     era that is held. The owner is asked, never told: it says no while somebody uses it.
//  2. What an owner has stopped is removed by whoever holds the Tenure then: that it has is a
//     level in its reports, so that nothing is forgotten with a holder.
//  3. Reports are looked through a part at a time, each idle_scan of a keyspace; what is
//     asked of one member, and of all, and what one command removes, is bounded.
//  4. Whoever looks routes up comes first: what is asked for comes in small bursts, one call
//     to the root is under way, and pauses take as long as the work between them, or longer.
//
// It leaves to others: when a region counts as unused, and to whom its requests go meanwhile
// (package member).
package idle
