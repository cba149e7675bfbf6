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
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

// placed is a connection that a listener may evict.
type placed struct {
	net.Conn
	evict func()
}

func (p *placed) SetBusy(bool)       {}
func (p *placed) OnEvict(end func()) { p.evict = end }

// certified makes the certificates of a coordinator and of one that calls it.
func certified(t *testing.T) (coordinator, app *mtls.Source) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where a bubble begins
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
	return folder(principal.Coordinator, "c1"), folder(principal.Client, "app")
}

// shake is a connection under TLS that passed the gate, as both sides have it. Nobody
// reads from it.
func shake(t *testing.T, g *gate.Gate, server, client *mtls.Source) (raw *placed, conn, peer net.Conn) {
	left, right := net.Pipe()
	raw = &placed{Conn: right}
	shaken := make(chan net.Conn)
	go func() {
		c, _, err := client.Client(mtls.Peer{Role: principal.Coordinator}).ClientHandshake(context.Background(), "", left)
		if err != nil {
			t.Error(err)
		}
		shaken <- c
	}()
	conn, _, err := g.Credentials(server.Server()).ServerHandshake(raw)
	if err != nil {
		t.Fatal(err)
	}
	return raw, conn, <-shaken
}

func lonely() *gate.Gate {
	return gate.New(gate.Config{Budget: budget.New(64 * mib), MaxStreams: 10, Changes: func(string) bool { return false }, Logger: hclog.NewNullLogger()})
}

// A connection that makes room is ended at once, also one under TLS whose client
// takes nothing: the listener that needs its place waits in Accept.
func TestEvictDoesNotWaitForTLS(t *testing.T) {
	server, client := certified(t)
	synctest.Test(t, func(t *testing.T) {
		raw, conn, peer := shake(t, lonely(), server, client)
		began := time.Now()
		raw.evict()
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("eviction took %v", d)
		}
		_ = conn.Close()
		_ = raw.Close()
		_ = peer.Close()
	})
}

// The clock of all connections does not wait for those it ends, however many of them
// take nothing.
func TestTheClockDoesNotWaitForTLS(t *testing.T) {
	server, client := certified(t)
	synctest.Test(t, func(t *testing.T) {
		g := lonely()
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan struct{})
		go func() {
			g.Run(ctx)
			close(running)
		}()
		var all []net.Conn
		const many = 100
		for range many {
			_, conn, peer := shake(t, g, server, client)
			go func() { _, _ = peer.Write([]byte("PRI * HT")) }()
			if _, err := conn.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			all = append(all, conn, peer)
		}
		time.Sleep(gate.HeaderTimeout + time.Second + time.Millisecond)
		if v := g.Vars(nil); v.Closed["slow_headers"] != many || v.Idle > 0 {
			t.Errorf("a second behind their time of %d connections %d are ended, %d are there", many, v.Closed["slow_headers"], v.Idle)
		}
		cancel()
		for _, c := range all {
			_ = c.Close()
		}
		<-running
	})
}
