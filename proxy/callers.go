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
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Callers says who asks, and what it may do: a proxy does nothing for a caller that it may not do itself.
type Callers interface {
	// Who asks; the zero Principal is nobody in particular.
	Who(*http.Request) principal.Principal
	// May is nil where who may do that to a keyspace, *Denied where not, and else why that is not known.
	May(ctx context.Context, who principal.Principal, verb rootv1.Verb, keyspace string) error
}

// Denied is that a caller may not do what it asks for.
type Denied struct {
	Who, Verb, Keyspace string
	// Why is the sentence of the grants.
	Why string
}

// Error implements error.
func (e *Denied) Error() string {
	said := fmt.Sprintf("%s may not %s keyspace %q: %s", e.Who, e.Verb, e.Keyspace, e.Why)
	if e.Who == nobody {
		return said + "; show a certificate of a client that one does (nokv cert issue --role client)"
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
)

// nobody is how a caller is called whom no certificate names.
const nobody = "nobody"

// NewCallers judges callers by the grants, which it asks of coordinators; the Client's certificate is of the role
// proxy. They are named by their certificates, at a listener of certs.HTTP or HTTPOpen; nil: all of them are nobody,
// who may read and claim where no grant names the keyspace.
func NewCallers(c *client.Client, certs *mtls.Source) Callers {
	c.KeepRevoked(certs)
	return &callers{c: c, certs: certs}
}

type callers struct {
	c     *client.Client
	certs *mtls.Source
	known sync.Map // of question, *verdict
	count atomic.Int64
}

type question struct {
	who      principal.Principal
	verb     rootv1.Verb
	keyspace string
}

// verdict is what is known of a question.
type verdict struct {
	asking chan struct{} // full while somebody asks
	last   atomic.Pointer[answer]
}

// answer is one of a coordinator: what it said, when it was asked, and when one was asked last.
type answer struct {
	err           error // nil, *Denied, or why nothing is known
	asked, looked time.Time
}

// Who implements Callers.
func (k *callers) Who(r *http.Request) principal.Principal { return k.certs.OpenerOf(r) }

// May implements Callers.
func (k *callers) May(ctx context.Context, who principal.Principal, verb rootv1.Verb, keyspace string) error {
	switch who.Role {
	case principal.Root, principal.Coordinator: // which read no regions themselves
		return &Denied{Who: who.Actor(), Verb: wordOf(verb), Keyspace: keyspace, Why: "processes of the control plane are no callers of members"}
	}
	q := question{who, verb, keyspace}
	found, ok := k.known.Load(q)
	if !ok {
		if k.count.Add(1) > maxVerdicts {
			k.known.Clear()
			k.count.Store(1)
		}
		found, _ = k.known.LoadOrStore(q, &verdict{asking: make(chan struct{}, 1)})
	}
	v := found.(*verdict)
	a := v.last.Load()
	if a != nil && time.Since(a.looked) < verdictFor {
		return a.err
	}
	select {
	case v.asking <- struct{}{}:
	default:
		if a != nil && time.Since(a.looked) < verdictFor+againWithin {
			return a.err
		}
		select {
		case v.asking <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-v.asking }()
	if a = v.last.Load(); a != nil && time.Since(a.looked) < verdictFor {
		return a.err // somebody has asked meanwhile
	}
	return k.ask(ctx, q, v, a)
}

// ask asks a coordinator; known is the last answer. The caller has filled v.asking.
func (k *callers) ask(ctx context.Context, q question, v *verdict, known *answer) error {
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
	got, err := k.c.CheckAccess(ctx, name, q.verb, q.keyspace, client.MaxAge(time.Second)) // one that the root cannot reach knows not what was taken back
	switch {
	case err != nil && good && !errors.Is(err, client.ErrPermissionDenied):
		v.last.Store(&answer{known.err, known.asked, time.Now()})
		return known.err
	case err != nil: // and those who wait for the same are told the same
		err = fmt.Errorf("what %s may do is not known: %w", name, err)
		v.last.Store(&answer{err: err, looked: time.Now()})
		return err
	}
	a := &answer{asked: begun, looked: begun}
	if !got.GetAllowed() {
		a.err = &Denied{Who: name, Verb: wordOf(q.verb), Keyspace: q.keyspace, Why: got.GetWhy()}
	}
	v.last.Store(a)
	return a.err
}

func wordOf(v rootv1.Verb) string { return strings.ToLower(strings.TrimPrefix(v.String(), "VERB_")) }

// admit judges the caller of a request; verb: what it needs there. The first time it finds out who that is.
func (p *Proxy) admit(x *exchange, r *http.Request, verb rootv1.Verb) error {
	if p.cfg.Callers == nil {
		return nil
	}
	if x.caller == nil {
		x.who = p.cfg.Callers.Who(r)
		if x.caller = []string{nobody}; x.who.Known() {
			x.caller = []string{x.who.Actor()}
		}
	}
	return p.cfg.Callers.May(r.Context(), x.who, verb, p.keyspace[0])
}
