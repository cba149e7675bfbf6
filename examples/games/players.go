package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket/wsjson"
)

const (
	// redialAfter is the pause behind a connection that could not be made, dialWithin how long one is tried.
	redialAfter = 20 * time.Millisecond
	dialWithin  = 10 * time.Second
	// remembered is how many turns of a board are compared with what is told later.
	remembered = 64
)

// players play on boards, two on each, and compare what they are told with what they know.
type players struct {
	proxy string
	pace  time.Duration

	moves, redials, failed, lost, wrong atomic.Int64

	mu     sync.Mutex
	boards []*played       // guarded by mu, as is gaps
	gaps   []time.Duration // from kill -9 of a core to the next acknowledged move, by board
}

// played is what the players of a board know of it.
type played struct {
	name string
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	last Message // the latest that a player was told
	// told are the last turns, by turn modulo remembered.
	told [remembered]State
	// killed is when the core that it was on was killed, whose process is pid, and until a move is
	// acknowledged by another one.
	killed time.Time
	pid    int
}

// play has boards played: the first n of board-0, board-1...
func (p *players) play(ctx context.Context, n int) {
	p.mu.Lock()
	fewer := p.boards[min(n, len(p.boards)):]
	p.boards = slices.Clone(p.boards[:min(n, len(p.boards))])
	for i := len(p.boards); i < n; i++ {
		b := &played{name: fmt.Sprintf("board-%d", i)}
		ctx, stop := context.WithCancel(ctx)
		b.stop = stop
		for seat := 1; seat <= 2; seat++ {
			b.done.Go(func() { p.sit(ctx, b, seat) })
		}
		p.boards = append(p.boards, b)
	}
	p.mu.Unlock()
	for _, b := range fewer {
		b.stop()
	}
	for _, b := range fewer {
		b.done.Wait()
	}
}

// playing are the boards that are played.
func (p *players) playing() []*played {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.boards)
}

// sit is a player, who connects again until ctx ends.
func (p *players) sit(ctx context.Context, b *played, seat int) {
	var pending Move
	for again := false; ctx.Err() == nil; again = true {
		if err := p.connected(ctx, b, seat, &pending, again); err != nil && ctx.Err() == nil {
			p.failed.Add(1)
			pause(ctx, redialAfter)
		}
	}
}

// connected is one connection of a player. The error is of one that could not be made. A player that was
// cut off has thought meanwhile, and moves at once.
func (p *players) connected(ctx context.Context, b *played, seat int, pending *Move, again bool) error {
	// What was acknowledged before it connects it has to be told.
	b.mu.Lock()
	known := b.last.Turn
	b.mu.Unlock()
	c, err := connect(ctx, p.proxy, b.name)
	if err != nil {
		return err
	}
	defer c.CloseNow()
	if again {
		p.redials.Add(1)
	}
	said, over := make(chan Message), make(chan struct{})
	defer close(over)
	go func() {
		defer close(said)
		for {
			var m Message
			if wsjson.Read(ctx, c, &m) != nil {
				return
			}
			select {
			case said <- m:
			case <-over:
				return
			}
		}
	}()
	var think <-chan time.Time
	var now State
	move := func() bool {
		if pending.Turn == 0 {
			*pending = Move{Turn: now.Turn + 1, Seat: seat, Column: column(now)}
		} // else it is said again: it may have been made
		return wsjson.Write(ctx, c, *pending) == nil
	}
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-think:
			think = nil
			if !move() {
				return nil
			}
		case m, ok := <-said:
			if !ok {
				return nil
			}
			if m.Turn < known {
				p.lost.Add(int64(known - m.Turn))
			}
			known, now = m.Turn, m.State
			acknowledged := pending.Turn > 0 && m.Turn >= pending.Turn
			if acknowledged {
				*pending = Move{}
			}
			p.told(b, m, acknowledged)
			switch {
			case m.Refused != "":
				p.wrong.Add(1) // they play by the rules
			case m.Seat() != seat || think != nil:
			case first && again:
				if !move() {
					return nil
				}
			default:
				think = time.After(p.pace/2 + rand.N(p.pace))
			}
		}
	}
}

// told compares what a player was told with what was told of the same turn before.
func (p *players) told(b *played, m Message, acknowledged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was := &b.told[m.Turn%remembered]; was.Turn < m.Turn {
		*was = m.State
	} else if was.Turn == m.Turn && *was != m.State && was.Turn > 0 {
		p.wrong.Add(1)
	}
	if m.Turn >= b.last.Turn {
		b.last = m
	}
	if !acknowledged {
		return
	}
	p.moves.Add(1)
	if !b.killed.IsZero() && m.PID != b.pid {
		gap := time.Since(b.killed)
		b.killed = time.Time{}
		p.mu.Lock()
		p.gaps = append(p.gaps, gap)
		p.mu.Unlock()
	}
}

// killed notes that a core was killed: the next move of each board that was there ends its gap. It returns
// how many those are.
func (p *players) killed(pid int, at time.Time) (n int) {
	for _, b := range p.playing() {
		b.mu.Lock()
		if b.last.PID == pid {
			b.killed, b.pid = at, pid
			n++
		}
		b.mu.Unlock()
	}
	return n
}

// gapsAgain are the gaps since it was asked last, the shortest first.
func (p *players) gapsAgain() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	gaps := p.gaps
	p.gaps = nil
	slices.Sort(gaps)
	return gaps
}

// percentile of durations in order.
func percentile(of []time.Duration, percent int) time.Duration {
	if len(of) == 0 {
		return 0
	}
	return of[min(len(of)*percent/100, len(of)-1)].Round(time.Millisecond)
}

// column is some column that may be played.
func column(s State) int {
	moves := s.Moves
	if s.Over != "" {
		moves = ""
	}
	for {
		if c := rand.N(columns); open(moves, c) {
			return c
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// line says how the players fare.
func (p *players) line(before int64, in time.Duration) string {
	return fmt.Sprintf("%d boards, %.0f moves a second; in all %d moves, %d lost, %d wrong; connections made again: %d, and tries of that in vain: %d",
		len(p.playing()), float64(p.moves.Load()-before)/cmp.Or(in.Seconds(), 1), p.moves.Load(), p.lost.Load(), p.wrong.Load(), p.redials.Load(), p.failed.Load())
}
