package nokvtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/router"
)

// ErrKilled is the error of requests that a killed member did not run: package router goes on with them elsewhere, as
// it does where a connection is refused.
var ErrKilled = router.NotSent(errors.New("nokvtest: the member was killed"))

// ErrLost is the error of requests during which a member was killed: they may have been run. Package router takes it
// for a connection that broke, and repeats what is idempotent.
var ErrLost = fmt.Errorf("nokvtest: the member was killed while the request ran: %w", io.ErrUnexpectedEOF)

// Member is a member that runs in the test's process.
type Member struct {
	*member.Member
	id      string
	cluster *Cluster
	host    *host
	client  *client.Client
	stop    context.CancelFunc
	ended   chan struct{}
	result  error
	dead    atomic.Bool
}

// Member starts a member for keyspaces, all without any, and waits until it is known. Its
// address is ID:7000, of the network in memory, and ID:7001 its probe, which is registered with the
// IP address that the id has there.
func (c *Cluster) Member(t testing.TB, id string, h member.Handler, keyspaces ...string) *Member {
	t.Helper()
	return c.MemberOf(t, member.Config{ID: id, Keyspaces: keyspaces}, h)
}

// MemberOf is Member with settings of its own: what is empty is filled in. A second process of an
// id needs another ProbeAddress, such as ID:7002, and takes over from the first.
func (c *Cluster) MemberOf(t testing.TB, cfg member.Config, h member.Handler) *Member {
	t.Helper()
	m := &Member{id: cfg.ID, cluster: c, host: &host{name: cfg.ID}, ended: make(chan struct{})}
	if cfg.Address == "" {
		cfg.Address = cfg.ID + ":7000"
	}
	if cfg.ProbeAddress == "" {
		cfg.ProbeAddress = cfg.ID + ":7001"
	}
	if cfg.Listen == nil {
		cfg.Listen = m.listen
	}
	cfg.Killed = m.dead.Load
	if cfg.Elapsed == nil {
		begun := time.Now()
		cfg.Elapsed = func() time.Duration { return time.Since(begun) }
	}
	own := cfg.Client == nil
	var err error
	if m.client, err = client.New(c.clientConfig(m.host)); err != nil {
		t.Fatalf("nokvtest: member %q: %v", cfg.ID, err)
	}
	if own {
		cfg.Client = m.client
	}
	if cfg.Logger == nil {
		cfg.Logger = c.options.logger.Named("member")
	}
	if m.Member, err = member.New(cfg); err != nil {
		_ = m.client.Close()
		t.Fatalf("nokvtest: member %q: %v", cfg.ID, err)
	}
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	c.mu.Lock()
	ended := c.ended
	if !ended {
		c.members = append(c.members, m)
	}
	c.mu.Unlock()
	if ended {
		m.stop()
		_ = m.client.Close()
		t.Fatalf("nokvtest: member %q: the cluster has ended with its test", cfg.ID)
	}
	go func() {
		defer close(m.ended)
		m.result = m.Member.Run(ctx, h)
	}()
	if err := c.await(func(context.Context) (bool, error) {
		select {
		case <-m.ended:
			return false, errors.Join(errors.New("it ended"), m.result)
		default:
			s := m.Status()
			return s.Incarnation != 0 && s.Holder != "", nil
		}
	}); err != nil {
		t.Fatalf("nokvtest: member %q is not known: %v", cfg.ID, err)
	}
	return m
}

func (m *Member) listen(_ context.Context, _, address string) (net.Listener, error) {
	return m.cluster.net.listen(m.host, m.cluster.net.bound(address), nil)
}

// Do lets a request in: see member.Member. The answer of a member that is killed meanwhile does not arrive.
func (m *Member) Do(ctx context.Context, req member.Request, fn func(context.Context, member.Region) error) error {
	if m.dead.Load() {
		return ErrKilled
	}
	var ran atomic.Bool
	err := m.Member.Do(ctx, req, func(ctx context.Context, r member.Region) error {
		ran.Store(true)
		return fn(ctx, r)
	})
	switch {
	case !m.dead.Load():
		return err
	case ran.Load():
		return ErrLost
	}
	return ErrKilled
}

// Kill ends a member as kill -9 does: its streams and its probe go at once, its Handler is not
// called again, and requests are told ErrKilled, or ErrLost where they run already.
func (m *Member) Kill(testing.TB) {
	m.dead.Store(true)
	m.cluster.net.kill(m.host)
	m.stop()
}

// Stop ends a member as SIGTERM does: it releases what it has, and Stop returns when it has
// ended. Drain before that gives it to others.
func (m *Member) Stop(t testing.TB) {
	t.Helper()
	m.stop()
	<-m.ended
	if m.result != nil && !m.dead.Load() {
		t.Errorf("nokvtest: member %q ended: %v", m.id, m.result)
	}
}
