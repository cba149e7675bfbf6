package assigner

import (
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// maxFound bounds the batches that wait for Look.
const maxFound = 16

// Detect lets the detector look, while Look may be busy: members are to be probed and asked about at
// once, and what was found waits for Look. A verdict without proof Look passes itself, by what is known
// then. It says for how long there is nothing else to detect.
func (a *Raw) Detect() (Orders, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	for len(a.found) < maxFound {
		if !a.turnLocked(now, a.core.TurnBeside) {
			break
		}
	}
	if len(a.found) > 0 || a.core.Waits() {
		a.armed = 0
		a.cfg.Wake()
	}
	orders := Orders{Era: a.era}
	a.startLocked(&orders)
	a.detects = a.core.Due()
	if len(a.found) >= maxFound || !a.roomLocked() {
		a.detects = now.Add(detectPause)
	}
	return orders, min(max(a.detects.Sub(now), 0), time.Hour)
}

// roomLocked reports whether the detector may want more asked.
func (a *Raw) roomLocked() bool { return len(a.probes) <= maxWaiting && len(a.asked) <= maxWaiting }

// turnLocked has the detector take a turn, and reports whether it was due.
func (a *Raw) turnLocked(now clock.Instant, turn func(clock.Instant) liveness.Batch) bool {
	if !a.roomLocked() || a.core.Due() > now {
		return false
	}
	b := turn(now)
	a.probes = append(a.probes, b.Probes...)
	if len(b.Question.Members) > 0 {
		a.asked = append(a.asked, b.Question)
	}
	if len(b.Verdicts)+len(b.Withheld)+len(b.Ended) > 0 {
		a.found = append(a.found, b)
	}
	return true
}

// startLocked begins what waits to be asked.
func (a *Raw) startLocked(orders *Orders) {
	if a.era != 0 {
		orders.Probes, orders.Asking = a.startProbes(), a.startAsking()
	}
}

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
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probing--
	a.core.Probed(p, result, a.tickLocked())
	a.inquiredLocked()
}

// inquiredLocked has what waits be begun, where there is room now.
func (a *Raw) inquiredLocked() {
	if len(a.probes)+len(a.asked) > 0 {
		a.armed, a.detects = 0, 0
		a.cfg.Wake()
		a.cfg.WakeDetector()
	}
	a.noticeLocked()
}

// Asking is put to other coordinators, all at once. They have half of the settings' AskTime.
type Asking struct {
	Others  []*rootv1.Coordinator
	Members []state.MemberID

	// some: there are coordinators that are not asked.
	some      bool
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
		switch {
		case c.GetId() == string(a.cfg.ID):
		case len(q.Others) == maxAskedCoordinators:
			q.some = true
		default:
			q.Others = append(q.Others, c)
		}
		return !q.some
	})
	a.asking = true
	return q
}

// Told tells what others said. byAll: each of them has answered.
func (a *Raw) Told(q *Asking, words []liveness.Word, byAll bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asking = false
	defer a.inquiredLocked()
	if a.era != q.era {
		return
	}
	now := a.tickLocked()
	for i, question := range q.questions {
		if i > 0 {
			words = nil // they are told
		}
		a.core.Told(question, words, byAll && !q.some, now)
	}
}

const (
	// maxAsked is how many members are asked about at a time; a Question has
	// liveness.MaxBatch at most.
	maxAsked = 4 * liveness.MaxBatch
	// maxAskedCoordinators is how many others are asked: members have streams to few.
	maxAskedCoordinators = 64
)
