// Package nokvtest runs a whole cluster in the process of a test: root peers, coordinators
// and members, the real ones, on a network and disks in memory.
//
//	func TestFailover(t *testing.T) {
//		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
//		m1, m2 := c.Member(t, "m1", app), c.Member(t, "m2", app)
//		...
//		m1.Kill(t)
//		c.AwaitOwner(t, "games", key, "m2")
//	}
//
// It owns every process that it started, and ends all of them at the end of the test, members
// first. It promises:
//
//  1. Start returns when ids, timestamps and routes are served: in well under 300 ms.
//  2. Inside a testing/synctest bubble everything runs in virtual time, but for what Loopback
//     opens and for addresses of the machine that are dialled. No goroutine is left behind.
//  3. What goes wrong here, and not in what is tested, fails the test in one sentence that
//     begins with "nokvtest".
//  4. Clusters share nothing: tests may run in parallel.
//  5. A process that was killed says nothing any more, to nobody, and calls no Handler. Its
//     goroutines end in the background: nothing can take back what a Handler, or a request
//     that was let in, is doing in the test's own process.
//
// Processes are named as hosts of the network: members by their ids, coordinators c1, c2, ...,
// root peers root-1, root-2, ... and the test itself [Outside]. Disks do not fail here, and root
// peers are not restarted: a cluster is for tests of what is built on it, not of it.
package nokvtest
