package grpcroute

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/router"
)

// Scheme is that of targets, and Policy the name of the balancer in a service config.
const (
	Scheme = "nokv"
	Policy = "nokv"
)

func init() { balancer.Register(policy{}) }

// policy builds pools.
type policy struct{}

// Name implements balancer.Builder.
func (policy) Name() string { return Policy }

// Build implements balancer.Builder.
func (policy) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &pool{cc: cc, owners: map[place]*owner{}}
}

type routeAttribute struct{}

// Scheme implements resolver.Builder.
func (*route) Scheme() string { return Scheme }

// Build implements resolver.Builder: all there is to say is which router it is.
func (r *route) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	state := resolver.State{}
	state.Attributes = state.Attributes.WithValue(routeAttribute{}, r)
	_ = cc.UpdateState(state) // an error is the balancer's, who has none
	return said{}, nil
}

// said is a resolver that has said everything.
type said struct{}

// ResolveNow and Close implement resolver.Resolver.
func (said) ResolveNow(resolver.ResolveNowOptions) {}
func (said) Close()                                {}

// pool is the balancer of one ClientConn: it has the connections to members.
type pool struct {
	cc    balancer.ClientConn
	route *route
	// turn counts sweeps: who was used in the last one is not idle.
	turn atomic.Uint64

	mu sync.RWMutex
	// Guarded by mu.
	owners map[place]*owner
	sweep  *time.Timer
	closed bool
}

// place is a member at an address. Another member that is there later is another place: the connection is
// not its own.
type place struct {
	member  rooted.MemberID
	address string
}

// owner is a member that was called.
type owner struct {
	place
	calls atomic.Int64                     // under way
	used  atomic.Uint64                    // turn of the last one
	ready atomic.Pointer[balancer.SubConn] // nil: it is not

	// Guarded by pool.mu. changed is closed and made anew when the state changes.
	conn    balancer.SubConn
	state   connectivity.State
	err     error
	again   time.Time // of a connection that failed: not tried before
	changed chan struct{}
}

// redial is how long a member that could not be connected is not tried again.
const redial = 50 * time.Millisecond

// UpdateClientConnState implements balancer.Balancer.
func (p *pool) UpdateClientConnState(s balancer.ClientConnState) error {
	r, ok := s.ResolverState.Attributes.Value(routeAttribute{}).(*route)
	if !ok {
		return fmt.Errorf("policy %s is for targets %s:///KEYSPACE of grpcroute.NewClient", Policy, Scheme)
	}
	p.mu.Lock()
	p.route = r
	p.mu.Unlock()
	p.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: &picker{p}})
	r.use(p)
	return nil
}

// ResolverError, UpdateSubConnState, ExitIdle and Close implement balancer.Balancer.
func (*pool) ResolverError(error)                                        {}
func (*pool) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (*pool) ExitIdle()                                                  {}

// Close implements balancer.Balancer.
func (p *pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	for _, o := range p.owners {
		p.endLocked(o, errClosed)
	}
	if p.route != nil {
		p.route.leave(p)
	}
}

// here is why a call was not sent that is not the member's fault: it does not count against it.
type here struct{ error }

var errClosed = here{errors.New("the ClientConn was closed, or is idle")}

// endLocked has an owner be none any more. p.mu is held.
func (p *pool) endLocked(o *owner, why error) {
	delete(p.owners, o.place)
	o.ready.Store(nil)
	o.state, o.err = connectivity.Shutdown, why
	if o.conn != nil {
		o.conn.Shutdown()
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

// get connects a member for one call, which ends with put. The error is that of a call that
// was not sent.
func (p *pool) get(ctx context.Context, to place, within time.Duration) (*owner, error) {
	p.mu.RLock()
	o := p.owners[to]
	if o != nil && o.ready.Load() != nil { // who ends it meanwhile has the call picked nowhere, and tried again
		o.calls.Add(1)
		p.mu.RUnlock()
		o.used.Store(p.turn.Load())
		return o, nil
	}
	p.mu.RUnlock()
	p.mu.Lock()
	o, err := p.findLocked(to)
	if err != nil {
		p.mu.Unlock()
		return nil, err
	}
	o.calls.Add(1)
	o.used.Store(p.turn.Load())
	if o.state == connectivity.Ready {
		p.mu.Unlock()
		return o, nil
	}
	p.mu.Unlock()
	if err := p.await(ctx, o, within); err != nil {
		p.put(o)
		return nil, err
	}
	return o, nil
}

func (p *pool) put(o *owner) { o.calls.Add(-1) }

// findLocked finds or makes an owner. p.mu is held.
func (p *pool) findLocked(to place) (*owner, error) {
	if p.closed {
		return nil, errClosed
	}
	if o := p.owners[to]; o != nil {
		return o, nil
	}
	most, idle := p.route.cfg.MaxMembers, p.route.cfg.IdleFor
	if len(p.owners) >= most && !p.roomLocked() {
		return nil, here{fmt.Errorf("%d members are connected and in use: raise Config.MaxMembers", most)}
	}
	o := &owner{place: to, changed: make(chan struct{})}
	p.owners[to] = o
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idle, p.sweepIdle)
	} else if len(p.owners) == 1 {
		p.sweep.Reset(idle)
	}
	return o, nil
}

// roomLocked ends a connection that no call uses, the least used of some. p.mu is held.
func (p *pool) roomLocked() bool {
	var end *owner
	looked := 0
	for _, o := range p.owners {
		if o.calls.Load() == 0 && (end == nil || o.used.Load() < end.used.Load()) {
			end = o
		}
		if looked++; looked >= 64 && end != nil {
			break
		}
	}
	if end == nil {
		return false
	}
	p.endLocked(end, errClosed)
	return true
}

// sweepIdle ends connections that were not used since the last time.
func (p *pool) sweepIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	turn := p.turn.Add(1)
	for _, o := range p.owners {
		if o.calls.Load() == 0 && o.used.Load()+1 < turn {
			p.endLocked(o, errClosed)
		}
	}
	if len(p.owners) > 0 {
		p.sweep.Reset(p.route.cfg.IdleFor)
	}
}

// await connects an owner and waits for that.
func (p *pool) await(ctx context.Context, o *owner, within time.Duration) error {
	over := time.NewTimer(within)
	defer over.Stop()
	for {
		p.mu.Lock()
		if o.state == connectivity.TransientFailure && !time.Now().Before(o.again) {
			o.state = connectivity.Idle
		}
		changed, state, err := o.changed, o.state, o.err
		if state == connectivity.Idle {
			err = p.connectLocked(o)
			state = o.state
		}
		p.mu.Unlock()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return err
		}
		if err != nil && state == connectivity.Idle {
			return err
		}
		select {
		case <-changed:
		case <-over.C:
			return fmt.Errorf("no connection to %s within %v", o.address, within)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// connectLocked begins to connect. p.mu is held.
func (p *pool) connectLocked(o *owner) error {
	if o.conn == nil {
		var conn balancer.SubConn
		host, _, err := net.SplitHostPort(o.address)
		if err != nil || host == "" {
			return fmt.Errorf("address %.200q is not HOST:PORT", o.address)
		}
		//lint:ignore SA1019 it is to take one address, which is what it gets; nothing else makes a SubConn
		conn, err = p.cc.NewSubConn([]resolver.Address{{Addr: o.address, ServerName: o.address, Attributes: mtls.Named(nil, string(o.member))}}, balancer.NewSubConnOptions{
			StateListener: func(s balancer.SubConnState) { p.became(o, conn, s) },
		})
		if err != nil {
			return err
		}
		o.conn = conn
	}
	o.state = connectivity.Connecting
	o.conn.Connect()
	return nil
}

// became takes note of what a connection became.
func (p *pool) became(o *owner, conn balancer.SubConn, s balancer.SubConnState) {
	p.mu.Lock()
	if o.conn != conn || o.state == connectivity.Shutdown {
		p.mu.Unlock()
		return
	}
	was := o.state
	switch s.ConnectivityState {
	case connectivity.TransientFailure:
		// gRPC would wait for longer and longer; callers have their own pauses.
		o.conn, o.err, o.again = nil, s.ConnectionError, time.Now().Add(redial)
		conn.Shutdown()
	case connectivity.Shutdown:
		p.mu.Unlock()
		return
	}
	o.state = s.ConnectivityState
	if o.ready.Store(nil); o.state == connectivity.Ready {
		o.ready.Store(&conn)
	}
	close(o.changed)
	o.changed = make(chan struct{})
	lost := was == connectivity.Ready && !p.closed
	p.mu.Unlock()
	if lost { // wakes calls that gRPC has pick again because the connection went away meanwhile
		p.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: &picker{p}})
	}
}

// picker gives calls the connection that was waited for.
type picker struct{ *pool }

type tryOfContext struct{}

// try is one way of a call to one member, with what gRPC tells of it.
type try struct {
	target router.Target
	owner  *owner
	// Of a stream: what looks after the member, and the context of that.
	attempt *router.Attempt
	ctx     context.Context
	// Written by gRPC before the call returns.
	mu      sync.Mutex
	unsent  bool   // the last pick found no connection
	refused string // the word of a refusal
}

var errNoTry = status.Error(codes.Internal, "a call without a target: use the ClientConn of grpcroute.NewClient, whose interceptors find it")

// Pick implements balancer.Picker.
func (*picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	t, ok := info.Ctx.Value(tryOfContext{}).(*try)
	if !ok {
		return balancer.PickResult{}, errNoTry
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	conn := t.owner.ready.Load()
	if t.unsent = conn == nil; t.unsent {
		return balancer.PickResult{}, status.Errorf(codes.Unavailable, "the connection to %s was lost", t.owner.address)
	}
	return balancer.PickResult{SubConn: *conn, Done: t.done}, nil
}

// done hears what became of an attempt.
func (t *try) done(info balancer.DoneInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = ""
	if said := info.Trailer[MetadataRefused]; len(said) == 1 {
		t.refused = said[0]
	}
}
