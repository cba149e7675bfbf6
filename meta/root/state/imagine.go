package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Imagine returns what the State would be behind events that apply together; it is
// unchanged itself. What refuses one of them is returned instead. Imagine may overlap with
// reads of a State that nobody applies to any more, as Assess may.
func (s *State) Imagine(events ...*rootv1.Event) (*State, *rootv1.ErrorDetail) {
	c := &rootv1.Command{}
	for _, e := range events {
		c.Events = append(c.Events, proto.CloneOf(e))
	}
	if d := CheckCommand(c); d != nil {
		return nil, d
	}
	b := s.branch()
	b.token.Index++
	t := turn{State: b, out: new(Applied)}
	t.command(c, false)
	if d := t.out.Results[0].Reject; d != nil {
		return nil, d
	}
	return b, nil
}
