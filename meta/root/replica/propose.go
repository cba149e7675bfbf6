package replica

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Request is something that a Turn takes in and, then or later, answers once,
// by its appearance in Output.Done.
type Request interface {
	// fail answers with an error instead of a result.
	fail(err error)
	// Refusal is why it was answered without a result; nil when it has one.
	Refusal() error
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
func (c *call) answered() chan struct{} { return c.done }

// Refusal implements Request.
func (c *call) Refusal() error { return c.Err }

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
	// level is the feature level that the commands require.
	level uint32
	// ofHolder is what keeps or hands over the Tenure: it does not wait behind the
	// bytes of others.
	ofHolder bool
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
	MaxProposalBytes = state.MaxCommandBytes
)

// NewProposal encodes commands. What is for the leader alone to say or to read
// (TenureClaimed.predecessor_expired, unless_confirmed) is cleared. Commands that every peer
// would have to stop at are refused here: REASON_INVALID_REQUEST.
func NewProposal(commands []*rootv1.Command) (*Proposal, error) {
	if len(commands) == 0 || len(commands) > MaxCommands {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%d commands, want 1 to %d", len(commands), MaxCommands)
	}
	p := &Proposal{call: newCall(), commands: len(commands)}
	entry := &rootv1.Entry{Commands: commands}
	for i, c := range commands {
		for _, e := range c.GetEvents() {
			if state.RootPeerEvent(e) {
				return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "root peers are replaced by the root leader: ask for a replacement")
			}
			p.stamps.add(e)
			if claim := e.GetTenureClaimed(); claim.GetPredecessorExpired() || claim.GetUnlessConfirmed() {
				entry = withoutVerdict(entry, i)
			}
		}
	}
	if err := p.encode(entry); err != nil {
		return nil, err
	}
	for _, c := range commands {
		if detail := state.CheckSmall(c); detail != nil { // All of them fit in MaxProposalBytes.
			return nil, &reason.Error{Detail: detail}
		}
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
	p.ofHolder = len(data) <= state.MaxHolderBytes
	for _, c := range entry.Commands {
		p.level = max(p.level, state.RequiredLevel(c))
		p.ofHolder = p.ofHolder && state.OfHolder(c)
	}
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

// withoutVerdict is entry with a copy of command i that has nothing for the leader.
func withoutVerdict(entry *rootv1.Entry, i int) *rootv1.Entry {
	commands := append([]*rootv1.Command(nil), entry.Commands...)
	commands[i] = proto.Clone(commands[i]).(*rootv1.Command)
	for _, e := range commands[i].Events {
		if claim := e.GetTenureClaimed(); claim != nil {
			claim.PredecessorExpired, claim.UnlessConfirmed = false, false
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
	Request *rootv1.TenureClaimed
	Windows []*rootv1.FirstWindow
	// Actor is who asks; empty: nobody can vouch for a name.
	Actor    string
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
	claim.PredecessorExpired, claim.UnlessConfirmed = expired, false
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

// proposals are the commands between their arrival and their answer.
type proposals struct {
	// queue holds what raft has not taken, in order of arrival.
	queue []*Proposal
	// offered holds the entries raft has taken and not numbered yet, pending
	// those in the log, in order of index.
	offered []batch
	pending []batch
	// count and bytes of all of them, and the timestamps they ask for.
	count, bytes int
	stamps       stamps
	// bootstrapping is set while the first event of the cluster is under way.
	bootstrapping bool
	// settling is set while the end of a joint change is under way.
	settling bool
}

// batch is one entry: the commands of many proposals.
type batch struct {
	term, index uint64
	proposals   []*Proposal
}

// maxTurnBytes bounds the commands that one Turn writes.
const maxTurnBytes = 4 << 20

// tsoMillisShift is the number of counter bits below a timestamp's Unix
// milliseconds.
const tsoMillisShift = 18

func (c *Core) acceptProposal(p *Proposal, out *Output) {
	if err := c.refuse(p); err != nil {
		p.Err = err
		out.Done = append(out.Done, p)
		return
	}
	c.enqueue(p)
}

// refuse says why a proposal must not be queued. Whatever its way here, what some
// process of the cluster does not understand stays out of the log.
func (c *Core) refuse(p *Proposal) error {
	if !c.leads() {
		return errNotLeader(c.leader)
	}
	if d := c.state.CheckRequired(p.level); d != nil {
		if !c.settled() {
			return errUnavailable("this peer does not know yet what is committed")
		}
		return &reason.Error{Detail: d}
	}
	if p.internal {
		return nil // The leader's own, one at a time: no caller's queue is in its way.
	}
	if c.proposals.count >= c.cfg.MaxQueuedProposals {
		return errOverloaded("proposals", c.cfg.MaxQueuedProposals)
	}
	if !p.ofHolder && c.proposals.bytes+len(p.data) > c.cfg.MaxQueuedBytes {
		return errOverloaded("bytes of proposals", c.cfg.MaxQueuedBytes)
	}
	return c.clockAllows(p.stamps)
}

// clockAllows refuses timestamps too far ahead of this peer's wall clock, wherever
// the fence is when their turn comes: those under way count.
func (c *Core) clockAllows(s stamps) error {
	if s.size == 0 {
		return nil
	}
	s.join(c.proposals.stamps)
	end := s.end(c.state.Allocators().GetTsoFence())
	limit := c.wall + uint64(c.cfg.MaxTSOAhead.Milliseconds())
	if end <= state.MaxTSO && end>>tsoMillisShift <= limit {
		return nil
	}
	e := reason.New(rootv1.Reason_REASON_CLOCK_BOUND,
		"timestamp fence at %d ms is beyond the root leader's clock by more than %v: check the clocks", end>>tsoMillisShift, c.cfg.MaxTSOAhead)
	e.Detail.Limit = limit
	return e
}

func (c *Core) enqueue(p *Proposal) {
	c.proposals.count++
	c.proposals.bytes += len(p.data)
	c.proposals.stamps.join(p.stamps)
	c.proposals.queue = append(c.proposals.queue, p)
}

// mayPropose says whether there is something that raft could be offered.
// Before the cluster has its identity only its bootstrap is.
func (c *Core) mayPropose() bool {
	q := c.proposals.queue
	return c.leads() && len(q) > 0 && (c.state.Cluster() != nil || q[0].internal)
}

// propose merges the queue into as few entries as possible and offers them to
// raft, so that one durable write carries all of them. It says whether raft
// took any. What raft does not take stays queued: a full log behind the commit
// index drains, a leadership transfer ends.
func (c *Core) propose() bool {
	took, bytes := false, 0
	for c.mayPropose() && bytes < maxTurnBytes {
		batches, entries, used := c.merge(min(int(c.cfg.MaxMessageBytes), maxTurnBytes))
		err := c.raft.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(c.cfg.NodeID), Entries: entries})
		if errors.Is(err, raft.ErrProposalDropped) {
			break
		} else if err != nil {
			panic(fmt.Sprintf("replica: raft refuses a proposal: %v", err))
		}
		c.proposals.offered = append(c.proposals.offered, batches...)
		c.proposals.queue = dequeue(c.proposals.queue, used)
		bytes += payload(entries)
		took = true
	}
	return took
}

// merge makes entries of at most maxBytes together (one at least) of the first
// used proposals in the queue.
func (c *Core) merge(maxBytes int) (batches []batch, entries []*raftpb.Entry, used int) {
	queue := c.proposals.queue
	for total := 0; used < len(queue); {
		n, size := 1, len(queue[used].data)
		for used+n < len(queue) && size+len(queue[used+n].data) <= c.cfg.MaxEntryBytes && !queue[used].alone() && !queue[used+n].alone() {
			size += len(queue[used+n].data)
			n++
		}
		if total > 0 && total+size > maxBytes {
			break
		}
		total += size
		group := slices.Clone(queue[used : used+n])
		batches = append(batches, batch{proposals: group})
		entries = append(entries, c.entryOf(group, size))
		used += n
		if group[0].alone() {
			break
		}
	}
	return batches, entries, used
}

// dated joins serialized entries to one, whose fields concatenate, and says when that
// was.
func (c *Core) dated(group []*Proposal, size int) []byte {
	data := make([]byte, 0, size+maxDateBytes)
	for _, p := range group {
		data = append(data, p.data...)
	}
	return protowire.AppendVarint(protowire.AppendTag(data, dateField, protowire.VarintType), c.wall)
}

// Entry.unix_millis, and the most that it takes.
const (
	dateField    = 2
	maxDateBytes = 11
)

func payload(entries []*raftpb.Entry) int {
	n := 0
	for _, e := range entries {
		n += len(e.GetData())
	}
	return n
}

func dequeue(queue []*Proposal, n int) []*Proposal {
	clear(queue[:n])
	if n == len(queue) {
		return queue[:0]
	}
	return queue[n:]
}

// assignIndexes learns where raft put the offered entries: nothing was stepped
// since they were taken, so they are the last of the Ready.
func (c *Core) assignIndexes(entries []*raftpb.Entry) {
	offered := c.proposals.offered
	if len(offered) == 0 {
		return
	}
	if len(entries) < len(offered) {
		panic(fmt.Sprintf("replica: raft took %d entries and shows %d", len(offered), len(entries)))
	}
	for i, e := range entries[len(entries)-len(offered):] {
		offered[i].term, offered[i].index = e.GetTerm(), e.GetIndex()
	}
	c.proposals.pending = append(c.proposals.pending, offered...)
	clear(offered)
	c.proposals.offered = offered[:0]
}

// settle answers the proposals of the entry that was just applied.
func (c *Core) settle(term, index uint64, results []state.Result, out *Output) error {
	if len(c.proposals.pending) == 0 || c.proposals.pending[0].index != index {
		return nil
	}
	b := c.proposals.pending[0]
	c.proposals.pending[0] = batch{}
	c.proposals.pending = c.proposals.pending[1:]
	if b.term != term {
		panic(fmt.Sprintf("replica: entry %d is of term %d, was proposed in %d and the term was not noticed to end", index, term, b.term))
	}
	results = slices.Clone(results)
	for _, p := range b.proposals {
		if p.change != nil && len(results) == 0 {
			// Raft made an empty entry of it: a change is under way.
			p.Err = errUnavailable("another change of the root peers is under way")
			c.finish(p, out)
			continue
		}
		if len(results) < p.commands {
			return fmt.Errorf("apply entry %d of term %d: fewer results than commands", index, term)
		}
		p.Results, results = results[:p.commands:p.commands], results[p.commands:]
		c.finish(p, out)
	}
	return nil
}

// finish answers a proposal that has its results or its error.
func (c *Core) finish(p *Proposal, out *Output) {
	c.proposals.count--
	c.proposals.bytes -= len(p.data)
	if c.proposals.count == 0 {
		c.proposals.stamps = stamps{}
	} else {
		c.proposals.stamps.size -= p.stamps.size
	}
	p.data = nil
	if p.fencesEra != 0 {
		c.authority.unfence(p.fencesEra)
	}
	switch {
	case p.internal && p.change != nil:
		c.proposals.settling = false
	case p.internal:
		c.proposals.bootstrapping = false
	case p.reshape != nil:
		if p.reshape.Err = p.Err; p.Err == nil {
			p.reshape.Result = p.Results[0]
		}
		out.Done = append(out.Done, p.reshape)
	case p.claim != nil:
		if p.Err == nil && p.Results[0].Outcome == rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
			// The holder asked again: its ttl counts from there.
			c.authority.begun(c.now)
		}
		finishClaim(p)
		out.Done = append(out.Done, p.claim)
	default:
		out.Done = append(out.Done, p)
	}
}

// failProposals answers everything when leadership is lost: what is in the log
// may still be committed by the next leader, what is queued will not be.
func (c *Core) failProposals(out *Output) {
	for _, b := range append(c.proposals.pending, c.proposals.offered...) {
		for _, p := range b.proposals {
			p.Err = errUnknown("leadership was lost")
			c.finish(p, out)
		}
	}
	for _, p := range c.proposals.queue {
		p.Err = errNotLeader(c.leader)
		c.finish(p, out)
	}
	c.proposals.pending, c.proposals.offered, c.proposals.queue = nil, nil, nil
}

// proposeBootstrap roots the cluster's identity once a leader knows that there
// is none. The entry goes ahead of all others.
func (c *Core) proposeBootstrap() {
	if c.cfg.Bootstrap == nil || c.proposals.bootstrapping || !c.settled() || c.state.Cluster() != nil {
		return
	}
	cluster := proto.Clone(c.cfg.Bootstrap).(*rootv1.Cluster)
	cluster.CreatedUnixMillis = c.wall
	p := &Proposal{call: newCall(), commands: 1, internal: true}
	if err := p.encode(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{
		{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: cluster}}},
	}}}}); err != nil {
		panic(fmt.Sprintf("replica: encode bootstrap: %v", err))
	}
	c.proposals.bootstrapping = true
	c.enqueue(p)
	c.proposals.queue = slices.Insert(c.proposals.queue[:len(c.proposals.queue)-1], 0, p)
}
