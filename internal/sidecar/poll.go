package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/held"
)

// polls are the calls of a process that cannot listen: it takes them, and says later what
// became of each.
type polls struct {
	mu sync.Mutex
	// Guarded by mu: calls without an answer by id, those that nobody has taken in queue,
	// and those that were taken, the oldest first.
	last  uint64
	open  map[uint64]*polled
	queue []uint64
	taken []uint64
	// first answers of the last calls, the oldest first.
	answered map[uint64]Answer
	order    []uint64
	heard    time.Time
	waiting  int

	// more is a level: there may be something to take.
	more chan struct{}
	once chan struct{} // closed when the process has asked once
	now  func() time.Time
}

type polled struct {
	call Call
	done chan Answer // of one
}

// Bounds of polls.
const (
	maxOpen     = 4096
	maxAnswered = 1024
	// maxPollers is how many may wait for calls at a time.
	maxPollers = 64
)

var (
	errManyOpen    = errors.New("so many calls have no answer that no more is made: the process has to POST them to /nokv/done/ID")
	errManyPollers = errors.New("as many as may wait for calls do: let one loop ask, and others work")
	errNoCall      = errors.New("there is no call of this id")
)

func newPolls(now func() time.Time) *polls {
	return &polls{last: firstCall(), open: map[uint64]*polled{}, answered: map[uint64]Answer{}, more: make(chan struct{}, 1), once: make(chan struct{}), now: now}
}

// ask implements caller.
func (p *polls) ask(ctx context.Context, c Call) (Answer, error) {
	p.mu.Lock()
	if len(p.open) >= maxOpen {
		p.mu.Unlock()
		return Answer{}, &Refused{Said: errManyOpen.Error()}
	}
	p.last++
	id := p.last
	c.ID = strconv.FormatUint(id, 10)
	q := &polled{call: c, done: make(chan Answer, 1)}
	p.open[id] = q
	p.queue = append(p.queue, id)
	p.mu.Unlock()
	p.kick()
	select {
	case a := <-q.done:
		if a.Error != "" {
			return Answer{}, &Refused{Said: a.Error}
		}
		return a, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, id)
		p.queue = without(p.queue, id)
		p.taken = without(p.taken, id)
		return Answer{}, ctx.Err()
	}
}

// firstCall is where the ids of this sidecar's calls begin: an answer to a call of one before it
// is none of these, also when the process works at it yet.
func firstCall() uint64 { return rand.Uint64() >> 1 }

func without(ids []uint64, id uint64) []uint64 {
	return slices.DeleteFunc(ids, func(x uint64) bool { return x == id })
}

func (p *polls) kick() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// next takes a call, and waits for one until ctx ends: false. Each is taken once; with again
// those that were taken and have no answer come first, and are not waited for.
func (p *polls) next(ctx context.Context, again bool) (Call, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear()
	if again && len(p.taken) > 0 {
		id := p.taken[0]
		p.taken = append(p.taken[1:], id)
		return p.open[id].call, true, nil
	}
	if p.waiting >= maxPollers {
		return Call{}, false, errManyPollers
	}
	p.waiting++
	defer func() {
		p.waiting--
		p.hear() // until now it waited
	}()
	for len(p.queue) == 0 {
		p.mu.Unlock()
		var over error
		select {
		case <-p.more:
		case <-ctx.Done():
			over = ctx.Err()
		}
		p.mu.Lock()
		if over != nil && len(p.queue) == 0 {
			return Call{}, false, nil
		}
	}
	id := p.queue[0]
	p.queue = p.queue[1:]
	p.taken = append(p.taken, id)
	if len(p.queue) > 0 {
		p.kick() // the level may have been for two
	}
	return p.open[id].call, true, nil
}

// untake gives a call back that did not reach who took it.
func (p *polls) untake(text string) {
	id, _ := strconv.ParseUint(text, 10, 64)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] != nil && slices.Contains(p.taken, id) {
		p.taken = without(p.taken, id)
		p.queue = slices.Insert(p.queue, 0, id)
		p.kick()
	}
}

// done answers a call, once: what counts is what was said first, which is returned.
func (p *polls) done(text string, a Answer) (Answer, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: want /nokv/done/ID, with the number of the call", errNoCall)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear()
	if first, ok := p.answered[id]; ok {
		return first, nil
	}
	q := p.open[id]
	if q == nil {
		return Answer{}, fmt.Errorf("%w: it was answered long ago, or never made, or is of a sidecar before this one", errNoCall)
	}
	if at, _ := a.frontier(); len(at) > held.MaxFrontierBytes {
		a = Answer{Error: fmt.Sprintf("the frontier has %d bytes, %d at most", len(at), held.MaxFrontierBytes)}
	}
	a.Error = a.Error[:min(len(a.Error), maxSaid)]
	delete(p.open, id)
	p.queue, p.taken = without(p.queue, id), without(p.taken, id)
	if len(p.order) == maxAnswered {
		delete(p.answered, p.order[0])
		p.order = p.order[1:]
	}
	p.answered[id] = a
	p.order = append(p.order, id)
	q.done <- a
	return a, nil
}

// hear notes that the process asked. The caller holds mu.
func (p *polls) hear() {
	if p.heard.IsZero() {
		close(p.once)
	}
	p.heard = p.now()
}

// ready waits until the process has asked for the first time.
func (p *polls) ready(ctx context.Context) error {
	select {
	case <-p.once:
		return nil
	case <-ctx.Done():
		return errors.New("it has not asked GET /nokv/next yet")
	}
}

// answers implements caller: somebody waits for calls, or asked within the time that ctx leaves.
func (p *polls) answers(ctx context.Context) error {
	within := pollSilence
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := p.now().Sub(p.heard); p.waiting == 0 && since > within {
		return fmt.Errorf("it has not asked GET /nokv/next or answered for %v", since.Round(time.Millisecond))
	}
	return nil
}

// pollSilence is how long nobody may ask for calls, between two of its polls.
const pollSilence = time.Second
