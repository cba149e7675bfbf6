package rest

import (
	"errors"
	"net/http"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestProblemsOfLostAnswers: nobody is told that nothing was done when that is not known.
func TestProblemsOfLostAnswers(t *testing.T) {
	get, post := route{verb: http.MethodGet}, route{verb: http.MethodPost}
	for _, c := range []struct {
		what   route
		err    error
		status int
		reason string
	}{
		{post, status.Error(codes.Unavailable, "the connection broke"), 502, "outcome_unknown"},
		{post, status.Error(codes.Canceled, "the caller went"), 502, "outcome_unknown"},
		{post, status.Error(codes.DeadlineExceeded, "late"), 504, "deadlineexceeded"},
		{get, status.Error(codes.Unavailable, "the connection broke"), 503, "unavailable"},
		{post, reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no leader"), 503, "root_unavailable"},
		{post, reason.New(rootv1.Reason_REASON_OVERLOADED, "full"), 503, "overloaded"},
		{post, errors.New("odd"), 500, "unknown"},
	} {
		if p := answering(c.what, c.err); p.status != c.status || p.reason != c.reason || p.wayOut == "" || p.detail == "" {
			t.Errorf("%s of %v: %+v", c.what.verb, c.err, p)
		}
	}
	for r := range rootv1.Reason_name {
		if p := problemOf(reason.New(rootv1.Reason(r), "x")); r != 0 && (p.status < 400 || p.status == 500 || p.reason != reason.Name(rootv1.Reason(r)) || p.wayOut == "") {
			t.Errorf("%v: %+v", rootv1.Reason(r), p)
		}
	}
}
