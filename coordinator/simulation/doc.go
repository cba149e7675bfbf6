// Package simulation runs whole control planes in one goroutine: three root
// peers with real replicas and storage (package roottest), two or three
// coordinators with real views and holders, and clients, over a disk, a
// network and clocks that fail in every way.
//
// It holds tests only. What it asks of every seed, by the names of the design:
// Durability, AllocID, Tso order, Inheritance, Silence, Primacy, Finality,
// Freshness, Tail and Keyspaces (no two are ever shown under one id); with members on
// top (TestMembers): one owner an epoch, one owner a moment where the fence is a ttl,
// Frontier, Fence, Orphans, and Placement: nobody is forgotten. Contrast runs leave one
// rule out and must be caught.
//
// The holder is the tenure.RawHolder that processes run, the assigner the assigner.Raw, a
// member the held.Core. What Follower and the
// service do with goroutines is written again here, so that a process can be
// stopped between any two of its steps. One seed is one history: a failure names
// the command that repeats it.
package simulation
