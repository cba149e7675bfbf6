package simulation

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const watchCluster = 0xc0ffee

// watchRoot is the log, and the state at each of its entries.
type watchRoot struct {
	t    *testing.T
	next uint64 // for names, the test's alone

	mu sync.Mutex
	// Guarded by mu.
	entries []*rootv1.TailEntry
	states  []*state.State
	first   uint64            // oldest entry retained
	changed chan struct{}     // closed and replaced at every change
	copies  map[string]uint64 // how far copies are
}

func newWatchRoot(t *testing.T) *watchRoot {
	r := &watchRoot{t: t, first: 1, changed: make(chan struct{}), copies: map[string]uint64{}}
	r.commit(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: watchCluster, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{
			{NodeId: 1, Incarnation: 11, TransportAddress: "127.0.0.1:3380"},
		}},
	}}})
	return r
}

// set changes something and wakes the streams.
func (r *watchRoot) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// commit appends a command, which may be rejected.
func (r *watchRoot) commit(events ...*rootv1.Event) {
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.set(func() {
		st := state.New()
		if n := len(r.states); n > 0 {
			st = r.states[n-1].Fork()
		}
		index := uint64(len(r.entries)) + 1
		if err := st.ApplyEntry(1, index, data, nil); err != nil {
			r.t.Error(err)
		}
		r.entries = append(r.entries, &rootv1.TailEntry{Term: 1, Index: index, Entry: data})
		r.states = append(r.states, st)
	})
}

func (r *watchRoot) now() *state.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states[len(r.states)-1].Fork()
}

func (r *watchRoot) last() state.Token { return r.states[len(r.states)-1].Token() }

// rootPort is what one coordinator sees of the root.
type rootPort struct {
	root *watchRoot
	cut  bool   // nothing comes through; guarded by root.mu
	hold uint64 // entries above it are not shown, nor spoken of; 0: all are; guarded by root.mu
}

func (p *rootPort) set(change func(*rootPort)) { p.root.set(func() { change(p) }) }

var errCut = errors.New("connection reset")

// end is the newest entry that is shown.
func (p *rootPort) end() uint64 {
	if n := uint64(len(p.root.entries)); p.hold == 0 || p.hold > n {
		return n
	}
	return p.hold
}

func (p *rootPort) ReadIndex(context.Context) (state.Token, error) {
	p.root.mu.Lock()
	defer p.root.mu.Unlock()
	if p.cut {
		return state.Token{}, errCut
	}
	return p.root.last(), nil
}

func (p *rootPort) Propose(context.Context, ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	return nil, errCut
}

func (p *rootPort) Snapshot(_ context.Context, fn func(*rootv1.SnapshotChunk) error) error {
	p.root.mu.Lock()
	if p.cut {
		p.root.mu.Unlock()
		return errCut
	}
	st := p.root.states[p.end()-1].Fork()
	p.root.mu.Unlock()
	chunk := &rootv1.SnapshotChunk{Token: st.Token().Proto(), Last: true, StateHash: st.Hash()}
	if err := st.Records(func(one *rootv1.Record) error {
		chunk.RecordCount++
		chunk.Records = append(chunk.Records, proto.CloneOf(one))
		return nil
	}); err != nil {
		return err
	}
	return fn(chunk)
}

func (p *rootPort) Tail(ctx context.Context, after state.Token) (rootview.TailStream, error) {
	return &rootTail{p: p, ctx: ctx, at: after.Index}, nil
}

type rootTail struct {
	p   *rootPort
	ctx context.Context
	at  uint64
}

func (*rootTail) Close() {}

// Recv gives up to 20 entries at once, and a sign of life every 100 ms.
func (s *rootTail) Recv() (*rootv1.TailResponse, error) {
	idle := time.NewTimer(100 * time.Millisecond)
	defer idle.Stop()
	for due := false; ; {
		root := s.p.root
		root.mu.Lock()
		end, cut, changed, first := s.p.end(), s.p.cut, root.changed, root.first
		resp := &rootv1.TailResponse{CommitIndex: max(end, s.at), LeaderId: 1, ClusterId: watchCluster, Incarnation: 1}
		if end > s.at && s.at+1 >= first {
			resp.Entries = root.entries[s.at:min(end, s.at+20)]
		}
		root.mu.Unlock()
		switch {
		case cut:
			return nil, errCut
		case end > s.at && s.at+1 < first:
			return nil, reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "the log begins at %d", first)
		case len(resp.Entries) > 0 || due:
			s.at += uint64(len(resp.Entries))
			return resp, nil
		}
		select {
		case <-changed:
		case <-idle.C:
			due = true
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}
