package audit

import (
	"fmt"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
)

// Comparison is what two workdirs of one cluster have in common.
type Comparison struct {
	// A and B are the workdirs.
	A, B string
	// Positions are those at which both have a state; 0: none, they cannot be compared.
	Positions uint64
	// Index is the first position at which they differ; 0: nowhere. Then What says how.
	Index uint64
	What  string
}

// position is the state behind an entry.
type position struct{ term, hash uint64 }

// Compare audits the workdirs of stopped peers, and compares each with each: the term of the
// last entry, and the state behind it, at every position that both have. Errors as of
// Workdir; and when the workdirs are of different clusters.
func Compare(dirs []string, o storage.Options) ([]*Result, []Comparison, error) {
	var results []*Result
	states := make([]map[uint64]position, len(dirs))
	for i, dir := range dirs {
		states[i] = map[uint64]position{}
		r, err := workdir(dir, o, func(st *state.State) {
			if at := st.Token(); at.Index > 0 {
				states[i][at.Index] = position{at.Term, st.Hash()}
			}
		})
		if err != nil {
			return nil, nil, err
		}
		if results = append(results, r); r.ClusterID != results[0].ClusterID {
			return nil, nil, fmt.Errorf("the workdirs %s and %s belong to different clusters, %016x and %016x", dirs[0], dir, results[0].ClusterID, r.ClusterID)
		}
	}
	var out []Comparison
	for i := range dirs {
		for j := range i {
			c := compare(states[j], states[i])
			c.A, c.B = dirs[j], dirs[i]
			out = append(out, c)
		}
	}
	return results, out, nil
}

func compare(a, b map[uint64]position) (c Comparison) {
	for index, mine := range a {
		theirs, both := b[index]
		if !both {
			continue
		}
		c.Positions++
		if mine != theirs && (c.Index == 0 || index < c.Index) {
			c.Index = index
			c.What = fmt.Sprintf("state %016x of term %d, and state %016x of term %d", mine.hash, mine.term, theirs.hash, theirs.term)
		}
	}
	return c
}
