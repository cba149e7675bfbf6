package proxy

import (
	"context"
	"net/http"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// Where a request has its pin: once, in a header or in a cookie. Both are passed on to
// the member, which has to be shown it.
const (
	HeaderPin = "Nokv-Pin"
	CookiePin = "nokv-pin"
)

// Pins finds the member that a request is pinned to. What is not there is an error that
// is client.ErrNotFound, or of reason pin_lost.
type Pins interface {
	Find(*http.Request) (router.Target, error)
}

// NewPins makes the Pins of a router, for one of its keyspaces; empty: its first.
func NewPins(r *router.Router, keyspace string) Pins { return pins{r, keyspace} }

type pins struct {
	r        *router.Router
	keyspace string
}

// HasPin says whether a request shows a pin.
func HasPin(r *http.Request) bool {
	_, found, _ := pinOf(r)
	return found
}

// pinOf is the pin of a request.
func pinOf(r *http.Request) (text string, found bool, err error) {
	said := r.Header.Values(HeaderPin)
	if len(said) == 0 {
		for _, c := range r.CookiesNamed(CookiePin) {
			said = append(said, c.Value)
		}
	}
	switch len(said) {
	case 0:
		return "", false, &client.Error{Op: "Pinned", Reason: rootv1.Reason_REASON_NOT_FOUND, Cause: errNoPin}
	case 1:
		return said[0], true, nil
	}
	return "", true, &badRequest{http.StatusBadRequest, "there is more than one " + HeaderPin + ": show one pin"}
}

// Find implements Pins.
func (p pins) Find(r *http.Request) (router.Target, error) {
	text, _, err := pinOf(r)
	if err != nil {
		return router.Target{}, err
	}
	return p.r.Pinned(r.Context(), text, p.keyspace)
}

// Gone waits for what becomes of a member that could not be reached.
func (p pins) Gone(ctx context.Context, t router.Target, err error) error {
	return p.r.PinGone(ctx, t, p.keyspace, err)
}
