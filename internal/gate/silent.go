package gate

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// RequestTimeout is how long a call of one request may wait for it: above what the
// largest message may take.
const RequestTimeout = 2 * time.Minute

// Serves tells which calls have one request. It is called before the server serves.
func (g *Gate) Serves(server *grpc.Server) {
	g.oneRequest = map[string]struct{}{}
	for name, service := range server.GetServiceInfo() {
		for _, m := range service.Methods {
			if !m.IsClientStream {
				g.oneRequest["/"+name+"/"+m.Name] = struct{}{}
			}
		}
	}
}

// requestKey is that of the timer of a call's request.
type requestKey struct{}

// await ends a new call of one request that does not come, where its own deadline
// does not: nobody else looks at it before it came.
func (g *Gate) await(ctx context.Context, method string) context.Context {
	if d, ok := ctx.Deadline(); ok && d.Sub(g.start) <= time.Duration(g.now.Load())+RequestTimeout {
		return ctx
	}
	if _, one := g.oneRequest[method]; !one {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(RequestTimeout, func() {
		g.silent.Add(1)
		cancel()
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
	return context.WithValue(ctx, requestKey{}, timer)
}

// awaited is the timer of a call whose request has to come; nil: there is none.
func awaited(ctx context.Context) *time.Timer {
	timer, _ := ctx.Value(requestKey{}).(*time.Timer)
	return timer
}
