package simulation

import (
	"bytes"
	"fmt"
	"sort"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/protobuf/proto"
)

// sample is a view as it was published.
type sample struct {
	node        string
	incarnation uint64
	token       state.Token
	hash        uint64
	snapshot    bool
	// regions is how many a watcher has, rooted how many the state has.
	regions, rooted int
}

// check judges a run that has come to rest. It replays the log once.
func (r *run) check() []error {
	j := &judge{run: r, hashes: make(map[uint64]uint64), reads: make(map[uint64][]*read), owns: newOwnership(r)}
	for _, a := range r.reads {
		j.reads[a.token.Index] = append(j.reads[a.token.Index], a)
	}
	agreement := r.roots.CheckAgreement(j.entry)
	j.add("Durability", agreement)
	if j.final == nil || j.final.Token().Index < r.roots.Log.Last() {
		return j.errs // there is no log to compare with
	}
	j.add("Durability", j.durability())
	j.add("Freshness", j.freshness())
	j.add("Tail", j.tail())
	j.add("Tail", j.watchers())
	r.history.TsoAhead = uint64((maxTSOAhead + worstRootWall) / time.Millisecond)
	for _, v := range r.history.Check() {
		j.errs = append(j.errs, v)
	}
	j.add("Primacy", j.violations())
	j.add("Durability", j.roots.CheckPeers())
	j.errs = append(j.errs, j.owns.check()...)
	j.owned = j.owns.counts
	return j.errs
}

type judge struct {
	*run
	errs   []error
	hashes map[uint64]uint64
	reads  map[uint64][]*read
	stale  error
	final  *state.State
	owns   *ownership
}

func (j *judge) add(promise string, err error) {
	if err != nil {
		j.errs = append(j.errs, fmt.Errorf("%s: %w", promise, err))
	}
}

// entry looks at the log replayed up to one entry.
func (j *judge) entry(st *state.State, out *state.Applied) {
	at := st.Token()
	j.hashes[at.Index], j.final = st.Hash(), st
	for _, c := range out.Changes {
		if c.Kind == state.ChangeRegion && c.OldRegion == nil && !c.Removed {
			j.history.RootIDs = append(j.history.RootIDs, uint64(c.Region.ID))
		}
		if c.Kind == state.ChangeTenure {
			j.history.Note(c.Tenure)
		}
	}
	if len(j.workers) > 0 {
		j.owns.entry(st, out)
	}
	for _, a := range j.reads[at.Index] {
		want := st.RegionAt(state.DefaultKeyspace, a.key)
		if (a.token != at || !sameRegion(want, a.region)) && j.stale == nil {
			j.stale = fmt.Errorf("%s answered %q at %s with %s, the log replayed to %s has %s", a.node, a.key, a.token, show(a.region), at, show(want))
		}
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
	return fmt.Sprintf("region %d at %s, revision %d", r.ID, r.Epoch, r.Revision)
}

// durability: what was acknowledged is in the log, at its token, with its bytes.
func (j *judge) durability() error {
	for _, w := range j.writes {
		if w.token.Index == 0 {
			continue
		}
		term, data := j.roots.Log.Entry(w.token.Index)
		if term != w.token.Term {
			return fmt.Errorf("client %d was told of %s, the log has term %d there", w.client, w.token, term)
		}
		raw, err := proto.Marshal(w.cmd)
		if err != nil {
			return err
		}
		if w.applied && !bytes.Contains(data, raw) {
			return fmt.Errorf("client %d was told that %v is at %s, the entry has other bytes", w.client, w.cmd, w.token)
		}
		for _, e := range w.cmd.Events {
			want := state.RegionFromProto(e.GetRegionPublished().GetRegion())
			if got := j.final.RegionAt(want.Keyspace, want.Start); got == nil || got.Start != want.Start || want.Epoch.NewerThan(got.Epoch) {
				return fmt.Errorf("client %d was told of %q at %s, the end has %s", w.client, want.Start, w.token, show(got))
			}
		}
	}
	return nil
}

// staleness is how old a bounded answer may be beyond its bound: what a view
// cannot know, by its own account, and how long messages travel.
const staleness = silentAfter + 2*electionMost + slowest

// freshness: an answer is the log replayed to its token, and the token is as
// new as was asked for.
func (j *judge) freshness() error {
	if j.stale != nil {
		return j.stale
	}
	sessions := make(map[int]state.Token)
	for _, a := range j.run.reads {
		kind := a.freshness.String()
		switch {
		case a.token.Index == 0:
			return fmt.Errorf("%s answered %s without a position", a.node, kind)
		case a.token.Compare(a.required) < 0:
			return fmt.Errorf("%s answered at %s, %s was required", a.node, a.token, a.required)
		case a.token.Index < a.known:
			return fmt.Errorf("%s answered a strong read of %v at %s, %d had been acknowledged", a.node, a.called, a.token, a.known)
		case a.lag > a.maxLag:
			return fmt.Errorf("%s answered with lag %d, %d was allowed", a.node, a.lag, a.maxLag)
		case a.freshness == coordinatorv1.Freshness_FRESHNESS_BOUNDED && a.token.Index < j.ackedBefore(a.sent-a.maxAge-staleness):
			return fmt.Errorf("%s answered at %v at %s within %v, %d was acknowledged long before", a.node, a.sent, a.token, a.maxAge, j.ackedBefore(a.sent-a.maxAge-staleness))
		}
		if a.required.Index != 0 && !a.late {
			if a.token.Compare(sessions[a.client]) < 0 {
				return fmt.Errorf("client %d went back from %s to %s", a.client, sessions[a.client], a.token)
			}
			sessions[a.client] = a.token
		}
	}
	return nil
}

// ackedBefore is the newest index that somebody had been told of before at.
func (j *judge) ackedBefore(at time.Duration) uint64 {
	n := sort.Search(len(j.acked), func(i int) bool { return j.acked[i].at >= at })
	if n == 0 {
		return 0
	}
	return j.acked[n-1].index
}

// tail: within a process views only go on, and each is the log replayed to its
// token: nothing was missed, nothing came twice or in part.
func (j *judge) tail() error {
	last := make(map[uint64]state.Token)
	for _, s := range j.views {
		switch {
		case s.token.Compare(last[s.incarnation]) < 0:
			return fmt.Errorf("%s went from %s to %s", s.node, last[s.incarnation], s.token)
		case j.hashes[s.token.Index] != s.hash:
			return fmt.Errorf("%s has hash %016x at %s, the replayed log %016x (snapshot: %v)", s.node, s.hash, s.token, j.hashes[s.token.Index], s.snapshot)
		case s.regions != s.rooted:
			return fmt.Errorf("%s: a watcher counts %d regions at %s, the view has %d", s.node, s.regions, s.token, s.rooted)
		}
		last[s.incarnation] = s.token
	}
	return nil
}

// watchers: what the changes add up to is what the view has.
func (j *judge) watchers() error {
	for _, n := range j.nodes {
		var err error
		n.view.core.View().State.RegionsFrom(state.DefaultKeyspace, "", func(r *state.Region) bool {
			if got := n.view.regions[r.ID]; !sameRegion(got, r) && err == nil {
				err = fmt.Errorf("a watcher at %s has %s, the view %s", n.name, show(got), show(r))
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// violations: nobody noticed a broken promise at run time.
func (j *judge) violations() error {
	for _, n := range j.nodes {
		for _, c := range n.counted {
			if v := &c.Violations; v.Total() != 0 {
				return fmt.Errorf("%s counted %d of Primacy, %d of Inheritance, %d of Silence, %d of Finality",
					n.name, v.Primacy.Load(), v.Inheritance.Load(), v.Silence.Load(), v.Finality.Load())
			}
		}
	}
	return nil
}

// repeat says, in a line of its own, the command that repeats a seed; flags ask for one seed.
func repeat(test string, seed uint64, flags string) string {
	return fmt.Sprintf("seed %d failed\nrepeat: go test ./coordinator/simulation -run '^%s$' -seed %d %s", seed, test, seed, flags)
}
