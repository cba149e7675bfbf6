package grpcroute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/mtls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// route is what a ClientConn of NewClient has besides gRPC's.
type route struct {
	cfg      Config
	keyspace []string

	mu sync.Mutex
	// Guarded by mu: the pool, nil while gRPC has none, and what is closed when there is one.
	pool *pool
	come chan struct{}
}

// NewClient makes a ClientConn whose calls go to the owners of their keys. The target is
// nokv:///KEYSPACE, of one that the Router follows. Options are gRPC's: interceptors among
// them see one call, however often it is tried. A service config (grpc.WithDefaultServiceConfig)
// has to name the policy, as ServiceConfig does; its timeouts bound all tries together,
// wait_for_ready has a call wait for an owner as long as its deadline allows, and a
// retryPolicy that lists UNAVAILABLE says that a method may be run twice. That is all it says: gRPC
// repeats nothing by itself here, so that other codes of a retryPolicy are not tried again.
func NewClient(target string, cfg Config, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	name, ok := strings.CutPrefix(target, Scheme+":///")
	if !ok || name == "" {
		return nil, fmt.Errorf("grpcroute target %.200q: want %s:///KEYSPACE", target, Scheme)
	}
	followed := false
	for _, s := range cfg.Router.State() {
		followed = followed || s.Keyspace == name
	}
	if !followed {
		return nil, fmt.Errorf("grpcroute target %.200q: the Router does not follow keyspace %.80q: name it in router.Config.Keyspaces", target, name)
	}
	r := &route{cfg: cfg, keyspace: []string{name}, come: make(chan struct{})}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = cfg.TLS.Client(mtls.Peer{Role: principal.Member}) // and of each its own name: see connectLocked
	}
	bare, err := ServiceConfig("")
	if err != nil {
		return nil, err
	}
	all := []grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithDefaultServiceConfig(bare), grpc.WithIdleTimeout(0), grpc.WithNoProxy()}
	all = append(all, opts...)
	all = append(all, grpc.WithDisableRetry()) // what is tried again, and where, the router says, and counts
	// Last, so that they are next to the wire.
	all = append(all, grpc.WithResolvers(r), grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream))
	return grpc.NewClient(target, all...)
}

// ServiceConfig adds the policy of this package to a service config in JSON, which may be
// empty, for grpc.WithDefaultServiceConfig.
func ServiceConfig(of string) (string, error) {
	all := map[string]json.RawMessage{}
	if of != "" {
		if err := json.Unmarshal([]byte(of), &all); err != nil {
			return "", fmt.Errorf("service config: %w", err)
		}
	}
	all["loadBalancingConfig"] = json.RawMessage(`[{"` + Policy + `":{}}]`)
	out, err := json.Marshal(all)
	return string(out), err
}

// use and leave are the pool's.
func (r *route) use(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool == nil {
		close(r.come)
	}
	r.pool = p
}

func (r *route) leave(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool == p {
		r.pool, r.come = nil, make(chan struct{})
	}
}

// members waits for the pool, which gRPC makes when it is first used, and behind being idle.
func (r *route) members(ctx context.Context, cc *grpc.ClientConn) (*pool, error) {
	r.mu.Lock()
	p, come := r.pool, r.come
	r.mu.Unlock()
	if p != nil {
		return p, nil
	}
	cc.Connect()
	over := time.NewTimer(r.cfg.Dial)
	defer over.Stop()
	select {
	case <-come:
		return r.members(ctx, cc)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-over.C:
		return nil, here{fmt.Errorf("policy %s does not run: the ClientConn was closed, or its service config names another one (see ServiceConfig)", Policy)}
	}
}

// plan is how one call is made.
type plan struct {
	r       *route
	cc      *grpc.ClientConn
	key     []byte
	text    []string // the key, as it is sent
	binary  bool
	options router.Options
	md      metadata.MD // the caller's
}

// plan makes one. The context that it returns ends when the method's timeout is over.
func (r *route) plan(ctx context.Context, method string, message any, cc *grpc.ClientConn, opts []grpc.CallOption) (*plan, context.Context, context.CancelFunc, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	p := &plan{r: r, cc: cc, md: md}
	if _, err := r.members(ctx, cc); err != nil { // behind that the service config is there
		return nil, nil, nil, p.say(ctx, router.NotSent(status.Error(codes.Unavailable, err.Error())))
	}
	var err error
	if r.cfg.Key != nil && message != nil {
		if p.key, err = r.cfg.Key(ctx, method, message); err != nil {
			return nil, nil, nil, toStatus(err)
		}
	}
	if p.key == nil {
		if p.key, err = keyFrom(ctx, md); err != nil {
			return nil, nil, nil, invalid("%v", err)
		}
	}
	p.text, p.binary = []string{string(p.key)}, !printable(p.key)
	p.options = router.Options{Keyspace: r.keyspace[0], ClaimOnMiss: r.cfg.ClaimOnMiss, ReassignOrphans: true, Hold: r.cfg.Hold}
	m := cc.GetMethodConfig(method)
	p.options.Idempotent = r.cfg.Idempotent != nil && r.cfg.Idempotent(method) || m.RetryPolicy != nil && m.RetryPolicy.RetryableStatusCodes[codes.Unavailable]
	waits := m.WaitForReady != nil && *m.WaitForReady
	for _, o := range opts {
		if f, ok := o.(grpc.FailFastCallOption); ok {
			waits = !f.FailFast
		}
	}
	if waits {
		p.options.Hold = -1
	}
	cancel := context.CancelFunc(func() {})
	if m.Timeout != nil && *m.Timeout >= 0 {
		ctx, cancel = context.WithTimeout(ctx, *m.Timeout)
	}
	return p, ctx, cancel, nil
}

// open finds a connection to a target, and the context that has a call go there. The call
// ends with pool.put.
func (p *plan) open(ctx context.Context, t router.Target) (context.Context, *try, *pool, error) {
	pool, err := p.r.members(ctx, p.cc)
	if err == nil {
		var o *owner
		if o, err = pool.get(ctx, place{t.Member, t.Address}, p.r.cfg.Dial); err == nil {
			md := p.md
			if md == nil {
				md = make(metadata.MD, 5)
			} else {
				md = md.Copy()
			}
			address(md, p.r.keyspace, p.text, p.binary, &t)
			w := &try{target: t, owner: o}
			return context.WithValue(metadata.NewOutgoingContext(ctx, md), tryOfContext{}, w), w, pool, nil
		}
	}
	if ctx.Err() != nil && !errors.As(context.Cause(ctx), new(*router.Gone)) {
		return nil, nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	said := status.Errorf(codes.Unavailable, "member %q was not reached: %v", t.Member, err)
	if errors.As(err, new(here)) {
		return nil, nil, nil, &refusal{Refusal: &router.Refusal{Kind: router.Busy, Said: err.Error()}, err: said}
	}
	return nil, nil, nil, router.NotSent(said)
}

// judge says what an error of a call means: a refusal, that nothing was sent, that the answer
// was lost, or an answer.
func (p *plan) judge(t *try, err error) error {
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.refused != "":
		word := router.OfWord(t.refused)
		no := router.RefusalOf(err)
		if no == nil {
			no = word
			no.Said = status.Convert(err).Message()
		}
		no.Ran = no.Ran || word.Ran
		return &refusal{Refusal: no, err: err}
	case t.unsent: // what it had taken before it took back: it was not processed
		return router.NotSent(err)
	case status.Code(err) == codes.Unavailable:
		return &lost{err}
	}
	return &answer{err}
}

// refusal is what a member said, or this process in its place.
type refusal struct {
	*router.Refusal
	err error
}

// Unwrap has router.RefusalOf find it.
func (e *refusal) Unwrap() error { return e.Refusal }

// lost is a connection that ended before the answer came. What is in its details is not for
// the router: it is not what the member said of itself.
type lost struct{ err error }

func (e *lost) Error() string              { return e.err.Error() }
func (e *lost) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.err.Error()) }

// answer is an error that the call's own handler made, whatever it looks like.
type answer struct{ err error }

func (e *answer) Error() string { return e.err.Error() }

// toStatus is an error as a caller of gRPC expects it.
func toStatus(err error) error {
	switch e := err.(type) { //nolint:errorlint // only the outermost is ours
	case nil:
		return nil
	case *refusal:
		return e.err
	case *lost:
		return e.err
	case *answer:
		return e.err
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.Detail != nil {
		said := (&reason.Error{Detail: e.Detail}).GRPCStatus().Proto()
		if transient(e.Reason) {
			said.Code = int32(codes.Unavailable)
		}
		return status.FromProto(said).Err()
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return s.GRPCStatus().Err()
	}
	return status.FromContextError(err).Err()
}

// transient says whether a key that has no owner to go to may have one soon: clients try again by themselves what is
// UNAVAILABLE.
func transient(why rootv1.Reason) bool {
	switch why {
	case rootv1.Reason_REASON_UNHEALTHY_MEMBER, rootv1.Reason_REASON_NO_ACTIVE_MEMBERS, rootv1.Reason_REASON_OVERLOADED,
		rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, rootv1.Reason_REASON_TENURE_NOT_HELD:
		return true
	}
	return false
}

// say is toStatus of what was the last of a call, whose time may be over.
func (*plan) say(ctx context.Context, err error) error {
	out := toStatus(err)
	if over := ctx.Err(); over != nil && status.Code(out) == codes.Unavailable {
		return status.Error(status.FromContextError(over).Code(), over.Error()+", and before that: "+status.Convert(out).Message())
	}
	return out
}

// unary makes one call.
func (r *route) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	p, ctx, cancel, err := r.plan(ctx, method, req, cc, opts)
	if err != nil {
		return err
	}
	defer cancel()
	return p.say(ctx, r.cfg.Router.Do(ctx, p.key, p.options, func(ctx context.Context, t router.Target) error {
		ctx, w, pool, err := p.open(ctx, t)
		if err != nil {
			return err
		}
		defer pool.put(w.owner)
		return p.judge(w, invoke(ctx, method, req, reply, cc, opts...))
	}))
}
