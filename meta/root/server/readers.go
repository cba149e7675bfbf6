package server

import (
	"cmp"
	"context"
	"slices"

	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/mtls/principal"
)

// Reader is a tail stream as operators see it.
type Reader struct {
	// ID is the coordinator that reads; empty for a tool.
	ID string `json:"id"`
	// Remote is the address it reads from.
	Remote string `json:"remote"`
	// Index is the last entry sent to it.
	Index uint64 `json:"index"`
	// Lag is how many committed entries it has not been sent.
	Lag uint64 `json:"lag"`
	// Seconds is how long it has been reading.
	Seconds float64 `json:"seconds"`
}

// Metrics are the server's numbers at one moment, for expvar.
type Metrics struct {
	// Readers are the tails, the slowest first.
	Readers []Reader `json:"readers"`
	// CutReaders counts streams that were ended because they did not keep up.
	CutReaders uint64 `json:"cut_readers"`
	// Proposals is the number of requests with the replica.
	Proposals int64 `json:"proposals"`
	// Snapshots is the number of snapshots being sent.
	Snapshots int64 `json:"snapshots"`
	// RPCs counts requests by method, those in streams too; Streams are what those came in.
	RPCs    map[string]rpcstats.MethodSnapshot `json:"rpcs"`
	Streams map[string]rpcstats.StreamSnapshot `json:"streams"`
	// Access counts refusals and callers. Nil without certificates.
	Access *access.Metrics `json:"access"`
}

// Metrics returns the server's numbers.
func (s *Server) Metrics() Metrics {
	return Metrics{
		Readers: s.Readers(), CutReaders: s.cut.Load(), Proposals: s.proposals.Taken(),
		Snapshots: s.snapshots.all.Taken(), RPCs: s.stats.Snapshot(), Streams: s.stats.Streams(), Access: s.cfg.Access.Metrics(),
	}
}

// Readers lists the tails, the slowest first.
func (s *Server) Readers() []Reader {
	commit := s.cfg.Replica.View().Commit
	s.mu.Lock()
	out := make([]Reader, 0, len(s.readers))
	for r := range s.readers {
		one := Reader{ID: r.id, Remote: r.remote, Index: r.position.Load(), Seconds: s.cfg.Clock.Now().Sub(r.since).Seconds()}
		if commit > one.Index {
			one.Lag = commit - one.Index
		}
		out = append(out, one)
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b Reader) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Remote, b.Remote))
	})
	return out
}

func (s *Server) readerCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.readers)
}

func (s *Server) addReader(r *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[r] = struct{}{}
}

func (s *Server) removeReader(r *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, r)
}

// desk has places for readers of one kind: tools have a quarter of them, so that
// coordinators, who cannot serve without, find one.
type desk struct{ all, tools *places.Places }

func newDesk(what string, limit int64) desk {
	return desk{places.New(what, limit), places.New(what+" for others than coordinators", max(limit/4, 1))}
}

// enter takes a place for a reader, by the name that it gave. leave must follow.
func (d desk) enter(ctx context.Context, name string) (leave func(), err error) {
	who := places.Of(ctx)
	tool := name == ""
	if p := principal.FromContext(ctx); p.Known() {
		tool = p.Role != principal.Coordinator && p.Role != principal.Root
	}
	if tool {
		if err := d.tools.Enter(who); err != nil {
			return nil, err
		}
	}
	if err = d.all.Enter(who); err != nil && tool {
		d.tools.Leave(who)
	}
	return func() {
		d.all.Leave(who)
		if tool {
			d.tools.Leave(who)
		}
	}, err
}
