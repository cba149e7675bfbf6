package explorer

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rule is a rule of the protocol that a contrast run leaves out.
type rule uint8

const (
	// generateThenCheck: values are taken first; without it, the guard is asked
	// for a batch, and who arrives later joins it.
	generateThenCheck rule = iota + 1
	// countFromRequest: the ttl counts from the sending of a confirmation.
	countFromRequest
	// newLeaderWaits: a new leader counts from its election.
	newLeaderWaits
	// confirmNobody: while a claim over an era is under way.
	confirmNobody
	// startAboveFence: a successor starts above what it inherits.
	startAboveFence
	// releaseExactly: a window is given back by its holder alone.
	releaseExactly
	// windowPerEra: an allocator is dropped with its era.
	windowPerEra
	// clientFloor: a client discards a lower era.
	clientFloor
	// newIncarnation: a restored root is another one.
	newIncarnation
	// countSleep: elapsed time counts while a machine sleeps.
	countSleep
	// closeThenRetire: the guard closes before frontiers are told.
	closeThenRetire
	// stopThenClaim: who claims over its own era has stopped serving it.
	stopThenClaim
)

// predicate is a promise that every world keeps.
type predicate uint8

const (
	nothing predicate = iota
	primacy
	inheritance
	silence
	finality
	tsoOrder
	allocID
)

func (p predicate) String() string {
	return [...]string{"nothing", "Primacy", "Inheritance", "Silence", "Finality", "Tso order", "AllocID"}[p]
}

// model makes the successors of worlds.
type model struct {
	config
	roots *roots
	runs  *runsTable
	// regions is how many the root has before it gave any id itself.
	regions uint8
	// out are the successors of the world at hand.
	out []successor
}

// successor is a world behind a step, and what the step broke.
type successor struct {
	world  world
	step   step
	broken predicate
	// fresh: a client got a value of the current era, and no handover is open.
	fresh bool
}

// step names a transition: what, of which process or call, and how.
type step struct {
	do      action
	who, at uint8
}

type action uint8

const (
	electLeader action = iota
	passTime
	crash
	shutDown
	drained
	giveUp
	sendClaim
	repeatClaim
	commitClaim
	commitOrphan
	commitLate
	hearGrant
	hearOver
	sendConfirm
	judgeConfirm
	hearConfirm
	loseConfirm
	askWindow
	judgeWindow
	hearWindow
	loseWindow
	advance
	commitRetire
	loseRetire
	takeValue
	checkValue
	checkFirst
	hearReply
	loseReply
	hearEra
	giveRootID
	releaseWindow
	backUp
	restoreRoot
)

func newModel(c config) *model {
	if c.processes > maxProcesses || c.calls > maxCalls || c.flights > maxFlights || c.eras > maxEras || c.values > maxValue {
		panic("explorer: a configuration is larger than a world")
	}
	m := &model{config: c, roots: newRoots(c.mandate), runs: newRunsTable()}
	m.regions = m.roots.at(0).given
	return m
}

// first is the world in which everybody has just started.
func (m *model) first() world {
	w := world{incarnation: 1}
	for i := range m.processes {
		w.processes[i].incarnation = 1
	}
	m.normalize(&w)
	return w
}

// successors are the worlds one step behind w. The slice is good until the
// next call.
func (m *model) successors(w *world) []successor {
	m.out = m.out[:0]
	m.leaderSteps(w)
	for i := range m.processes {
		m.lifeSteps(w, uint8(i))
		m.claimSteps(w, uint8(i))
		m.confirmSteps(w, uint8(i))
		m.windowSteps(w, uint8(i))
	}
	for i := range m.calls {
		m.callSteps(w, uint8(i))
	}
	if m.ttl > 0 {
		m.timeSteps(w)
	}
	if m.restore {
		m.restoreSteps(w)
	}
	return m.out
}

// add makes a successor of w; the caller changes its world.
func (m *model) add(w *world, do action, who, at uint8) *successor {
	m.out = append(m.out, successor{world: *w, step: step{do, who, at}})
	return &m.out[len(m.out)-1]
}

// breaks notes what the step broke, the first of it that is looked at.
func (m *model) breaks(s *successor, p predicate) {
	if s.broken == nothing && m.blind&(1<<p) == 0 {
		s.broken = p
	}
}

// root is the rooted state of a world.
func (m *model) root(w *world) *rooted { return m.roots.at(w.root) }

// accepts says whether the root takes requests of p: they name its incarnation.
func accepts(w *world, p *process) bool { return p.incarnation == w.incarnation }

// holds says whether the root finds p to be the holder of era.
func (r *rooted) holds(p *process, era uint8) bool {
	return r.era == era && era != 0 && !r.retired && p.id == r.holder
}

func (m *model) do(w *world, c command) outcome {
	c.from = w.root
	o := m.roots.do(c)
	w.root = o.to
	return o
}

func rejected(o outcome) bool { return o.result == rootv1.Outcome_OUTCOME_REJECTED }
