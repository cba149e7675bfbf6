// Package coordinator puts a coordinator together: a root client, the view it
// feeds, the Tenure, and the gRPC service over them.
//
// It owns the life of these parts and no state of its own. It promises: (1) a
// coordinator that cannot reach the root serves what it has, labelled; (2) it
// registers its address in the root and keeps trying until that is true;
// (3) while the process that is registered under its id answers, it stops with
// ErrInUse and leaves that one alone; when a newer process has registered under its
// id, it stops with ErrSuperseded; (4) on shutdown it retires its era first, while it can still
// answer, then stops serving and leaves the list of coordinators; taken off
// that list while it lives, it joins again.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/claims"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/idle"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/seal"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
)

// ErrSuperseded: a newer process runs under the same coordinator id.
var ErrSuperseded = errors.New("a newer coordinator process runs under this id: give each process an id of its own")

// ErrInUse: the process that is registered under the same coordinator id lives.
var ErrInUse = errors.New("another coordinator process runs under this id: give each process an id of its own, or stop that one first")

const (
	// maxIDStart leaves 2^60 ids.
	maxIDStart = idalloc.MaxID - 1<<60
	// maxTSOAhead is how far ahead of its clock a root leader lets timestamps run.
	maxTSOAhead = 10 * time.Minute
)

// Config describes one coordinator.
type Config struct {
	// ID is its configured name, the same after a restart.
	ID string
	// Incarnation is random per process start and not 0.
	Incarnation uint64
	// Advertise is the address callers reach it at, host:port.
	Advertise string
	// RootPeers are the gRPC addresses of the root peers by node id.
	RootPeers map[uint64]string
	// TenureTTL is how long a confirmation of authority is good for; 0 trusts no clock.
	TenureTTL time.Duration
	// TenureTTLMost is up to where it grows while confirmations come late; 0: it does not.
	TenureTTLMost time.Duration
	// IDStart and TSOStart are the lowest id and timestamp ever to serve: 2^60 ids
	// are left above the one, and the other is at most ten minutes ahead of the clock.
	IDStart, TSOStart uint64
	// Version of the software, shown by Status.
	Version string
	// TLS has every connection show a certificate of the cluster, of callers, to the
	// root and to other coordinators. Nil: plain connections; Insecure says that they
	// are plain where others reach them.
	TLS      *mtls.Source
	Insecure bool
	// Secret seals the keys that are made here, and opens them. Nil: they are not sealed.
	Secret *seal.Key
	// Strategies are an application's own, by the names of keyspaces: they count instead of what
	// the settings of those say, a hook too. Every coordinator of a cluster needs the same.
	Strategies map[string]Strategy
	// HookAllow are the addresses at which hooks of keyspaces may be asked, as hook.ParseAllow reads them.
	// None: no hook is asked.
	HookAllow []string
	// Budget bounds in bytes what callers can make the process hold. Nil: one of the
	// default size of its own.
	Budget *budget.Budget
	// Frozen is asked before each look of the planner: while it says so nothing is planned, and
	// steps of moves wait. Verdicts, drains and what is asked for go on. Nil: never; for tests.
	Frozen func() bool
	// Clock and Dial are the machine's and TCP unless a test brings its own.
	Clock clock.Clock
	Dial  func(ctx context.Context, address string) (net.Conn, error)
	// Logger takes the lifecycle.
	Logger hclog.Logger
}

// Coordinator is one coordinator process. Make it with New, run it once.
type Coordinator struct {
	cfg      Config
	root     *rootclient.Client
	follower *rootview.Follower
	holder   *tenure.Holder
	server   *server.Server
	stats    *rpcstats.Stats
	prober   *prober
	rival    rival
	assigner *assigner.Assigner
	hooks    *hook.Client
	claims   *claims.Desk
	idle     *idle.Releaser
	others   *others
	clock    clock.Clock
	started  clock.Instant
	reach    *reachability
}

// Validate says what of the Config could never work.
func (c *Config) Validate() error {
	for what, text := range map[string]string{"id": c.ID, "address": c.Advertise} {
		if !utf8.ValidString(text) {
			return fmt.Errorf("coordinator %s %q is not UTF-8", what, text)
		}
	}
	if d := state.CheckCommand(c.joined(0)); d != nil {
		return errors.New(d.GetMessage())
	}
	switch {
	case c.IDStart > maxIDStart:
		return fmt.Errorf("id start %d: the highest is %d; what is skipped never comes back, and ids end at %d", c.IDStart, uint64(maxIDStart), uint64(idalloc.MaxID))
	case c.TSOStart>>state.TSOLogicalBits > uint64(time.Now().Add(maxTSOAhead).UnixMilli()):
		return fmt.Errorf("timestamp start %d: its time, in the bits above the lowest %d, is more than %v ahead of this machine's clock; what is skipped never comes back",
			c.TSOStart, state.TSOLogicalBits, maxTSOAhead)
	}
	return nil
}

// dialOptions have connections made by Dial; none: as always.
func (c *Config) dialOptions() []grpc.DialOption {
	if c.Dial == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(c.Dial)}
}

// New puts a coordinator together; it starts nothing.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Budget == nil {
		cfg.Budget = budget.New(budget.Default())
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.NewSystem()
	}
	c := &Coordinator{cfg: cfg, stats: rpcstats.New(), clock: cfg.Clock}
	c.started = c.clock.Now()
	var err error
	c.root, err = rootclient.New(rootclient.Config{Peers: cfg.RootPeers, ReaderID: cfg.ID, TLS: cfg.TLS, DialOptions: cfg.dialOptions(), Logger: cfg.Logger.Named("root")})
	if err != nil {
		return nil, err
	}
	c.follower, err = rootview.New(rootview.Config{Root: rootSource{c.root}, ReadIndexer: c.root, Clock: c.clock, Logger: cfg.Logger.Named("view")})
	if err != nil {
		return nil, err
	}
	c.reach = newReachability(c.root.Status, c.clock, cfg.Logger.Named("root"))
	c.prober = newProber(cfg.TLS, cfg.Dial)
	c.rival = rival{ask: askStatus(cfg.TLS, cfg.dialOptions()...), refuses: func(ctx context.Context, address string) bool {
		return c.prober.refuses(ctx, address, knockFor/2)
	}}
	c.holder, err = tenure.New(tenure.Config{
		ID: cfg.ID, Incarnation: cfg.Incarnation, Address: cfg.Advertise, TTL: cfg.TenureTTL, MostTTL: cfg.TenureTTLMost,
		IDStart: cfg.IDStart, TSOStart: cfg.TSOStart,
		Root: c.root, Views: authorityViews{c.follower}, Probe: c.prober.probe, Alarm: c.prober.broken,
		Clock: c.clock, Logger: cfg.Logger.Named("tenure"),
	})
	if err != nil {
		return nil, err
	}
	soft := catalog.NewSoft(catalog.SoftConfig{})
	allow, err := hook.ParseAllow(cfg.HookAllow...)
	if err != nil {
		return nil, fmt.Errorf("hook allow %w", err)
	}
	c.hooks = hook.NewClient(allow)
	c.others = newOthers(cfg.TLS, func() uint64 { return c.follower.View().ClusterID }, cfg.dialOptions()...)
	strategies := together(cfg.Strategies)
	c.assigner, err = assigner.New(assigner.Config{
		ID: state.CoordinatorID(cfg.ID), Incarnation: cfg.Incarnation, Views: c.follower, Root: c.root, Soft: soft,
		Probe: memberProbe(cfg.TLS, cfg.Dial), Ask: c.others.heard, Hooks: c.hooks, Strategies: strategies, Frozen: cfg.Frozen, Clock: c.clock, Logger: cfg.Logger.Named("assigner"),
	})
	if err != nil {
		return nil, err
	}
	c.claims, err = claims.New(claims.Config{
		ID: state.CoordinatorID(cfg.ID), Incarnation: cfg.Incarnation, Views: c.follower, Root: c.root, Observed: c.assigner.Observed(),
		Load:       func(id state.MemberID, incarnation uint64) (float64, bool) { return c.server.SaidLoad(id, incarnation) },
		Strategies: strategies, AskHook: c.assigner.AskHook, Clock: c.clock, Logger: cfg.Logger.Named("claims"),
	})
	if err != nil {
		return nil, err
	}
	c.server, err = server.New(server.Config{
		ID: state.CoordinatorID(cfg.ID), Address: cfg.Advertise, Incarnation: cfg.Incarnation, Version: cfg.Version,
		Views: c.follower, Authority: c.holder, Root: c.root, RootPeers: c.reach.endpoints, Answers: answers(cfg.TLS, cfg.dialOptions()...), Relay: c.others.relay,
		Soft: soft, Members: hearers{c.assigner, c}, Standing: c.assigner.Standing, Rounds: c.assigner.Rounds, Scaling: c.assigner.Scaling, RestingHooks: c.assigner.RestingHooks, Notes: c.assigner, Claims: c.claims,
		Planner: c.assigner,
		Clock:   c.clock, TLS: cfg.TLS, Insecure: cfg.Insecure, Secret: cfg.Secret, Logger: cfg.Logger.Named("server"), Stats: c.stats, Budget: cfg.Budget,
	})
	if err != nil {
		return nil, err
	}
	c.assigner.UseStreams(c.server)
	c.idle, err = idle.New(idle.Config{
		ID: state.CoordinatorID(cfg.ID), Incarnation: cfg.Incarnation, Views: c.follower, Root: c.root, Soft: soft, Commands: c.server,
		Clock: c.clock, Logger: cfg.Logger.Named("idle"),
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Run serves on lis until ctx ends or the coordinator is superseded. It closes lis.
func (c *Coordinator) Run(ctx context.Context, lis net.Listener) error {
	// The root client outlives everything, because retiring needs it; the
	// server outlives the holder, so that clients are told to go elsewhere.
	rootCtx, stopRoot := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRoot()
	serveCtx, stopServing := context.WithCancel(rootCtx)
	defer stopServing()
	workCtx, stopWork := context.WithCancelCause(ctx)
	defer stopWork(nil)

	var base, serving, work sync.WaitGroup
	base.Go(func() { c.cfg.TLS.Run(rootCtx) })
	base.Go(func() { c.fatal(stopWork, "root client", c.root.Run(rootCtx)) })
	base.Go(func() { c.fatal(stopWork, "root view", c.follower.Run(rootCtx)) })
	serving.Go(func() { c.fatal(stopWork, "serve "+c.cfg.Advertise, c.server.Run(serveCtx, lis)) })
	work.Go(func() { c.fatal(stopWork, "tenure", c.holder.Run(workCtx)) })
	work.Go(func() { c.fatal(stopWork, "assigner", c.assigner.Run(workCtx)) })
	work.Go(func() { c.fatal(stopWork, "claims", c.claims.Run(workCtx)) })
	work.Go(func() { c.fatal(stopWork, "idle", c.idle.Run(workCtx)) })
	work.Go(func() { c.register(workCtx, stopWork) })
	work.Go(func() { c.reach.watch(workCtx) })
	work.Go(func() { c.endCutOff(workCtx) })

	<-workCtx.Done()
	work.Wait() // retires the era
	stopServing()
	c.leave(rootCtx) // nobody waits for it: whoever asks now is told to go elsewhere
	serving.Wait()
	stopRoot()
	base.Wait()
	c.prober.close()
	c.others.close()
	c.hooks.Close()
	c.root.Close()
	if cause := context.Cause(workCtx); ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// fatal ends the coordinator with the error of a part of it.
func (c *Coordinator) fatal(stop context.CancelCauseFunc, part string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		stop(fmt.Errorf("%s: %w", part, err))
	}
}

// Healthy answers whether the root answers a read index in time.
func (c *Coordinator) Healthy(ctx context.Context) error {
	if _, err := c.root.ReadIndex(ctx); err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	return nil
}

// Verify is whose a bearer token is, by the newest view.
func (c *Coordinator) Verify(token string) (principal.Principal, error) {
	return bearer.Verify(token, c.follower.View().State, c.cfg.Secret)
}

// hearers are those who hear of members' streams.
type hearers struct {
	*assigner.Assigner
	of *Coordinator
}

// Frame implements server.MemberEvents.
func (h hearers) Frame(f server.HeardFrame) {
	h.Assigner.Frame(f)
	h.of.idle.Frame(f)
}

// rootSource is the root client as a source of views.
type rootSource struct{ *rootclient.Client }

// Tail implements rootview.Root.
func (r rootSource) Tail(ctx context.Context, after state.Token) (rootview.TailStream, error) {
	return r.Client.Tail(ctx, after)
}

// authorityViews shows the Tenure of the newest view.
type authorityViews struct{ follower *rootview.Follower }

// Authority implements tenure.Views. Who read the log from its beginning claimed every era
// that it came by.
func (v authorityViews) Authority() (tenure.Authority, bool) {
	view := v.follower.View()
	if view.State == nil || view.Token.Index == 0 || !view.Loaded() {
		return tenure.Authority{}, false
	}
	a := tenure.Authority{
		Tenure: view.State.Tenure(), Index: view.Token.Index,
		MostTTL: time.Duration(min(view.State.Settings().GetMaxTenureTtlMillis(), state.MaxTenureTTLMillis)) * time.Millisecond,
	}
	if h := view.State.Handovers(); len(h) > 0 {
		a.Handover = h[len(h)-1]
	}
	return a, true
}

// Changed implements tenure.Views.
func (v authorityViews) Changed() <-chan struct{} { return v.follower.Changed() }
