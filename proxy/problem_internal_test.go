package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// Callers are told what they can do, and not where the machines are: errors name addresses of members and coordinators, and
// go to the log. Each kind of error has a sentence of its own.
func TestNoProblemShowsAnAddressOfTheInside(t *testing.T) {
	const inside = "10.9.8.7:7000"
	tcp := func(op string) error {
		return &net.OpError{Op: op, Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP("10.9.8.7"), Port: 7000}, Err: errors.New("connection refused")}
	}
	at := func(err error) error { return fmt.Errorf("%s: %w", inside, err) }
	told := map[string]string{}
	for name, c := range map[string]struct {
		err    error
		status int
		reason string
	}{
		"not reached":         {notSent{router.NotSent(tcp("dial"))}, 503, "unhealthy_member"},
		"broken":              {tcp("read"), 502, "outcome_unknown"},
		"half an answer":      {at(io.ErrUnexpectedEOF), 502, "outcome_unknown"},
		"late":                {at(context.DeadlineExceeded), 504, "upstream_timeout"},
		"gone":                {at(&router.Gone{Member: "m1"}), 502, "outcome_unknown"},
		"no HTTP":             {at(errors.New("malformed")), 502, "upstream_error"},
		"moved":               {&member.Moved{Region: 1, To: "m2", Address: inside}, 503, "epoch_stale"},
		"busy":                {&router.Refusal{Kind: router.Busy, Said: inside}, 503, "overloaded"},
		"not confirmed":       {&router.Refusal{Kind: router.Unconfirmed, Said: inside}, 503, "unhealthy_member"},
		"it ran":              {&router.Refusal{Kind: router.NotOwned, Ran: true, Said: inside}, 502, "outcome_unknown"},
		"a pin":               {&router.Refusal{Kind: router.PinLost, Said: inside}, 404, "pin_lost"},
		"no coordinator":      {at(&client.Error{Op: "Resolve", Cause: at(client.ErrUnreachable)}), 503, "root_unavailable"},
		"no region":           {&client.Error{Reason: rootv1.Reason_REASON_NOT_FOUND, Cause: tcp("read")}, 404, "not_found"},
		"no owner":            {&client.Error{Reason: rootv1.Reason_REASON_UNHEALTHY_MEMBER, Cause: tcp("read")}, 503, "unhealthy_member"},
		"nobody":              {&client.Error{Reason: rootv1.Reason_REASON_NO_ACTIVE_MEMBERS, Cause: tcp("read")}, 503, "no_active_members"},
		"too many wait":       {&client.Error{Reason: rootv1.Reason_REASON_OVERLOADED, Cause: tcp("read")}, 503, "overloaded"},
		"a pin that ended":    {&client.Error{Reason: rootv1.Reason_REASON_PIN_LOST, Cause: tcp("read")}, 404, "pin_lost"},
		"not taken":           {&client.Error{Reason: rootv1.Reason_REASON_INVALID_REQUEST, Cause: tcp("read")}, 400, "invalid_request"},
		"not allowed":         {&client.Error{Reason: rootv1.Reason_REASON_PERMISSION_DENIED, Cause: tcp("read")}, 502, "permission_denied"},
		"made, and not bound": {&notBound{"member m1 has made k", tcp("read")}, 502, "outcome_unknown"},
		"not granted":         {at(&Denied{Who: "client/web", Verb: "read", Keyspace: "t", Why: "no grant names it"}), 403, "permission_denied"},
		"too long":            {&http.MaxBytesError{Limit: 5}, 413, "body_too_large"},
	} {
		if !strings.Contains(c.err.Error(), "10.9.8.7") && name != "too long" && name != "gone" {
			t.Errorf("%s: the error names no address: %v", name, c.err)
		}
		q := problemOf(c.err, "m1")
		if q.Status != c.status || q.Reason != c.reason || strings.Contains(q.Detail, "10.9.8.7") || strings.Contains(q.Detail, "7000") || len(q.Detail) < 20 {
			t.Errorf("%s: %d %s %q, want %d %s", name, q.Status, q.Reason, q.Detail, c.status, c.reason)
		}
		told[q.Detail] += name + ", "
		if q := problemOf(c.err, ""); strings.Contains(q.Detail, "10.9.8.7") {
			t.Errorf("%s, before a member was asked: %q", name, q.Detail)
		}
	}
	if said := (&Denied{Who: "client/web", Verb: "read", Keyspace: "t", Why: "no grant names it"}).Error(); told[said] != "not granted, " {
		t.Errorf("who has no grant is not told %q: %v", said, told)
	}
	if len(told) < 18 {
		t.Errorf("different errors are told in the same words: %v", told)
	}
}
