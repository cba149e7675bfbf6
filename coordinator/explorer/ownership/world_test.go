package ownership

import (
	"time"

	"github.com/nokv/nokv/internal/testing/breadth"
)

// Sizes of a world. A configuration may use less.
const (
	maxProcesses    = 3
	maxCoordinators = 2
	maxRegions      = 2
	maxConf         = 16
	maxOps          = 4
	// maxUnanswered is how many frames may be sent before an answer comes.
	maxUnanswered = 3
)

// Times. A tick of true time is slow or fast units of a local clock.
const (
	unit          = time.Second
	slow, fast    = 2, 3
	suspect, dead = 2, 2
	prepareMax    = 2 * time.Second
	deadline      = 20 * time.Second
	// begin is when clocks begin.
	begin = 1000 * unit
)

// fence is the ttl: a moment less than whole units, so that what happens within a moment
// may be thought of as at once.
func (c *config) fence() time.Duration { return time.Duration(c.ttl)*unit - 4*soon }

// config is one exploration: how large the world is and what may happen in it.
type config struct {
	name string
	// processes have names, by which two may be the same member; the first of them have
	// started. coordinators are c1, which holds era 1, and c2.
	processes, started, coordinators, regions uint8
	names                                     [maxProcesses]string
	// ttl is in units; 0: all fences are eras.
	ttl uint8
	// work is how often a region is written.
	work uint8
	// links has a bit for each coordinator that a process is connected to, if it can.
	links [maxProcesses]uint8
	// passed has a bit for each coordinator that a process reaches only by way of the other one,
	// which passes its stream on.
	passed [maxProcesses]uint8
	// prompt has a bit for each process whose streams delay nothing.
	prompt uint8
	// mute has a bit for each coordinator to which a process sends nothing after hello.
	mute [maxProcesses]uint8
	// begins are the steps that it begins with.
	begins [8]action
	// ends: it is said of dead processes that they have ended.
	ends bool
	// eras, crashes of members and of streams, drains, grants by an operator, and members that end
	// in order without a drain: how many.
	eras, drains, grants, stops, breaks uint8
	crashes                             uint16
	// tokens bounds the log.
	tokens uint8
	// probe: members are probed. reused: the addresses of dead processes are taken by others.
	// strange: they refuse also while their processes live, as those of other sockets do.
	probe, reused, strange bool
	// together: all clocks of coordinators run at one rate, and all of members.
	// steady: at the same.
	steady bool
	// slow applications do what they are asked for later; lag: coordinators see what they
	// have rooted themselves later; late: moves go on, or end, because time has passed.
	slow, lag, late bool
	// onwards: it is also asked whether every region gets an owner from everywhere.
	onwards bool
	// off is the rule left out.
	off rule
}

// rule is a rule of ownership that a contrast run leaves out.
type rule uint8

const (
	// verdictWaits: a region is granted elsewhere when the fence has run out.
	verdictWaits rule = iota + 1
	// driftWaited: as much longer as clocks may differ.
	driftWaited
	// newHolderWaits: a new holder counts from when its era began.
	newHolderWaits
	// holderConfirms: nobody else does.
	holderConfirms
	// generateThenCheck: the era is checked when the answer is made, not before.
	generateThenCheck
	// countFromFrame: a confirmation counts from when the frame was sent.
	countFromFrame
	// passerConfirmsNot: whoever passes a stream on confirms nobody.
	passerConfirmsNot
	// countFromMember: a confirmation that was passed back counts from when the member sent the frame too.
	countFromMember
	// checkBehind: work is checked before its reply.
	checkBehind
	// resetProvesNothing: only a refused connection does.
	resetProvesNothing
	// heardLives: nothing that a probe finds is a proof while another coordinator hears the member.
	heardLives
	// silentMayHear: nor while one that cannot be asked may hear it, before the fence has run out.
	silentMayHear
	// othersHearNoOwner: whom the holder cannot hear fails, also if others hear it.
	othersHearNoOwner
	// otherIsDead: who answers as somebody else is not the member.
	otherIsDead
	// newestObeyed: older sets are not.
	newestObeyed
	// epochExpected: a grant names the epoch that it was planned at.
	epochExpected
	// planNamed: a step of a move counts in the era, and for the plan, that it was made for.
	planNamed
	// frontierToldExactly: a move is completed at the frontier of its release.
	frontierToldExactly
	// releaseAwaited: a move is completed when the old owner has let go.
	releaseAwaited
	// lastWordCounts: whoever follows a member that has left begins where that one let go.
	lastWordCounts
	// lastWordRooted: where that is, is rooted in front of the verdict.
	lastWordRooted
)

// predicate is a promise that every world keeps.
type predicate uint8

const (
	nothing predicate = iota
	oneAnEpoch
	oneAMoment
	frontier
	// forgotten: a region without an owner that does not get one, or a move that does not end.
	forgotten
)

func (p predicate) String() string {
	return [...]string{"nothing", "one owner an epoch", "one owner a moment", "frontier", "nobody is forgotten"}[p]
}

// world is a state of the model. What is large in it stands in tables, by number. It has
// no padding, and its parts have none.
type world struct {
	root         uint32
	coordinators [maxCoordinators]uint32
	processes    [maxProcesses]uint32
	// acknowledged is the work that was replied to, by region, since its owner's frontier.
	acknowledged [maxRegions]uint8
	// Faults so far.
	drains, grants, stops, breaks uint8
	crashes                       uint16
}

// coordinator is one; detector is its number in the table.
type coordinator struct {
	detector uint32
	// landed is what its view must have before it plans again, plus 1.
	landed uint32
	// shown is the newest set that a process has taken on its stream here, plus 1.
	shown [maxProcesses]uint32
	// soft are reports of regions.
	soft [maxRegions][maxProcesses]uint16
	// ops are commands under way, plus 1.
	ops [maxOps]uint16
}

type life uint16

const (
	unborn life = iota
	alive
	deadNow
)

// process is one life of a member.
type process struct {
	core uint32
	life life
	// data is what the application has of regions.
	data  [maxRegions]uint8
	links [maxCoordinators]link
}

// link is a stream, and what is under way on it.
type link struct {
	// has is the newest set that the member has taken on it, told the newest that was
	// sent, plus 1.
	has, told uint32
	// half is the member's, beyond the coordinator's where another one passes the stream on.
	half
	beyond half
	// here and there: open at the member, at the coordinator.
	here, there bool
	// owes: the coordinator is to answer the newest frame that it has heard. unanswered is
	// how many were sent that no answer has come to.
	owes       bool
	unanswered uint8
}

// half is what is under way on a stream, or on one half of its way.
type half struct {
	frame uint32
	// said is has as of when the frame was made.
	said   uint32
	answer answer
}

// frames is how many are under way.
func (l *link) frames() (n uint8) {
	for _, h := range [...]*half{&l.half, &l.beyond} {
		if h.frame != 0 {
			n++
		}
	}
	return n
}

// passes says that another coordinator passes the stream of a process on.
func (c *config) passes(i, at uint8) bool { return c.passed[i]&(1<<at) != 0 }

// far is the half of a stream that its coordinator is at.
func (c *config) far(i, at uint8, l *link) *half {
	if c.passes(i, at) {
		return &l.beyond
	}
	return &l.half
}

// answer is one under way.
type answer struct {
	set uint32
	is  answerIs
	// back is how many frames were sent since the one that it answers.
	back, era uint8
	confirmed bool
}

type answerIs uint8

const (
	noAnswer answerIs = iota
	answers
	// answersFirst: with the terms, as the first answer on a stream does.
	answersFirst
	// pushes: it answers no frame.
	pushes
	// retired: the incarnation is over.
	retired
)

// interned numbers values that worlds hold.
type interned[T comparable] struct{ *breadth.Set[T] }

func newInterned[T comparable]() interned[T] { return interned[T]{breadth.NewSet[T]()} }

func (t interned[T]) of(v T) uint32 {
	n, _ := t.Add(&v)
	return uint32(n)
}

// at is the value with a number, not to be changed.
func (t interned[T]) at(n uint32) *T { return t.At(int(n)) }

// memo remembers what came of each thing that was done.
type memo[K comparable, V any] struct {
	done     *breadth.Set[K]
	outcomes []V
}

func newMemo[K comparable, V any]() memo[K, V] { return memo[K, V]{done: breadth.NewSet[K]()} }

func (m *memo[K, V]) find(k *K) (outcome V, known bool) {
	n, known := m.done.Find(k)
	if known {
		outcome = m.outcomes[n]
	}
	return outcome, known
}

func (m *memo[K, V]) keep(k *K, outcome V) {
	m.done.Add(k)
	m.outcomes = append(m.outcomes, outcome)
}
