package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

const (
	accounts = 60
	opening  = 1000 // of each account
	tellers  = 4
)

func account(i int) string { return fmt.Sprintf("acct/%02d", i) }

// first and behind are the range of all accounts.
const first, behind = "acct/", "acct0"

// openAccounts makes the accounts, all at once.
func openAccounts(ctx context.Context, k *kv) error {
	t, err := k.begin(ctx)
	for i := 0; i < accounts && err == nil; i++ {
		_, err = t.get(ctx, account(i))
		t.put(account(i), []byte(strconv.Itoa(opening)))
	}
	if err != nil {
		return err
	}
	return t.commit(ctx)
}

// transfer moves an amount between two accounts, wherever they are.
func transfer(ctx context.Context, k *kv, from, to string, amount int) error {
	t, err := k.begin(ctx)
	if err != nil {
		return err
	}
	balance := map[string]int{}
	for _, key := range []string{from, to} {
		raw, err := t.get(ctx, key)
		if err != nil {
			return err
		}
		if balance[key], err = strconv.Atoi(string(raw)); err != nil {
			return fmt.Errorf("account %s: %w", key, err)
		}
	}
	if balance[from] < amount {
		return nil
	}
	t.put(from, []byte(strconv.Itoa(balance[from]-amount)))
	t.put(to, []byte(strconv.Itoa(balance[to]+amount)))
	return t.commit(ctx)
}

// audit sums all accounts as they were at one moment.
func audit(ctx context.Context, k *kv) (sum, count int, at client.Timestamp, err error) {
	if at, err = k.now(ctx); err != nil {
		return 0, 0, at, err
	}
	err = k.snapshot(ctx, first, behind, at, func(key string, raw []byte) error {
		n, err := strconv.Atoi(string(raw))
		sum, count = sum+n, count+1
		return err
	})
	return sum, count, at, err
}

// bank has tellers who transfer, and an auditor.
type bank struct {
	kv                                    *kv
	done, conflicts, failed, audits, late atomic.Int64
	lastError                             atomic.Value // of one of these, as text
	begun                                 time.Time
}

// errWrong is what must never be.
type errWrong struct{ said string }

func (e errWrong) Error() string { return e.said }

// run transfers and audits until ctx ends, or a sum is wrong.
func (b *bank) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range tellers {
		all.Go(func() {
			for ctx.Err() == nil {
				from, to := rand.IntN(accounts), rand.IntN(accounts-1)
				if to >= from {
					to++
				}
				err := transfer(ctx, b.kv, account(from), account(to), 1+rand.IntN(10))
				switch {
				case err == nil:
					b.done.Add(1)
				case errors.Is(err, ErrConflict), errors.Is(err, ErrTooOld):
					b.conflicts.Add(1)
				case ctx.Err() == nil:
					b.lastError.Store(err.Error())
					b.failed.Add(1) // of unknown outcome, which is no harm to the sum
					_ = pause(ctx, 100*time.Millisecond)
				}
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			sum, count, at, err := audit(ctx, b.kv)
			switch {
			case err != nil && ctx.Err() == nil:
				b.lastError.Store(err.Error())
				b.late.Add(1)
			case err != nil:
			case sum != accounts*opening || count != accounts:
				cancel(errWrong{fmt.Sprintf("%d accounts have %d in the snapshot at %d, want %d with %d", count, sum, at, accounts, accounts*opening)})
			default:
				b.audits.Add(1)
			}
			_ = pause(ctx, waitPause)
		}
	})
	all.Wait()
	if wrong, ok := errors.AsType[errWrong](context.Cause(ctx)); ok {
		return wrong
	}
	return nil
}

// String is what a bank did, and where its time went.
func (b *bank) String() string {
	k, took := b.kv, time.Since(b.begun).Seconds()
	nanos := k.stampNanos.Load() + k.routeNanos.Load() + k.storeNanos.Load() + k.pauses.Load()
	share := func(n int64) float64 { return 100 * float64(n) / float64(max(nanos, 1)) }
	last, _ := b.lastError.Load().(string)
	if last != "" {
		last = "; the last error: " + last
	}
	return fmt.Sprintf("%d transfers (%.0f a second), %d conflicts, %d of unknown outcome; %d snapshots, all of them of %d, %d given up; "+
		"waited for timestamps %.1f%%, routes %.2f%%, stores %.1f%%, stores that were away %.1f%%; "+
		"%d of %d calls refused by stores, %d of them repaired in one retry, the others when the region's change was over; %d locks of the dead ended%s",
		b.done.Load(), float64(b.done.Load())/took, b.conflicts.Load(), b.failed.Load(), b.audits.Load(), accounts*opening, b.late.Load(),
		share(k.stampNanos.Load()), share(k.routeNanos.Load()), share(k.storeNanos.Load()), share(k.pauses.Load()),
		k.refused.Load(), k.calls.Load(), k.repaired.Load(), k.ended.Load(), last)
}
