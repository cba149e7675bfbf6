package chaos

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// beginBehind keeps a root peer or a coordinator away until the others have dropped
// the log that it would go on from: it comes back by a checkpoint.
func beginBehind(r *run, f fault) *active {
	m := r.c.find(f.target)
	if m < roots {
		return r.peerBehind(m)
	}
	return r.coordinatorBehind(m)
}

// outrun waits until the logs of all root peers but one, who is away, begin behind
// an index.
func (r *run) outrun(away int, index uint64) {
	proctest.Eventually(r.t, patience, func() error {
		for i, s := range r.c.status() {
			if i != away && s.GetFirstIndex() <= index+1 {
				return fmt.Errorf("the log of %s begins at %d, want it to begin behind %d", rootPlace(i), s.GetFirstIndex(), index+1)
			}
		}
		return nil
	})
}

func (r *run) peerBehind(m int) *active {
	const installed = "checkpoint installed"
	var last uint64
	proctest.Eventually(r.t, patience, func() error {
		if last = r.c.status()[m].GetLastIndex(); last == 0 {
			return fmt.Errorf("%s does not say how long its log is", place(m))
		}
		return nil
	})
	before := strings.Count(r.c.Process(m).Log(), installed)
	a := r.killNow(m)
	end, fired := a.end, a.fired
	a.end = func() {
		r.outrun(m, last+checkpointEntries) // what it had when it was killed, and some more
		end()
		proctest.Eventually(r.t, patience, func() error {
			if strings.Count(r.c.Process(m).Log(), installed) == before {
				return errors.New("no checkpoint was installed")
			}
			return nil
		})
	}
	a.fired = fired
	return a
}

func (r *run) coordinatorBehind(m int) *active {
	var before, after, cut struct {
		TokenIndex uint64 `json:"token_index"`
		Follower   struct{ Bootstraps uint64 }
	}
	err := r.c.vars(m, &before)
	all := otherRoots(-1)
	a := r.cut(m, append(into(m, all), outOf(m, all)...)...)
	end, fired := a.end, a.fired
	a.end = func() {
		err = errors.Join(err, r.c.vars(m, &cut))
		r.outrun(-1, cut.TokenIndex+checkpointEntries)
		end()
		proctest.Eventually(r.t, patience, func() error {
			if err := r.c.vars(m, &after); err != nil {
				return err
			}
			if after.Follower.Bootstraps == before.Follower.Bootstraps {
				return fmt.Errorf("%s took no snapshot", place(m))
			}
			return nil
		})
	}
	a.fired = func() error { return errors.Join(err, fired()) }
	return a
}
