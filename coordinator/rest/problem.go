package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// problem is a refusal as RFC 9457 has it, with the fields of the ErrorDetail that came
// with it.
type problem struct {
	status int
	reason string
	detail string
	wayOut string
	lost   bool                // there was no answer
	more   *rootv1.ErrorDetail // nil: nothing
}

// Error implements error.
func (p *problem) Error() string { return p.reason + ": " + p.detail }

// refuse makes a problem of this package's own.
func refuse(status int, reason, wayOut, format string, args ...any) *problem {
	return &problem{status: status, reason: reason, wayOut: wayOut, detail: fmt.Sprintf(format, args...)}
}

// bad is a request that could never work.
func bad(format string, args ...any) *problem {
	return refuse(http.StatusBadRequest, "invalid_request", "correct the request: /openapi.json describes all of them", format, args...)
}

// answering is the problem of a request. When the connection of a call that changes
// something broke, nobody knows what became of it.
func answering(what route, err error) *problem {
	p := problemOf(err)
	if what.changes() && p.lost {
		return problemOf(reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "%s", p.detail))
	}
	return p
}

// problemOf is what an error of a call is over HTTP.
func problemOf(err error) *problem {
	if p, ok := err.(*problem); ok {
		return p
	}
	d := reason.From(err)
	if d == nil {
		s := status.Convert(err)
		word := strings.ToLower(s.Code().String())
		p := &problem{status: statusOf(s.Code()), reason: word, detail: s.Message(), wayOut: wayOut(statusOf(s.Code()))}
		if p.status == http.StatusServiceUnavailable {
			p.lost, p.wayOut = true, "ask again, or another coordinator"
		}
		return p
	}
	p := &problem{status: statusOf(reason.Code(d.GetReason())), reason: reason.Name(d.GetReason()), detail: d.GetMessage(), more: d}
	switch d.GetReason() {
	case rootv1.Reason_REASON_TENURE_NOT_HELD:
		p.status, p.wayOut = http.StatusMisdirectedRequest, "ask the coordinator that holds the Tenure: the one whose /health says so"
	case rootv1.Reason_REASON_OVERLOADED:
		p.status = http.StatusServiceUnavailable
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN:
		p.status, p.wayOut = http.StatusBadGateway, "it may have been done: read, or send it again with the same identity"
	case rootv1.Reason_REASON_CLUSTER_REQUIRED:
		p.wayOut = "add the header " + HeaderCluster + ": " + clusterid.String(d.GetClusterId())
	}
	if p.wayOut == "" {
		p.wayOut = wayOut(p.status)
	}
	return p
}

// statusOf is the HTTP status of a gRPC code.
func statusOf(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted, codes.ResourceExhausted:
		return http.StatusConflict
	case codes.OutOfRange:
		return http.StatusGone
	case codes.Unavailable, codes.Canceled:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}

// wayOut is what to do about a status that says all there is to know.
func wayOut(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "correct the request: /openapi.json describes all of them"
	case http.StatusUnauthorized, http.StatusForbidden:
		return "show a certificate, or the token, of somebody who may: docs/access.md has the table"
	case http.StatusNotFound:
		return "check the name; what was made a moment ago is seen with read.freshness=strong"
	case http.StatusConflict:
		return "read what is there now, and decide again"
	case http.StatusGone:
		return "begin again without a position"
	case http.StatusServiceUnavailable:
		return "nothing was done: ask again after Retry-After, or another coordinator"
	case http.StatusGatewayTimeout:
		return "what only reads is safe to ask again; a change may have been done: read, or send it again with the same identity"
	default:
		return "see the log of the coordinator"
	}
}

// document is the problem as JSON.
func (p *problem) document() []byte {
	fields := map[string]any{}
	if p.more != nil {
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p.more)
		if err == nil {
			_ = json.Unmarshal(raw, &fields)
		}
		delete(fields, "message")
	}
	fields["type"], fields["title"], fields["status"] = "urn:nokv:problem:"+p.reason, strings.ReplaceAll(p.reason, "_", " "), p.status
	fields["reason"], fields["detail"], fields["way_out"] = p.reason, p.detail, p.wayOut
	raw, _ := json.Marshal(fields) // maps of what came from JSON
	return raw
}

// retryAfter is the value of the header in seconds; 0: there is none.
func (p *problem) retryAfter() uint64 {
	if wait := p.more.GetRetryAfterMillis(); wait > 0 {
		return (wait + 999) / 1000
	}
	if p.status == http.StatusServiceUnavailable {
		return 1
	}
	return 0
}

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	if wait := p.retryAfter(); wait > 0 {
		h.Set("Retry-After", fmt.Sprint(wait))
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(append(p.document(), '\n'))
}
