// Package hook asks an application over HTTP which members regions shall go to, and tells it
// how many members a keyspace wants.
//
// It owns what is said in JSON, and its bounds. It promises:
//
//  1. A call ends within its context, whatever the other side does; what is sent and what is
//     read of it is bounded in bytes.
//  2. Only the address that is given is asked, and only if it is allowed: redirects are not followed, and
//     there is no proxy in between.
//  3. Fields that are not known are passed over; what is not of its type is refused, and then
//     the answer as a whole.
//
// It leaves to others: whom to ask about what, how often, and what becomes of it (the
// assigner).
package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/nokv/nokv/meta/root/state"
)

// Version of what is said.
const Version = 1

const (
	// MaxRequestBytes bounds what is sent, in bytes.
	MaxRequestBytes = 8 << 20
	// MaxAnswerBytes bounds what is read, in bytes.
	MaxAnswerBytes = 2 << 20
	// maxProblemBytes bounds what is read of an answer that nobody has a use for.
	maxProblemBytes = 4 << 10
)

// Placement asks where regions of a keyspace shall go.
type Placement struct {
	Version    int    `json:"version"`
	Keyspace   string `json:"keyspace"`
	KeyspaceID uint32 `json:"keyspace_id"`
	// Probe: the regions have been placed, and the answer places nothing. It is asked whether
	// there is one.
	Probe bool `json:"probe,omitempty"`
	// Regions that have no owner who may act.
	Regions []Region `json:"regions"`
	// Candidates are members that may take regions of the keyspace, by id.
	Candidates []Candidate `json:"candidates"`
}

// Region is one that needs an owner.
type Region struct {
	ID uint64 `json:"id,string"`
	// StartKey and EndKey are the keys [start, end) in base64; an empty end is that of all.
	StartKey []byte `json:"start_key"`
	EndKey   []byte `json:"end_key"`
	// Slot is its number, in keyspaces of slots.
	Slot *uint64 `json:"slot,omitempty"`
	// Load in the members' unit; 1 where loads do not count.
	Load float64 `json:"load"`
	// Reason is why: first_touch, orphaned or member_failed.
	Reason string `json:"reason"`
}

// Candidate is a member that may take regions.
type Candidate struct {
	ID       string            `json:"id"`
	Labels   map[string]string `json:"labels,omitempty"`
	Capacity uint64            `json:"capacity"`
	// Load that it has, or is about to have, of this keyspace.
	Load float64 `json:"load"`
}

// Wish is how many members a keyspace wants.
type Wish struct {
	Version int `json:"version"`
	// ID is the same each time that one wish is posted.
	ID         string `json:"id"`
	Keyspace   string `json:"keyspace"`
	KeyspaceID uint32 `json:"keyspace_id"`
	// Active members there are, Desired there should be.
	Active  int `json:"active"`
	Desired int `json:"desired"`
	// Reason is load or below_min.
	Reason string `json:"reason"`
	// Victim is to end, of fewer members: it has drained, and nothing is its own any more.
	Victim            string `json:"victim,omitempty"`
	VictimAddress     string `json:"victim_address,omitempty"`
	VictimIncarnation uint64 `json:"victim_incarnation,omitempty,string"`
	// FullPermille is how full members are on average.
	FullPermille uint64 `json:"full_permille"`
}

// Why says why a hook is of no use.
type Why string

// Reasons why, as they are shown.
const (
	// Late: no answer in time. Unreachable: no connection, or it broke. Status: another one
	// than 200. Malformed: not what was asked for. TooLarge: more than is sent or read. Busy:
	// too many others are asked. NotAllowed: the operators do not allow its address.
	Late        Why = "late"
	Unreachable Why = "unreachable"
	Status      Why = "status"
	Malformed   Why = "malformed"
	TooLarge    Why = "too_large"
	Busy        Why = "busy"
	NotAllowed  Why = "not_allowed"
)

// Error is what became of a call instead of an answer.
type Error struct {
	Why Why
	Err error
}

// Error says why, and what happened.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Why, e.Err) }

// Unwrap is what happened.
func (e *Error) Unwrap() error { return e.Err }

// WhyOf is the reason of an error of a call.
func WhyOf(err error) Why {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Why
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Late
	}
	return Unreachable
}

// Client asks hooks. Its methods may overlap.
type Client struct {
	http  *http.Client
	allow Allow
}

// NewClient makes a Client that asks at the addresses which are allowed. It keeps connections that are not in
// use for a while.
func NewClient(allow Allow) *Client {
	dialer := &net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error { return allow.resolved(address) }}
	return &Client{allow: allow, http: &http.Client{
		Transport: &http.Transport{
			DialContext:     dialer.DialContext,
			MaxConnsPerHost: 16, MaxIdleConns: 64, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10,
			DisableCompression: true, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Place asks where regions shall go. Of regions that the answer does not name, nobody thinks
// anything; others than were asked about are not in what is returned.
func (c *Client) Place(ctx context.Context, url string, p *Placement) (map[state.RegionID]state.MemberID, error) {
	body, err := c.post(ctx, url, p, MaxAnswerBytes)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Owners map[string]*string `json:"owners"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, &Error{Malformed, err}
	}
	if answer.Owners == nil {
		return nil, &Error{Malformed, errors.New(`there are no "owners" in it`)}
	}
	owners := make(map[state.RegionID]state.MemberID, len(p.Regions))
	for _, r := range p.Regions {
		if id := answer.Owners[strconv.FormatUint(r.ID, 10)]; id != nil {
			owners[state.RegionID(r.ID)] = state.MemberID(*id)
		}
	}
	for id := range answer.Owners {
		if _, err := strconv.ParseUint(id, 10, 64); err != nil {
			return nil, &Error{Malformed, fmt.Errorf("%.32q is not the id of a region", id)}
		}
	}
	return owners, nil
}

// Scale tells of a wish. Nil: it was taken.
func (c *Client) Scale(ctx context.Context, url string, w *Wish) error {
	_, err := c.post(ctx, url, w, maxProblemBytes)
	return err
}

func (c *Client) post(ctx context.Context, url string, message any, most int64) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, &Error{Malformed, err}
	}
	if len(body) > MaxRequestBytes {
		return nil, &Error{TooLarge, fmt.Errorf("the request has %d bytes, at most %d are sent", len(body), MaxRequestBytes)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Unreachable, err}
	}
	if err := c.allow.url(req.URL); err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "nokv-coordinator")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, broken(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, &Error{Status, fmt.Errorf("the status is %d, want 200", resp.StatusCode)}
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, broken(ctx, err)
	case int64(len(answer)) > most:
		return nil, &Error{TooLarge, fmt.Errorf("the answer has more than %d bytes", most)}
	}
	return answer, nil
}

// broken tells one that is late from one that is not there.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &Error{Late, ctx.Err()}
	}
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused
	}
	return &Error{Unreachable, err}
}
