package transport

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/nokv/nokv/meta/root/freshness"
)

// line is a connection that a peer opened to this one.
type line struct {
	start    freshness.Start // of the process behind it
	admitted bool
	asked    uint64          // the word that it was asked for last; 0: none
	rival    freshness.Start // the newer start that it was asked for
}

// attach counts a connection in that the peer opened; detach counts it out and
// says how many are left.
func (p *remote) attach(conn net.Conn, s freshness.Start) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines[conn] = &line{start: s}
}

func (p *remote) detach(conn net.Conn) (left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lines, conn)
	return len(p.lines)
}

// talks says whether the peer has a connection to this one.
func (p *remote) talks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines) > 0
}

// errRival puts a start off while the process of another one may be alive.
var errRival = errors.New("another process of this root peer is connected: it is being asked whether it is alive")

// alone says whether a start may be admitted: no other one's process is connected
// (rule 8 of freshness). Else those that are connected are to be asked. With
// admit the connection is one of an admitted start from then on.
func (p *remote) alone(conn net.Conn, admit bool) (ask map[net.Conn]uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mine := p.lines[conn]
	if mine == nil {
		return nil, net.ErrClosed
	}
	if p.rival.Count > 0 && p.rival == mine.start {
		return nil, &freshness.StaleError{Node: p.id.NodeID, Why: fmt.Sprintf("its start %d came while the process of an earlier start was alive", mine.start.Count)}
	}
	for other, l := range p.lines {
		if !l.admitted || l.start == mine.start {
			continue
		}
		if err = errRival; l.rival == mine.start {
			continue // It has been asked.
		}
		if ask == nil {
			ask = map[net.Conn]uint64{}
		}
		l.asked, l.rival = randomWord(), mine.start
		ask[other] = l.asked
	}
	mine.admitted = err == nil && admit
	return ask, err
}

// answered takes the word that a process was asked for: it is alive, beside its rival.
func (p *remote) answered(conn net.Conn, word uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lines[conn]; l != nil && l.asked == word && word != 0 {
		p.rival = l.rival
	}
}

func randomWord() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return binary.BigEndian.Uint64(b[:]) | 1
}

// judge says whether a peer that was let in runs on the newest state of its folder,
// and by what it promised before. An error refuses it.
func (t *Transport) judge(from *remote, h hello, conn net.Conn) (before freshness.Promise, err error) {
	if err := from.ask(conn, false); err != nil {
		return before, err
	}
	// A crash before this line finds what was remembered before; behind it the start.
	if before, err = t.cfg.Memory.Admit(h.from, h.claim); err != nil {
		return before, err
	}
	// Another start may have been admitted meanwhile.
	return before, from.ask(conn, true)
}

// ask is alone, and asks.
func (p *remote) ask(conn net.Conn, admit bool) error {
	ask, err := p.alone(conn, admit)
	for other, word := range ask {
		// The connection has a deadline. When it breaks, nobody is behind it.
		_, _ = other.Write(appendFrame(nil, kindAsk, binary.BigEndian.AppendUint64(nil, word)))
	}
	return err
}

// refusalOf is how a peer is told that it is not admitted, and what it is told.
func refusalOf(err error) (k kind, answer string) {
	if stale := new(freshness.StaleError); errors.As(err, &stale) {
		return kindStale, stale.Why
	}
	if unknown := new(freshness.UnknownError); errors.As(err, &unknown) {
		return kindRefusal, unknown.Why
	}
	return kindNotYet, err.Error()
}
