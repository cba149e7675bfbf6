// Package rest serves the calls of a coordinator as JSON over HTTP.
//
// It owns how requests and answers are written, and nothing else: each request becomes a
// call of the gRPC service under its caller's name. It promises:
//
//  1. who may not do something by gRPC may not do it here: nothing is done but by calls
//     that pass everything that one from outside passes;
//  2. a GET changes nothing, and a page of somebody else's in a browser changes nothing:
//     what is no GET needs a JSON content type, and comes from no origin but those of
//     Config.Origins;
//  3. a refusal is an RFC 9457 problem with the reason that the call was refused with;
//  4. fields that are not known are refused by name;
//  5. what it holds is bounded: bodies by MaxBodyBytes each, bodies and answers by the
//     budget of the process, watches by MaxWatches;
//  6. a watch goes on behind the id of its last event without a gap, and ends within
//     two seconds of when its caller may not call any more.
//
// It does not ask other coordinators: what only the holder of the Tenure does is refused
// elsewhere, and the refusal says who that is.
package rest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/docs"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	// MaxBodyBytes is the longest body: 1,024 keys of 4 KiB fit in base64.
	MaxBodyBytes = 8 << 20
	// MaxWatches is the most watches; one caller has half of those that are free.
	MaxWatches = 512
	// DefaultTimeout is how long a call may take that says nothing else.
	DefaultTimeout = 10 * time.Second
	// MaxTimeout is the longest that can be asked for.
	MaxTimeout = 30 * time.Second
)

// Headers of requests; that of the cluster is in answers too.
const (
	// HeaderCluster names the cluster that a request is for, 16 hexadecimal digits. What
	// changes something, or gives out ids or timestamps, needs it.
	HeaderCluster = "Nokv-Cluster"
	// HeaderWhy is why a change is made, percent-encoded.
	HeaderWhy = "Nokv-Why"
	// HeaderTimeout is how long the call may take, such as 2s.
	HeaderTimeout = "Nokv-Timeout"
)

// Config is what a coordinator's REST needs.
type Config struct {
	// As is a connection for the calls of a caller, who is at a host; done must follow.
	As func(p principal.Principal, host string) (conn grpc.ClientConnInterface, done func(), err error)
	// Caller is who asks; an error is shown. Secure: who is not known is told so at once.
	Caller func(*http.Request) (principal.Principal, error)
	Secure bool
	// Cluster is the one that is served; 0: not known yet.
	Cluster func() uint64
	// Healthy says what is wrong; nil: nothing.
	Healthy func(context.Context) error
	// Budget bounds bodies and answers in bytes. Nil: nothing does.
	Budget *budget.Budget
	// Origins are pages that may ask in a browser, such as https://console.example. None: none may.
	Origins []string
	// Logger hears of what goes wrong here. Required.
	Logger hclog.Logger
}

// Handler serves REST. Make it with New.
type Handler struct {
	cfg     Config
	mux     *http.ServeMux
	watches *places.Places
}

// New makes a Handler.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, mux: http.NewServeMux(), watches: places.New("watches over HTTP", MaxWatches)}
	for _, c := range calls() {
		do := h.unary(c)
		if c.stream {
			do = h.watch(c)
		}
		h.mux.Handle(c.verb+" "+c.path, h.admit(c.route, do))
	}
	for _, o := range operations {
		h.mux.Handle(o.verb+" "+o.path, h.admit(o.route, o.do(h)))
	}
	h.mux.HandleFunc("GET /health", h.health)
	h.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(docs.OpenAPI)
	})
	return h
}

// Paths are the patterns of what a Handler serves, for the mux of a listener.
var Paths = []string{"/v1/", "/api/", "/health", "/openapi.json"}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if id := h.cfg.Cluster(); id != 0 {
		head.Set(HeaderCluster, clusterid.String(id))
	}
	origin := r.Header.Get("Origin")
	known := origin != "" && slices.Contains(h.cfg.Origins, origin)
	if len(h.cfg.Origins) > 0 {
		head.Add("Vary", "Origin")
	}
	if known {
		head.Set("Access-Control-Allow-Origin", origin)
		head.Set("Access-Control-Expose-Headers", HeaderCluster+", Retry-After")
	}
	switch {
	case known && r.Method == http.MethodOptions:
		head.Set("Access-Control-Allow-Methods", "GET, POST")
		head.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID, "+HeaderCluster+", "+HeaderWhy+", "+HeaderTimeout)
		w.WriteHeader(http.StatusNoContent)
		return
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
	case !known && (origin != "" || foreign(r.Header.Get("Sec-Fetch-Site"))):
		refuse(http.StatusForbidden, "permission_denied", "ask without a browser, or start the coordinator with --allow-origin", "pages of %.128q may not change anything here", origin).write(w)
		return
	}
	if _, pattern := h.mux.Handler(r); pattern == "" {
		h.lost(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// foreign says whether a browser asks for a page of somebody else's.
func foreign(site string) bool { return site != "" && site != "none" && site != "same-origin" }

// lost answers what has no route.
func (h *Handler) lost(w http.ResponseWriter, r *http.Request) {
	for _, verb := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = verb
		if _, pattern := h.mux.Handler(other); pattern != "" {
			w.Header().Set("Allow", verb)
			refuse(http.StatusMethodNotAllowed, "invalid_request", "use "+verb, "%s is not asked for by %.16s", r.URL.Path, r.Method).write(w)
			return
		}
	}
	refuse(http.StatusNotFound, "not_found", "/openapi.json lists what there is", "there is nothing at %.256s", r.URL.Path).write(w)
}

// asked is a request that was admitted.
type asked struct {
	caller principal.Principal
	host   string // that it came from
	body   []byte
	conn   grpc.ClientConnInterface
	out    *budget.Account // of answers; nil: nobody counts
}

// doing answers a request.
type doing func(w http.ResponseWriter, r *http.Request, a *asked) error

// admit finds out who asks, and reads the body.
func (h *Handler) admit(what route, do doing) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.serve(what, do, w, r); err != nil {
			answering(what, err).write(w)
		}
	})
}

func (h *Handler) serve(what route, do doing, w http.ResponseWriter, r *http.Request) error {
	p, err := h.cfg.Caller(r)
	if err != nil {
		return refuse(http.StatusUnauthorized, "permission_denied", wayOut(http.StatusUnauthorized), "%v", err)
	}
	if h.cfg.Secure && !p.Known() {
		return refuse(http.StatusUnauthorized, "permission_denied", wayOut(http.StatusUnauthorized), "nobody says who asks")
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	a := &asked{caller: p, host: host}
	if h.cfg.Budget != nil {
		key := a.key()
		a.out = h.cfg.Budget.Holder(budget.Replies).Account(key)
		defer a.out.Close()
		in := h.cfg.Budget.Holder(budget.Receiving).Account(key)
		defer in.Close()
		if what.changes() {
			size := int(min(max(r.ContentLength, 0), MaxBodyBytes)) * bodyCost
			if err := in.Take(size); err != nil {
				return err
			}
			defer in.Give(size)
		}
	}
	if !what.changes() && r.ContentLength != 0 {
		return bad("a GET has no body")
	}
	if what.changes() {
		if a.body, err = body(w, r); err != nil {
			return err
		}
	}
	timeout, err := timeoutOf(r)
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // what is to be read was; a writer that cannot has none
	ctx, err := h.outgoing(r)
	if err != nil {
		return err
	}
	conn, done, err := h.cfg.As(p, host)
	if err != nil {
		return err
	}
	defer done()
	a.conn = conn
	if !strings.HasSuffix(what.path, "/watch") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return do(w, r.WithContext(ctx), a)
}

// key is whose account a request is on, as those of gRPC are.
func (a *asked) key() string {
	if a.caller.Known() {
		return a.caller.Actor()
	}
	return a.host
}

// bodyCost is how much a body takes with what is made of it, for each byte of it.
const bodyCost = 3

// body reads the body of a request.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		return nil, refuse(http.StatusUnsupportedMediaType, "invalid_request", "send JSON, with the header Content-Type: application/json", "content type %.64q", kind)
	}
	tooLong := refuse(http.StatusRequestEntityTooLarge, "body_too_large", "send less at a time", "the body is longer than %d bytes", MaxBodyBytes)
	switch {
	case r.ContentLength < 0:
		return nil, refuse(http.StatusLengthRequired, "invalid_request", "send the header Content-Length", "the length of the body is not said")
	case r.ContentLength > MaxBodyBytes:
		return nil, tooLong
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLong
	}
	if err != nil {
		return nil, refuse(http.StatusRequestTimeout, "invalid_request", "send it again", "the body did not come: %v", err)
	}
	return raw, nil
}

func timeoutOf(r *http.Request) (time.Duration, error) {
	text := r.Header.Get(HeaderTimeout)
	if text == "" {
		return DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, bad("%s: %.32q is not a time such as 2s, %v at most", HeaderTimeout, text, MaxTimeout)
	}
	return d, nil
}

// outgoing is the context of the calls of a request.
func (h *Handler) outgoing(r *http.Request) (context.Context, error) {
	ctx := r.Context()
	for _, cluster := range r.Header.Values(HeaderCluster) {
		if _, err := clusterid.Parse(cluster); err != nil {
			return nil, bad("%s: %v", HeaderCluster, err)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, clusterid.Key, cluster)
	}
	if text := r.Header.Get(HeaderWhy); text != "" {
		if plain, err := url.PathUnescape(text); err == nil {
			text = plain
		}
		ctx = why.With(ctx, text)
	}
	return ctx, nil
}

// unary answers with what a call answers.
func (h *Handler) unary(c *call) doing {
	return func(w http.ResponseWriter, r *http.Request, a *asked) error {
		req, err := c.read(r, a.body)
		if err != nil {
			return err
		}
		answer := c.answer()
		if err := a.conn.Invoke(r.Context(), c.full, req, answer); err != nil {
			return err
		}
		return h.answer(w, a, answer)
	}
}

// answerCost is how much an answer takes as a message and as JSON, for each byte that it
// came in.
const answerCost = 6

// answer writes an answer.
func (h *Handler) answer(w http.ResponseWriter, a *asked, m proto.Message) error {
	size := proto.Size(m) * answerCost
	if err := a.out.Take(size); err != nil {
		return err
	}
	defer a.out.Give(size)
	raw, err := encode(m)
	if err != nil {
		h.cfg.Logger.Error("answer is no JSON", "err", err)
		return refuse(http.StatusInternalServerError, "internal", "use gRPC", "the answer has bytes that are no text")
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(raw, '\n'))
	return nil
}

// encode is a message as JSON: names as in the proto files, and what is zero too.
func encode(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
}

// place is who a watch counts for.
func (a *asked) place() places.Caller {
	return places.Of(peer.NewContext(context.Background(), &peer.Peer{Addr: hostAddr(a.host), AuthInfo: principal.Info{Principal: a.caller}}))
}

// hostAddr is a host as an address.
type hostAddr string

// Network implements net.Addr.
func (hostAddr) Network() string { return "host" }

// String implements net.Addr.
func (h hostAddr) String() string { return string(h) }
