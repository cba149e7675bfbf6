package replica

import (
	"context"
	"time"
)

// A checkpoint of a million regions is seconds of work, and all peers write
// theirs at about the same time, often on few cores. Nobody waits for it, and
// everybody waits for the log: it is written in short spells with pauses.
const (
	// paceSpell is about how long it works at a stretch.
	paceSpell = time.Millisecond
	// paceShare is how many times as long it pauses behind that, and maxPause the
	// most: a spell that took long may have waited for a processor or the disk.
	paceShare = 10
	maxPause  = 10 * time.Millisecond
)

// pace spreads work over time.
type pace struct {
	ctx   context.Context
	begun time.Time // of the spell
}

// check is called by the work now and then. It returns the context's error,
// after a pause when one is due.
func (p *pace) check() error {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	}
	worked := now.Sub(p.begun)
	if worked < paceSpell {
		return p.ctx.Err()
	}
	timer := time.NewTimer(min(paceShare*worked, maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
	}
	p.begun = time.Now()
	return p.ctx.Err()
}
