package state_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// RestoreEach is Restore; an error of who has the records is returned, and a
// record that is refused tells it to stop.
func TestRestoreEach(t *testing.T) {
	s := state.New()
	boom := errors.New("boom")
	good := []*rootv1.Record{
		{Kind: &rootv1.Record_Cluster{Cluster: &rootv1.Cluster{ClusterId: 7}}},
		{Kind: &rootv1.Record_Allocators{Allocators: &rootv1.Allocators{IdFence: 9}}},
	}
	bad := append(good, good[0], good[1]) // a kind that was over begins again
	for _, c := range []struct {
		name    string
		records []*rootv1.Record
		end     error
		ok      bool
	}{{"whole", good, nil, true}, {"broken off", good, boom, false}, {"refused", bad, nil, false}} {
		given := 0
		got, err := state.RestoreEach(s.Token(), func(fn func(*rootv1.Record) error) error {
			for _, r := range c.records {
				given++
				if err := fn(proto.CloneOf(r)); err != nil {
					return err
				}
			}
			return c.end
		})
		switch {
		case c.ok && (err != nil || got.Allocators().GetIdFence() != 9):
			t.Errorf("%s: %v, %v", c.name, got, err)
		case !c.ok && err == nil, c.end != nil && !errors.Is(err, c.end):
			t.Errorf("%s: %v", c.name, err)
		case c.name == "refused" && given != 3:
			t.Errorf("%s: %d records were given", c.name, given)
		}
	}
}
