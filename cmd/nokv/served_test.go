package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// host runs a member in this process until the test ends.
func (h *hosting) host(cfg member.Config, app member.Handler) {
	h.t.Helper()
	m, err := member.New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, app) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("member %s: %v", cfg.ID, err)
		}
	})
}

// ailing cannot acquire anything while it is set.
type ailing struct {
	takesAll
	is atomic.Bool
}

func (a *ailing) Acquire(context.Context, member.Region) error {
	if a.is.Load() {
		return errors.New("the disk is full")
	}
	return nil
}

// Rule 11: nokv status calls a cluster degraded whose regions all have an owner that does not serve them.
func TestRule11StatusIsDegradedWhileNothingIsServed(t *testing.T) {
	h := startForWorkers(t)
	h.must("keyspace", "create", "fleet", "--preset", "partitions")
	app := &ailing{}
	app.is.Store(true)
	h.host(member.Config{ID: "m1", Address: "127.0.0.1:7000", Client: h.client}, app)
	is := func(state string, unserved bool) func(context.Context) error {
		return func(context.Context) error {
			var out statusOutput
			r := h.Run("status", "-o", "json", "--coordinator-addr", h.Coordinators())
			if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
				return err
			}
			stuck := slices.ContainsFunc(out.Stuck, func(s stuckOutput) bool { return s.Why == "not_served" })
			if out.State != state || stuck != unserved || out.Members == nil || out.Members.Orphaned != 0 {
				return fmt.Errorf("the cluster is %s: %s; %+v", out.State, out.StateWhy, out.Stuck)
			}
			return nil
		}
	}
	h.eventually(is(stateDegraded, true))
	app.is.Store(false)
	h.eventually(is(stateSingle, false))
}

// brittle are connections that can all be cut, and no new ones be made meanwhile.
type brittle struct {
	mu  sync.Mutex
	all map[net.Conn]struct{}
	cut bool
}

func (b *brittle) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut {
		_ = conn.Close()
		return nil, errors.New("cut")
	}
	b.all[conn] = struct{}{}
	return conn, nil
}

func (b *brittle) set(cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut = cut; cut {
		for conn := range b.all {
			_ = conn.Close()
		}
		clear(b.all)
	}
}

// Rule 6, as it was found: the probe address is a name of two families, one of which nobody listens at. The
// member is cut off, and lives: it is asked at the socket that it listens at, and not failed.
func TestRule6AProbeAddressWithTwoFamilies(t *testing.T) {
	h := startForWorkers(t)
	h.must("keyspace", "create", "fleet", "--preset", "games") // whose members are probed
	lines := &brittle{all: map[net.Conn]struct{}{}}
	c, err := client.New(client.Config{Endpoints: h.CoordinatorAddrs, DialOptions: []grpc.DialOption{grpc.WithContextDialer(lines.dial)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, port, err := net.SplitHostPort(proctest.Addrs(t, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	h.host(member.Config{ID: "m1", Address: "127.0.0.1:7000", ProbeAddress: "localhost:" + port, Client: c}, takesAll{})
	h.eventually(func(ctx context.Context) error { return h.connected(ctx, 1) })
	if conn, err := net.Dial("tcp", net.JoinHostPort("::1", port)); err == nil {
		_ = conn.Close()
		t.Error("the probe listens at ::1 too, and nothing is tried here")
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Logf("this machine has one family: %v", err)
	}
	before, err := h.client.GetMember(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	lines.set(true)
	h.eventually(func(ctx context.Context) error {
		var said []string
		for _, address := range h.CoordinatorAddrs { // only the holder probes
			m, err := h.client.GetMemberAt(ctx, address, "m1")
			switch {
			case err != nil:
				return err
			case m.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE:
				t.Fatalf("the member lives, and is %v", m)
			case slices.Contains(m.GetSignals(), "probe_answered"):
				return nil
			}
			said = append(said, m.GetSignals()...)
		}
		return fmt.Errorf("its probe is not known to have answered: %v", said)
	})
	lines.set(false)
	h.eventually(func(ctx context.Context) error { return h.connected(ctx, 1) })
	if after, err := h.client.GetMember(t.Context(), "m1"); err != nil || after.GetMember().GetIncarnation() != before.GetMember().GetIncarnation() {
		t.Errorf("it is %v, %v; before it was cut off it was %v", after, err, before)
	}
}
