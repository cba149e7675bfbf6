package gate_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
)

// placed is a connection that a listener may evict.
type placed struct {
	net.Conn
	evict func()
}

func (p *placed) SetBusy(bool)       {}
func (p *placed) OnEvict(end func()) { p.evict = end }

// A connection that makes room is ended at once, also one under TLS whose client
// takes nothing: the listener that needs its place waits in Accept.
func TestEvictDoesNotWaitForTLS(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where the bubble begins
	a, err := ca.New("prod", now, 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	folder := func(role principal.Role, name string) *mtls.Source {
		p, err := a.Issue(ca.Request{Role: role, Name: name, Life: 100 * time.Hour}, now)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := p.Save(dir); err != nil {
			t.Fatal(err)
		}
		s, err := mtls.Open(dir, mtls.Options{Now: func() time.Time { return now.Add(time.Hour) }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	server, client := folder(principal.Coordinator, "c1"), folder(principal.Client, "app")
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(gate.Config{Budget: budget.New(64 * mib), MaxStreams: 10, Changes: func(string) bool { return false }, Logger: hclog.NewNullLogger()})
		left, right := net.Pipe()
		raw := &placed{Conn: right}
		shaken := make(chan net.Conn)
		go func() {
			c, _, err := client.Client(principal.Coordinator).ClientHandshake(context.Background(), "", left)
			if err != nil {
				t.Error(err)
			}
			shaken <- c
		}()
		conn, _, err := g.Credentials(server.Server()).ServerHandshake(raw)
		if err != nil {
			t.Fatal(err)
		}
		peer := <-shaken
		began := time.Now()
		raw.evict()
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("eviction took %v", d)
		}
		_ = conn.Close()
		_ = left.Close()
		_ = peer.Close()
	})
}
