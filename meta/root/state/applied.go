package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// Applied is what an entry did. The caller owns it and may use it again after
// Reset; what Results and Changes point to is immutable and stays valid.
type Applied struct {
	// Token is the position after the entry.
	Token Token
	// Results answer the entry's commands, in order.
	Results []Result
	// Changes of records, in the order they happened. Rejected commands have
	// none.
	Changes []Change
}

// Reset empties a for the next entry and keeps its room.
func (a *Applied) Reset() {
	clear(a.Results)
	clear(a.Changes)
	a.Token, a.Results, a.Changes = Token{}, a.Results[:0], a.Changes[:0]
}

// Result answers one command.
type Result struct {
	Outcome rootv1.Outcome
	// Reject says why, when the outcome is rejected.
	Reject *rootv1.ErrorDetail
	// Token is where the command was judged; of a repetition, where it was
	// recognised.
	Token Token
	// Repetition: this very command was judged before. Outcome is what became of it
	// then; Events say what is there now, and a region that is gone has its id alone.
	Repetition bool
	// Events is what each event made or found, in the command's order.
	Events []EventResult
}

// Proto is the result on the wire.
func (r Result) Proto() *rootv1.CommandResult {
	p := &rootv1.CommandResult{Outcome: r.Outcome, Error: r.Reject, Token: r.Token.Proto(), Repetition: r.Repetition}
	for i := range r.Events {
		p.Events = append(p.Events, r.Events[i].Proto())
	}
	return p
}

// EventResult is what one event made or found; only what the caller cannot
// know itself is set.
type EventResult struct {
	// Region made or changed; the left one of a split.
	Region *Region
	// Right is the right region of a split.
	Right       *Region
	Keyspace    *rootv1.Keyspace
	Member      *rootv1.Member
	Tenure      *rootv1.Tenure
	Handover    *rootv1.Handover
	Transition  *rootv1.Transition
	Window      *rootv1.Window
	Coordinator *rootv1.Coordinator
	Settings    *rootv1.ClusterSettings
	Grant       *rootv1.Grant
	TokenKeyID  uint32
}

// Proto is the event result on the wire.
func (e *EventResult) Proto() *rootv1.EventResult {
	return &rootv1.EventResult{
		Region: e.Region.Proto(), RightRegion: e.Right.Proto(), Keyspace: e.Keyspace, Member: e.Member,
		Tenure: e.Tenure, Handover: e.Handover, Transition: e.Transition, Window: e.Window, Coordinator: e.Coordinator,
		Settings: e.Settings, Grant: e.Grant, TokenKeyId: e.TokenKeyID,
	}
}

// ChangeKind says which record changed.
type ChangeKind uint8

// Kinds of records that change.
const (
	ChangeRegion ChangeKind = iota + 1
	ChangeKeyspace
	ChangeMember
	ChangeCoordinator
	ChangeTenure
	ChangeHandover
	ChangeTransition
	ChangeAllocators
	ChangePinKey
	ChangeCluster
	ChangeSettings
	ChangeGrant
	ChangeTokenKey // its field is PinKey
	ChangeRevokedToken
)

// Change is one change of one record. The field of its kind is set: to the new
// record, or, when Removed, to the last one there was.
type Change struct {
	Kind    ChangeKind
	Removed bool
	// Planned: by a command of an era's planner, which only that era may carry out, and
	// which gives a reason of the planner's; otherwise somebody asked for it.
	Planned bool
	Region  *Region
	// OldRegion is what Region replaced; nil for a new one.
	OldRegion   *Region
	Keyspace    *rootv1.Keyspace
	Member      *rootv1.Member
	Coordinator *rootv1.Coordinator
	Tenure      *rootv1.Tenure
	Handover    *rootv1.Handover
	Transition  *rootv1.Transition
	PinKey      *rootv1.PinKey
	Cluster     *rootv1.Cluster
	Settings    *rootv1.ClusterSettings
	// Grant has no verbs when Removed.
	Grant        *rootv1.Grant
	RevokedToken *rootv1.RevokedToken
}

// Acknowledges reports whether nothing of a region is another than before but how far its
// owner got: nobody finds anything elsewhere for it.
func (c *Change) Acknowledges() bool {
	return c.Kind == ChangeRegion && !c.Removed && c.OldRegion != nil && c.OldRegion.Epoch == c.Region.Epoch && c.OldRegion.Frontier != c.Region.Frontier
}
