package simulation

import (
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/roottest"
)

// node is a machine with a coordinator on it: real cores, and shells of one
// goroutine that can be stopped between any two of their steps.
type node struct {
	r     *run
	name  string
	place roottest.Place
	clock *roottest.Clock
	// counted is what every process counted.
	counted []*tenure.Counters

	// The process.
	up          bool
	incarnation uint64
	paused      bool
	// backlog is what happened to the process while it stood still.
	backlog []func()
	link    *roottest.Link
	view    follower
	holder  holder
}

func newNode(r *run, name string) *node {
	return &node{r: r, name: name, place: roottest.Place("coordinator-" + name), clock: r.NewClock(r.k.drift)}
}

// start starts the process: it knows nothing of the one before.
func (n *node) start() {
	if n.up {
		return
	}
	n.up, n.paused, n.backlog = true, false, nil
	n.incarnation = n.r.Rand.Uint64() | 1
	n.link = n.newLink()
	n.view.start(n)
	n.holder.start(n)
	n.settle()
}

func (n *node) newLink() *roottest.Link {
	l := n.r.roots.NewLink(n.place)
	l.Within(func(fn func()) { n.then(fn)() })
	return l
}

// stop ends the process at once.
func (n *node) stop() {
	n.r.count.firstWindows += n.holder.FirstWindows
	n.holder.FirstWindows = 0
	n.up, n.backlog = false, nil
	n.link.Close()
	n.view.stop()
}

// kill ends the process and starts another one a while later.
func (n *node) kill() {
	if !n.up {
		return
	}
	n.r.Fault("coordinator killed")
	n.leave()
}

// leave ends the process, whatever the reason, until the next start.
func (n *node) leave() {
	n.stop()
	n.r.After(n.r.Between(time.Millisecond, 100*time.Millisecond), n.start)
}

// pause makes the process, or its whole machine, stand still for d. Clocks go on.
func (n *node) pause(d time.Duration) {
	if !n.up || n.paused {
		return
	}
	n.paused = true
	incarnation := n.incarnation
	n.r.After(d, func() {
		if n.up && n.incarnation == incarnation {
			n.resume()
		}
	})
}

// resume lets it go on with everything that has happened since.
func (n *node) resume() {
	if !n.up || !n.paused {
		return
	}
	n.paused = false
	waiting := n.backlog
	n.backlog = nil
	for i, fn := range waiting {
		if n.paused {
			n.backlog = append(n.backlog, waiting[i:]...)
			return
		}
		fn()
	}
}

// then makes fn a step of this process: it waits while that stands still, and
// is nothing to another one.
func (n *node) then(fn func()) func() {
	incarnation := n.incarnation
	var step func()
	step = func() {
		switch {
		case !n.up || n.incarnation != incarnation:
		case n.paused:
			n.backlog = append(n.backlog, step)
		default:
			fn()
			n.settle()
		}
	}
	return step
}

// after is a step of this process in d.
func (n *node) after(d time.Duration, fn func()) { n.r.After(d, n.then(fn)) }

func (n *node) now() clock.Instant { return n.clock.Now() }

// settle does what follows from a step.
func (n *node) settle() {
	if n.up {
		n.holder.Settle()
	}
}
