package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestRule8TheClientWaitsForTheOwner: a region whose owner acts for it is not cut under
// its feet: SplitRegion and MergeRegions return when it has let go, or say why not.
func TestRule8TheClientWaitsForTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		defer w.end(t)
		w.must(t, created("k"), join("m1"))
		c, ctx := w.caller(t), within(t)
		k, err := c.GetKeyspace(ctx, "k", client.Strong())
		if err != nil {
			t.Fatal(err)
		}
		whole, err := c.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.KeyspaceID(k.Keyspace.GetId()), Start: "a", End: "m", Owners: []rooted.Owner{{Member: "m1"}}})
		if err != nil {
			t.Fatal(err)
		}
		id := whole.Region.ID
		m := w.hosted(t, "m1")
		// then ends a plan once the member has been shown that it lets go, in however many
		// answers.
		then := func(plan string, end *rootv1.Event) {
			time.Sleep(300 * time.Millisecond)
			for move := m.has[uint64(id)].GetMove(); move.GetTransitionId() != plan || !move.GetReleaseNow(); move = m.has[uint64(id)].GetMove() {
				m.hear()
			}
			w.must(t, end)
		}
		done := func(id, frontier string) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: id, SetFrontier: true, Frontier: []byte(frontier)}}}
		}

		split, merge := "split-"+fmt.Sprint(id)+"-1.1", "merge-"+fmt.Sprint(id)+"-2.1"
		go then(split, done(split, "f"))
		parts, err := c.SplitRegion(ctx, id, []byte("g"), 90)
		if err != nil || brief(parts.Left) != "a..g 2.1 m1" || brief(parts.Right) != "g..m 2.1 m1" || parts.Left.Frontier != "f" || parts.Right.Frontier != "f" {
			t.Fatalf("the split made %+v, %v", parts, err)
		}

		go then(merge, &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{
			TransitionId: merge, Aborted: true, Reason: "its deadline has passed",
		}}})
		if _, err := c.MergeRegions(ctx, id, 90); !errors.Is(err, client.ErrTransitionClosed) || !strings.Contains(err.Error(), "its deadline has passed") {
			t.Errorf("a merge that is given up: %v", err)
		}
		for m.has[uint64(id)].GetMove() != nil {
			m.hear()
		}

		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := c.MergeRegions(short, id, 90); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "is planned, and goes on") {
			t.Errorf("a caller that does not wait: %v", err)
		}
		go then(merge, done(merge, "g")) // it is the same plan, and is joined
		if merged, err := c.MergeRegions(ctx, id, 90); err != nil || brief(merged.Region) != "a..m 3.1 m1" || merged.Region.Frontier != "g" {
			t.Errorf("the merge made %+v, %v", merged, err)
		}
	})
}
