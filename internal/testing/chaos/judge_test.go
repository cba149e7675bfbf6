package chaos

import (
	"errors"
	"fmt"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// tsoAhead is how far timestamps may be ahead of the clock, in milliseconds:
// successors of killed holders each skip a window.
const tsoAhead = 60_000

// goneWithin is how long a process may live after its storage failed: a second, and
// what a busy machine takes to end it.
const goneWithin = patience / 4

// judge checks every promise and returns what is broken, each by its name. It
// replays the log once. Nobody adds to the evidence any more.
func (e *evidence) judge() []error {
	e.settle()
	j := &judge{evidence: e, hashes: make(map[uint64]uint64), applied: make(map[string][]state.Token), changes: make(map[uint64][]state.Change), carriedOut: make(map[identityOf][]state.Token), removals: make(map[state.RegionID][]uint64), made: make(map[state.RegionID]bool), copied: make(map[uint64][]copied), reading: make(map[uint64][]*read), snapshots: make(map[uint64]map[state.RegionID]*state.Region)}
	j.add("Tail", e.disagreed)
	if err := j.replay(); err != nil {
		j.add("Durability", err)
		return j.errs
	}
	j.add("Durability", j.durability())
	j.add("Durability", j.agreement())
	j.add("Root writes", j.once())
	j.add("Root writes", j.rootWrites())
	j.add("Freshness", j.freshness())
	j.add("Tail", j.tail())
	j.add("Tail", j.spoiled)
	j.add("Freshness", j.removedShown())
	j.add("Finality", j.finality())
	j.add("Fail-stop", j.failStops())
	j.authority()
	for _, err := range e.violations {
		j.add("counted by a process", err)
	}
	return j.errs
}

type judge struct {
	*evidence
	errs []error
	// of the log replayed: state hashes and changes by index, where each tag
	// was applied, whole states at the positions of snapshots
	hashes    map[uint64]uint64
	applied   map[string][]state.Token
	changes   map[uint64][]state.Change
	snapshots map[uint64]map[state.RegionID]*state.Region
	// where each identity was applied, and each region removed; regions that were
	// there once
	carriedOut map[identityOf][]state.Token
	removals   map[state.RegionID][]uint64
	made       map[state.RegionID]bool
	// copied are the copies by position, spoiled the first wrong one.
	copied  map[uint64][]copied
	spoiled error
	history history.History
	// rested are the handovers where the peers were at rest.
	rested []*rootv1.Handover
	final  *state.State
	// reading are the reads by position, stale the first wrong answer.
	reading map[uint64][]*read
	stale   error
}

func (j *judge) add(promise string, err error) {
	if err != nil {
		j.errs = append(j.errs, fmt.Errorf("%s: %w", promise, err))
	}
}

// replay applies the log to an empty state and looks at every step.
func (j *judge) replay() error {
	if len(j.log) == 0 {
		return errors.New("there is no log")
	}
	for _, r := range j.reads {
		j.reading[r.token.Index] = append(j.reading[r.token.Index], r)
	}
	for _, c := range j.copies {
		if n := uint64(len(j.log)); c.at.Token.Index > n {
			j.spoiled = fmt.Errorf("the %s is at %s, the log ends at %d", c.name, c.at, n)
		}
		j.copied[c.at.Token.Index] = append(j.copied[c.at.Token.Index], c)
	}
	for _, batches := range j.watches {
		for _, b := range batches {
			if b.snapshot {
				j.snapshots[b.to.Index] = nil
			}
		}
	}
	st := state.New()
	var out state.Applied
	for i, entry := range j.log {
		out = state.Applied{}
		if err := st.ApplyEntry(entry.term, uint64(i+1), entry.data, &out); err != nil {
			return fmt.Errorf("replay index %d: %w", i+1, err)
		}
		if err := j.identify(entry.data, out.Results); err != nil {
			return fmt.Errorf("replay index %d: %w", i+1, err)
		}
		j.step(st, &out)
	}
	j.final = st
	return nil
}

// identify notes where the commands of an entry were applied.
func (j *judge) identify(data []byte, results []state.Result) error {
	var e rootv1.Entry
	if err := proto.Unmarshal(data, &e); err != nil {
		return err
	}
	for i, c := range e.GetCommands() {
		id := ofIdentity(c.GetIdentity())
		switch {
		case c.GetIdentity() == nil, results[i].Repetition:
		case results[i].Outcome == rootv1.Outcome_OUTCOME_APPLIED:
			j.carriedOut[id] = append(j.carriedOut[id], results[i].Token)
		}
	}
	return nil
}

// step looks at the log replayed up to one entry.
func (j *judge) step(st *state.State, out *state.Applied) {
	at := st.Token()
	j.hashes[at.Index] = st.Hash()
	if len(j.peers) > 0 && at.Index == j.peers[0].applied {
		j.rested = st.Handovers()
	}
	for _, c := range out.Changes {
		switch {
		case c.Kind == state.ChangeTenure:
			j.history.Note(c.Tenure)
		case c.Kind == state.ChangeRegion && c.Removed:
			j.changes[at.Index] = append(j.changes[at.Index], c)
			j.removals[c.Region.ID] = append(j.removals[c.Region.ID], at.Index)
		case c.Kind == state.ChangeRegion:
			j.changes[at.Index] = append(j.changes[at.Index], c)
			j.applied[c.Region.Frontier] = append(j.applied[c.Region.Frontier], at)
			if !j.made[c.Region.ID] {
				j.made[c.Region.ID] = true
				j.history.RootIDs = append(j.history.RootIDs, uint64(c.Region.ID))
			}
		}
	}
	for _, r := range j.reading[at.Index] {
		want := st.RegionAt(state.DefaultKeyspace, r.key)
		if (r.token != at || !sameRegion(want, r.region)) && j.stale == nil {
			j.stale = fmt.Errorf("%s answered a %s read of %q at %s with %s, the log replayed to %s has %s", r.node, r.kind, r.key, r.token, show(r.region), at, show(want))
		}
	}
	for _, c := range j.copied[at.Index] {
		if err := j.lookAt(st, c); err != nil && j.spoiled == nil {
			j.spoiled = err
		}
	}
	if _, ok := j.snapshots[at.Index]; ok {
		all := make(map[state.RegionID]*state.Region)
		st.Keyspaces("", func(k *rootv1.Keyspace) bool {
			st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
				all[r.ID] = r
				return true
			})
			return true
		})
		j.snapshots[at.Index] = all
	}
}

func sameRegion(a, b *state.Region) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Epoch == b.Epoch && a.Start == b.Start && a.End == b.End && a.Frontier == b.Frontier && a.Revision == b.Revision
}

func show(r *state.Region) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("region %d at %s, revision %d, frontier %q", r.ID, r.Epoch, r.Revision, r.Frontier)
}

// durability: what was acknowledged is in the log, at its token, once.
func (j *judge) durability() error {
	for tag, at := range j.applied {
		if len(at) > 1 && tag != "" {
			return fmt.Errorf("%q was applied at %s and again at %s", tag, at[0], at[1])
		}
	}
	for _, w := range j.writes {
		if w.token.Index == 0 || w.removes {
			continue // of removals by their identity
		}
		if w.token.Index > uint64(len(j.log)) || j.log[w.token.Index-1].term != w.token.Term {
			return fmt.Errorf("%s was told of %s, the log does not have it", w.client, w.token)
		}
		at := j.applied[w.tag]
		switch {
		case w.outcome == rootv1.Outcome_OUTCOME_REJECTED:
		case len(at) == 0:
			return fmt.Errorf("%s was told that %q is at %s, it is nowhere", w.client, w.tag, w.token)
		case w.outcome == rootv1.Outcome_OUTCOME_APPLIED && !w.repetition && at[0] != w.token, at[0].Compare(w.token) > 0:
			return fmt.Errorf("%s was told that %q is at %s, it is at %s", w.client, w.tag, w.token, at[0])
		}
	}
	return nil
}

// agreement: the peers have all that anybody had been told of when they were
// asked, with the state of the log. An idle cluster may write behind that, and does.
func (j *judge) agreement() error {
	acked := j.ackedBefore(j.asked)
	if len(j.peers) < 3 {
		return fmt.Errorf("%d root peers at the end", len(j.peers))
	}
	for _, p := range j.peers {
		if p.applied != j.peers[0].applied || p.applied > uint64(len(j.log)) || p.applied < acked {
			return fmt.Errorf("%s is at %d, %s at %d; the log ends at %d, %d had been acknowledged", p.name, p.applied, j.peers[0].name, j.peers[0].applied, len(j.log), acked)
		}
		if p.hash != j.hashes[p.applied] {
			return fmt.Errorf("%s has state hash %016x at %d, the log replayed %016x", p.name, p.hash, p.applied, j.hashes[p.applied])
		}
	}
	return nil
}

// freshness: an answer is the log replayed to its token (step looks at that),
// and the token is as new as was asked for.
func (j *judge) freshness() error {
	if j.stale != nil {
		return j.stale
	}
	sessions := make(map[string]state.Token)
	for _, r := range j.reads {
		known := j.ackedBefore(r.called)
		long := j.ackedBefore(r.called - r.maxAge - j.staleness)
		switch {
		case r.token.Index == 0 || r.token.Index > uint64(len(j.log)):
			return fmt.Errorf("%s answered at %s, the log ends at %d", r.node, r.token, len(j.log))
		case r.token.Compare(r.required) < 0:
			return fmt.Errorf("%s answered at %s, %s was required", r.node, r.token, r.required)
		case r.kind == strong && r.token.Index < known:
			return fmt.Errorf("%s answered a strong read of %v at %s, %d had been acknowledged", r.node, r.called, r.token, known)
		case r.kind == bounded && r.lag > r.maxLag:
			return fmt.Errorf("%s answered with lag %d, %d was allowed", r.node, r.lag, r.maxLag)
		case r.kind == bounded && r.token.Index < long:
			return fmt.Errorf("%s answered a read of %v within %v at %s, %d had been acknowledged %v before", r.node, r.called, r.maxAge, r.token, long, r.maxAge+j.staleness)
		case r.kind == session && r.token.Compare(sessions[r.client]) < 0:
			return fmt.Errorf("%s went back from %s to %s", r.client, sessions[r.client], r.token)
		}
		if r.kind == session {
			sessions[r.client] = r.token
		}
	}
	return nil
}

// finality: no handover is open when all has healed and is at rest, in the log replayed,
// whatever the peers say of it; and they say that of it. Behind that moment only an era
// may have one that is open which began there: a busy machine ended the one before.
func (j *judge) finality() error {
	rested, last := newest(j.rested), newest(j.final.Handovers())
	if rested == nil {
		return errors.New("nobody ever held the Tenure")
	}
	for _, h := range []*rootv1.Handover{rested, last} {
		if h.GetStage() != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED && h.GetEra() <= rested.GetEra() {
			return fmt.Errorf("the handover of era %d is at %v", h.GetEra(), h.GetStage())
		}
	}
	for _, p := range j.peers {
		if h := p.handover; h.GetEra() != rested.GetEra() || h.GetStage() != rested.GetStage() {
			return fmt.Errorf("%s says that the handover of era %d is at %v, the log replayed to %d has that of era %d at %v", p.name, h.GetEra(), h.GetStage(), p.applied, rested.GetEra(), rested.GetStage())
		}
	}
	return nil
}

// newest is the handover of the newest era; nil: there is none.
func newest(handovers []*rootv1.Handover) (found *rootv1.Handover) {
	for _, h := range handovers {
		if h.GetEra() > found.GetEra() {
			found = h
		}
	}
	return found
}

// failStops: a process is gone soon after its storage failed, and says why.
func (j *judge) failStops() error {
	for _, f := range j.failed {
		switch {
		case f.lived > goneWithin:
			return fmt.Errorf("%s was there for %v after %s", f.name, f.lived, f.fault)
		case f.code != 1:
			return fmt.Errorf("%s ended with exit status %d after %s, want 1", f.name, f.code, f.fault)
		case !f.said:
			return fmt.Errorf("%s does not say what %s was", f.name, f.fault)
		}
	}
	return nil
}

// authority: Primacy, Inheritance, Silence, AllocID and Tso order, by package history.
func (j *judge) authority() {
	j.history.Grants = history.FromCalls(j.calls).Grants
	j.history.TsoAhead = tsoAhead
	for _, v := range j.history.Check() {
		j.errs = append(j.errs, v)
	}
}
