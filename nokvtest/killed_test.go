package nokvtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	"github.com/nokv/nokv/router"
)

// A member is killed before a request comes, or while it runs: callers that use package router go on as they would with
// another process. What was not run goes to the next owner; of what was begun the answer is lost.
func TestDoOfARouterGoesOnBehindAKill(t *testing.T) {
	for _, row := range []struct {
		name             string
		idempotent, runs bool
		want             string // who ran it
	}{
		{name: "before it comes", want: "[m2]"},
		{name: "while it runs", runs: true, want: "[m1]"},
		{name: "while it runs, and it may run again", runs: true, idempotent: true, want: "[m1 m2]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
				members := map[string]*nokvtest.Member{"m1": c.Member(t, "m1", &app{}), "m2": c.Member(t, "m2", &app{})}
				key := []byte("g1")
				c.Assign(t, "games", key, "m1")
				r, err := router.New(router.Config{Client: c.Client(), Keyspaces: []string{"games"}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				defer func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				c.Await(t, "m1 runs requests", func() bool {
					target, err := r.Resolve(ctx, key, router.Options{})
					return err == nil && target.Member == "m1" && members["m1"].Do(ctx, of(target, key), nothing) == nil
				})
				if !row.runs {
					members["m1"].Kill(t)
				}
				var ran []string
				err = r.Do(ctx, key, router.Options{Idempotent: row.idempotent, ReassignOrphans: true}, func(ctx context.Context, target router.Target) error {
					return members[string(target.Member)].Do(ctx, of(target, key), func(context.Context, member.Region) error {
						if ran = append(ran, string(target.Member)); row.runs && len(ran) == 1 {
							members["m1"].Kill(t)
						}
						return nil
					})
				})
				lost := row.runs && !row.idempotent
				if fmt.Sprint(ran) != row.want || lost != errors.Is(err, nokvtest.ErrLost) || !lost && err != nil {
					t.Errorf("run by %v: %v; want %s, and that the answer is lost: %v", ran, err, row.want, lost)
				}
			})
		})
	}
}

func of(t router.Target, key []byte) member.Request {
	return member.Request{Keyspace: "games", Key: key, Region: t.Region.ID, Epoch: t.Epoch}
}
