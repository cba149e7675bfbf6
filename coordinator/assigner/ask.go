package assigner

import (
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// startProbes begins probes, in turn, as far as there is room.
func (a *Raw) startProbes() []liveness.Probe {
	n := min(len(a.probes), maxProbes-a.probing)
	probes := a.probes[:n:n]
	a.probes = a.probes[n:]
	a.probing += n
	a.count.add(func() { a.count.probes += uint64(n) })
	return probes
}

// Probed tells what came of a probe.
func (a *Raw) Probed(p liveness.Probe, result liveness.ProbeResult) {
	a.probing--
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.Probed(p, result, a.tickLocked())
}

// Asking is put to other coordinators, all at once. Who does not answer in half of the
// settings' AskTime hears nobody.
type Asking struct {
	Others  []*rootv1.Coordinator
	Members []state.MemberID

	era       state.Era
	questions []liveness.Question
}

// startAsking puts the questions that wait to all other coordinators, one round at a
// time. A round takes half of what an answer may take, so that the next one has time.
func (a *Raw) startAsking() *Asking {
	if a.asking || len(a.asked) == 0 {
		return nil
	}
	q := &Asking{era: a.era}
	n := 0
	for n < len(a.asked) && len(q.Members)+len(a.asked[n].Members) <= maxAsked {
		q.Members = append(q.Members, a.asked[n].Members...)
		n++
	}
	q.questions = a.asked[:n]
	a.asked = a.asked[n:]
	a.st.Coordinators(func(c *rootv1.Coordinator) bool {
		if c.GetId() != string(a.cfg.ID) {
			q.Others = append(q.Others, c)
		}
		return len(q.Others) < maxAskedCoordinators
	})
	a.asking = true
	return q
}

// Told tells what others said.
func (a *Raw) Told(q *Asking, words []liveness.Word) {
	a.asking = false
	if a.era != q.era {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	for i, question := range q.questions {
		if i > 0 {
			words = nil // they are told
		}
		a.core.Told(question, words, now)
	}
}

const (
	// maxAsked is how many members are asked about at a time; a Question has
	// liveness.MaxBatch at most.
	maxAsked = 4 * liveness.MaxBatch
	// maxAskedCoordinators is how many others are asked: members have streams to few.
	maxAskedCoordinators = 64
)
