package simulation

import (
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/meta/root/roottest"
)

// node is a machine with a coordinator on it: real cores, and shells of one
// goroutine that can be stopped between any two of their steps.
type node struct {
	process
	name  string
	place roottest.Place
	// counted is what every process counted.
	counted []*tenure.Counters

	// The process.
	link   *roottest.Link
	view   follower
	holder holder
	desk   desk
}

func newNode(r *run, name string) *node {
	n := &node{name: name, place: roottest.Place("coordinator-" + name)}
	n.process = process{r: r, clock: r.NewClock(r.k.drift), settled: n.settle}
	return n
}

// start starts the process: it knows nothing of the one before.
func (n *node) start() {
	if n.up {
		return
	}
	n.begin()
	n.link = n.newLink()
	n.view.start(n)
	n.holder.start(n)
	n.desk.start(n)
	n.settle()
}

func (n *node) newLink() *roottest.Link {
	l := n.r.roots.NewLink(n.place)
	l.Within(func(fn func()) { n.then(fn)() })
	return l
}

func (n *node) address() string { return string(n.place) }

// stop ends the process at once.
func (n *node) stop() {
	n.r.count.firstWindows += n.holder.FirstWindows
	n.holder.FirstWindows = 0
	n.up, n.backlog = false, nil
	n.link.Close()
	n.view.stop()
	n.desk.stop()
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

// settle does what follows from a step.
func (n *node) settle() {
	if n.up {
		n.holder.Settle()
	}
}
