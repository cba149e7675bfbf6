package replica

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/restore"
	"github.com/nokv/nokv/meta/root/state"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Input is what happened since the last Turn.
type Input struct {
	// Now is the elapsed time, read after everything else of this Input was
	// taken: what came from another peer came before Now. Instants of two Turns
	// never decrease.
	Now clock.Instant
	// Wall is Unix milliseconds by this machine's clock.
	Wall uint64
	// TicksBefore and Ticks of Config.Tick have passed: until the first of Messages
	// came, and since.
	TicksBefore, Ticks int
	// Messages of other peers, in order of arrival.
	Messages []*raftpb.Message
	// MessagesSince is before the arrival of the first of Messages; 0: they came
	// just now. What waited for an election timeout says nothing of the present.
	MessagesSince clock.Instant
	// Requests of callers, in order of arrival.
	Requests []Request
	// Events are observations of other peers.
	Events []Event
	// Checkpointed is the end of the work that Output.Checkpoint asked for.
	Checkpointed *Checkpointed
}

// EventKind says what was observed of a peer.
type EventKind int

// Observations of a peer, made by the transport.
const (
	// PeerRefused: its machine answers and its port does not.
	PeerRefused EventKind = iota + 1
	// PeerUnreachable: a message to it was lost.
	PeerUnreachable
	// SnapshotDelivered: it has received and verified a checkpoint.
	SnapshotDelivered
	// SnapshotFailed: the checkpoint did not arrive.
	SnapshotFailed
	// PeerStateHash: it told the hash of its state at Index.
	PeerStateHash
)

// Event is an observation of another peer.
type Event struct {
	Kind EventKind
	Peer uint64
	// Index and Hash are set for PeerStateHash.
	Index, Hash uint64
}

// Output is what a Turn leaves to do.
type Output struct {
	// Done are the requests answered in this Turn. The View that goes with
	// them is to be published before they are told.
	Done []Request
	// View is the new view; nil when nothing changed.
	View *View
	// Checkpoint asks for a checkpoint to be written; its end is an Input. Nil:
	// nothing to do.
	Checkpoint *CheckpointTask
	// More asks for another Turn at once: there is work that no Input brings.
	More bool
}

// Core is a raft peer with its state machine: no goroutine, no clock, no I/O
// but its Log. A crash is modelled by dropping it and opening another one over
// the same Log.
type Core struct {
	cfg  Config
	log  Log
	raft *raft.RawNode
	rng  *rand.Rand

	// state is applied to by Turn alone; views hold forks.
	state   *state.State
	scratch state.Applied

	// From the Input at hand. overdue says that the Turn has taken too long.
	now     clock.Instant
	wall    uint64
	overdue bool

	// From raft's last Ready.
	role      raft.StateType
	members   members
	leader    uint64
	hard      *raftpb.HardState
	hardDirty bool
	// commitDue is the tick from which a commit index alone is written.
	commitDue  uint64
	persisted  uint64
	leaderless clock.Instant
	known      commitKnown

	ticks uint64
	// heard is the tick at which each other member was heard from last, ledSince
	// the one at which this peer began to lead.
	heard    map[uint64]uint64
	ledSince uint64
	// asked is the tick at which each other member was sent a heartbeat with a read
	// index.
	asked     map[uint64]uint64
	muted     bool
	responses appendResponses
	intake    intake
	proposals proposals
	reads     reads
	authority authority
	elections elections
	cut       checkpoints
	hashes    hashes
	telling   telling

	changed bool
	started bool
	fatal   error
}

// NewCore makes a peer over a log and the state of the log's checkpoint (see
// LoadState). It writes nothing.
func NewCore(cfg Config, log Log, st *state.State) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Core{cfg: cfg, log: log, state: st, rng: rand.New(rand.NewPCG(cfg.Seed, cfg.NodeID)), heard: make(map[uint64]uint64), asked: make(map[uint64]uint64)}
	c.reads.nonce = binary.BigEndian.AppendUint64(nil, cfg.Seed)
	c.hashes.init(cfg)
	c.setMembers()
	applied := st.Token().Index
	hard, _, err := log.InitialState()
	if err != nil {
		return nil, fmt.Errorf("read hard state: %w", err)
	}
	c.hard = clampCommit(hard, applied)
	if c.persisted, err = log.LastIndex(); err != nil {
		return nil, fmt.Errorf("read last index: %w", err)
	}
	c.cut.init(cfg, applied)
	c.raft, err = newRawNode(cfg, &raftStorage{Log: log, applied: applied, members: &c.members})
	return c, err
}

// maxInflightMessages bounds the append messages in flight to one peer.
const maxInflightMessages = 256

func newRawNode(cfg Config, st raft.Storage) (rn *raft.RawNode, err error) {
	defer recoverRaft(&err)
	applied := st.(*raftStorage).applied
	return raft.NewRawNode(&raft.Config{
		ID:                        cfg.NodeID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   st,
		Applied:                   applied,
		MaxSizePerMsg:             cfg.MaxMessageBytes,
		MaxCommittedSizePerReady:  4 * cfg.MaxMessageBytes,
		MaxUncommittedEntriesSize: cfg.MaxUncommittedBytes,
		MaxInflightMsgs:           maxInflightMessages,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    newRaftLogger(cfg.Logger.Named("raft")),
	})
}

// raftStorage is the Log as raft reads it. The commit index rides with
// entries and is never synced for its own sake, so after a crash it may lie
// behind the checkpoint; what a checkpoint covers is committed.
type raftStorage struct {
	Log
	applied uint64
	// members are those of the state: at start that of the checkpoint, as raft
	// wants it.
	members *members
}

// InitialState implements raft.Storage.
func (s *raftStorage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hard, _, err := s.Log.InitialState()
	return clampCommit(hard, s.applied), s.members.confState(), err
}

// Snapshot implements raft.Storage.
func (s *raftStorage) Snapshot() (*raftpb.Snapshot, error) {
	meta, ok := s.Checkpoint()
	// A peer does not take a checkpoint that does not know it: the next one does.
	if !ok || meta.Index < s.members.revision {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		// Of the present. Who receives the checkpoint goes by what is in it.
		ConfState: s.members.confState(), Index: new(meta.Index), Term: new(meta.Term),
	}}, nil
}

func clampCommit(hard *raftpb.HardState, applied uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(hard.GetTerm()), Vote: new(hard.GetVote()), Commit: new(max(hard.GetCommit(), applied))}
}

// Turn takes an Input, does what follows from it, and says what is left to do.
// Within a Turn the order is: a leader's messages are sent, entries and hard
// state are made durable, the other messages are sent, committed entries are
// applied, requests are answered. A crash before the durable write finds
// nothing that this peer acknowledged; after it, everything.
//
// An error is final: storage failed, an entry is poison, or this peer's state
// diverged. Nothing is acknowledged with it or after it.
func (c *Core) Turn(in Input) (out Output, err error) {
	if c.fatal != nil {
		return Output{}, c.fatal
	}
	defer func() {
		if err != nil {
			c.fatal, out = err, Output{}
		}
	}()
	defer recoverRaft(&err)
	c.begin(in)
	if err := c.take(in, &out); err != nil {
		return out, err
	}
	for {
		c.startRead()
		if c.raft.HasReady() {
			if err := c.ready(&out); err != nil {
				return out, err
			}
			continue
		}
		// Whoever waits for what was just applied is told before the next
		// durable write begins.
		if len(out.Done) == 0 && c.propose() {
			continue
		}
		if !c.checkOverdue(&out) {
			break
		}
	}
	c.muted = false
	c.log.ReleaseCheckpoint() // If raft did not want it.
	if err := c.saveCommit(in.TicksBefore+in.Ticks, &out); err != nil {
		return out, err
	}
	if err := c.tell(); err != nil {
		return out, err
	}
	out.More = len(out.Done) > 0 && c.mayPropose()
	out.Checkpoint = c.nextCheckpoint()
	out.View = c.nextView()
	return out, nil
}

func (c *Core) begin(in Input) {
	before := c.now
	c.now, c.wall, c.overdue = in.Now, in.Wall, false
	if !c.started {
		before, c.started, c.changed, c.leaderless = c.now, true, true, c.now
	}
	if since := in.MessagesSince; since != 0 && !c.leads() {
		before = min(before, since)
	}
	if c.now.Sub(before) > c.cfg.electionTimeout() {
		c.stoodStill(before)
	}
	c.authority.begin(c.now)
	c.intake.begin(c.persisted)
}

// take feeds an Input to raft and the queues.
func (c *Core) take(in Input, out *Output) error {
	if in.Checkpointed != nil {
		if err := c.checkpointed(in.Checkpointed); err != nil {
			return err
		}
	}
	for _, e := range in.Events {
		if err := c.observePeer(e); err != nil {
			return err
		}
	}
	for range in.TicksBefore {
		c.tick(out)
	}
	for _, m := range in.Messages {
		c.step(m)
	}
	for range in.Ticks {
		c.tick(out)
	}
	for _, r := range in.Requests {
		c.accept(r, out)
	}
	c.judgeClaims(out)
	c.proposeBootstrap()
	c.proposeSettled()
	return nil
}

// step gives raft a message of another peer. Messages that peers do not send
// to one another are dropped, and so are those for somebody else, those that
// cannot be of a peer (message.go) and a MsgSnap without its checkpoint.
func (c *Core) step(m *raftpb.Message) {
	if c.hashes.silent || m.GetTo() != c.cfg.NodeID || m.GetFrom() == c.cfg.NodeID || !c.mayTalk(m.GetFrom()) || !c.admits(m) {
		return
	}
	if c.members.has(m.GetFrom()) {
		c.heard[m.GetFrom()] = c.ticks
	}
	switch m.GetType() {
	case raftpb.MsgSnap:
		// Once raft has taken it there is no way back: it must still be there when
		// it is installed. If it is not there now, its sender will try again.
		if meta, err := received(m.GetSnapshot()); err == nil && c.log.HoldCheckpoint(meta) {
			_ = c.raft.Step(c.withMembers(m))
		}
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp:
		c.hearCommit(m)
		c.responses.heard(m)
		if m.GetType() == raftpb.MsgPreVote {
			c.noteAsked(m)
		}
		// What raft refuses it has dropped; its sender tries again.
		_ = c.raft.Step(m)
	}
}

// Patience is how many ticks may pass before the next Turn, when nothing else asks
// for one: all of them are counted in it. A leader that nobody waits for has
// nothing to do between two heartbeats, a follower while these come. It is half an
// election timeout at most.
func (c *Core) Patience() int {
	busy := c.reads.count() > 0 || c.proposals.count > 0 || len(c.authority.claims) > 0 || c.hardDirty ||
		c.elections.campaignIn > 0 || len(c.elections.transfers) > 0
	switch {
	case busy || c.leader == 0:
		return 1
	case c.leads():
		return c.cfg.HeartbeatTicks
	case c.heard[c.leader] == c.ticks:
		return max(1, min(c.cfg.HeartbeatTicks+2, c.cfg.ElectionTicks/2))
	}
	return 1
}

func (c *Core) tick(out *Output) {
	c.ticks++
	c.telling.due = c.telling.due || c.ticks%uint64(c.cfg.HeartbeatTicks) == 0
	c.tickHashes(out)
	if c.hashes.silent {
		return
	}
	c.raft.Tick()
	c.tickElections(out)
	c.tickReads()
}

func (c *Core) observePeer(e Event) error {
	switch e.Kind {
	case PeerRefused:
		c.peerRefused(e.Peer)
	case PeerUnreachable:
		c.raft.ReportUnreachable(e.Peer)
	case SnapshotDelivered:
		c.raft.ReportSnapshot(e.Peer, raft.SnapshotFinish)
	case SnapshotFailed:
		c.raft.ReportSnapshot(e.Peer, raft.SnapshotFailure)
	case PeerStateHash:
		return c.peerHash(e.Peer, e.Index, e.Hash)
	}
	return nil
}

func (c *Core) accept(r Request, out *Output) {
	if c.hashes.silent {
		c.failRequest(r, errUnavailable(c.differs()), out)
		return
	}
	switch r := r.(type) {
	case *Proposal:
		c.acceptProposal(r, out)
	case *Confirm:
		c.acceptConfirm(r, out)
	case *Read:
		c.acceptRead(r, out)
	case *Claim:
		c.acceptClaim(r, out)
	case *Transfer:
		c.acceptTransfer(r, out)
	case *Reshape:
		c.acceptReshape(r, out)
	default:
		panic(fmt.Sprintf("replica: request of type %T", r))
	}
}

// leads says whether this peer led at its last Ready.
func (c *Core) leads() bool { return c.role == raft.StateLeader }

// settled says whether the leader has applied an entry of its own term: it
// then knows every entry that was ever acknowledged.
func (c *Core) settled() bool {
	return c.leads() && c.state.Token().Term == c.hard.GetTerm()
}

// recoverRaft turns a broken invariant that raft found, or a storage error
// that raft met while reading, into an error. Anything else stays a panic.
func recoverRaft(err *error) {
	switch v := recover().(type) {
	case nil:
	case raftPanic:
		*err = fmt.Errorf("raft: %s", string(v))
	case runtime.Error:
		panic(v)
	case error:
		*err = fmt.Errorf("raft: %w", v)
	default:
		panic(v)
	}
}

// LoadState restores the state of the log's checkpoint, or an empty one when
// there is none, and checks its hash.
func LoadState(log Checkpoints) (*state.State, error) {
	meta, ok := log.Checkpoint()
	if !ok {
		return state.New(), nil
	}
	return restore.State(meta, log.ReadCheckpoint)
}
