package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member/fence"
	"github.com/nokv/nokv/rooted"
)

// recipe are the statements by which docs/members.md has SQL refuse owners of lower epochs.
type recipe struct{ setup, raise, check string }

func theRecipe(t *testing.T) (r recipe) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/members.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(raw), "```sql\n")
	text, _, ended := strings.Cut(text, "```")
	setup, rest, two := strings.Cut(text, "  -- at Acquire")
	raise, check, three := strings.Cut(rest, "  -- each write")
	if !found || !ended || !two || !three {
		t.Fatal("docs/members.md has no recipe for SQL any more, or one of other parts")
	}
	behind := func(s string) string { _, s, _ = strings.Cut(s, "\n"); return s } // the comment
	return recipe{setup, behind(raise), behind(check)}
}

// epochs are an owner's, and its keys as SQL has them: the end of all keys is one byte more than any has.
func (r recipe) args(keys fence.Keys, e rooted.Epoch) []any {
	end := []byte(keys.End)
	if keys.End == "" {
		end = []byte(strings.Repeat("\xff", rooted.MaxKeyBytes+1))
	}
	return []any{[]byte(keys.Start), end, int64(e.Version), int64(e.ConfVersion)}
}

// The recipe of the document, as it stands there, refuses and lets in what fence.Guard does, through
// thousands of random owners of ranges that are cut and joined; and whoever takes keys over waits for
// writes that have been let in, and lets none in behind them.
func TestC01TheSQLOfTheDocumentIsAFence(t *testing.T) {
	t.Parallel()
	data, r := startPostgres(t), theRecipe(t)
	ctx := t.Context()
	var db, other *pgx.Conn
	proctest.Eventually(t, proctest.Patience, func() (err error) {
		if db, err = pgx.Connect(ctx, at(data)); err == nil {
			other, err = pgx.Connect(ctx, at(data))
		}
		return err
	})
	defer func() { _ = errors.Join(db.Close(context.Background()), other.Close(context.Background())) }()
	if _, err := db.Exec(ctx, r.setup); err != nil {
		t.Fatal(err)
	}
	raise := func(c *pgx.Conn, keys fence.Keys, e rooted.Epoch) error {
		_, err := c.Exec(ctx, r.raise, r.args(keys, e)...)
		if err != nil && !strings.Contains(err.Error(), "fenced") {
			t.Fatal(err)
		}
		return err
	}
	owns := func(c interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}, keys fence.Keys, e rooted.Epoch,
	) bool {
		var one int
		err := c.QueryRow(ctx, r.check, r.args(keys, e)...).Scan(&one)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		return err == nil
	}

	type owner struct {
		keys  fence.Keys
		epoch rooted.Epoch
	}
	var guard fence.Guard
	var owners []owner
	rng := rand.New(rand.NewPCG(1, 2))
	raised, refused, wrote, stale := 0, 0, 0, 0
	for step := range 3000 {
		if len(owners) == 0 || rng.IntN(3) == 0 {
			from, to := rng.IntN(9), 10
			if to = from + 1 + rng.IntN(9-from); to == 9 && rng.IntN(2) == 0 {
				to = 10
			}
			keys := fence.Keys{Start: strings.Repeat(fmt.Sprint(from), min(from, 1)), End: fmt.Sprint(to)}
			if to == 10 {
				keys.End = ""
			}
			// Of a late one the epoch is lower than others'; none is there twice.
			o := owner{keys, rooted.Epoch{Version: uint64(1 + max(0, step/10-rng.IntN(3)*rng.IntN(40))), ConfVersion: uint64(step)}}
			err, want := raise(db, o.keys, o.epoch), guard.Raise(o.keys, o.epoch)
			if (err == nil) != (want == nil) {
				t.Fatalf("step %d: the recipe says %v of %v at %v, the guard %v", step, err, o.keys, o.epoch, want)
			}
			if err != nil {
				refused++
				continue
			}
			raised++
			owners = append(owners, o)
			continue
		}
		o := owners[max(0, len(owners)-1-rng.IntN(8))]
		got, want := owns(db, o.keys, o.epoch), guard.Do(o.keys, o.epoch, func() error { return nil })
		if got != (want == nil) {
			t.Fatalf("step %d: the recipe says %t of %v at %v, the guard %v", step, got, o.keys, o.epoch, want)
		}
		if wrote++; !got {
			stale++
		}
	}
	if raised < 300 || refused < 100 || stale < 300 || stale > wrote-300 {
		t.Errorf("%d raised, %d refused, %d of %d writes refused: too few of a kind", raised, refused, stale, wrote)
	}

	// With an older snapshot it would not see who was there before the lock.
	old, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(ctx, r.raise, r.args(fence.Keys{}, rooted.Epoch{Version: 1 << 50})...); err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("raised in a transaction of REPEATABLE READ: %v", err)
	}
	if err := old.Rollback(ctx); err != nil {
		t.Fatal(err)
	}

	all, next := fence.Keys{}, owner{fence.Keys{Start: "5"}, rooted.Epoch{Version: 1 << 40, ConfVersion: 2}}
	last := owner{all, rooted.Epoch{Version: 1 << 40, ConfVersion: 1}}
	if err := raise(db, last.keys, last.epoch); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !owns(tx, last.keys, last.epoch) {
		t.Fatal("the owner may not write")
	}
	taken := make(chan error, 1)
	go func() { taken <- raise(other, next.keys, next.epoch) }()
	proctest.Eventually(t, proctest.Patience, func() error {
		var waits int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waits); err != nil || waits == 0 {
			return fmt.Errorf("nobody waits: %w", err)
		}
		return nil
	})
	select {
	case err := <-taken:
		t.Fatalf("the next owner is in while a write goes on: %v", err)
	default:
	}
	if err := errors.Join(tx.Commit(ctx), <-taken); err != nil {
		t.Fatal(err)
	}
	if owns(db, last.keys, last.epoch) || !owns(db, next.keys, next.epoch) {
		t.Error("behind the next owner the last one writes, or the next one does not")
	}
}
