package simulation

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/roottest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// end is one side of a connection. What is sent arrives in order and once. A link that is
// cut holds it up, in its direction; neither side is told. The end of a process is told to
// the other side behind what was sent, the loss of a machine is not.
type end struct {
	r        *run
	at, to   roottest.Place
	peer     *end
	over     bool
	waits    bool // for a link that is cut
	arrival  clock.Instant
	underway []message
	// ended is called once when the other side has ended the connection; carry takes a
	// frame there, once it was accepted.
	ended func()
	carry func(*coordinatorv1.MemberFrame)
}

type message struct {
	at      clock.Instant
	deliver func()
}

// newConn makes both ends of a connection.
func (r *run) newConn(from, to roottest.Place) (near, far *end) {
	near, far = &end{r: r, at: from, to: to}, &end{r: r, at: to, to: from}
	near.peer, far.peer = far, near
	return near, far
}

// send has deliver run at the other side, unless that has ended the connection.
func (e *end) send(deliver func()) {
	if e.over {
		return
	}
	r, net := e.r, e.r.roots.Net
	delay := r.Between(net.MinDelay, net.MaxDelay)
	if r.Chance(net.Slow) {
		r.Fault("message late")
		delay = r.Between(net.MaxDelay, net.SlowDelay)
	}
	e.arrival = max(r.World.Now().Add(delay), e.arrival+1)
	e.underway = append(e.underway, message{e.arrival, deliver})
	r.After(e.arrival.Sub(r.World.Now()), e.arrive)
}

// arrive delivers what has arrived, or would have but for a cut.
func (e *end) arrive() {
	for len(e.underway) > 0 && e.underway[0].at <= e.r.World.Now() && !e.waits {
		if e.r.roots.Net.IsCut(e.at, e.to) {
			e.waits = true
			e.r.After(e.r.Between(5*time.Millisecond, 40*time.Millisecond), func() {
				e.waits = false
				e.arrive()
			})
			return
		}
		m := e.underway[0]
		e.underway = e.underway[1:]
		if !e.peer.over {
			m.deliver()
		}
	}
}

// close ends the connection on this side; told: the other side hears of it.
func (e *end) close(told bool) {
	if e.over {
		return
	}
	if told {
		e.send(func() {
			if p := e.peer; !p.over {
				p.over = true
				p.ended()
			}
		})
	}
	e.over = true
}
