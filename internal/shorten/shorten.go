// Package shorten keeps answers to commands short enough to be received, wherever
// they are made.
package shorten

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// recordBytes is what all records of one answer may have: with what is told beside
// them it is not longer than any gRPC client takes, 4 MiB. Ids, epochs and windows
// are always told, and no request that may be sent has more than recordBytes of
// them. Of the rest each record may have its share of a third, and those that are
// longer have the other two thirds together: who asks for little beside others gets
// all of it.
const recordBytes = 3 << 20

// budget is what is left of an answer's room for records.
type budget struct{ share, pool int }

// takes says whether so many bytes more of a record go in.
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
// receive would be asked for again and again: what was judged is always told, and
// so is what it gave, since nobody can ask for a window again.
func Results(results []*rootv1.CommandResult) {
	records, bytes, least := 0, 0, 0
	for _, r := range results {
		records += max(1, len(r.GetEvents()))
		bytes += proto.Size(r.GetError().GetRegion())
		for _, e := range r.GetEvents() {
			bytes += lengthBytes + proto.Size(e)
		}
	}
	if records <= 1 || bytes <= recordBytes {
		return // No record is longer than the command that made it may be.
	}
	for _, r := range results {
		least += proto.Size(nameOf(r.GetError().GetRegion()))
		for _, e := range r.GetEvents() {
			least += lengthBytes + proto.Size(numbersOf(e))
		}
	}
	rest := max(0, recordBytes-least)
	room := &budget{share: rest / 3 / records, pool: rest / 3 * 2}
	for _, r := range results {
		shortenError(r, room)
		for i, e := range r.GetEvents() {
			numbers := numbersOf(e)
			told := proto.Size(numbers)
			if room.takes(proto.Size(e) - told) {
				continue
			}
			r.Shortened = true
			if r.Events[i] = namesOf(e); !room.takes(proto.Size(r.Events[i]) - told) {
				r.Events[i] = numbers
			}
		}
	}
}

// lengthBytes is what a record has around it in the list that it is in.
const lengthBytes = 2

// shortenError leaves the region that is in a command's way out of its error.
func shortenError(r *rootv1.CommandResult, room *budget) {
	region := r.GetError().GetRegion()
	name := nameOf(region)
	if region == nil || room.takes(proto.Size(region)-proto.Size(name)) {
		return
	}
	r.Error, r.Shortened = proto.CloneOf(r.GetError()), true
	r.Error.Region = name
}

// numbersOf is what was given, and what the caller needs to read the records itself.
func numbersOf(e *rootv1.EventResult) *rootv1.EventResult {
	out := &rootv1.EventResult{Region: nameOf(e.GetRegion()), RightRegion: nameOf(e.GetRightRegion()), Window: e.GetWindow()}
	if k := e.GetKeyspace(); k != nil {
		out.Keyspace = &rootv1.Keyspace{Id: k.GetId(), Version: k.GetVersion()}
	}
	if m := e.GetMember(); m != nil {
		out.Member = &rootv1.Member{Id: m.GetId(), Incarnation: m.GetIncarnation()}
	}
	return out
}

// namesOf is numbersOf, and what the caller could not read elsewhere.
func namesOf(e *rootv1.EventResult) *rootv1.EventResult {
	out := numbersOf(e)
	out.Tenure = e.GetTenure()
	if t := e.GetTransition(); t != nil {
		out.Transition = &rootv1.Transition{Id: t.GetId()}
	}
	return out
}

func nameOf(r *rootv1.Region) *rootv1.Region {
	if r == nil {
		return nil
	}
	return &rootv1.Region{Id: r.GetId(), KeyspaceId: r.GetKeyspaceId(), Epoch: r.GetEpoch()}
}
