package server_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// caller is the Go client of the coordinator.
func (w *world) caller(t *testing.T, options ...grpc.DialOption) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }),
	)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// region is the rooted one, in short; "" when there is none.
func (w *world) region(id rooted.RegionID) string {
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	if r := w.root.state.Region(id); r != nil {
		return brief(&r.Region)
	}
	return ""
}

func brief(r *rooted.Region) string {
	text := r.Start + ".." + r.End + " " + r.Epoch.String()
	for _, o := range r.Owners {
		text += " " + string(o.Member)
	}
	return text
}

// Regions are split, merged, assigned and moved, and each call says what it made.
func TestRegionsByTheGoClient(t *testing.T) {
	w := start(t)
	c, ctx := w.caller(t), within(t)
	w.must(t, created("k"), join("m1"), join("m2"))
	k, err := c.GetKeyspace(ctx, "k", client.Strong())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := c.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.KeyspaceID(k.Keyspace.GetId()), Start: "a", End: "m"})
	if err != nil {
		t.Fatal(err)
	}
	id := whole.Region.ID
	check := func(what string, made *rooted.Region, want string) {
		t.Helper()
		if brief(made) != want || w.region(made.ID) != want {
			t.Errorf("%s made %q, and %q is rooted, want %q", what, brief(made), w.region(made.ID), want)
		}
	}
	parts, err := c.SplitRegion(ctx, id, []byte("g"), 90)
	if err != nil {
		t.Fatal(err)
	}
	check("the split", parts.Left, "a..g 2.1")
	check("the split", parts.Right, "g..m 2.1")
	if parts.Left.ID != id || parts.Right.ID != 90 || parts.Token.Compare(whole.Token) <= 0 {
		t.Errorf("parts %d and %d at %s", parts.Left.ID, parts.Right.ID, parts.Token)
	}
	joined, err := c.MergeRegions(ctx, id, 90)
	if err != nil {
		t.Fatal(err)
	}
	check("the merge", joined.Region, "a..m 3.1")
	if w.region(90) != "" || !joined.Changed || joined.Token.Compare(parts.Token) <= 0 {
		t.Errorf("merged: %t at %s, and the right one is %q", joined.Changed, joined.Token, w.region(90))
	}
	assignment := &rootv1.Assignment{RegionId: uint64(id), ExpectedEpoch: joined.Region.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1"}}}
	assigned, err := c.AssignRegions(ctx, 0, assignment)
	if err != nil || !assigned.GetChanged() || w.region(id) != "a..m 3.2 m1" {
		t.Errorf("assigned %v, %v: %q", assigned, err, w.region(id))
	}
	if again, err := c.AssignRegions(ctx, 0, assignment); err != nil || again.GetChanged() {
		t.Errorf("assigned again: %v, %v", again, err)
	}
	moved, err := c.MoveRegion(ctx, id, "m1", "m2")
	if err != nil {
		t.Fatal(err)
	}
	check("the move", moved.Region, "a..m 3.3 m2")

	assignment.Owners[0].MemberId = "m1"
	for name, refused := range map[string]struct {
		err  error
		want error
	}{
		"split outside":              {second(c.SplitRegion(ctx, id, []byte("z"), 0)), client.ErrInvalidRange},
		"split of nothing":           {second(c.SplitRegion(ctx, 77, []byte("g"), 0)), client.ErrNotFound},
		"merge of strangers":         {second(c.MergeRegions(ctx, id, id)), client.ErrInvalidRange},
		"move from who has nothing":  {second(c.MoveRegion(ctx, id, "m1", "m2")), client.ErrNotFound},
		"assignment behind an epoch": {second(c.AssignRegions(ctx, 0, assignment)), client.ErrEpochStale},
		"assignment in no era":       {second(c.AssignRegions(ctx, 99, assignment)), client.ErrEraStale},
	} {
		if !errors.Is(refused.err, refused.want) {
			t.Errorf("%s: %v, want %v", name, refused.err, refused.want)
		}
	}
	if got := w.region(id); got != "a..m 3.3 m2" {
		t.Errorf("a refused change made %q", got)
	}
}

func second[T any](_ T, err error) error { return err }

// Pin keys follow each other, and a caller who saw an older one is told.
func TestPinKeysByTheGoClient(t *testing.T) {
	w := start(t)
	c, ctx := w.caller(t), within(t)
	for newest := range uint32(3) {
		if id, err := c.RotatePinKey(ctx, newest); err != nil || id != newest+1 {
			t.Errorf("behind key %d: %d, %v", newest, id, err)
		}
	}
	if _, err := c.RotatePinKey(ctx, 1); !errors.Is(err, client.ErrVersionStale) {
		t.Errorf("behind an old key: %v", err)
	}
}
