// Package proxy is an HTTP reverse proxy that finds, for each request, the member that
// owns its key: by a router.Router in front of net/http/httputil.ReverseProxy.
//
//	p, err := proxy.New(proxy.Config{Router: r, Key: proxy.Header("X-Table")})
//	http.ListenAndServe("127.0.0.1:8080", p.Lookup())
//
// It owns the connections to members and the requests that wait for one. It promises:
//
//  1. A request goes to the owner, with the epoch in router.HeaderEpoch. Where a member
//     refuses without running it, or nothing of it was sent, it is held and tried again,
//     at most for Config.Hold. A request that may have been run is repeated only if it is
//     idempotent, by its method or an Idempotency-Key. Nobody below repeats one: Result.Tries
//     counts how often it was written. All answers together are waited for Config.Timeout.
//  2. What is repeated was kept: bodies of a length that is known, of Config.MaxReplay
//     bytes at most, and of all requests together MaxReplayTotal. A body beyond that is
//     passed on as it comes, and the request is repeated only while none of it was read.
//  3. Every refusal by a handler has a status, a reason and a way out, as a problem document, which
//     names no address: 503 with Retry-After was not run; 502 outcome_unknown may have been. gRPC does not
//     pass, and is told so in its own way: UNIMPLEMENTED.
//  4. Answers, upgraded connections and cancellation pass through as they come. An answer
//     that breaks off behind its first bytes breaks off at the caller too. That of an
//     idempotent request, if it is short, is read whole first, and asked for again. One that goes
//     on ends with its member, as router.WhileOwner says.
//  5. A WebSocket whose member is not an owner any more, or ended, is closed between two
//     messages with code 1012; by Close with 1001.
//  6. Callers can neither say who they are to members in forwarding headers, nor which
//     epoch they are at: these are made anew. What is Reserved passes neither way.
//  7. With Config.Callers nobody gets by it what the grants do not give: each request, and each WebSocket
//     for as long as it lasts, is judged by whose it is, by grants and tokens that are half a second old at most
//     while coordinators answer, and 10 s while none does. Tokens that it takes reach no member. What is under
//     way ends with the certificate of its caller, where the listener is one of mtls.HTTP or HTTPOpen.
//
// The listener with its limits of headers and time is left to the caller, and so is who may ask
// without Config.Callers.
package proxy
