package sidecar

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// control is the port that the process asks.
type control struct {
	member *member.Member
	token  [sha256.Size]byte
	polls  *polls // nil: the process listens
}

// Waits of the port.
const (
	pollTime = 5 * time.Second
	maxWait  = time.Minute
)

func newControl(m *member.Member, token string, p *polls) http.Handler {
	c := &control{member: m, token: sha256.Sum256([]byte("Bearer " + token)), polls: p}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nokv/may", c.may)
	mux.HandleFunc("POST /nokv/load", c.load)
	mux.HandleFunc("GET /nokv/status", c.status)
	mux.HandleFunc("GET /nokv/next", c.next)
	mux.HandleFunc("POST /nokv/done/{id}", c.done)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Errorf("there is no %s %.100q here: GET /nokv/may, /nokv/status and /nokv/next, POST /nokv/load and /nokv/done/ID", r.Method, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(got[:], c.token[:]) != 1 {
			fail(w, http.StatusUnauthorized, errors.New("want Authorization: Bearer and what the environment variable NOKV_SIDECAR_TOKEN says"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxReport)
		mux.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, err error) {
	answer(w, status, map[string]string{"error": err.Error()})
}

// verdict is the answer of GET /nokv/may. The field names stay.
type verdict struct {
	May      bool   `json:"may"`
	Region   string `json:"region,omitempty"`
	Keyspace string `json:"keyspace,omitempty"`
	Epoch    string `json:"epoch,omitempty"`
	// LeftMillis is for how long, counted from before it was asked; absent: the right does
	// not end by time.
	LeftMillis *int64 `json:"left_millis,omitempty"`
	// Status and Headers are what to answer the caller, and Detail what to tell people.
	Status  int               `json:"status,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Detail  string            `json:"detail,omitempty"`
}

// may says whether a request may act for a region, by what member.Do lets in.
func (c *control) may(w http.ResponseWriter, r *http.Request) {
	req, wait, err := question(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	var v verdict
	err = c.member.Do(ctx, req, func(_ context.Context, at member.Region) error {
		v = verdict{May: true, Region: strconv.FormatUint(uint64(at.ID), 10), Keyspace: at.Keyspace, Epoch: at.Epoch.String()}
		if left, limited := c.member.Left(at); limited {
			ms := left.Milliseconds()
			v.LeftMillis = &ms
		}
		return nil
	})
	if err != nil {
		v = refusalJSON(err)
	}
	answer(w, http.StatusOK, v)
}

// question reads what a request asks for, and how long it may wait.
func question(r *http.Request) (req member.Request, wait time.Duration, err error) {
	q := r.URL.Query()
	for name := range q {
		switch name {
		case "keyspace", "key", "key_base64", "region", "epoch", "wait_millis":
		default:
			return req, 0, fmt.Errorf("there is no parameter %.100q: keyspace, key or key_base64, region, epoch and wait_millis", name)
		}
	}
	req.Keyspace = q.Get("keyspace")
	switch {
	case q.Has("key"):
		req.Key = []byte(q.Get("key"))
	case q.Has("key_base64"):
		if req.Key, err = base64.StdEncoding.DecodeString(q.Get("key_base64")); err != nil {
			return req, 0, fmt.Errorf("key_base64: %w", err)
		}
	}
	if text := q.Get("region"); text != "" {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return req, 0, fmt.Errorf("region %.64q: want the number that the header Nokv-Region has", text)
		}
		req.Region = rooted.RegionID(id)
	}
	if req.Region == 0 && (req.Keyspace == "" || req.Key == nil) {
		return req, 0, errors.New("want region, or keyspace and key: the headers Nokv-Region and Nokv-Keyspace of a request have them")
	}
	if text := q.Get("epoch"); text != "" {
		if req.Epoch, err = router.ParseEpoch(text); err != nil {
			return req, 0, err
		}
	}
	wait = maxWait
	if text := q.Get("wait_millis"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return req, 0, fmt.Errorf("wait_millis %.64q: want milliseconds, 0 for no wait", text)
		}
		wait = min(time.Duration(min(ms, maxWait.Milliseconds()))*time.Millisecond, maxWait)
	}
	return req, wait, nil
}

// refusalJSON is a refusal as a member that speaks HTTP answers it.
func refusalJSON(err error) verdict {
	no := router.RefusalOf(err)
	if no == nil { // the time to wait is over, or who asked has gone
		no = &router.Refusal{Kind: router.Busy, Said: err.Error()}
		if errors.Is(err, context.DeadlineExceeded) {
			no.Said = "it may be on its way here, and was not in wait_millis: try again"
		}
	}
	no.Ran = false // the question alone was: its right ended meanwhile
	h := &headers{of: http.Header{}}
	no.WriteHTTP(h)
	v := verdict{Status: h.status, Headers: map[string]string{}, Detail: no.Error()}
	for name := range h.of {
		if strings.HasPrefix(name, "Nokv-") {
			v.Headers[name] = h.of.Get(name)
		}
	}
	return v
}

// headers is an answer of which only the head counts. It implements http.ResponseWriter.
type headers struct {
	of     http.Header
	status int
}

func (h *headers) Header() http.Header         { return h.of }
func (h *headers) WriteHeader(status int)      { h.status = status }
func (h *headers) Write(b []byte) (int, error) { return len(b), nil }

// report is what POST /nokv/load takes. The field names stay.
type report struct {
	// Load of the process as a whole, and the most of it; 0: not known.
	Load     float64 `json:"load"`
	Capacity float64 `json:"capacity"`
	// Regions by their numbers.
	Regions map[string]struct {
		Load       float64 `json:"load"`
		Keys       uint64  `json:"keys"`
		Bytes      uint64  `json:"bytes"`
		IdleMillis uint64  `json:"idle_millis"`
		Leader     bool    `json:"leader"`
		Saturated  bool    `json:"saturated"`
	} `json:"regions"`
}

// load takes what the process says of itself.
func (c *control) load(w http.ResponseWriter, r *http.Request) {
	var said report
	if err := read(r, &said); err != nil {
		fail(w, statusOf(err), err)
		return
	}
	if said.Load < 0 || said.Capacity < 0 {
		fail(w, http.StatusBadRequest, errors.New("load and capacity: want 0 or more"))
		return
	}
	ids := make(map[string]rooted.RegionID, len(said.Regions))
	for text, s := range said.Regions {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil || s.Load < 0 {
			fail(w, http.StatusBadRequest, fmt.Errorf("region %.64q: want the number of a region, and a load of 0 or more; nothing of the report was taken", text))
			return
		}
		ids[text] = rooted.RegionID(id)
	}
	c.member.SetLoad(member.Load{Load: said.Load, Capacity: said.Capacity})
	unknown := []string{}
	for text, s := range said.Regions {
		idle := time.Duration(min(s.IdleMillis, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
		if !c.member.Report(ids[text], member.Stats{Load: s.Load, Keys: s.Keys, Bytes: s.Bytes, Idle: idle, Leader: s.Leader, Saturated: s.Saturated}) {
			unknown = append(unknown, text)
		}
	}
	answer(w, http.StatusOK, map[string]any{"unknown": unknown})
}

func read(r *http.Request, v any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("the body is not the JSON of docs/callers.md: %w", err)
	}
	return nil
}

func statusOf(err error) int {
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// status says how the member is.
func (c *control) status(w http.ResponseWriter, _ *http.Request) {
	s := c.member.Status()
	answer(w, http.StatusOK, map[string]any{
		"incarnation": strconv.FormatUint(s.Incarnation, 10), "state": strings.ToLower(strings.TrimPrefix(s.State.String(), "MEMBER_STATE_")),
		"regions": s.Regions, "holding": s.Holding, "coordinators": len(s.Coordinators),
	})
}

var errListens = errors.New("this process is asked by HTTP: start the sidecar with --poll to have it ask instead")

// next hands a call out.
func (c *control) next(w http.ResponseWriter, r *http.Request) {
	if c.polls == nil {
		fail(w, http.StatusConflict, errListens)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pollTime)
	defer cancel()
	call, ok, err := c.polls.next(ctx, r.URL.Query().Get("again") == "true")
	switch {
	case err != nil:
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusTooManyRequests, err)
	case !ok:
		w.WriteHeader(http.StatusNoContent)
	case r.Context().Err() != nil: // whoever asked has gone
		c.polls.untake(call.ID)
	default:
		answer(w, http.StatusOK, call)
	}
}

// done takes what became of a call.
func (c *control) done(w http.ResponseWriter, r *http.Request) {
	if c.polls == nil {
		fail(w, http.StatusConflict, errListens)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxAnswer)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, statusOf(err), err)
		return
	}
	a, err := parseAnswer(body)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	first, err := c.polls.done(r.PathValue("id"), a)
	switch {
	case errors.Is(err, errNoFrontier):
		fail(w, http.StatusBadRequest, err)
	case err != nil:
		fail(w, http.StatusNotFound, err)
	default:
		answer(w, http.StatusOK, first)
	}
}
