package roottest

import (
	"errors"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// ErrReset ends a stream whose process went away.
var ErrReset = errors.New("roottest: connection reset")

// streamWindow is how many messages wait for a reader before its peer waits too.
const streamWindow = 4

// Stream is a tail or a snapshot on its way to a reader. Its messages arrive in
// order and once; it breaks without a word when one is lost or the link is cut.
type Stream struct {
	net      *Network
	from, to Place
	closed   bool
	broken   bool
	arrival  clock.Instant
	flight   int
	// room is called when the reader has taken a message.
	room func()
}

// Close ends the stream for its reader.
func (s *Stream) Close() { s.closed = true }

// Taken says that the reader has taken a message: there is room for another.
func (s *Stream) Taken() {
	s.flight--
	if s.room != nil {
		s.net.world.After(s.net.MinDelay, s.room)
	}
}

func (s *Stream) full() bool { return s.flight >= streamWindow }

// push sends a message behind those before it.
func (s *Stream) push(deliver func()) {
	w := s.net.world
	if s.closed || s.broken {
		return
	}
	if s.net.IsCut(s.from, s.to) || w.Chance(s.net.Lose/4) {
		w.Fault("stream broken")
		s.broken = true
		return
	}
	delay := w.Between(s.net.MinDelay, s.net.MaxDelay)
	if w.Chance(s.net.Slow) {
		w.Fault("message late")
		delay = w.Between(s.net.MaxDelay, s.net.SlowDelay)
	}
	s.arrival = max(w.Now().Add(delay), s.arrival+1)
	s.flight++
	w.After(s.arrival.Sub(w.Now()), func() {
		switch {
		case s.closed || s.broken:
		case s.net.IsCut(s.from, s.to):
			w.Fault("stream broken")
			s.broken = true
		default:
			deliver()
		}
	})
}

// session is the peer's end of a stream.
type session struct {
	peer   *Peer
	life   int
	stream *Stream
	waked  bool
	step   func() // sends what there is to send
	fail   func(error)
}

func (s *session) over() bool {
	return s.stream.closed || s.peer.core == nil || s.peer.life != s.life
}

// wake runs step soon, as a goroutine of the peer's would.
func (s *session) wake() {
	if s.waked {
		return
	}
	s.waked = true
	s.peer.cluster.World.After(s.peer.cluster.World.Between(0, 300*time.Microsecond), func() {
		s.waked = false
		if !s.over() && !s.peer.paused {
			s.step()
		}
	})
}

func (p *Peer) wakeStreams() {
	p.streams = slices.DeleteFunc(p.streams, (*session).over)
	for _, s := range p.streams {
		s.wake()
	}
}

// resetStreams tells readers that the process went away, if anything can.
func (p *Peer) resetStreams() {
	for _, s := range p.streams {
		if !s.stream.closed && p.cluster.World.Chance(0.7) {
			s.stream.push(func() { s.fail(ErrReset) })
		}
	}
	p.streams = nil
}

// open makes a stream from the current peer to the link's place and calls serve
// at the peer. A peer that is down refuses.
func (l *Link) open(serve func(*session), fail func(error)) *Stream {
	p, c := l.Peer(), l.cluster
	st := &Stream{net: c.Net, from: p.Place, to: l.place}
	opened := false
	c.Net.Send(l.place, p.Place, func() {
		switch {
		case opened || st.closed:
		case p.core == nil:
			st.push(func() { fail(ErrReset) })
		default:
			opened = true
			s := &session{peer: p, life: p.life, stream: st, fail: fail}
			st.room = s.wake
			p.streams = append(p.streams, s)
			serve(s)
			s.wake()
		}
	})
	return st
}
