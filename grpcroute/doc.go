// Package grpcroute carries gRPC calls to the members that own their keys. NewClient makes
// a grpc.ClientConn whose calls go, each for itself, where a router.Router says:
//
//	conn, err := grpcroute.NewClient("nokv:///games", grpcroute.Config{Router: r})
//	games := pb.NewGamesClient(conn)
//	reply, err := games.Play(grpcroute.WithKey(ctx, []byte("g1")), request)
//
// and Server makes the interceptors with which a member lets in what is its own:
//
//	grpc.NewServer(grpcroute.Server{Member: m}.Options()...)
//
// It owns the connections to members, one each, and the calls that wait for one. It promises:
//
//  1. A call goes to the owner of its key with the key and the epoch, in metadata. What a
//     member refused without running it, and what nothing of was sent, is tried again, where
//     the owner is by then, until Config.Hold or the call's deadline is over; with
//     wait_for_ready only the deadline counts.
//  2. What may have been run is repeated only if Config.Idempotent says that this does no
//     harm, or a retryPolicy of the service config that lists UNAVAILABLE. gRPC repeats nothing by itself.
//     A call or stream at a member that failed ends as router.WhileOwner says, with UNAVAILABLE.
//  3. Only the member that was called can refuse: what its handler passes on of somebody
//     else's refusal is an answer.
//  4. Connections are made to members that are called, Config.MaxMembers at most, and end
//     when nobody has used them for Config.IdleFor. A change of the view costs nothing here.
//  5. A stream is tried again while nothing of its answer has come, and what was sent of it
//     is kept for that: 16 messages, and MaxReplay bytes. A stream whose region moves ends
//     with reason outcome_unknown; its handler's context ends first.
//  6. A server runs nothing for a caller that names no epoch.
//
// It is a resolver and a balancer of one ClientConn, and not a ClientConn for each owner,
// so that service config, interceptors, statistics and channelz are there once, and a member
// costs a sub-connection. Neither is given addresses: the resolver says one time that there
// is a router, and the balancer connects whom a call is for. The target is chosen, and waited
// for, before gRPC picks, because a picker may not wait, and because a new picker wakes every
// call that does: with thousands of members that is each call for each connection.
package grpcroute
