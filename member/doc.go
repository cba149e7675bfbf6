// Package member is what a process links that hosts regions: the control plane knows
// it, watches it, shows it what is its own, and gives that to others when it dies.
//
// New makes a Member, Run registers it and keeps it going, a Handler acquires and
// releases regions, and Do lets requests act for them:
//
//	m, err := member.New(member.Config{ID: "worker-1", Address: "10.0.0.7:7000", Client: c})
//	go m.Run(ctx, handler)
//	err = m.Do(ctx, member.Request{Keyspace: "games", Key: key, Epoch: epoch}, serve)
//
// It promises:
//
//  1. Do runs a request only while this process owns the region at exactly the epoch
//     that the request names, and says behind the work whether that is still so.
//  2. Where the keyspace's fence is a ttl, nothing is let in, and no work is said to be
//     good, later than ttl after the Tenure holder could last confirm this process.
//  3. Calls to the Handler of one region never overlap; those of different regions do,
//     Config.Workers at a time. Do overlaps everything: Acquire returns before the first
//     request of a region is let in, Release is called behind the last, or behind the end
//     of its right: a request that does not end has Config.RequestGrace. Evict is called
//     while requests may still run: they are told by Leaving, and fail behind the work;
//     what comes next of the region waits for them.
//  4. A call that fails is made again after a pause, and its error reported. One that
//     panics has failed. One that does not return within Config.HandlerTimeout is
//     reported and gives its worker back; nothing else is asked of that region before
//     it returns, and no other region waits for it. A region whose Acquire does not return
//     may be another member's meanwhile: nothing was let in. When that Acquire returns after
//     all, Evict follows.
//  5. One coordinator that answers is enough to be shown what is its own; the others
//     are found through it.
//  6. A verdict that this process has failed ends what it holds, and it registers anew.
//     Another process under the same id ends Run with ErrSuperseded.
//  7. The probe address answers until nothing is let in any more and no work is said to be
//     good, and not longer: also where calls or requests do not return (ErrStuck).
//  8. What is pinned is one long request of its region (Pins): its right ends as that of Do
//     does, a release waits for it for PinsConfig.Grace at most, and Cleanup is called once
//     for each pin, behind its last call, however it ends.
//
// What the fence of an epoch protects is the resource's to check: package fence.
package member
