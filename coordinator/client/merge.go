package client

import (
	"context"
	"sync/atomic"
	"time"
)

// merger makes one request of many callers who each want a run of numbers. A
// caller joins the open batch by one atomic add, which gives it its place in
// the run, and waits for the batch's channel to close. Whoever finds a slot
// free seals the open batch and launches it. When a batch has ended and nearly all
// of its callers have woken, one of them launches the next: the others, if they
// want more, are in it by then. A sealed batch takes nobody in, so a caller's numbers come
// from a request that was sent after it joined.
type merger struct {
	// most numbers of one request.
	most uint64
	// most batches under way.
	slots int32
	// launch sends a sealed batch. It calls finish, now or later.
	launch func(*batch)

	open atomic.Pointer[batch]
	busy atomic.Int32
}

// batch is the callers of one request. Written until done is closed, by the
// goroutine that has it; read by its callers afterwards.
type batch struct {
	// sealed bit, number of callers, sum of their counts.
	state atomic.Uint64
	done  chan struct{}
	// wake is closed when done is, or earlier: when the answer is late.
	wake     chan struct{}
	notified atomic.Bool // wake is closed, or about to be

	// When the first caller joined, Unix nanoseconds; 0: just now.
	born atomic.Int64

	latch latch

	count   uint64 // numbers to ask for
	callers uint64

	first, era uint64
	err        error
}

const (
	countBits  = 40
	callerUnit = uint64(1) << countBits
	countMask  = callerUnit - 1
	sealedBit  = uint64(1) << 63
	callerMask = sealedBit>>countBits - 1
	// sealedAlone is the upper part of the state of a sealed batch of one caller.
	sealedAlone = (sealedBit | callerUnit) >> countBits
)

// latch tells when nearly all callers of a batch have woken after its end, or
// gave up before. Its zero value is ready.
type latch struct {
	// stay is how many more have to; negative until the batch has ended.
	stay atomic.Int64
}

// One caller in so many is not waited for.
const stragglers = 16

// leave is called once by each caller, when it wakes or gives up. It is true
// once at most.
func (t *latch) leave() bool { return t.stay.Add(-1) == 0 }

// end is called once, before the callers wake. True: leave will not be.
func (t *latch) end(callers int) bool { return t.stay.Add(int64(callers-callers/stragglers)) <= 0 }

// early is how many have left, until end is called.
func (t *latch) early() int64 { return -t.stay.Load() }

func newMerger(most uint64, slots int32, launch func(*batch)) *merger {
	m := &merger{most: most, slots: slots, launch: launch}
	m.open.Store(newBatch())
	return m
}

func newBatch() *batch { return &batch{done: make(chan struct{}), wake: make(chan struct{})} }

// lateAfter is how long callers who share a batch wait for nothing else before
// they also heed their contexts: waiting for one thing costs half as much as
// waiting for two.
const lateAfter = 3 * time.Millisecond

// notify wakes the callers who share the batch, with or without an answer.
func (b *batch) notify() {
	if !b.notified.Swap(true) {
		close(b.wake)
	}
}

// end lets everybody go on who waits for the batch.
func (b *batch) end() {
	close(b.done)
	b.notify()
}

// take gets count numbers, 1 to most: the first of the run, and its era.
func (m *merger) take(ctx context.Context, count uint64) (first, era uint64, err error) {
	end := ctx.Done()
	for {
		b, offset, place := m.join(count)
		if place == leads {
			b.born.Store(time.Now().UnixNano())
			m.start()
		}
		answered := b.wait(place, end)
		if place != full && b.latch.leave() {
			m.next()
		}
		if !answered {
			m.abandon(b)
			return 0, 0, ctx.Err()
		}
		switch {
		case place == full:
			// The next batch may have room.
		case b.err == nil:
			return b.first + offset, b.era, nil
		case !again(ctx, b.err):
			return 0, 0, b.err
		}
	}
}

// wait waits for the answer; false: end came first. The caller who leads sees
// to it that the others hear of a late answer.
func (b *batch) wait(p place, end <-chan struct{}) bool {
	switch {
	case p != leads:
		<-b.wake
	case b.state.Load()>>countBits != sealedAlone:
		defer time.AfterFunc(lateAfter, b.notify).Stop()
	}
	select {
	case <-b.done:
		return true
	default:
	}
	select {
	case <-b.done:
		return true
	case <-end:
	}
	select {
	case <-b.done:
		return true
	default:
		b.notify() // in place of the timer
		return false
	}
}

// again says whether a caller whose batch failed joins another one: when the
// batch was given up earlier than this caller asked for.
func again(ctx context.Context, err error) bool {
	_, own := ctx.Deadline()
	return own && ctx.Err() == nil && gaveUp(err)
}

type place uint8

const (
	follows place = iota
	leads         // first in the batch: sees to it that it is sent
	full          // not in the batch
)

func (m *merger) join(count uint64) (*batch, uint64, place) {
	for {
		b := m.open.Load()
		s := b.state.Load()
		sum := s & countMask
		switch {
		case s&sealedBit != 0: // the next one is open already
		case sum+count > m.most:
			return b, 0, full
		case !b.state.CompareAndSwap(s, s+callerUnit+count):
		case s == 0:
			return b, 0, leads
		default:
			return b, sum, follows
		}
	}
}

// start launches the open batch if a slot is free. If none is, whoever has
// one will: it looks for an open batch after it has given up its slot.
func (m *merger) start() {
	for {
		n := m.busy.Load()
		if n >= m.slots {
			return
		}
		if m.busy.CompareAndSwap(n, n+1) {
			break
		}
	}
	m.next()
}

// next is called by who has a slot and no batch: it launches the open batch,
// or gives the slot up.
func (m *merger) next() {
	if b := m.seal(); b != nil {
		m.launch(b)
		return
	}
	m.release()
}

// abandon drops the open batch when all its callers have left: nothing is taken
// for them.
func (m *merger) abandon(b *batch) {
	s := b.state.Load()
	if s&sealedBit == 0 && b.latch.early() == int64(s>>countBits) && b.state.CompareAndSwap(s, s|sealedBit) {
		m.open.CompareAndSwap(b, newBatch())
	}
}

func (m *merger) release() {
	m.busy.Add(-1)
	if m.open.Load().state.Load() != 0 {
		// Somebody joined in between, and may have found the slots taken.
		m.start()
	}
}

// seal closes the open batch to further callers and opens another. nil: it was empty.
func (m *merger) seal() *batch {
	b := m.open.Load()
	if b.state.Load() == 0 || !m.open.CompareAndSwap(b, newBatch()) {
		return nil
	}
	s := b.state.Or(sealedBit)
	b.count = s & countMask
	b.callers = s >> countBits & callerMask
	return b
}

// deserted says that all callers of a sealed batch gave up before its end.
func (b *batch) deserted() bool { return b.latch.early() == int64(b.callers) }

// expires is when a batch is given up if nobody has answered it.
func (b *batch) expires(after time.Duration) time.Time {
	if born := b.born.Load(); born != 0 {
		return time.Unix(0, born).Add(after)
	}
	return time.Now().Add(after)
}

// finish gives a batch's callers their answer.
func (m *merger) finish(b *batch, first, era uint64, err error) {
	b.first, b.era, b.err = first, era, err
	// Before the callers wake: one of them launches the next batch, unless
	// they have given up.
	gone := b.latch.end(int(b.callers))
	b.end()
	if gone {
		m.next()
	}
}
