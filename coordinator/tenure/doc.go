// Package tenure takes, keeps and gives up the one authority of the cluster,
// and serves ids and timestamps by it.
//
// It owns the life of an era on the coordinator's side: Core decides about
// authority, RawHolder adds windows, requests and what is sent to the root (both
// without clock and goroutine, so that simulation and explorer run them in virtual
// time), Holder runs that. It promises:
//
//  1. Primacy: it acts for an era only after the root has given that era to
//     this very process, and for each era once.
//  2. Inheritance: nothing is served at or below the era's inherited frontier,
//     nor outside a window rooted for the era. A window that cannot be the one that
//     was asked for is not used, and nobody can ask in the holder's name: the origin
//     of its commands is secret.
//  3. Silence: a value is taken first and checked after; the check
//     says yes only while a confirmation that was sent at s is younger than the
//     ttl, counted from s, or when one was sent after the question. Once the era
//     is known to be over it never says yes again.
//  4. Finality: the handover's stages are proposed until they are rooted; one
//     that stays open is counted as a violation.
//  5. An orderly end retires the era with exact frontiers, after nothing
//     more can be served, so that the successor skips nothing and waits for nothing.
//  6. With a ttl of 0 no clock is trusted: elapsed time only paces retries.
//  7. Waiting is bounded: in number, and by the caller's context.
//
// It leaves to others: whether a claim is safe (the root leader), the view
// (package rootview), the arithmetic of values (packages idalloc and tso), and
// the wire.
package tenure
