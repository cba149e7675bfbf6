// Package roottest runs whole metadata roots in one goroutine: real replicas
// and real storage over a fake disk, network and clock, with faults.
//
// It owns virtual time. It promises: (1) one seed is one history: what happens
// is a function of the seed, given that crypto/rand is replaced
// (testing/cryptotest); (2) every message may be lost, delayed, repeated and
// reordered; every peer may be killed, lose power between any two disk
// operations, stand still, be stuck in a write while the world goes on, or have
// a clock that is fast, slow or wrong; (3) every fault that was injected is
// counted, so that a run in which nothing happened can be told from one that
// survived; (4) after Heal the faults are over and the cluster is expected to
// serve.
//
// Others reach the peers over a Link: requests as the Core takes them, tails and
// snapshots as the Root service streams them. Coordinators and their simulation
// are built on top, elsewhere.
package roottest
