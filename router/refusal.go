package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/pin"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Refusal is what a member says of a request that it may not answer for: in process it
// is the errors of package member, over HTTP and gRPC what WriteHTTP and GRPCStatus
// make of them.
type Refusal struct {
	// Kind is one of the constants below.
	Kind Kind
	// Member is whom to ask instead; empty: a coordinator knows. Address is where it is, for people:
	// requests go to the address that the root has.
	Member  rooted.MemberID
	Address string
	// Epoch is the one to ask at, of Moved; else the one that the member has the region
	// at. The zero Epoch: not told.
	Epoch rooted.Epoch
	// Ran: the request was run, and its outcome is not known.
	Ran bool
	// Said is for people.
	Said string

	// region is that of a store's refusal, which has to be the one that was asked for; 0: not told.
	region rooted.RegionID
}

// Kind says why a member refused, in the word of the wire.
type Kind string

// The kinds. What is not known counts as NotOwned.
const (
	Moved       Kind = "moved"
	EpochStale  Kind = "epoch_stale"
	NotOwned    Kind = "not_owned"
	Unconfirmed Kind = "unconfirmed"
	// Busy: too many requests wait at the member for what is on its way there.
	Busy Kind = "busy"
	// PinLost: what the request is pinned to is not there, or its pin is not one. Nobody
	// else is asked.
	PinLost Kind = "pin_lost"
)

// Error implements error.
func (e *Refusal) Error() string {
	if e.Said == "" {
		return "the member refused: " + string(e.Kind)
	}
	return e.Said
}

// RefusalOf finds the refusal in an error of a request; nil: there is none. What a coordinator
// said to a handler, who passed it on, is none. What another member said to it is one, unless it
// is packed into an error of the handler's own, as package grpcroute does.
func RefusalOf(err error) *Refusal {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	if e, ok := errors.AsType[*member.Moved](err); ok {
		return &Refusal{Kind: Moved, Member: e.To, Address: e.Address, Epoch: e.Epoch, Said: err.Error()}
	}
	if e, ok := errors.AsType[*member.EpochStale](err); ok {
		return &Refusal{Kind: EpochStale, Epoch: e.Current, Said: err.Error()}
	}
	if e, ok := errors.AsType[*member.NotOwned](err); ok {
		return &Refusal{Kind: NotOwned, Epoch: e.Held, Ran: e.Ran, Said: err.Error()}
	}
	if e, ok := errors.AsType[*member.Unconfirmed](err); ok {
		return &Refusal{Kind: Unconfirmed, Epoch: e.Epoch, Ran: e.Ran, Said: err.Error()}
	}
	if e, ok := errors.AsType[*pin.Error](err); ok {
		if e.Kind == pin.Busy {
			return &Refusal{Kind: Busy, Said: err.Error()}
		}
		return &Refusal{Kind: PinLost, Said: err.Error()}
	}
	if errors.Is(err, member.ErrTooManyHeld) || errors.Is(err, member.ErrNotRunning) {
		return &Refusal{Kind: Busy, Said: err.Error()}
	}
	if _, ok := errors.AsType[*client.Error](err); ok {
		return nil
	}
	return ofDetail(reason.From(err), marked(err))
}

// mark is in the details of what GRPCStatus makes, before its Word.
const mark = HeaderRefused + ": "

// marked says whether a status is of a member that speaks of itself. Those of members older than
// the mark, and of stores, have none.
func marked(err error) bool {
	s, _ := status.FromError(err)
	for _, d := range s.Details() {
		if m, ok := d.(*wrapperspb.StringValue); ok && strings.HasPrefix(m.GetValue(), mark) {
			return true
		}
	}
	return false
}

// ofDetail is a refusal by gRPC. Without the mark it has to name a region or an epoch where
// coordinators and root peers, whose errors a handler may pass on, say the same of themselves.
func ofDetail(d *rootv1.ErrorDetail, marked bool) *Refusal {
	if !marked {
		switch d.GetReason() {
		case rootv1.Reason_REASON_UNHEALTHY_MEMBER, rootv1.Reason_REASON_OVERLOADED, rootv1.Reason_REASON_PIN_LOST, rootv1.Reason_REASON_OUTCOME_UNKNOWN:
			if d.GetEpoch() == nil {
				return nil
			}
		}
	}
	r := &Refusal{
		Kind: EpochStale, Member: rooted.MemberID(d.GetMemberId()), Address: d.GetMemberAddress(),
		Epoch: rooted.EpochFromProto(d.GetEpoch()), Said: d.GetMessage(),
	}
	switch d.GetReason() {
	case rootv1.Reason_REASON_EPOCH_STALE:
		if r.Member != "" {
			r.Kind = Moved
		} else if d.GetEpoch() == nil && d.GetRegion() == nil {
			r.Kind = NotOwned
		}
		if d.GetEpoch() == nil {
			r.Epoch, r.region = rooted.EpochFromProto(d.GetRegion().GetEpoch()), rooted.RegionID(d.GetRegion().GetId())
		}
	case rootv1.Reason_REASON_UNHEALTHY_MEMBER:
		r.Kind = Unconfirmed
	case rootv1.Reason_REASON_OVERLOADED:
		r.Kind = Busy
	case rootv1.Reason_REASON_PIN_LOST:
		r.Kind = PinLost
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN:
		r.Kind, r.Ran = NotOwned, true
	case rootv1.Reason_REASON_NOT_LEADER, rootv1.Reason_REASON_NOT_FOUND, rootv1.Reason_REASON_RANGE_CHANGE_PENDING, rootv1.Reason_REASON_MEMBER_RETIRED:
		// Of a store, which names the region.
		if d.GetRegion() == nil {
			return nil
		}
		r.Kind, r.Epoch, r.region = NotOwned, rooted.EpochFromProto(d.GetRegion().GetEpoch()), rooted.RegionID(d.GetRegion().GetId())
		if d.GetReason() == rootv1.Reason_REASON_RANGE_CHANGE_PENDING {
			r.Kind = Busy
		}
	default:
		return nil
	}
	return r
}

// GRPCStatus lets a gRPC server of a member return a Refusal, with an ErrorDetail of reason
// epoch_stale, unhealthy_member, overloaded, pin_lost or outcome_unknown and the mark of who speaks of itself. The code is
// UNAVAILABLE, with which clients try again by themselves; FAILED_PRECONDITION of a pin, for which nobody else can do.
func (e *Refusal) GRPCStatus() *status.Status {
	d := &rootv1.ErrorDetail{Message: e.Said, MemberId: string(e.Member), MemberAddress: e.Address}
	if e.Epoch != (rooted.Epoch{}) {
		d.Epoch = e.Epoch.Proto()
	}
	switch {
	case e.Ran:
		d.Reason = rootv1.Reason_REASON_OUTCOME_UNKNOWN
	case e.Kind == Unconfirmed:
		d.Reason = rootv1.Reason_REASON_UNHEALTHY_MEMBER
	case e.Kind == Busy:
		d.Reason = rootv1.Reason_REASON_OVERLOADED
	case e.Kind == PinLost:
		d.Reason = rootv1.Reason_REASON_PIN_LOST
	default:
		d.Reason = rootv1.Reason_REASON_EPOCH_STALE
	}
	said := (&reason.Error{Detail: d}).GRPCStatus().Proto()
	if e.Ran || e.Kind != PinLost {
		said.Code = int32(codes.Unavailable)
	}
	s := status.FromProto(said)
	if own, err := s.WithDetails(wrapperspb.String(mark + e.Word())); err == nil {
		return own
	}
	return s
}

// Headers of an answer of a member that refuses.
const (
	HeaderRefused = "Nokv-Refused"        // a Kind, or outcome_unknown
	HeaderMember  = "Nokv-Member"         // whom to ask instead
	HeaderAddress = "Nokv-Member-Address" // where it is, for people
	HeaderEpoch   = "Nokv-Epoch"          // VERSION.CONF_VERSION
)

// HeaderCaller is in a request: who asks, ROLE/NAME or nobody. Who stands in front of a member and knows sets it,
// and takes away what callers say. It counts on the connection of a proxy alone, as mtls.Source.CallerOf says.
const HeaderCaller = mtls.HeaderCaller

const outcomeUnknown = "outcome_unknown"

// Word is all of a refusal that fits in a word: its Kind, or outcome_unknown.
func (e *Refusal) Word() string {
	if e.Ran {
		return outcomeUnknown
	}
	return string(e.Kind)
}

// OfWord is the refusal that a word is.
func OfWord(word string) *Refusal {
	r := &Refusal{Kind: Kind(word)}
	switch r.Kind {
	case Moved, EpochStale, NotOwned, Unconfirmed, Busy, PinLost:
	default:
		r.Kind, r.Ran = NotOwned, word == outcomeUnknown
	}
	return r
}

// maxSaid is how much of an answer of a member is read for people, and of a name or
// address in it.
const maxSaid = 1 << 10

// WriteHTTP answers a request that was refused: 421 with the headers above, 503 when the
// member is busy or the request was run and its outcome is not known, 404 for a pin.
func (e *Refusal) WriteHTTP(w http.ResponseWriter) {
	code := http.StatusMisdirectedRequest
	switch {
	case e.Ran, e.Kind == Busy:
		code = http.StatusServiceUnavailable
	case e.Kind == PinLost:
		code = http.StatusNotFound
	}
	h := w.Header()
	h.Set(HeaderRefused, e.Word())
	if e.Member != "" {
		h.Set(HeaderMember, string(e.Member))
	}
	if e.Address != "" {
		h.Set(HeaderAddress, e.Address)
	}
	if e.Epoch != (rooted.Epoch{}) {
		h.Set(HeaderEpoch, e.Epoch.String())
	}
	http.Error(w, e.Error(), code)
}

// FromHTTP is the refusal that an answer is, of whose body it reads a little; nil: it is
// none, and the body is as it was. What cannot be read in it is left out. An answer with one
// of the statuses that WriteHTTP gives, and without HeaderRefused, is the application's, which
// has run the request; one with two of that header is no member's.
func FromHTTP(resp *http.Response) *Refusal {
	words := resp.Header[HeaderRefused]
	if len(words) != 1 || words[0] == "" {
		return nil
	}
	kind := words[0]
	switch resp.StatusCode {
	case http.StatusMisdirectedRequest, http.StatusServiceUnavailable:
	case http.StatusNotFound:
		if kind != string(PinLost) {
			return nil
		}
	default:
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
	r := OfWord(kind)
	r.Said = strings.TrimSpace(string(said))
	if m := resp.Header.Get(HeaderMember); len(m) <= maxSaid {
		r.Member = rooted.MemberID(m)
	}
	if a := resp.Header.Get(HeaderAddress); len(a) <= maxSaid {
		r.Address = a
	}
	r.Epoch, _ = ParseEpoch(resp.Header.Get(HeaderEpoch))
	return r
}

// ParseEpoch reads an epoch as its String writes it.
func ParseEpoch(text string) (rooted.Epoch, error) {
	version, conf, ok := strings.Cut(text, ".")
	v, err1 := strconv.ParseUint(version, 10, 64)
	c, err2 := strconv.ParseUint(conf, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return rooted.Epoch{}, fmt.Errorf("epoch %.64q: want VERSION.CONF_VERSION, such as 3.1", text)
	}
	return rooted.Epoch{Version: v, ConfVersion: c}, nil
}

// NotSent marks the error of a request of which nothing was sent, so that Do may run it
// again at another member. Errors of net.Dial that name the Target's address are known as that
// without it; those of what a handler dialled itself are not.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

// Unwrap returns the error.
func (e notSent) Unwrap() error { return e.error }

// unsent says that a request to an address that failed was not sent: its caller says so, or it is
// that address which was dialled in vain.
func unsent(err error, address string) bool {
	if _, ok := errors.AsType[notSent](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "dial" {
		return false
	}
	host, port, _ := net.SplitHostPort(address)
	if e, ok := errors.AsType[*net.DNSError](op.Err); ok {
		return strings.TrimSuffix(e.Name, ".") == strings.TrimSuffix(host, ".")
	}
	if op.Addr == nil {
		return false
	}
	to := op.Addr.String()
	toHost, toPort, err := net.SplitHostPort(to)
	if to == address || err != nil {
		return to == address
	}
	want, got := net.ParseIP(host), net.ParseIP(toHost)
	return port == toPort && (want == nil && got != nil || want != nil && want.Equal(got)) // a name has become an address
}

// lost says that the connection was, and the answer with it.
func lost(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Unavailable
}
