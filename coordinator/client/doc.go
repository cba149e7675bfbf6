// Package client is how Go programs use a NoKV coordinator: routes, ids,
// timestamps, rooted changes and watches, over any number of coordinators.
//
// It owns connections, retries and what it remembers between calls: which
// coordinator answers, who holds the Tenure, the highest era seen, the cluster.
// It promises:
//
//  1. One coordinator alive of those configured is enough. A call moves on when
//     a coordinator cannot be reached, refuses for want of authority, or says
//     nothing for Config.TryTimeout. Reads are asked of another one, too, when
//     one has said nothing for 100 ms, each as it was asked; a stream asks one
//     more whenever the silence has doubled, and where all are slow one read in
//     ten is asked twice. A holder of the Tenure that says nothing is left as soon as another
//     coordinator knows of its successor.
//  2. A call ends with its context; a context without a deadline gets
//     Config.DefaultTimeout. The error says which coordinators were tried and
//     what each of them said.
//  3. Requests that are wrong, and rejections, are never retried. Everything
//     else is, with jittered exponential backoff. That is safe for changes too:
//     a command carries its identity, and one that has been applied is found
//     already applied.
//  4. Silence: ids and timestamps of an era below the highest one seen in any
//     reply are discarded and asked for again.
//  5. Concurrent callers of Tso, AllocID, GetRegionByKey and Publish share round
//     trips, and their order in real time holds: an answer belongs to a request
//     that was sent after its caller asked. A batch that has been sent takes
//     nobody in. Who shares is answered, refused and let go alone: an error that
//     ends a shared stream is told to who caused it, and no caller waits past its
//     deadline for a peer that does not read.
//  6. Timestamps never repeat and never go back within one Client, whatever a
//     coordinator answers.
//  7. The first answer pins the cluster, unless Config.ClusterID has named it.
//     Every call names it from then on, and another cluster refuses; a client
//     that has heard no answer yet asks for the cluster before it asks for a
//     change.
//  8. New starts nothing that outlives Close.
//
// What a route leads to (connections to members, retries there) is left to
// package router.
package client
