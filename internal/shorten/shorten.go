// Package shorten keeps answers to commands short enough to be received, wherever
// they are made.
package shorten

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Records in one answer: each may have its share of sharedRecordBytes, and those that
// are longer have pooledRecordBytes together. So an answer is never longer than any
// gRPC client takes, 4 MiB, and who asks for little beside others gets all of it.
const (
	sharedRecordBytes = 1 << 20
	pooledRecordBytes = 2 << 20
)

// budget is what is left of an answer's room for records.
type budget struct{ share, pool int }

// takes says whether a record of so many bytes goes in.
func (b *budget) takes(bytes int) bool {
	if bytes <= b.share {
		return true
	}
	if bytes > b.pool {
		return false
	}
	b.pool -= bytes
	return true
}

// Results leaves out records for which there is no room. An answer that nobody can
// receive would be asked for again and again: what was judged is always told.
func Results(results []*rootv1.CommandResult) {
	records := 0
	for _, r := range results {
		records += max(1, len(r.GetEvents()))
	}
	if records <= 1 {
		return // No record is longer than the command that made it may be.
	}
	room := &budget{share: sharedRecordBytes / records, pool: pooledRecordBytes}
	for _, r := range results {
		if e := r.GetError(); e.GetRegion() != nil && !room.takes(proto.Size(e.GetRegion())) {
			r.Error, r.Shortened = proto.CloneOf(e), true
			r.Error.Region = nil
		}
		for i, e := range r.GetEvents() {
			if room.takes(proto.Size(e)) {
				continue
			}
			r.Shortened = true
			if r.Events[i] = namesOf(e); !room.takes(proto.Size(r.Events[i])) {
				r.Events[i] = &rootv1.EventResult{}
			}
		}
	}
}

// namesOf is what the caller needs to read the records itself, and what it could not.
func namesOf(e *rootv1.EventResult) *rootv1.EventResult {
	out := &rootv1.EventResult{Region: nameOf(e.GetRegion()), RightRegion: nameOf(e.GetRightRegion()), Window: e.GetWindow(), Tenure: e.GetTenure()}
	if t := e.GetTransition(); t != nil {
		out.Transition = &rootv1.Transition{Id: t.GetId()}
	}
	if k := e.GetKeyspace(); k != nil {
		out.Keyspace = &rootv1.Keyspace{Id: k.GetId(), Version: k.GetVersion()}
	}
	return out
}

func nameOf(r *rootv1.Region) *rootv1.Region {
	if r == nil {
		return nil
	}
	return &rootv1.Region{Id: r.GetId(), KeyspaceId: r.GetKeyspaceId(), Epoch: r.GetEpoch()}
}
