package simulation

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/roottest"
)

// process is one that can be stopped between any two of its steps.
type process struct {
	r     *run
	clock *roottest.Clock
	// settled is called behind every step.
	settled func()

	up bool
	// incarnation tells this process from those before it on its machine.
	incarnation uint64
	paused      bool
	// backlog is what happened to the process while it stood still.
	backlog []func()
}

// begin begins another process.
func (p *process) begin() {
	p.up, p.paused, p.backlog = true, false, nil
	p.incarnation = p.r.Rand.Uint64() | 1
}

// pause makes the process, or its whole machine, stand still for d. Clocks go on.
func (p *process) pause(d time.Duration) {
	if !p.up || p.paused {
		return
	}
	p.paused = true
	incarnation := p.incarnation
	p.r.After(d, func() {
		if p.up && p.incarnation == incarnation {
			p.resume()
		}
	})
}

// resume lets it go on with everything that has happened since.
func (p *process) resume() {
	if !p.up || !p.paused {
		return
	}
	p.paused = false
	waiting := p.backlog
	p.backlog = nil
	for i, fn := range waiting {
		if p.paused {
			p.backlog = append(p.backlog, waiting[i:]...)
			return
		}
		fn()
	}
}

// then makes fn a step of this process: it waits while that stands still, and
// is nothing to another one.
func (p *process) then(fn func()) func() {
	incarnation := p.incarnation
	var step func()
	step = func() {
		switch {
		case !p.up || p.incarnation != incarnation:
		case p.paused:
			p.backlog = append(p.backlog, step)
		default:
			fn()
			p.settled()
		}
	}
	return step
}

// within is then for a function of an argument.
func within[T any](p *process, fn func(T)) func(T) {
	incarnation := p.incarnation
	return func(arg T) {
		if p.incarnation == incarnation {
			p.then(func() { fn(arg) })()
		}
	}
}

// after is a step of this process in d.
func (p *process) after(d time.Duration, fn func()) { p.r.After(d, p.then(fn)) }

func (p *process) now() clock.Instant { return p.clock.Now() }
