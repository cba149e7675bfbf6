package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Records calls fn for each record, in an order that only the State decides:
// kind by kind as in rootv1.Record, each by its key. A record is fn's to read,
// not to change. It stops at fn's first error and returns it.
func (s *State) Records(fn func(*rootv1.Record) error) error {
	e := emitter{fn: fn}
	if s.cluster != nil {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Cluster{Cluster: s.cluster}})
	}
	e.emit(&rootv1.Record{Kind: &rootv1.Record_Allocators{Allocators: s.alloc.proto()}})
	e.emit(&rootv1.Record{Kind: &rootv1.Record_Counters{Counters: s.counters.proto()}})
	if s.tenure != nil {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Tenure{Tenure: s.tenure}})
	}
	for _, h := range s.handovers {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_Handover{Handover: h}})
	}
	s.coordinators.Scan(func(_ CoordinatorID, c *rootv1.Coordinator) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Coordinator{Coordinator: c}})
	})
	s.members.Scan(func(_ MemberID, m *rootv1.Member) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Member{Member: m}})
	})
	s.keyspaces.Scan(func(_ KeyspaceID, k *keyspace) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Keyspace{Keyspace: k.record}})
	})
	s.regions.Scan(func(r *Region) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Region{Region: r.Proto()}})
	})
	s.transitions.Scan(func(_ string, p *rootv1.Transition) bool {
		return e.emit(&rootv1.Record{Kind: &rootv1.Record_Transition{Transition: p}})
	})
	for _, k := range s.pinKeys {
		e.emit(&rootv1.Record{Kind: &rootv1.Record_PinKey{PinKey: k}})
	}
	return e.err
}

// emitter calls fn until it fails.
type emitter struct {
	fn  func(*rootv1.Record) error
	err error
}

func (e *emitter) emit(r *rootv1.Record) bool {
	if e.err == nil {
		e.err = e.fn(r)
	}
	return e.err == nil
}
