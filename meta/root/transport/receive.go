package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/mtls/principal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// accept takes connections of other peers until ctx ends.
func (t *Transport) accept(ctx context.Context) error {
	lobby := newLobby()
	return lobby.open(ctx, t.cfg.Listener, func(v *visitor) {
		conn, who, err := secureAccepted(ctx, t.cfg.TLS, v.Conn, t.cfg.HandshakeTimeout)
		if err != nil {
			return // The certificates' own log says so.
		}
		defer conn.Close()
		from, h, frames := t.meet(conn, who)
		lobby.leave(v)
		if from != nil {
			defer t.leave(from, conn)
			t.serve(conn, from, h.claim.Newest(), h.purpose, frames)
		}
	})
}

// meet shakes hands on an accepted connection; nil: there is nothing to serve.
func (t *Transport) meet(conn net.Conn, who principal.Principal) (*remote, hello, *frameReader) {
	h, frames, err := hear(conn, t.cfg.speaks, t.cfg.HandshakeTimeout)
	if err != nil {
		t.log.Debug("stranger", "remote", conn.RemoteAddr(), "err", err)
		return nil, h, nil
	}
	if err := refuseVersion(conn, t.cfg.speaks, h); err != nil {
		t.noteRefused(h.from, conn.RemoteAddr(), err.Error())
		return nil, h, nil
	}
	me := t.cfg.Identity
	w := welcome{
		version: t.cfg.speaks.common(h.speaks), level: t.cfg.FeatureLevel,
		node: me.NodeID, incarnation: me.Incarnation, cluster: me.ClusterID, address: t.cfg.Address,
	}
	var from *remote
	k, answer := kindRefusal, refused
	why := notNamed(who, h.from)
	if why == "" {
		why = judgeCommon(h, me, t.former())
	}
	switch {
	case why != "":
	case h.purpose == forBootstrap || h.purpose == forJoin:
		w.members, w.founders, w.replaced = t.roll(h.from)
		if k, why = t.consider(h, w, conn.RemoteAddr()); k == kindNotYet {
			answer = why
		}
		if !w.counted(h.from, h.fromIncarnation) {
			w = w.toStranger()
		}
	default:
		if from, k, answer, why = t.admit(h, w.version, conn); why != "" {
			break
		}
		var err error
		if w.before, err = t.judge(from, h, conn); err == nil {
			break
		}
		t.leave(from, conn)
		from = nil
		if k, answer = refusalOf(err); k == kindNotYet {
			t.log.Debug("root peer is put off", "peer", h.from, "remote", conn.RemoteAddr(), "reason", err)
			refuse(conn, k, answer)
			return nil, h, nil
		}
		why = fmt.Sprintf("%s is not admitted: %v", party(h.from, h.cluster, h.fromIncarnation), err)
	}
	if why != "" {
		t.noteRefused(h.from, conn.RemoteAddr(), why)
		refuse(conn, k, answer)
		return nil, h, nil
	}
	if _, err := conn.Write(appendFrame(nil, kindWelcome, w.append(nil))); err != nil && from != nil {
		t.leave(from, conn)
		from = nil
	}
	return from, h, frames
}

// noteRefused logs a refusal.
func (t *Transport) noteRefused(peer uint64, remote net.Addr, why string) {
	if t.refusals.first(why) {
		t.log.Error("refused a root peer", "peer", peer, "remote", remote, "reason", why)
	}
}

func (t *Transport) serve(conn net.Conn, from *remote, start freshness.Start, why purpose, frames *frameReader) {
	var err error
	switch why {
	case forMessages:
		err = t.receive(conn, from, start, frames)
	case forCheckpoint:
		if !from.cleared.Load() {
			return // Its sender tries again.
		}
		err = t.receiveCheckpoint(conn, from, frames)
	default:
		err = fmt.Errorf("purpose %d is not known", why)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		t.log.Info("connection of root peer broke", "peer", from.id.NodeID, "err", err)
	}
}

// receive hands over what a peer sends, and gives signs of life back.
func (t *Transport) receive(conn net.Conn, from *remote, start freshness.Start, frames *frameReader) error {
	var heardAt, toldAt time.Time
	for {
		// A deadline costs a lock in the runtime: one a quarter of DeadAfter is enough.
		if now := time.Now(); now.Sub(heardAt) > t.cfg.DeadAfter/4 {
			heardAt = now
			if err := conn.SetDeadline(now.Add(t.cfg.DeadAfter)); err != nil {
				return err
			}
		}
		k, payload, err := frames.next()
		if err != nil {
			return err
		}
		if err := t.take(from, conn, start, k, payload); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(toldAt) >= t.cfg.AliveEvery {
			toldAt = now
			if _, err := conn.Write(appendFrame(nil, kindAlive, nil)); err != nil {
				return err
			}
		}
	}
}

func (t *Transport) take(from *remote, conn net.Conn, start freshness.Start, k kind, payload []byte) error {
	switch k {
	case kindAlive:
	case kindEcho:
		if len(payload) == 8 {
			from.answered(conn, binary.BigEndian.Uint64(payload))
		}
	case kindStanding:
		s, err := parseStanding(payload)
		if err != nil {
			return fmt.Errorf("standing of %d bytes: %w", len(payload), err)
		}
		t.hears(from, start, s)
	case kindMessage:
		m, err := t.decode(from, payload)
		if err != nil {
			return err
		}
		if m.GetType() == raftpb.MsgSnap {
			return errors.New("MsgSnap without its checkpoint")
		}
		if p, ok := freshness.Promised(m); ok {
			t.cfg.Memory.Note(from.id.NodeID, start, p)
		}
		if from.cleared.Load() { // Rule 7 of freshness. Raft repeats it.
			t.receiver.Deliver(m)
		}
	default:
		return fmt.Errorf("frame of kind %d is not expected here", k)
	}
	return nil
}

// decode reads a message and checks that it is between these two peers.
func (t *Transport) decode(from *remote, payload []byte) (*raftpb.Message, error) {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(payload, m); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	if m.GetFrom() != from.id.NodeID || m.GetTo() != t.cfg.Identity.NodeID {
		return nil, fmt.Errorf("message from %d to %d on the connection from %d to %d", m.GetFrom(), m.GetTo(), from.id.NodeID, t.cfg.Identity.NodeID)
	}
	return m, nil
}

// maxStrangers bounds connections that have not said who they are, or an eighth of
// what the process may accept.
const maxStrangers = 64

// lobby holds the connections that have not said who they are. When it is full
// whoever comes takes the place of the one that is there longest, of the source that
// has the most: who holds connections open in silence keeps out himself alone,
// and a peer, which says at once who it is, gets in.
type lobby struct {
	limit int

	mu      sync.Mutex // guards what follows
	waiting []*visitor // in the order of arrival
}

// open takes in everybody who comes to lis, until ctx ends or accepting fails. meet
// has the connection until it returns; who has said who he is leaves the lobby.
func (l *lobby) open(ctx context.Context, lis net.Listener, meet func(*visitor)) error {
	var meeting sync.WaitGroup
	defer meeting.Wait()
	for {
		conn, err := listen.Accept(lis)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		v := l.enter(conn)
		meeting.Go(func() {
			defer conn.Close()
			defer l.leave(v)
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			meet(v)
		})
	}
}

// visitor is a connection in the lobby.
type visitor struct {
	net.Conn
	source string
}

func newLobby() *lobby { return &lobby{limit: max(1, min(maxStrangers, listen.Connections()/8))} }

// enter takes a connection in, and ends another one when there is no room.
func (l *lobby) enter(conn net.Conn) *visitor {
	v := &visitor{Conn: conn, source: conn.RemoteAddr().String()}
	if host, _, err := net.SplitHostPort(v.source); err == nil {
		v.source = host
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.limit {
		l.evict()
	}
	l.waiting = append(l.waiting, v)
	return v
}

// evict ends one visitor. The lock is held.
func (l *lobby) evict() {
	have := map[string]int{}
	for _, v := range l.waiting {
		have[v.source]++
	}
	oldest := 0
	for i, v := range l.waiting {
		if have[v.source] > have[l.waiting[oldest].source] {
			oldest = i
		}
	}
	_ = l.waiting[oldest].Close() // It is told nothing.
	l.waiting = slices.Delete(l.waiting, oldest, oldest+1)
}

// leave ends a visit, if it has not been ended before.
func (l *lobby) leave(v *visitor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(other *visitor) bool { return other == v })
}
