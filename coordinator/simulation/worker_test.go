package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// memberInterval is the time between two frames, in milliseconds.
	memberInterval = 50
	// lineSilence is how long a coordinator may say nothing, lineRetry how long a member
	// waits before it tries one again, at the most.
	lineSilence = 300 * time.Millisecond
	lineRetry   = 60 * time.Millisecond
	// goodbyeTime is the time that a process has to leave.
	goodbyeTime = 800 * time.Millisecond
	// callsAtOnce is how many calls of the application run at a time.
	callsAtOnce = 4
)

var (
	errReplaced = errors.New("another stream took the place of this one")
	errUnheard  = errors.New("the coordinator is silent")
	errGivenUp  = errors.New("the coordinator is reached without a detour, or is not the holder")
	errHungUp   = errors.New("the connection ended")
)

// worker is a machine with a member on it: the real core, under a shell that does what
// package member does with goroutines, and an application that counts.
type worker struct {
	process
	id    state.MemberID
	place roottest.Place
	link  *roottest.Link
	// lost: the machine is gone, with all that it had to say. taken: another process
	// listens at the member's address.
	lost, taken bool
	// twin: it has the id of another one, and is not started by itself.
	twin bool

	// The process: identities of what it asks, and the core of the incarnation under way.
	identities *identity.Source
	member     uint64
	core       *held.Core
	lines      [detour + 1]*line
	state      rootv1.MemberState
	over       bool
	leaving    bool
	stopping   bool
	busy       int
	armed      clock.Instant
	app        map[state.RegionID]*copyOf
	// holder is the coordinator that holds the Tenure, by the newest terms; troubled are those whose own
	// line failed and has not said anything since. A detour is not tried before again.
	holder   string
	troubled [detour]bool
	again    clock.Instant
}

// detour is the slot of a line by way of another coordinator, behind those of three coordinators.
const detour = 3

// copyOf is what the application has of a region: how far it got.
type copyOf struct {
	epoch  state.Epoch
	number uint64
}

// line is a stream to one coordinator, or by way of it to another one, which is not nil then.
type line struct {
	slot     int
	node, to *node
	end      *end
	answered bool
	heard    clock.Instant
}

func newWorker(r *run, i int) *worker {
	w := &worker{id: state.MemberID(fmt.Sprintf("m%d", i+1)), place: roottest.Place(fmt.Sprintf("member-m%d", i+1))}
	w.process = process{r: r, clock: r.NewClock(r.k.drift), settled: w.settle}
	return w
}

func (w *worker) address() string {
	if w.twin {
		return "10.0.1.1:1"
	}
	return "10.0.0." + strings.TrimPrefix(string(w.id), "m") + ":1"
}

// start starts the process, which registers.
func (w *worker) start() {
	if w.up {
		return
	}
	w.lost, w.taken = false, false
	w.begin()
	w.link = w.r.roots.NewLink(w.place)
	w.link.Within(func(fn func()) { w.then(fn)() })
	w.identities = identity.SourceOf(w.incarnation)
	w.member, w.core, w.lines, w.over, w.leaving, w.stopping = 0, nil, [detour + 1]*line{}, false, false, false
	w.holder, w.troubled, w.again = "", [detour]bool{}, 0
	w.register(w.r.Rand.Uint64()|1, 0)
	w.idle()
	if w.r.k.loads {
		w.weigh()
	}
}

// stop ends the process; told: its connections are closed behind it.
func (w *worker) stop(told bool) {
	if !w.up {
		return
	}
	w.up, w.backlog = false, nil
	w.link.Close()
	for _, l := range w.lines {
		if l != nil {
			l.end.close(told)
		}
	}
}

// kill ends the process and starts another one a while later.
func (w *worker) kill(told bool, kind string) {
	if !w.up {
		return
	}
	w.r.Fault(kind)
	w.stop(told)
	w.lost = !told
	w.startWithin(600 * time.Millisecond)
}

// startWithin starts the next process in a while.
func (w *worker) startWithin(d time.Duration) {
	w.r.After(w.r.Between(time.Millisecond, d), func() {
		if !w.twin {
			w.start()
		}
	})
}

// register registers a process that follows an incarnation; 0: the one that a strong read
// finds. It goes on until it is told.
func (w *worker) register(nonce, follows uint64) {
	again := func() {
		w.after(w.r.Between(2*time.Millisecond, 40*time.Millisecond), func() { w.register(nonce, follows) })
	}
	if follows != 0 {
		w.join(nonce, follows)
		return
	}
	found := false
	w.r.call(w.place, w.r.nodes[w.r.Rand.IntN(len(w.r.nodes))], func(n *node, reply func(func(bool))) {
		n.readIndex(func(at state.Token, ok bool) {
			if !ok {
				return
			}
			n.view.await(at, func() {
				is := n.view.core.View().State.Member(w.id).GetIncarnation()
				reply(within(&w.process, func(bool) { found = true; w.join(nonce, is) }))
			})
		})
	}, within(&w.process, func(bool) {
		if !found {
			again()
		}
	}))
}

// join roots the registration.
func (w *worker) join(nonce, follows uint64) {
	cmd := &rootv1.Command{Identity: w.identities.Next(0), Events: []*rootv1.Event{{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: string(w.id), Address: w.address(), ProbeAddress: w.address(), StartNonce: nonce}, Follows: follows,
	}}}}}
	cmd.Identity.KnownIndex = w.r.known()
	var try func()
	try = func() {
		proposeOver(w.link, cmd, askLimit, func(result *rootv1.CommandResult) {
			switch {
			case result == nil, result.GetError().GetReason() == rootv1.Reason_REASON_FEATURE_LEVEL: // the cluster is not founded yet
				w.after(w.r.Between(2*time.Millisecond, 40*time.Millisecond), try)
			case result.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED:
				w.live(result.GetEvents()[0].GetMember().GetIncarnation())
			case result.GetError().GetReason() == rootv1.Reason_REASON_MEMBER_RETIRED:
				w.r.Fault("member superseded")
				w.stop(true)
				w.startWithin(100 * time.Millisecond)
			default:
				w.r.fail("Root writes: %s may not register: %v", w.id, result.GetError())
			}
		})
	}
	try()
}

// live begins an incarnation.
func (w *worker) live(incarnation uint64) {
	if w.member >= incarnation {
		return
	}
	w.member, w.over, w.state, w.busy = incarnation, false, 0, 0
	w.core = held.New(held.Config{Member: w.id, Incarnation: incarnation, RetryMin: 3 * time.Millisecond, RetryMax: 30 * time.Millisecond, Chance: rand.New(rand.NewPCG(incarnation, 1)).Uint32N})
	w.app, w.armed = map[state.RegionID]*copyOf{}, 0
	if w.leaving {
		w.core.Goodbye(w.now().Add(goodbyeTime), "it shall leave")
	}
	if w.stopping {
		w.core.Stop(w.now())
	}
	for slot, n := range w.r.nodes {
		w.connect(slot, n, nil)
	}
}

// takeDetour keeps a line to the holder by way of another coordinator while it cannot be reached: member's
// detourLocked.
func (w *worker) takeDetour() {
	h := slices.IndexFunc(w.r.nodes, func(n *node) bool { return n.name == w.holder })
	wanted := h >= 0 && w.troubled[h]
	switch l := w.lines[detour]; {
	case l != nil && (!wanted || l.to != w.r.nodes[h]):
		w.ended(l, errGivenUp)
	case l != nil || !wanted || w.now() < w.again:
		return
	}
	if !wanted {
		return
	}
	for slot, l := range w.lines[:detour] {
		if l != nil && l.answered && slot != h {
			w.connect(detour, l.node, w.r.nodes[h])
			return
		}
	}
}

// connect opens a line to a coordinator, or by way of it to another one.
func (w *worker) connect(slot int, n, to *node) {
	if w.core == nil || w.over || w.lines[slot] != nil {
		return
	}
	near, far := w.r.newConn(w.place, n.place)
	l := &line{slot: slot, node: n, to: to, end: near, heard: w.now()}
	near.ended = w.onLine(near, func(l *line) { w.ended(l, errHungUp) })
	w.lines[slot] = l
	w.core.Open(slot)
	near.send(func() {
		switch {
		case !n.up:
			far.close(true)
		case to != nil:
			near.carry = n.desk.relay(far, to, w)
		default:
			near.carry = n.desk.accept(far, w, func(fn func(*line)) func() { return w.onLine(near, fn) })
		}
	})
	w.watchLine(l)
}

// watchLine gives a line up that says nothing.
func (w *worker) watchLine(l *line) {
	heard := l.heard
	w.after(lineSilence, func() {
		switch {
		case w.lines[l.slot] != l:
		case l.heard == heard:
			w.ended(l, errUnheard)
		default:
			w.watchLine(l)
		}
	})
}

// onLine makes fn a step of this process while the line is the same.
func (w *worker) onLine(near *end, fn func(*line)) func() {
	return w.then(func() {
		for _, l := range w.lines {
			if l != nil && l.end == near {
				fn(l)
				return
			}
		}
	})
}

func (w *worker) onAnswer(l *line, a *coordinatorv1.MemberAnswer) {
	if err := w.core.Answer(l.slot, a, w.now()); err != nil {
		w.r.fail("Held: %s: %w", w.id, err)
	}
	l.heard, l.answered = w.now(), true
	if t := a.GetTerms(); t != nil {
		w.holder = t.GetHolderId()
	}
	switch {
	case l.to == nil:
		w.troubled[l.slot] = false
	case a.GetConfirmed():
		w.r.count.passedOn++
	}
	if s := a.GetState(); s != 0 {
		w.state = s
		if s == rootv1.MemberState_MEMBER_STATE_FAILED || s == rootv1.MemberState_MEMBER_STATE_REMOVED {
			w.retire()
		}
	}
}

// ended ends a line from this side.
func (w *worker) ended(l *line, why error) {
	if w.lines[l.slot] != l {
		return
	}
	w.lines[l.slot] = nil
	w.core.Close(l.slot)
	l.end.close(true)
	if reason.Of(why) == rootv1.Reason_REASON_MEMBER_RETIRED {
		w.retire()
		return
	}
	pause := w.r.Between(lineRetry/8, lineRetry)
	if l.to != nil {
		w.again = w.now().Add(pause)
		w.after(pause, func() {}) // it looks again then
		return
	}
	w.troubled[l.slot] = true
	w.after(pause, func() { w.connect(l.slot, l.node, nil) })
}

// retire ends the incarnation: whatever is held is dropped, then the process registers anew.
func (w *worker) retire() {
	if !w.over {
		w.over = true
		w.core.Retire(w.now())
	}
}

// leave asks for the regions to be moved to others, and ends the process then.
func (w *worker) leave() {
	if !w.up || w.leaving || w.core == nil {
		return
	}
	w.r.Fault("member drained")
	w.then(func() {
		if w.leaving = true; w.core != nil {
			w.core.Goodbye(w.now().Add(goodbyeTime), "it shall leave")
		}
	})()
	w.after(goodbyeTime, func() {
		if w.stopping = true; w.core != nil {
			w.core.Stop(w.now())
		}
	})
}

// end has the process end without having been moved away from: it releases what it has, says
// so, and is gone.
func (w *worker) end() {
	if !w.up || w.leaving || w.core == nil {
		return
	}
	w.r.Fault("member ends without a drain")
	w.then(func() {
		if w.leaving, w.stopping = true, true; w.core != nil {
			w.core.Stop(w.now())
		}
	})()
}

// settle does what the core asks for.
func (w *worker) settle() {
	if w.core == nil || !w.up {
		return
	}
	now := w.now()
	w.core.Tick(now)
	calls := w.core.Calls(callsAtOnce-w.busy, now)
	slices.SortStableFunc(calls, func(a, b held.Call) int { return cmp.Compare(keyspaceOf(a), keyspaceOf(b)) })
	for _, c := range calls {
		w.perform(c)
	}
	if w.finished() {
		return
	}
	w.takeDetour()
	due := w.core.Next()
	for _, l := range w.lines {
		if l == nil {
			continue
		}
		for f := w.core.Frame(l.slot, w.stamp(now)); f != nil; f = w.core.Frame(l.slot, w.stamp(now)) {
			w.send(l, f)
		}
		if at := w.core.Due(l.slot); due == 0 || at < due {
			due = at
		}
	}
	if due == 0 || due == math.MaxInt64 || due == w.armed {
		return
	}
	w.armed = due
	wait := max(due.Sub(now), 0)
	w.after(wait+wait/200+time.Microsecond, func() { w.armed = 0 })
}

// send sends a frame; one that was not accepted hears nothing.
func (w *worker) send(l *line, f *coordinatorv1.MemberFrame) {
	if w.stopping && w.r.k.variant == goodbyeForgotten {
		for _, r := range f.GetRegions() {
			r.Frontier, r.SetFrontier = nil, false
		}
	}
	l.end.send(func() {
		if l.end.carry != nil {
			l.end.carry(f)
		}
	})
}

// stamp is when a frame is sent, in a variant later than that.
func (w *worker) stamp(now clock.Instant) clock.Instant {
	if w.r.k.variant == countsFromAnswer {
		return now.Add(100 * time.Millisecond)
	}
	return now
}

func keyspaceOf(c held.Call) uint32 {
	if c.Region != nil || c.Keyspace == nil {
		return 0
	}
	return uint32(c.Keyspace.ID)
}

// finished ends what is over: the incarnation, or the process.
func (w *worker) finished() bool {
	switch {
	case w.over && w.core.Holding() == 0 && w.busy == 0:
		follows := w.member
		for _, l := range w.lines {
			if l != nil {
				l.end.close(true)
			}
		}
		w.lines, w.core = [detour + 1]*line{}, nil
		w.r.count.anew++
		w.after(w.r.Between(0, 5*time.Millisecond), func() { w.register(w.r.Rand.Uint64()|1, follows) })
	case w.stopping && w.core.Holding() == 0, w.leaving && w.state == rootv1.MemberState_MEMBER_STATE_DRAINING && w.core.Regions() == 0:
		if !w.stopping {
			w.r.count.drained++
		}
		w.core.Gone("it leaves")
		for _, l := range w.lines {
			if l == nil {
				continue
			}
			if f := w.core.Frame(l.slot, w.core.Due(l.slot)); f != nil {
				w.send(l, f)
			}
		}
		w.stop(true)
		w.startWithin(300 * time.Millisecond)
	default:
		return false
	}
	return true
}

// perform has the application do something.
func (w *worker) perform(c held.Call) {
	if c.Kind == held.Cancel {
		return // it goes on; what comes of it is taken
	}
	w.busy++
	core := w.core
	takes := w.r.Between(0, 2*time.Millisecond)
	if !w.r.calm && w.r.Chance(0.05) {
		takes = w.r.Between(5*time.Millisecond, 120*time.Millisecond)
	}
	fails := !w.r.calm && w.r.Chance(0.03)
	w.after(takes, func() {
		if w.core != core {
			return
		}
		w.busy--
		res := held.Result{}
		if fails && c.Kind != held.Evict && c.Kind != held.Abandon {
			res.Err = "the application failed"
		} else {
			res = w.carryOut(c)
		}
		core.Done(c.ID, res, w.now())
	})
}

// carryOut is the application.
func (w *worker) carryOut(c held.Call) (res held.Result) {
	r := c.Region
	switch c.Kind {
	case held.Acquire:
		n, _ := strconv.ParseUint(r.Frontier, 10, 64)
		w.app[r.ID] = &copyOf{r.Epoch, n}
		w.r.acts.took(w, r, n)
	case held.Release:
		if a := w.app[r.ID]; a != nil {
			if w.r.k.variant == releasedBelow {
				a.number -= min(a.number, 1)
			}
			res.Frontier = strconv.FormatUint(a.number, 10)
			w.r.acts.gave(w, r, a.number)
		}
		delete(w.app, r.ID)
	case held.Merge:
		return w.joined(&c)
	case held.Evict:
		delete(w.app, r.ID)
	}
	return res
}

// probed answers whoever connects to the member's own address.
func (w *worker) probed(p liveness.Probe, reply func(liveness.ProbeResult)) {
	switch {
	case w.taken && !w.up:
		w.r.Fault("address taken by another process")
		reply(liveness.AnsweredOther)
	case w.lost && !w.up: // nobody answers
	case !w.up:
		reply(liveness.Refused)
	default:
		w.then(func() {
			if w.member == p.Incarnation {
				reply(liveness.AnsweredSame)
			} else {
				reply(liveness.AnsweredOther)
			}
		})()
	}
}
