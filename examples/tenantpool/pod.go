package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	// maxText is the most bytes of a row, and bodyWithin how long it has to come.
	maxText    = 64 << 10
	bodyWithin = 10 * time.Second
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
	// A connection that has broken was rolled back by PostgreSQL.
	if err := t.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) && !t.conn.Conn().IsClosed() {
		fmt.Printf("roll back transaction %s: %v\n", pinned.ID, err)
	}
	t.conn.Release()
}

// statement runs something in the transaction that a request is pinned to. When its connection has broken
// there is no transaction any more, and the pin ends.
func (p *pod) statement(req *http.Request, fn func(context.Context, pgx.Tx) error) error {
	token, broke := req.Header.Get(proxy.HeaderPin), false
	err := p.member.Pins().Do(req.Context(), token, "", func(ctx context.Context, pinned member.Pin) error {
		p.mu.Lock()
		t := p.transactions[pinned.ID]
		p.mu.Unlock()
		if t == nil {
			return pin.Refuse(pin.Ended, "the transaction has ended")
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if broke = t.conn.Conn().IsClosed(); broke {
			return errLost
		}
		err := told(t.conn, fn(ctx, t.tx))
		if broke = t.conn.Conn().IsClosed(); broke && pgconn.SafeToRetry(err) { // it was not sent
			return errLost
		}
		return err
	})
	if broke {
		_ = p.member.Pins().End(token) // an error: it has ended already
	}
	return err
}

// errLost is of a transaction whose connection has broken: nothing of it remains.
var errLost = pin.Refuse(pin.Ended, "the connection of the transaction broke, and PostgreSQL has rolled it back: begin it anew")

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

// query is what a request asks for.
type query func(context.Context, querier, *reply) error

// reader reads a request, whole: nothing is held for a client meanwhile.
type reader func(http.ResponseWriter, *http.Request) (query, error)

// create is a new row.
func create(w http.ResponseWriter, req *http.Request) (query, error) {
	text, err := body(w, req)
	return func(ctx context.Context, q querier, r *reply) error {
		r.Text = text
		return q.QueryRow(ctx, "insert into rows (text) values ($1) returning id", text).Scan(&r.ID)
	}, err
}

// read is a row by its number.
func read(_ http.ResponseWriter, req *http.Request) (query, error) {
	id, err := strconv.ParseInt(req.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badRequest("rows have numbers: " + err.Error())
	}
	return func(ctx context.Context, q querier, r *reply) error {
		r.ID = id
		return q.QueryRow(ctx, "select text from rows where id = $1", id).Scan(&r.Text)
	}, nil
}

// report is a query that takes as long as it is told.
func report(_ http.ResponseWriter, req *http.Request) (query, error) {
	takes, err := time.ParseDuration(req.FormValue("takes"))
	if err != nil || takes < 0 || takes > 5*time.Second {
		return nil, badRequest("say how long it takes: ?takes=200ms, 5s at most")
	}
	return func(ctx context.Context, q querier, r *reply) error {
		return q.QueryRow(ctx, "select count(*) from rows, pg_sleep($1)", takes.Seconds()).Scan(&r.Rows)
	}, nil
}

// routes are what a pod is asked.
func (p *pod) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tenants/{tenant}/rows", p.inTenant(create))
	mux.HandleFunc("GET /tenants/{tenant}/rows/{id}", p.inTenant(read))
	mux.HandleFunc("GET /tenants/{tenant}/report", p.inTenant(report))
	mux.HandleFunc("POST /tenants/{tenant}/transactions", func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		asked, err := requestOf(req)
		if err == nil {
			r.Transaction, err = p.begin(req.Context(), asked)
		}
		answer(w, r, err)
	})
	mux.HandleFunc("POST /transaction/rows", p.inTransaction(create))
	mux.HandleFunc("GET /transaction/rows/{id}", p.inTransaction(read))
	mux.HandleFunc("POST /transaction/commit", p.ends(pgx.Tx.Commit))
	mux.HandleFunc("POST /transaction/rollback", p.ends(pgx.Tx.Rollback))
	mux.HandleFunc("GET /pool", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.pool()) })
	return mux
}

// inTenant runs a query for a request of a tenant, if this pod has it.
func (p *pod) inTenant(read reader) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		asked, err := requestOf(req)
		var run query
		if err == nil {
			run, err = read(w, req)
		}
		if err == nil {
			err = p.member.Do(req.Context(), asked, func(ctx context.Context, of member.Region) (err error) {
				s := p.share(of.ID)
				if s == nil { // evicted meanwhile: nothing was run
					return &member.NotOwned{Region: of.ID, Keyspace: keyspace}
				}
				c, err := s.take(ctx)
				if err != nil {
					return err
				}
				defer c.Release()
				return told(c, run(ctx, c, &r))
			})
		}
		answer(w, r, err)
	}
}

// inTransaction runs a query in the transaction that a request is pinned to.
func (p *pod) inTransaction(read reader) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r := reply{Pod: p.cfg.ID}
		run, err := read(w, req)
		if err == nil {
			err = p.statement(req, func(ctx context.Context, tx pgx.Tx) error { return run(ctx, tx, &r) })
		}
		if _, broke := errors.AsType[broken](err); broke { // it was not committed
			err = errLost
		}
		answer(w, r, err)
	}
}

// ends ends the transaction that a request is pinned to.
func (p *pod) ends(how func(pgx.Tx, context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		answer(w, reply{Pod: p.cfg.ID}, p.statement(req, func(ctx context.Context, tx pgx.Tx) error { return how(tx, ctx) }))
		_ = p.member.Pins().End(req.Header.Get(proxy.HeaderPin)) // an error: it has ended already
	}
}

// badRequest is what a client is told of a request that can never work.
type badRequest string

// Error implements error.
func (b badRequest) Error() string { return string(b) }

// errName is of a tenant that cannot be.
const errName = badRequest("a tenant is called by 1 to 40 letters a to z, digits and -, and begins with none")

// requestOf is a request of a tenant as members have it. Without an epoch, as of curl, it is for
// whoever serves the tenant here.
func requestOf(req *http.Request) (r member.Request, err error) {
	tenant := req.PathValue("tenant")
	if !tenantName.MatchString(tenant) {
		return r, errName
	}
	if text := req.Header.Get(router.HeaderEpoch); text != "" {
		if r.Epoch, err = router.ParseEpoch(text); err != nil {
			return r, badRequest(err.Error())
		}
	}
	r.Keyspace, r.Key = keyspace, []byte(tenant)
	return r, nil
}

// body is the text of a row: the field text of a form, as PostgreSQL takes text.
func body(w http.ResponseWriter, req *http.Request) (string, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWithin)) // a connection can, and what is none does not wait
	req.Body = http.MaxBytesReader(w, req.Body, maxText)
	err := req.ParseForm()
	text := req.FormValue("text")
	if err != nil || text == "" || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return "", badRequest(fmt.Sprintf("give the text of the row within %v: curl -d text=hello, 64 KiB of UTF-8 at most, and no character 0", bodyWithin))
	}
	_ = control.SetReadDeadline(time.Time{})
	return text, nil
}

// answer says what became of a request. What PostgreSQL says is for clients where they can do something about
// it, and for the log where they cannot.
func answer(w http.ResponseWriter, r reply, err error) {
	no := router.RefusalOf(err)
	var bad badRequest
	var unreached *pgconn.ConnectError
	var broke broken
	say := func(status int, text string) { http.Error(w, text, status) }
	switch {
	case err == nil:
		writeJSON(w, r)
	case no != nil:
		no.WriteHTTP(w)
	case errors.As(err, &bad):
		say(http.StatusBadRequest, bad.Error())
	case errors.Is(err, pgx.ErrNoRows):
		say(http.StatusNotFound, "there is no such row")
	case class(err) == badData, class(err) == badRow:
		say(http.StatusBadRequest, "PostgreSQL does not take that: "+err.Error())
	case errors.Is(err, pgx.ErrTxCommitRollback):
		say(http.StatusConflict, "a statement of the transaction had failed: it was rolled back; begin it anew")
	case codeOf(err) == transactionFailed:
		say(http.StatusConflict, "a statement of the transaction has failed before: roll it back, and begin it anew")
	case class(err) == conflict:
		say(http.StatusConflict, "another transaction came first: begin anew")
	case errors.Is(err, errFull), errors.Is(err, errMany):
		w.Header().Set("Retry-After", "1")
		say(http.StatusServiceUnavailable, err.Error())
	case codeOf(err) == undefinedTable:
		w.Header().Set("Retry-After", "1")
		say(http.StatusServiceUnavailable, "what the tenant had in PostgreSQL was removed, and is made anew: try again")
	case errors.As(err, &unreached), pgconn.SafeToRetry(err), class(err) == noResources:
		fmt.Println("not asked:", err)
		w.Header().Set("Retry-After", "1")
		say(http.StatusServiceUnavailable, "PostgreSQL cannot be asked now, and nothing was done: try again")
	case errors.As(err, &broke):
		fmt.Println("not answered:", err)
		say(http.StatusBadGateway, "PostgreSQL has not answered: it may have done what was asked")
	default:
		say(http.StatusInternalServerError, err.Error())
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
