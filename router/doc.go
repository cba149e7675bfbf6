// Package router is how a Go program finds, for a key, the member that owns it, and
// reaches it while regions move and members die.
//
// A Router holds routes of one or several keyspaces, which it follows; Resolve finds
// the owner of a key, mostly without leaving the process, and Do runs a request at
// it and repairs the route once when the member refuses:
//
//	r, err := router.New(router.Config{Client: c, Keyspaces: []string{"games"}})
//	go r.Run(ctx)
//	err = r.Do(ctx, key, router.Options{}, func(ctx context.Context, t router.Target) error {
//	    return ask(ctx, t.Address, t.Epoch, key)
//	})
//
// It owns the choice among owners and the view of what it serves, which is a
// client.Cache for each keyspace. It promises:
//
//  1. A hit takes no lock, allocates nothing and, but where it chooses among several
//     owners in turn, writes no memory that processors share.
//  2. What it says is as of Target.Token, or later, and that was the newest at
//     Target.AsOf, or later: counted from before anybody was asked, so that a process
//     that stood still does not call what it has fresh. Conditions of Options hold, or
//     there is an error.
//  3. While no coordinator answers it serves what it has, and says how old that is.
//  4. A region with one owner is never a choice. Members that could not be reached are
//     avoided for a while where there are others.
//  5. Do runs the function again only where it has not run, as a member or the network
//     says, or where Options.Idempotent says that this does no harm: once at once, where
//     there is another owner to go to, and then with pauses between.
//  6. A request at a member that failed, or that left and said nothing more, ends though the connection
//     stays, when another one has the key (WhileOwner). Requests go where the root says that members are:
//     a member that names another one names no address.
//  7. Every wait ends with its context or after Options.Hold, and at most
//     Config.MaxWaiting callers wait in a keyspace; the others are refused.
//  8. What it holds is bounded in number and bytes; what is beyond that is asked for.
//  9. Run owns what runs in the background, and ends it.
//
// Connections to members, and what is said there, are left to the caller.
package router
