package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// HeaderReason is the reason of an answer that is the proxy's own, as in the document.
const HeaderReason = "Nokv-Reason"

// Problem is the answer to a request that no member answered: a document of RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Reason is one of the control plane, or upstream_error, upstream_timeout or
	// body_too_large.
	Reason string `json:"reason"`
	// retry: it was not run, and may be asked again.
	retry bool
	tag   Tag
}

// maxDetail is the longest text for people.
const maxDetail = 1 << 10

// problemOf says what an error means to the caller.
func problemOf(err error) Problem {
	q := Problem{Status: http.StatusBadGateway, Reason: "upstream_error", Detail: err.Error(), tag: UpstreamError}
	if bad, ok := errors.AsType[*badRequest](err); ok {
		q.Status, q.Reason, q.tag = bad.status, reason.Name(rootv1.Reason_REASON_INVALID_REQUEST), BadRequest
		if bad.status == http.StatusRequestEntityTooLarge {
			q.Reason = "body_too_large"
		}
		return q
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		q.Status, q.Reason, q.tag = http.StatusRequestEntityTooLarge, "body_too_large", BadRequest
		return q
	}
	if _, ok := errors.AsType[*Denied](err); ok {
		q.Status, q.Reason, q.tag = http.StatusForbidden, reason.Name(rootv1.Reason_REASON_PERMISSION_DENIED), Forbidden
		return q
	}
	if said, ok := errors.AsType[*client.Error](err); ok {
		q.ofControlPlane(said)
		return q
	}
	if no := router.RefusalOf(err); no != nil && no.Kind == router.PinLost {
		q.Status, q.Reason, q.tag = http.StatusNotFound, reason.Name(rootv1.Reason_REASON_PIN_LOST), NotFound
		return q
	} else if no != nil && no.Ran {
		q.Reason = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		return q
	} else if no != nil {
		q.Status, q.retry, q.tag = http.StatusServiceUnavailable, true, Unavailable
		q.Reason = reason.Name(rootv1.Reason_REASON_EPOCH_STALE)
		switch no.Kind {
		case router.Busy:
			q.Reason = reason.Name(rootv1.Reason_REASON_OVERLOADED)
		case router.Unconfirmed:
			q.Reason = reason.Name(rootv1.Reason_REASON_UNHEALTHY_MEMBER)
		}
		return q
	}
	switch {
	case unsent(err):
		q.Status, q.Reason, q.retry, q.tag = http.StatusServiceUnavailable, reason.Name(rootv1.Reason_REASON_UNHEALTHY_MEMBER), true, Unavailable
		q.Detail = "the owner cannot be reached: " + q.Detail
	case timedOut(err):
		q.Status, q.Reason = http.StatusGatewayTimeout, "upstream_timeout"
		q.Detail = "the owner did not answer in time, and may have run the request: " + q.Detail
	case errors.As(err, new(errFailed)):
		q.Reason = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		q.Detail = "the owner may have run the request: repeat it only if that does no harm, or send an Idempotency-Key: " + q.Detail
	case broken(err):
		q.Reason = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		q.Detail = "the owner ended the connection before it had answered, and may have run the request: repeat it only if that does no harm, or send an Idempotency-Key: " + q.Detail
	}
	return q
}

// ofControlPlane is the problem of a key that has no owner.
func (q *Problem) ofControlPlane(said *client.Error) {
	q.Status, q.retry, q.tag = http.StatusServiceUnavailable, true, Unavailable
	q.Reason = reason.Name(rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	if said.Reason != rootv1.Reason_REASON_UNSPECIFIED {
		q.Reason = reason.Name(said.Reason)
	}
	switch said.Reason {
	case rootv1.Reason_REASON_NOT_FOUND:
		q.Status, q.retry, q.tag = http.StatusNotFound, false, NotFound
	case rootv1.Reason_REASON_INVALID_REQUEST:
		q.Status, q.retry, q.tag = http.StatusBadRequest, false, BadRequest
	case rootv1.Reason_REASON_PIN_LOST:
		q.Status, q.retry, q.tag = http.StatusNotFound, false, NotFound
	case rootv1.Reason_REASON_PERMISSION_DENIED, rootv1.Reason_REASON_LAYOUT_MISMATCH:
		q.Status, q.retry = http.StatusBadGateway, false // what this proxy may or is set to do: asking again does not help
	}
}

// write answers with a problem.
func (q Problem) write(w http.ResponseWriter) {
	q.Type, q.Title = "about:blank", http.StatusText(q.Status)
	q.Detail = strings.ToValidUTF8(q.Detail[:min(len(q.Detail), maxDetail)], "")
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(HeaderReason, q.Reason)
	if q.retry {
		h.Set("Retry-After", "1")
	}
	body, _ := json.Marshal(q) // strings
	w.WriteHeader(q.Status)
	_, _ = w.Write(append(body, '\n'))
}

// notSent marks an error before which nothing was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

func unsent(err error) bool {
	_, ok := errors.AsType[notSent](err)
	return ok
}

func timedOut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// broken says that a connection ended.
func broken(err error) bool {
	_, op := errors.AsType[*net.OpError](err)
	return op || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
