package replica

import (
	"math"
	"sync/atomic"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Request is something that a Turn takes in and, then or later, answers once,
// by its appearance in Output.Done.
type Request interface {
	// fail answers with an error instead of a result.
	fail(err error)
	// err is the error it was answered with.
	err() error
	// answered returns the channel that the Replica closes when the answer may
	// be read.
	answered() chan struct{}
}

// call is what all requests share. Its fields are the Core's until the request
// is in Output.Done, the caller's afterwards.
type call struct {
	// Err is why there is no result: an *reason.Error.
	Err  error
	done chan struct{}
}

func newCall() call { return call{done: make(chan struct{})} }

func (c *call) fail(err error)          { c.Err = err }
func (c *call) err() error              { return c.Err }
func (c *call) answered() chan struct{} { return c.done }

// Proposal asks for commands to be committed and judged, each on its own.
type Proposal struct {
	call
	// Results has one result a command, in order.
	Results []state.Result

	// data is a serialized rootv1.Entry; several are concatenated to one.
	data     []byte
	commands int
	// stamps are the timestamps asked for.
	stamps stamps
	// fencesEra is the era that nobody is confirmed while the outcome is
	// unknown; 0 for none (rule 3 of authority.md).
	fencesEra state.Era
	// claim is set when the proposal serves a Claim, which is answered instead.
	claim *Claim
	// internal proposals have nobody waiting.
	internal bool
	// change is set when the command rides in a membership entry of raft.
	change *raftpb.ConfChangeV2
	// reshape is set when the proposal serves a Reshape, which is answered instead.
	reshape *Reshape
}

// MaxCommands is the most commands of one Proposal, MaxProposalBytes their
// most bytes together.
const (
	MaxCommands      = 1024
	MaxProposalBytes = 1 << 20
)

// NewProposal encodes commands. What only the leader may say
// (TenureClaimed.predecessor_expired) is cleared. Commands that every peer
// would have to stop at are refused here: REASON_INVALID_REQUEST.
func NewProposal(commands []*rootv1.Command) (*Proposal, error) {
	if len(commands) == 0 || len(commands) > MaxCommands {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%d commands, want 1 to %d", len(commands), MaxCommands)
	}
	p := &Proposal{call: newCall(), commands: len(commands)}
	entry := &rootv1.Entry{Commands: commands}
	for i, c := range commands {
		if detail := state.CheckCommand(c); detail != nil {
			return nil, &reason.Error{Detail: detail}
		}
		for _, e := range c.GetEvents() {
			if state.RootPeerEvent(e) {
				return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "root peers are replaced by the root leader: ask for a replacement")
			}
			p.stamps.add(e)
			if e.GetTenureClaimed().GetPredecessorExpired() {
				entry = withoutVerdict(entry, i)
			}
		}
	}
	if err := p.encode(entry); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Proposal) encode(entry *rootv1.Entry) error {
	data, err := proto.Marshal(entry)
	if err != nil {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "encode commands: %v", err)
	}
	if len(data) > MaxProposalBytes {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "commands of %d bytes, want at most %d", len(data), MaxProposalBytes)
	}
	p.data = data
	return nil
}

// stamps are windows one behind the other: size values, above floor.
type stamps struct{ floor, size uint64 }

// add counts the timestamps that e asks for, if any.
func (s *stamps) add(e *rootv1.Event) {
	if f := e.GetFenceExtended(); f.GetMandate() == rootv1.Mandate_MANDATE_TSO {
		s.join(stamps{floor: f.GetFloor(), size: f.GetSize()})
	}
}

func (s *stamps) join(o stamps) {
	s.floor = max(s.floor, o.floor)
	s.size = sum(s.size, o.size)
}

// end is a bound of where the windows end when the fence is there.
func (s stamps) end(fence uint64) uint64 { return sum(max(s.floor, fence), s.size) }

// sum is a + b, or as much as fits.
func sum(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

// withoutVerdict is entry with a copy of command i that has no
// predecessor_expired.
func withoutVerdict(entry *rootv1.Entry, i int) *rootv1.Entry {
	commands := append([]*rootv1.Command(nil), entry.Commands...)
	commands[i] = proto.Clone(commands[i]).(*rootv1.Command)
	for _, e := range commands[i].Events {
		if claim := e.GetTenureClaimed(); claim != nil {
			claim.PredecessorExpired = false
		}
	}
	return &rootv1.Entry{Commands: commands}
}

// Read asks for a position that a linearizable read must reach. When it is
// answered this peer has applied it.
type Read struct {
	call
	Token state.Token

	abandoned atomic.Bool
}

// NewRead makes a read index request.
func NewRead() *Read { return &Read{call: newCall()} }

// Abandon says that nobody waits for the answer any more. It may be called
// from any goroutine.
func (r *Read) Abandon() { r.abandoned.Store(true) }

// Confirm asks whether an era is still the active one (rule 2 of
// authority.md). Only the leader answers.
type Confirm struct {
	Read
	Request  *rootv1.ConfirmTenureRequest
	Response *rootv1.ConfirmTenureResponse
}

// NewConfirm makes a confirm request.
func NewConfirm(request *rootv1.ConfirmTenureRequest) *Confirm {
	return &Confirm{Read: Read{call: newCall()}, Request: request}
}

// Claim asks for the next era (rules 1 and 3 of authority.md). Only the leader
// answers.
type Claim struct {
	call
	Request  *rootv1.TenureClaimed
	Windows  []*rootv1.FirstWindow
	Response *rootv1.ClaimTenureResponse
}

// maxFirstWindows is the most windows of one claim.
const maxFirstWindows = 16

// NewClaim makes a claim request, with windows to begin the era with:
// REASON_INVALID_REQUEST when it is not one.
func NewClaim(request *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*Claim, error) {
	if detail := state.CheckCommand(claimCommand(request, false)); detail != nil {
		return nil, &reason.Error{Detail: detail}
	}
	if len(windows) > maxFirstWindows {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%d first windows, want at most %d", len(windows), maxFirstWindows)
	}
	return &Claim{call: newCall(), Request: request, Windows: windows}, nil
}

func claimCommand(request *rootv1.TenureClaimed, expired bool) *rootv1.Command {
	claim := proto.Clone(request).(*rootv1.TenureClaimed)
	claim.PredecessorExpired = expired
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: claim}}}}
}

// Transfer asks the leader to hand over to another peer; 0 is the most
// advanced one. It is answered when another peer leads, or when the attempt
// was given up after an election timeout.
type Transfer struct {
	call
	To     uint64
	Leader uint64

	target uint64
	ticks  int
}

// NewTransfer makes a transfer request.
func NewTransfer(to uint64) *Transfer { return &Transfer{call: newCall(), To: to} }

func errNotLeader(leader uint64) error {
	e := reason.New(rootv1.Reason_REASON_NOT_LEADER, "this peer does not lead")
	e.Detail.LeaderId = leader
	return e
}

func errUnknown(why string) error {
	return reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "%s: the commands may or may not be committed; a retry is safe", why)
}

func errOverloaded(what string, limit int) error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED, "too many %s wait", what)
	e.Detail.Limit = uint64(limit)
	return e
}

func errUnavailable(why string) error {
	return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "%s", why)
}
