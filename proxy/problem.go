package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc/codes"
)

// HeaderReason is the reason of an answer that is the proxy's own, as in the document.
const HeaderReason = "Nokv-Reason"

// Problem is the answer to a request that no member answered: a document of RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Reason is one of the control plane, or upstream_error, upstream_timeout, body_too_large or
	// headers_too_large.
	Reason string `json:"reason"`
	// retry: it was not run, and may be asked again.
	retry bool
	tag   Tag
}

// maxDetail is the longest text for people.
const maxDetail = 1 << 10

// problemOf says what an error of a request means to the caller: in words that were made for that, because errors name
// addresses that callers are not to know. at is the member that was asked last.
func problemOf(err error, at rooted.MemberID) Problem {
	q := Problem{Status: http.StatusBadGateway, Reason: "upstream_error", tag: UpstreamError, Detail: fmt.Sprintf("what member %q answered is not HTTP, or is not what this proxy passes on", at)}
	if bad, ok := errors.AsType[*badRequest](err); ok {
		q.Status, q.Reason, q.tag, q.Detail = bad.status, reason.Name(rootv1.Reason_REASON_INVALID_REQUEST), BadRequest, bad.said
		switch bad.status {
		case http.StatusRequestEntityTooLarge:
			q.Reason = "body_too_large"
		case http.StatusRequestHeaderFieldsTooLarge:
			q.Reason = "headers_too_large"
		}
		return q
	}
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		q.Status, q.Reason, q.tag, q.Detail = http.StatusRequestEntityTooLarge, "body_too_large", BadRequest, long.Error()
		return q
	}
	if at == "" {
		q.Detail = "the request was not passed on: the log of this proxy says why"
	}
	if done, ok := errors.AsType[*notBound](err); ok {
		if q.Detail = done.said; broken(done.err) {
			q.Reason = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		}
		return q
	}
	if no, ok := errors.AsType[*Denied](err); ok {
		q.Status, q.Reason, q.tag, q.Detail = http.StatusForbidden, reason.Name(rootv1.Reason_REASON_PERMISSION_DENIED), Forbidden, no.Error()
		if no.Token {
			q.Status = http.StatusUnauthorized
		}
		return q
	}
	if said, ok := errors.AsType[*client.Error](err); ok {
		q.ofControlPlane(said)
		return q
	}
	unknown := fmt.Sprintf("member %q may have run the request: repeat it only if that does no harm, or send an Idempotency-Key", at)
	if no := router.RefusalOf(err); no != nil && no.Kind == router.PinLost {
		q.Status, q.Reason, q.tag = http.StatusNotFound, reason.Name(rootv1.Reason_REASON_PIN_LOST), NotFound
		q.Detail = fmt.Sprintf("member %q does not have what the request is pinned to: begin the work anew", at)
		return q
	} else if no != nil && no.Ran {
		q.Reason, q.Detail = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN), "the region was lost while the request ran: "+unknown
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
		q.Detail = fmt.Sprintf("member %q refused the request (%s) and did not run it: try again", at, no.Kind)
		return q
	}
	switch {
	case unsent(err):
		q.Status, q.Reason, q.retry, q.tag = http.StatusServiceUnavailable, reason.Name(rootv1.Reason_REASON_UNHEALTHY_MEMBER), true, Unavailable
		q.Detail = fmt.Sprintf("member %q could not be reached, and the request was not sent: try again", at)
	case timedOut(err):
		q.Status, q.Reason = http.StatusGatewayTimeout, "upstream_timeout"
		q.Detail = "no answer came in time: " + unknown
	case errors.As(err, new(*router.Gone)):
		q.Reason, q.Detail = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN), "the member has failed: "+unknown
	case broken(err):
		q.Reason, q.Detail = reason.Name(rootv1.Reason_REASON_OUTCOME_UNKNOWN), "the connection ended before an answer: "+unknown
	}
	return q
}

// notBound is what a member did that the control plane was not told of.
type notBound struct {
	said string // names no address
	err  error
}

func (e *notBound) Error() string { return e.said + ": " + e.err.Error() }

// ofControlPlane is the problem of a key that has no owner.
func (q *Problem) ofControlPlane(said *client.Error) {
	q.Status, q.retry, q.tag = http.StatusServiceUnavailable, true, Unavailable
	q.Reason = reason.Name(rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	if said.Reason != rootv1.Reason_REASON_UNSPECIFIED {
		q.Reason = reason.Name(said.Reason)
	}
	q.Detail = "the control plane could not say who owns the key: try again"
	switch said.Reason {
	case rootv1.Reason_REASON_NOT_FOUND:
		q.Status, q.retry, q.tag = http.StatusNotFound, false, NotFound
		q.Detail = "no region has the key, or there is no such pin"
		if errors.Is(said, errNoPin) {
			q.Detail = errNoPin.Error()
		}
	case rootv1.Reason_REASON_INVALID_REQUEST:
		q.Status, q.retry, q.tag = http.StatusBadRequest, false, BadRequest
		q.Detail = "the control plane does not take the request"
	case rootv1.Reason_REASON_PIN_LOST:
		q.Status, q.retry, q.tag = http.StatusNotFound, false, NotFound
		q.Detail = "the process that the request is pinned to has ended, and what it had begun with it: begin the work anew"
	case rootv1.Reason_REASON_UNHEALTHY_MEMBER:
		q.Detail = "no owner of the key lives: try again"
	case rootv1.Reason_REASON_NO_ACTIVE_MEMBERS:
		q.Detail = "no member that can own the key is active: try again"
	case rootv1.Reason_REASON_OVERLOADED:
		q.Detail = "too many requests wait for the owners of their keys: try again"
	case rootv1.Reason_REASON_PERMISSION_DENIED, rootv1.Reason_REASON_LAYOUT_MISMATCH:
		q.Status, q.retry = http.StatusBadGateway, false // what this proxy may or is set to do: asking again does not help
		q.Detail = "this proxy may not do that, or is not set up for it: its log says why"
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
	if q.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	body, _ := json.Marshal(q) // strings
	w.WriteHeader(q.Status)
	_, _ = w.Write(append(body, '\n'))
}

// writeGRPC answers a caller who understands gRPC alone: that nobody serves the call here.
func (q Problem) writeGRPC(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(codes.Unimplemented)))
	h.Set("Grpc-Message", q.Detail)
	h.Set(HeaderReason, q.Reason)
	w.WriteHeader(http.StatusOK)
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
