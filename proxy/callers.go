package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Callers says who asks, and what it may do: a proxy does nothing for a caller that it may not do itself.
type Callers interface {
	// May says who asks, the zero Principal for nobody in particular, with nil where it may do that to a keyspace,
	// *Denied where not, and else why that is not known.
	May(r *http.Request, verb rootv1.Verb, keyspace string) (principal.Principal, error)
	// Hide takes out of the headers for a member what its caller shows to the proxy alone.
	Hide(http.Header)
}

// Denied is that a caller may not do what it asks for.
type Denied struct {
	Who, Verb, Keyspace string
	// Why is the sentence of the grants.
	Why string
	// Token: it shows one that does not count, as Why says.
	Token bool
}

// Error implements error.
func (e *Denied) Error() string {
	if e.Token {
		return e.Why
	}
	said := fmt.Sprintf("%s may not %s keyspace %q: %s", e.Who, e.Verb, e.Keyspace, e.Why)
	if e.Who == nobody {
		return said + "; show a certificate of a client that one does (nokv cert issue --role client), or a token where this proxy takes them"
	}
	return fmt.Sprintf("%s; nokv access grant %s %s %s lets it", said, e.Who, e.Verb, e.Keyspace)
}

// A verdict is asked for anew by one of the requests that need it, when it is so old; the others go by it meanwhile, as long as
// routes are gone by without coordinators. Nobody waits longer for the first one, or for another, than that.
const (
	verdictFor     = 500 * time.Millisecond
	verdictWithout = 10 * time.Second
	firstWithin    = 2 * time.Second
	againWithin    = 500 * time.Millisecond
	maxVerdicts    = 4096
	// maxToken is more than the longest token has, and maxUnknown how many tokens that nothing is known of are asked about at
	// once: anybody can make them up.
	maxToken   = 512
	maxUnknown = 8
)

// nobody is how a caller is called whom no certificate and no token names.
const nobody = "nobody"

// NewCallers judges callers by the grants, which it asks of coordinators; the Client's certificate is of the role
// proxy. They are named by their certificates, at a listener of certs.HTTP or HTTPOpen; nil: all of them are nobody,
// who may read and claim where no grant names the keyspace.
func NewCallers(c *client.Client, certs *mtls.Source) Callers {
	c.KeepRevoked(certs)
	return &callers{c: c, certs: certs}
}

// NewTokenCallers is NewCallers of callers who show a token of nokv token in "Authorization: Bearer", which members do not
// see; whoever shows none is known as NewCallers says.
func NewTokenCallers(c *client.Client, certs *mtls.Source) Callers {
	c.KeepRevoked(certs)
	return &callers{c: c, certs: certs, tokens: make(chan struct{}, maxUnknown)}
}

type callers struct {
	c      *client.Client
	certs  *mtls.Source
	tokens chan struct{} // full while maxUnknown are asked about; nil: none are taken
	known  sync.Map      // of question, *verdict
	count  atomic.Int64
}

type question struct {
	who      principal.Principal
	token    string // of the one that is meant, if it is not empty
	verb     rootv1.Verb
	keyspace string
}

// verdict is what is known of a question.
type verdict struct {
	asking chan struct{} // full while somebody asks
	last   atomic.Pointer[answer]
}

// answer is one of a coordinator: what it said of whom, when it was asked, and when one was asked last.
type answer struct {
	who           principal.Principal
	err           error // nil, *Denied, or why nothing is known
	asked, looked time.Time
}

const authorization = "Authorization"

// Hide implements Callers.
func (k *callers) Hide(h http.Header) {
	if k.tokens != nil {
		h.Del(authorization)
	}
}

// May implements Callers.
func (k *callers) May(r *http.Request, verb rootv1.Verb, keyspace string) (principal.Principal, error) {
	q := question{verb: verb, keyspace: keyspace}
	if k.tokens != nil {
		if scheme, token, _ := strings.Cut(r.Header.Get(authorization), " "); strings.EqualFold(scheme, "Bearer") {
			if q.token = strings.TrimSpace(token); q.token == "" || len(q.token) > maxToken {
				return q.who, &Denied{Token: true, Why: "that is no token of NoKV: nokv token create makes one"}
			}
		}
	}
	if q.token == "" {
		q.who = k.certs.OpenerOf(r)
	}
	switch q.who.Role {
	case principal.Root, principal.Coordinator: // which read no regions themselves
		return q.who, &Denied{Who: q.who.Actor(), Verb: wordOf(verb), Keyspace: keyspace, Why: "processes of the control plane are no callers of members"}
	}
	a := k.verdict(r.Context(), q)
	return a.who, a.err
}

// verdict is the answer to a question.
func (k *callers) verdict(ctx context.Context, q question) *answer {
	found, ok := k.known.Load(q)
	switch {
	case !ok && q.token != "":
		return k.first(ctx, q)
	case !ok:
		found = k.keep(q)
	}
	v := found.(*verdict)
	a := v.last.Load()
	if a != nil && time.Since(a.looked) < verdictFor {
		return a
	}
	select {
	case v.asking <- struct{}{}:
	default:
		if a != nil && time.Since(a.looked) < verdictFor+againWithin {
			return a
		}
		select {
		case v.asking <- struct{}{}:
		case <-ctx.Done():
			return &answer{who: q.who, err: context.Cause(ctx)}
		}
	}
	defer func() { <-v.asking }()
	if a = v.last.Load(); a != nil && time.Since(a.looked) < verdictFor {
		return a // somebody has asked meanwhile
	}
	a = k.ask(ctx, q, a)
	v.last.Store(a)
	if q.token != "" && !a.who.Known() && k.known.CompareAndDelete(q, v) {
		k.count.Add(-1)
	}
	return a
}

// keep makes room for the answers to a question.
func (k *callers) keep(q question) any {
	if k.count.Add(1) > maxVerdicts {
		k.known.Clear()
		k.count.Store(1)
	}
	v, _ := k.known.LoadOrStore(q, &verdict{asking: make(chan struct{}, 1)})
	return v
}

// first is verdict where nothing is known of a token. Those that are made up take no room of others.
func (k *callers) first(ctx context.Context, q question) *answer {
	select {
	case k.tokens <- struct{}{}:
	case <-time.After(firstWithin):
		return &answer{err: &client.Error{
			Op: "CheckToken", Reason: rootv1.Reason_REASON_OVERLOADED, Cause: errors.New("too many tokens of which nothing is known are asked about"),
		}}
	case <-ctx.Done():
		return &answer{err: context.Cause(ctx)}
	}
	defer func() { <-k.tokens }()
	if found, ok := k.known.Load(q); ok {
		if a := found.(*verdict).last.Load(); a != nil && time.Since(a.looked) < verdictFor {
			return a // somebody has asked meanwhile
		}
	}
	a := k.ask(ctx, q, nil)
	if a.who.Known() {
		k.keep(q).(*verdict).last.Store(a)
	}
	return a
}

// ask asks a coordinator; known is the last answer.
func (k *callers) ask(ctx context.Context, q question, known *answer) *answer {
	begun, within, name := time.Now(), firstWithin, nobody
	good := known != nil && begun.Sub(known.asked) < verdictWithout
	if good {
		within = againWithin
	}
	if q.who.Known() {
		name = q.who.Actor()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within) // others go by what comes of it
	defer cancel()
	var got *coordinatorv1.CheckAccessResponse
	var err error
	fresh := client.MaxAge(time.Second) // one that the root cannot reach knows not what was taken back
	if q.token == "" {
		got, err = k.c.CheckAccess(ctx, name, q.verb, q.keyspace, fresh)
	} else {
		name = "the owner of the token"
		got, err = k.c.CheckToken(ctx, q.token, q.verb, q.keyspace, fresh)
	}
	switch {
	case err != nil && good && !errors.Is(err, client.ErrPermissionDenied):
		return &answer{known.who, known.err, known.asked, time.Now()}
	case err != nil: // and those who wait for the same are told the same
		return &answer{who: q.who, err: fmt.Errorf("what %s may do is not known: %w", name, err), looked: time.Now()}
	}
	a := &answer{who: q.who, asked: begun, looked: begun}
	if q.token != "" {
		role, of, _ := strings.Cut(got.GetBearer(), "/")
		if a.who.Role, err = principal.ParseRole(role); err != nil {
			a.err = &Denied{Token: true, Why: got.GetWhy()}
			return a
		}
		a.who.Name, name = of, got.GetBearer()
	}
	if !got.GetAllowed() {
		a.err = &Denied{Who: name, Verb: wordOf(q.verb), Keyspace: q.keyspace, Why: got.GetWhy()}
	}
	return a
}

func wordOf(v rootv1.Verb) string { return strings.ToLower(strings.TrimPrefix(v.String(), "VERB_")) }

// admit judges the caller of a request; verb: what it needs there. The first time it notes who that is.
func (p *Proxy) admit(x *exchange, r *http.Request, verb rootv1.Verb) error {
	if p.cfg.Callers == nil {
		return nil
	}
	who, err := p.cfg.Callers.May(r, verb, p.keyspace[0])
	if x.caller == nil {
		x.who = who
		if x.caller = []string{nobody}; who.Known() {
			x.caller = []string{who.Actor()}
		}
	}
	return err
}
