package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/pin"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

const (
	// lookEvery is how often a pod looks whether tenants are saturated.
	lookEvery = 100 * time.Millisecond
	// maxText is the most bytes of a row.
	maxText = 64 << 10
)

// tenantName is what tenants are called.
var tenantName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// pod has connections to PostgreSQL for the tenants that it was given. It implements
// member.Handler and Evicter.
type pod struct {
	cfg    poolConfig
	slots  slots
	member *member.Member

	mu           sync.Mutex
	shares       map[rooted.RegionID]*share // guarded by mu, as is the next
	transactions map[string]*transaction    // by their pins
}

// transaction is one connection, in use for it alone.
type transaction struct {
	mu   sync.Mutex // a connection runs one statement at a time
	conn *pgxpool.Conn
	tx   pgx.Tx
}

func newPod(ctx context.Context, cfg poolConfig) (*pod, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := answers(ctx, cfg.Postgres); err != nil {
		return nil, err
	}
	c, err := pgx.Connect(ctx, cfg.Postgres)
	if err != nil {
		return nil, err
	}
	var text string
	err = errors.Join(c.QueryRow(ctx, "show max_connections").Scan(&text), c.Close(ctx))
	if err != nil {
		return nil, err
	}
	most, err := strconv.Atoi(text)
	if err == nil {
		err = cfg.fits(most)
	}
	return &pod{cfg: cfg, slots: make(slots, cfg.Connections), shares: map[rooted.RegionID]*share{}, transactions: map[string]*transaction{}}, err
}

// Acquire begins to serve a tenant. Nothing is opened before its first request.
func (p *pod) Acquire(_ context.Context, r member.Region) error {
	s, err := p.newShare(r.ID, r.Start)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares[r.ID] = s
	return nil
}

// Release closes the connections of a tenant. PostgreSQL has all that there is of it.
func (p *pod) Release(ctx context.Context, r member.Region) ([]byte, error) {
	return []byte(r.Frontier), p.Evict(ctx, r)
}

// Evict is the same: requests that still run come to their end first.
func (p *pod) Evict(_ context.Context, r member.Region) error {
	p.mu.Lock()
	s := p.shares[r.ID]
	delete(p.shares, r.ID)
	p.mu.Unlock()
	if s != nil {
		s.end()
	}
	return nil
}

func (p *pod) share(id rooted.RegionID) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shares[id]
}

// spare closes the connections of one tenant that does not use them now, whichever.
func (p *pod) spare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shares {
		if s.pool.Stat().IdleConns() > 0 {
			s.pool.Reset()
			return
		}
	}
}

// tell says what tenants cost, and which are saturated: these are given another pod.
func (p *pod) tell(ctx context.Context) {
	for tick := time.NewTicker(lookEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		p.mu.Lock()
		for id, s := range p.shares {
			p.member.Report(id, member.Stats{Load: float64(s.pool.Stat().TotalConns()), Saturated: s.saturated(p.cfg.Queue)})
		}
		p.mu.Unlock()
		p.member.SetLoad(member.Load{Load: float64(p.slots.open()), Capacity: float64(p.cfg.Connections)})
	}
}

// begin opens a transaction and pins it to this pod: what it answers is shown with each
// statement.
func (p *pod) begin(ctx context.Context, req member.Request) (string, error) {
	pins := p.member.Pins()
	pinned, err := pins.Begin(ctx, req, member.PinOptions{})
	if err != nil {
		return "", err
	}
	// As a call of the pin, so that what is begun is rolled back whenever the pin ends.
	err = pins.Do(ctx, pinned.Token, "", func(ctx context.Context, pinned member.Pin) error {
		s := p.share(pinned.Region.ID)
		if s == nil {
			return &member.NotOwned{Region: pinned.Region.ID, Keyspace: keyspace}
		}
		conn, err := s.take(ctx)
		if err != nil {
			return err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			conn.Release()
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.transactions[pinned.ID] = &transaction{conn: conn, tx: tx}
		return nil
	})
	if err != nil {
		return "", errors.Join(err, pins.End(pinned.Token))
	}
	return pinned.Token, nil
}

// rollBack ends a transaction with its pin. One that was committed has ended by then.
func (p *pod) rollBack(ctx context.Context, pinned member.Pin, _ member.PinEnd) {
	p.mu.Lock()
	t := p.transactions[pinned.ID]
	delete(p.transactions, pinned.ID)
	p.mu.Unlock()
	if t == nil {
		return
	}
	if err := t.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		fmt.Printf("roll back transaction %s: %v\n", pinned.ID, err)
	}
	t.conn.Release()
}

// statement runs something in the transaction that a request is pinned to.
func (p *pod) statement(req *http.Request, fn func(context.Context, pgx.Tx) error) error {
	return p.member.Pins().Do(req.Context(), req.Header.Get(proxy.HeaderPin), "", func(ctx context.Context, pinned member.Pin) error {
		p.mu.Lock()
		t := p.transactions[pinned.ID]
		p.mu.Unlock()
		if t == nil {
			return pin.Refuse(pin.Ended, "the transaction has ended")
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		return fn(ctx, t.tx)
	})
}

// reply is what clients are answered.
type reply struct {
	Pod         string `json:"pod"`
	ID          int64  `json:"id,omitempty"`
	Text        string `json:"text,omitempty"`
	Rows        int64  `json:"rows,omitempty"`
	Transaction string `json:"transaction,omitempty"`
}

// querier is a connection, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (r *reply) create(ctx context.Context, q querier, text string) error {
	r.Text = text
	return q.QueryRow(ctx, "insert into rows (text) values ($1) returning id", text).Scan(&r.ID)
}

func (r *reply) read(ctx context.Context, q querier, id int64) error {
	r.ID = id
	return q.QueryRow(ctx, "select text from rows where id = $1", id).Scan(&r.Text)
}

// routes are what a pod is asked.
func (p *pod) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tenants/{tenant}/rows", p.inTenant(func(ctx context.Context, c *pgxpool.Conn, req *http.Request, r *reply) error {
		text, err := body(req)
		if err != nil {
			return err
		}
		return r.create(ctx, c, text)
	}))
	mux.HandleFunc("GET /tenants/{tenant}/rows/{id}", p.inTenant(func(ctx context.Context, c *pgxpool.Conn, req *http.Request, r *reply) error {
		id, err := number(req)
		if err != nil {
			return err
		}
		return r.read(ctx, c, id)
	}))
	// A report is a query that takes as long as it is told.
	mux.HandleFunc("GET /tenants/{tenant}/report", p.inTenant(func(ctx context.Context, c *pgxpool.Conn, req *http.Request, r *reply) error {
		takes, err := time.ParseDuration(req.FormValue("takes"))
		if err != nil || takes < 0 || takes > 5*time.Second {
			return badRequest("say how long it takes: ?takes=200ms, 5s at most")
		}
		return c.QueryRow(ctx, "select count(*) from rows, pg_sleep($1)", takes.Seconds()).Scan(&r.Rows)
	}))
	mux.HandleFunc("POST /tenants/{tenant}/transactions", func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		asked, err := requestOf(req)
		if err == nil {
			r.Transaction, err = p.begin(req.Context(), asked)
		}
		answer(w, r, err)
	})
	mux.HandleFunc("POST /transaction/rows", p.inTransaction(func(ctx context.Context, tx pgx.Tx, req *http.Request, r *reply) error {
		text, err := body(req)
		if err != nil {
			return err
		}
		return r.create(ctx, tx, text)
	}))
	mux.HandleFunc("GET /transaction/rows/{id}", p.inTransaction(func(ctx context.Context, tx pgx.Tx, req *http.Request, r *reply) error {
		id, err := number(req)
		if err != nil {
			return err
		}
		return r.read(ctx, tx, id)
	}))
	end := func(how func(pgx.Tx, context.Context) error) http.HandlerFunc {
		end := p.inTransaction(func(ctx context.Context, tx pgx.Tx, _ *http.Request, _ *reply) error { return how(tx, ctx) })
		return func(w http.ResponseWriter, req *http.Request) {
			end(w, req)
			_ = p.member.Pins().End(req.Header.Get(proxy.HeaderPin)) // an error: it has ended already
		}
	}
	mux.HandleFunc("POST /transaction/commit", end(pgx.Tx.Commit))
	mux.HandleFunc("POST /transaction/rollback", end(pgx.Tx.Rollback))
	mux.HandleFunc("GET /pool", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.pool()) })
	return mux
}

// inTenant runs something for a request of a tenant, if this pod has it.
func (p *pod) inTenant(fn func(context.Context, *pgxpool.Conn, *http.Request, *reply) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		asked, err := requestOf(req)
		if err == nil {
			err = p.member.Do(req.Context(), asked, func(ctx context.Context, of member.Region) error {
				s := p.share(of.ID)
				if s == nil { // evicted meanwhile: nothing was run
					return &member.NotOwned{Region: of.ID, Keyspace: keyspace}
				}
				c, err := s.take(ctx)
				if err != nil {
					return err
				}
				defer c.Release()
				return fn(ctx, c, req, &r)
			})
		}
		answer(w, r, err)
	}
}

func (p *pod) inTransaction(fn func(context.Context, pgx.Tx, *http.Request, *reply) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		answer(w, r, p.statement(req, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, tx, req, &r) }))
	}
}

// badRequest is what a client is told of a request that can never work.
type badRequest string

// Error implements error.
func (b badRequest) Error() string { return string(b) }

// requestOf is a request of a tenant as members have it. Without an epoch, as of curl, it is for
// whoever serves the tenant here.
func requestOf(req *http.Request) (r member.Request, err error) {
	tenant := req.PathValue("tenant")
	if !tenantName.MatchString(tenant) {
		return r, badRequest("a tenant is called by 1 to 40 letters a to z, digits and -, and begins with none")
	}
	if text := req.Header.Get(router.HeaderEpoch); text != "" {
		if r.Epoch, err = router.ParseEpoch(text); err != nil {
			return r, badRequest(err.Error())
		}
	}
	r.Keyspace, r.Key = keyspace, []byte(tenant)
	return r, nil
}

func number(req *http.Request) (int64, error) {
	id, err := strconv.ParseInt(req.PathValue("id"), 10, 64)
	if err != nil {
		return 0, badRequest("rows have numbers: " + err.Error())
	}
	return id, nil
}

// body is the text of a row: the field text of a form.
func body(req *http.Request) (string, error) {
	req.Body = http.MaxBytesReader(nil, req.Body, maxText)
	text := req.FormValue("text")
	if text == "" {
		return "", badRequest("give the text of the row: curl -d text=hello, 64 KiB at most")
	}
	return text, nil
}

// answer says what became of a request.
func answer(w http.ResponseWriter, r reply, err error) {
	var bad badRequest
	switch no := router.RefusalOf(err); {
	case err == nil:
		writeJSON(w, r)
	case no != nil:
		no.WriteHTTP(w)
	case errors.As(err, &bad):
		http.Error(w, bad.Error(), http.StatusBadRequest)
	case errors.Is(err, pgx.ErrNoRows):
		http.Error(w, "there is no such row", http.StatusNotFound)
	case errors.Is(err, errFull):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// pooled is what a pod has open.
type pooled struct {
	Pod          string           `json:"pod"`
	Open         int              `json:"open"`
	Tenants      map[string]int32 `json:"tenants"`
	Transactions int              `json:"transactions"`
}

func (p *pod) pool() pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := pooled{Pod: p.cfg.ID, Open: p.slots.open(), Tenants: map[string]int32{}, Transactions: len(p.transactions)}
	for _, s := range p.shares {
		all.Tenants[s.tenant] = s.pool.Stat().TotalConns()
	}
	return all
}
