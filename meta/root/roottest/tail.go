package roottest

import (
	"errors"
	"fmt"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"google.golang.org/protobuf/proto"
)

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
		_, data, err := storage.Payload(e)
		if err != nil {
			return nil, err
		}
		out = append(out, &rootv1.TailEntry{Term: e.GetTerm(), Index: e.GetIndex(), Entry: data})
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
