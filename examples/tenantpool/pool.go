package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

// poolConfig is what a pod is told at its start.
type poolConfig struct {
	// ID and Group of the pod, and where PostgreSQL is.
	ID, Group, Postgres string
	// Connections that the pod has open at most, and PerTenant of them for one tenant.
	Connections, PerTenant int
	// Queue is how many requests of a tenant wait for a connection when it counts as saturated.
	Queue int
	// Idle is after how long a connection is closed that nobody uses.
	Idle time.Duration
}

func (c poolConfig) validate() error {
	switch {
	case c.ID == "":
		return errors.New("say who the pod is: --id")
	case c.Postgres == "":
		return errors.New("say where PostgreSQL is: --postgres, such as 'host=/tmp/pg user=tenantpool dbname=postgres'")
	case c.PerTenant < 1 || c.Connections < c.PerTenant:
		return fmt.Errorf("--per-tenant %d of --connections %d: want 1 at least, and no more than all", c.PerTenant, c.Connections)
	case c.Queue < 1 || c.Idle < time.Second:
		return fmt.Errorf("--queue %d and --idle %v: want 1 and 1s at least", c.Queue, c.Idle)
	}
	return nil
}

// fits says whether as many pods as there may be leave a fifth of PostgreSQL's connections to others.
func (c poolConfig) fits(maxConnections int) error {
	if most := maxConnections * 4 / 5 / mostPods; c.Connections > most {
		return fmt.Errorf("--connections %d: %d pods of that may ask for %d, and PostgreSQL has max_connections = %d, of which a fifth is left to others: give %d at most, or raise max_connections",
			c.Connections, mostPods, mostPods*c.Connections, maxConnections, most)
	}
	return nil
}

// slots are the connections that a pod may have open, one each.
type slots chan struct{}

// open is how many there are.
func (s slots) open() int { return len(s) }

// spareEvery is how often a pod that has all its connections looks for one that nobody uses.
const spareEvery = 20 * time.Millisecond

// dial makes a connection when there may be one more; until then it waits, as long as the context
// lasts. Meanwhile who has some to spare is asked to close them, again and again: what is in use
// now is to spare a moment later.
func (s slots) dial(d *net.Dialer, spare func()) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case s <- struct{}{}:
		default:
			if err := s.wait(ctx, spare); err != nil {
				return nil, err
			}
		}
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			<-s
			return nil, err
		}
		return &counted{Conn: c, end: sync.OnceFunc(func() { <-s })}, nil
	}
}

// wait takes a place as soon as there is one.
func (s slots) wait(ctx context.Context, spare func()) error {
	tick := time.NewTicker(spareEvery)
	defer tick.Stop()
	for {
		spare()
		select {
		case s <- struct{}{}:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return errFull
		}
	}
}

// A request waits for a connection for waitFor at most, and no more than maxWaiting of a tenant do at a pod:
// what is behind them is refused at once.
const (
	waitFor    = 5 * time.Second
	maxWaiting = 64
)

// Why there is no connection. Nothing was run.
var (
	errFull = fmt.Errorf("there was no connection in %v: those of the tenant, or of the pod, are all in use, or PostgreSQL does not answer; try again", waitFor)
	errMany = fmt.Errorf("%d requests of the tenant wait for its connections here: try again", maxWaiting)
)

// counted is a connection that gives its place back.
type counted struct {
	net.Conn
	end func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// share is a pod's part in serving a tenant: connections of its own, none before they are needed.
type share struct {
	region rooted.RegionID
	tenant string
	pool   *pgxpool.Pool
	within time.Duration // how long a connection is waited for
	gone   atomic.Bool   // it is another pod's
	// waiting requests for a connection, and for how many looks in a row there were too many.
	waiting atomic.Int64
	looks   int
}

// newShare makes a share. It opens nothing.
func (p *pod) newShare(region rooted.RegionID, tenant string) (*share, error) {
	c, err := pgxpool.ParseConfig(p.cfg.Postgres)
	if err != nil {
		return nil, err
	}
	schema := pgx.Identifier{"tenant " + tenant}.Sanitize()
	c.MaxConns, c.MinConns, c.MaxConnIdleTime, c.HealthCheckPeriod = int32(p.cfg.PerTenant), 0, p.cfg.Idle, p.cfg.Idle/2
	c.ConnConfig.ConnectTimeout = waitFor
	c.ConnConfig.RuntimeParams["search_path"] = schema
	c.ConnConfig.RuntimeParams["statement_timeout"] = "10000"
	c.ConnConfig.RuntimeParams["application_name"] = "tenantpool " + p.cfg.ID
	c.ConnConfig.DialFunc = p.slots.dial(&net.Dialer{}, p.spare)
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return prepare(ctx, conn, tenant, schema) }
	pool, err := pgxpool.NewWithConfig(context.Background(), c) // it dials when it is asked, and ends with Close
	if err != nil {
		return nil, err
	}
	return &share{region: region, tenant: tenant, pool: pool, within: waitFor}, nil
}

// prepare makes what a tenant has, at its first connection anywhere.
func prepare(ctx context.Context, c *pgx.Conn, tenant, schema string) error {
	var there bool
	if err := c.QueryRow(ctx, "select to_regclass('rows') is not null").Scan(&there); err != nil || there {
		return err
	}
	lock := fnv.New64a()
	_, _ = lock.Write([]byte(tenant))
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		// Two pods may come at once: the second one finds what the first has made.
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lock.Sum64())); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "create schema if not exists "+schema+"; create table if not exists rows (id bigint generated always as identity primary key, text text not null)")
		return err
	})
}

// take waits for a connection, which has to be given back. *member.NotOwned: the tenant is another
// pod's by now; errFull, errMany: there was none. Nothing was run then.
func (s *share) take(ctx context.Context) (*pgxpool.Conn, error) {
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > maxWaiting {
		return nil, errMany
	}
	within, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	c, err := s.pool.Acquire(within)
	switch {
	case err != nil && s.gone.Load():
		return nil, &member.NotOwned{Region: s.region, Keyspace: keyspace}
	case err != nil && within.Err() != nil && ctx.Err() == nil:
		return nil, errFull
	}
	return c, err
}

// broken is the error of a connection that has broken: what was asked last may have been done.
type broken struct{ error }

// told is the error of what a connection ran. One that has not found the tenant's table is closed, so that the next
// one makes it.
func told(c *pgxpool.Conn, err error) error {
	switch {
	case codeOf(err) == undefinedTable:
		_ = c.Conn().Close(context.Background()) // to be rid of it is all
	case err != nil && c.Conn().IsClosed() && !pgconn.SafeToRetry(err):
		return broken{err}
	}
	return err
}

// end closes the connections, behind what runs.
func (s *share) end() {
	s.gone.Store(true)
	s.pool.Close()
}

// saturated says whether, at two looks in a row, all connections of the tenant are in use and too
// many requests wait for one. One goroutine asks, at intervals.
func (s *share) saturated(queue int) bool {
	if st := s.pool.Stat(); st.AcquiredConns() < st.MaxConns() || s.waiting.Load() < int64(queue) {
		s.looks = 0
		return false
	}
	s.looks++
	return s.looks > 1
}
