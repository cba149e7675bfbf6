package roottest

import (
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"google.golang.org/protobuf/proto"
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
	kept := p.streams[:0]
	for _, s := range p.streams {
		if !s.over() {
			kept = append(kept, s)
			s.wake()
		}
	}
	clear(p.streams[len(kept):])
	p.streams = kept
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

// Tail asks the current peer for the committed entries behind a position, as
// the Root service gives them: in batches, with signs of life, or the refusal
// "bootstrap required". recv must call Taken on the stream for each message.
func (l *Link) Tail(after state.Token, recv func(*rootv1.TailResponse, error)) *Stream {
	fail := func(err error) { recv(nil, err) }
	return l.open(func(s *session) {
		t := &tail{session: s, after: after, position: after.Index, recv: recv}
		s.step = t.step
	}, fail)
}

// tail is one reader of the log at a peer; see package server.
type tail struct {
	*session
	after    state.Token
	position uint64
	verified bool
	sent     head
	begun    bool
	sentAt   clock.Instant
	recv     func(*rootv1.TailResponse, error)
}

type head struct {
	known, leader uint64
	leaderless    bool
}

func headOf(v *replica.View) head {
	return head{v.Known, v.Leader, v.LeaderlessSince != 0}
}

func (t *tail) step() {
	for !t.over() && !t.stream.full() {
		v := t.peer.View()
		if err := t.verify(v); err != nil {
			t.end(err)
			return
		}
		entries, err := t.entries(v)
		switch {
		case err != nil:
			t.end(err)
			return
		case len(entries) == 0 && t.begun && t.sent == headOf(v) && !t.silent():
			return
		}
		t.send(v, entries)
		if len(entries) == 0 {
			return
		}
	}
}

func (t *tail) end(err error) {
	t.stream.push(func() { t.recv(nil, err) })
	t.life = 0 // no process has this life
}

func (t *tail) silent() bool {
	return t.peer.cluster.World.Now().Sub(t.sentAt) >= t.peer.cluster.cfg.TailIdle
}

// verify refuses a position that is not of this history.
func (t *tail) verify(v *replica.View) error {
	if t.verified || t.after.Index == 0 {
		t.verified = true
		return nil
	}
	if t.after.Index > v.Commit {
		return nil // not known here yet
	}
	term, err := t.peer.store.Term(t.after.Index)
	if err != nil {
		return gone(err, t.after.Index)
	}
	if term != t.after.Term {
		return fmt.Errorf("roottest: reader at %s, which is of term %d here", t.after, term)
	}
	t.verified = true
	return nil
}

// gone makes of a compacted log the refusal that readers know.
func gone(err error, index uint64) error {
	if errors.Is(err, storage.ErrCompacted) || errors.Is(err, raft.ErrCompacted) {
		return reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "position %d is no longer retained", index)
	}
	return err
}

func (t *tail) entries(v *replica.View) ([]*rootv1.TailEntry, error) {
	if !t.verified || t.position >= v.Commit {
		return nil, nil
	}
	entries, err := t.peer.store.Committed(t.position+1, v.Commit+1, t.peer.cluster.cfg.TailBatchBytes)
	if err != nil {
		return nil, gone(err, t.position)
	}
	out := make([]*rootv1.TailEntry, 0, len(entries))
	for _, e := range entries {
		out = append(out, &rootv1.TailEntry{Term: e.GetTerm(), Index: e.GetIndex(), Entry: e.GetData()})
	}
	return out, nil
}

func (t *tail) send(v *replica.View, entries []*rootv1.TailEntry) {
	w := t.peer.cluster.World
	if n := len(entries); n > 0 {
		t.position = entries[n-1].GetIndex()
	}
	resp := &rootv1.TailResponse{
		Entries: entries, CommitIndex: v.Known, LeaderId: v.Leader, ClusterId: ClusterID, Incarnation: v.State.Token().Incarnation,
	}
	if v.LeaderlessSince != 0 {
		resp.LeaderlessMillis = uint64(max(t.peer.Clock.Now().Sub(v.LeaderlessSince).Milliseconds(), 1))
	}
	t.begun, t.sent, t.sentAt = true, headOf(v), w.Now()
	t.stream.push(func() { t.recv(resp, nil) })
	w.After(t.peer.cluster.cfg.TailIdle, func() {
		if !t.over() && t.silent() {
			t.wake()
		}
	})
}

// Snapshot asks the current peer for its state in chunks of so many records.
// recv must call Taken on the stream for each message.
func (l *Link) Snapshot(records int, recv func(*rootv1.SnapshotChunk, error)) *Stream {
	fail := func(err error) { recv(nil, err) }
	return l.open(func(s *session) {
		chunks, err := chunksOf(s.peer.View().State, records)
		if err != nil {
			s.stream.push(func() { fail(err) })
			s.life = 0
			return
		}
		s.step = func() {
			for len(chunks) > 0 && !s.stream.full() {
				chunk := chunks[0]
				chunks = chunks[1:]
				s.stream.push(func() { recv(chunk, nil) })
			}
		}
	}, fail)
}

// chunksOf cuts a state into chunks that share nothing with it.
func chunksOf(st *state.State, records int) ([]*rootv1.SnapshotChunk, error) {
	token := st.Token().Proto()
	chunks := []*rootv1.SnapshotChunk{{Token: token}}
	total := uint64(0)
	err := st.Records(func(r *rootv1.Record) error {
		last := chunks[len(chunks)-1]
		if len(last.Records) >= records {
			last = &rootv1.SnapshotChunk{Token: token}
			chunks = append(chunks, last)
		}
		last.Records = append(last.Records, proto.CloneOf(r))
		total++
		return nil
	})
	last := chunks[len(chunks)-1]
	last.Last, last.RecordCount, last.StateHash = true, total, st.Hash()
	return chunks, err
}
